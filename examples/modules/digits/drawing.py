"""Formulas drawn as strokes, and strokes made an image: the part that your own model replaces.

An image is made of strokes here, for training, and in app.mjs, of what is drawn in the page, by
the same arithmetic in the same order, so that both give the same pixels:

1. Move and scale all strokes together, so that their box is BODY pixels high and BORDER pixels
   from the left, in the middle of HEIGHT. What is lower than a fifth of the drawing area
   is not scaled up further: a minus sign stays flat.
2. A pixel's ink is 1 within PEN pixels of a stroke, from its centre, and falls to 0 over the next
   pixel. Ink does not add up where strokes cross.
"""

import math

import numpy as np
from numpy.typing import NDArray

Stroke = NDArray[np.float64]  # (points, 2): x to the right and y down, in heights of the area
Image = NDArray[np.float32]  # (1, HEIGHT, width): 0 paper, 1 ink

HEIGHT, BODY, BORDER, PEN = 32, 22.0, 8.0, 0.8
LEAST_BOX = 0.2
WIDEST = 512


def rasterize(strokes: list[Stroke]) -> Image:
    """The image of strokes.

    Raises:
        ValueError: no stroke, or wider than WIDEST pixels.
    """
    if not strokes:
        raise ValueError("Nothing is drawn.")
    points = np.concatenate(strokes)
    left, top = points.min(axis=0)
    right, bottom = points.max(axis=0)
    scale = BODY / max(bottom - top, LEAST_BOX)
    width = math.ceil((right - left) * scale + 2 * BORDER)
    if width > WIDEST:
        raise ValueError(f"{width} pixels are wider than the model reads: {WIDEST} at most.")
    middle = (top + bottom) / 2
    ink = np.zeros((HEIGHT, width))
    for stroke in strokes:
        x = (stroke[:, 0] - left) * scale + BORDER
        y = (stroke[:, 1] - middle) * scale + HEIGHT / 2
        draw_lines(ink, x, y)
    return ink[None].astype(np.float32)


def draw_lines(ink: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
    """Draw a line from each point (x, y) to the next; one point alone is a dot."""
    if len(x) == 1:
        x, y = x.repeat(2), y.repeat(2)
    # Only the pixels about the stroke are looked at.
    height, width = ink.shape
    x0, x1 = max(0, math.floor(x.min()) - 2), min(width, math.ceil(x.max()) + 2)
    y0, y1 = max(0, math.floor(y.min()) - 2), min(height, math.ceil(y.max()) + 2)
    dx, dy = (np.diff(axis)[:, None, None] for axis in (x, y))  # (lines, 1, 1)
    # Pixel centres, seen from where each line begins.
    from_x = np.arange(x0, x1) + 0.5 - x[:-1, None, None]
    from_y = np.arange(y0, y1)[:, None] + 0.5 - y[:-1, None, None]
    squared = np.maximum(dx * dx + dy * dy, 1e-9)
    # The place along the line that is nearest to each pixel, from 0 where it begins to 1.
    along = np.clip((from_x * dx + from_y * dy) / squared, 0, 1)
    from_x, from_y = from_x - along * dx, from_y - along * dy
    distance = np.sqrt((from_x * from_x + from_y * from_y).min(axis=0))
    part = ink[y0:y1, x0:x1]
    np.maximum(part, np.clip(PEN + 1 - distance, 0, 1), out=part)


# Each character in the ways that people write it, as strokes in a box of height 1. "~" before a
# stroke: a smooth curve through its points; else straight lines.
GLYPHS = {
    "0": ["~.30,0 .08,.2 .02,.5 .1,.85 .3,1 .5,.85 .58,.5 .52,.18 .30,0"],
    "1": [".1,.25 .3,0 .3,1", ".2,0 .2,1", ".05,.3 .3,0 .3,1|.05,1 .55,1"],
    "2": [
        "~.05,.25 .15,.05 .35,0 .52,.12 .5,.35 .3,.65 .03,.98 .06,1 .3,.98 .6,.98",
        "~.05,.25 .3,0 .52,.2 .4,.5 .1,.9 .1,.98 .2,.8 .35,.9 .6,1",
    ],
    "3": [
        "~.05,.12 .25,0 .48,.1 .46,.33 .22,.46 .5,.58 .55,.8 .35,1 .1,.97 .02,.85",
        ".05,0 .52,0 .25,.4|~.25,.4 .5,.5 .55,.75 .35,1 .1,.97 .02,.85",
    ],
    "4": [
        ".35,0 .02,.65 .6,.65|.42,.35 .42,1",
        ".1,0 .05,.5 .55,.5|.5,0 .48,1",
        ".42,1 .42,0 .02,.7 .6,.7",
    ],
    "5": [
        ".12,0 .08,.42|~.08,.42 .3,.36 .52,.5 .54,.75 .38,.97 .15,1 .02,.88|.12,0 .52,0",
        ".52,0 .12,0 .08,.42|~.08,.42 .35,.36 .55,.6 .5,.85 .3,1 .02,.92",
    ],
    "6": [
        "~.45,0 .2,.2 .05,.55 .08,.85 .28,1 .5,.9 .54,.7 .4,.52 .2,.55 .06,.75",
        "~.3,0 .08,.4 .05,.8 .25,1 .5,.85 .45,.6 .2,.58 .07,.8",
    ],
    "7": [".03,.02 .55,.02 .2,1", ".03,.02 .55,.02 .25,1|.12,.5 .5,.5", ".03,.15 .03,0 .55,0 .3,1"],
    "8": [
        "~.5,.12 .28,0 .08,.15 .15,.38 .4,.55 .54,.78 .4,.98 .15,.98 .04,.78 .2,.52 .45,.35 .5,.12",
        "~.3,.47 .08,.25 .28,0 .5,.22 .3,.47 .02,.75 .3,1 .56,.75 .3,.47",
    ],
    "9": [
        "~.5,.2 .3,0 .08,.12 .06,.38 .25,.52 .48,.38 .52,.15 .5,.6 .42,1",
        "~.52,.15 .3,0 .06,.2 .2,.48 .45,.4 .52,.15 .5,.7 .35,.97 .08,.95",
        "~.5,.1 .25,0 .05,.25 .2,.5 .48,.35|.5,.05 .5,1",
    ],
    "+": [".02,.5 .58,.5|.3,.22 .3,.78", ".3,.2 .3,.8|.02,.5 .58,.5"],
    "-": [".05,.5 .55,.5"],
    "×": [".08,.28 .52,.75|.52,.28 .08,.75"],
    "=": [".05,.38 .55,.38|.05,.64 .55,.64"],
}
CHARACTERS = "".join(GLYPHS)


def smooth(points: Stroke, parts: int = 4) -> Stroke:
    """A Catmull-Rom curve through points, each of its pieces in so many lines."""
    padded = np.concatenate([points[:1], points, points[-1:]])
    a, b, c, d = (padded[i : len(padded) - 3 + i, None] for i in range(4))
    t = np.linspace(0, 1, parts, endpoint=False)[:, None]
    curve = b + t * ((c - a) + t * ((2 * a - 5 * b + 4 * c - d) + t * (3 * (b - c) + d - a))) / 2
    return np.concatenate([curve.reshape(-1, 2), points[-1:]])


def draw_character(character: str, draw: np.random.Generator) -> list[Stroke]:
    """A character in a random hand: points moved, the whole turned, slanted and stretched."""
    angle, slant = draw.normal(0, 0.08), draw.normal(0.05, 0.15)
    matrix = np.array([[1, -slant], [0, 1]]) * draw.uniform(0.75, 1.25, (2, 1))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    strokes = []
    for stroke in draw.choice(GLYPHS[character]).split("|"):
        points = np.array([[float(n) for n in xy.split(",")] for xy in stroke.strip("~").split()])
        points = (points + draw.normal(0, 0.03, points.shape) - [0.3, 0.5]) @ (turn @ matrix).T
        strokes.append(smooth(points) if stroke.startswith("~") else points)
    return strokes


def draw_text(text: str, draw: np.random.Generator) -> list[Stroke]:
    """The strokes of a row of characters, side by side."""
    strokes: list[Stroke] = []
    end, slope = 0.0, draw.normal(0, 0.03)
    for character in text:
        drawn = draw_character(character, draw)
        points = np.concatenate(drawn)
        shift = end - points[:, 0].min() + draw.uniform(0.08, 0.5)
        end = points[:, 0].max() + shift
        offset = [shift, end * slope + draw.normal(0, 0.05)]
        strokes += [stroke + offset for stroke in drawn]
    return strokes


def draw_formula(draw: np.random.Generator) -> str:
    """Numbers of 1 to 3 digits with signs between them, or one number, of up to 7 characters."""
    text = str(draw.integers(10 ** int(draw.integers(1, 4))))
    while len(text) < 6 and draw.random() < 0.55:
        sign = draw.choice(list("+-×="))
        text += f"{sign}{draw.integers(10 ** int(draw.integers(1, 3)))}"
    return text[:7]
