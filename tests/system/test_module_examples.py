"""The programs in examples/modules: trained for a moment, exported, decoded without torch.

How well they do after their whole training stands in examples/README.md; here the tokens of every
way have to be those of the example's own loop in PyTorch, whatever the model has learned.
"""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnxruntime import InferenceSession

from tests.conftest import Once
from tests.support.browser import open_page, wait_for_status
from tests.support.combinations import few_of
from tests.support.paths import REPOSITORY
from tfexport.export import export
from tfexport.runtime import Translator

pytestmark = pytest.mark.slow
MODULES = REPOSITORY / "examples" / "modules"
STEPS = {"digits/digits.py": 250, "rotary.py": 30, "speech.py": 60}
FORMULAS = ["12+7", "3×4", "650", "95", "2+2=4"]


def run_example(script: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, MODULES / script, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def translate_without_torch(bundle: Path, *arguments: object, text: str = "") -> list[str]:
    """The command line's lines, from the environment that has no torch."""
    python = REPOSITORY / ".venv-runtime" / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not python.exists():
        pytest.skip("needs .venv-runtime: run the tests with 'make test'")
    code = "from tfexport.cli.main import main; main()"
    done = subprocess.run(
        [python, "-c", code, "translate", bundle, *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def load(script: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    path = MODULES / script
    monkeypatch.syspath_prepend(path.parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=few_of(STEPS, "speech.py"))
def trained(request: pytest.FixtureRequest, once: Once) -> tuple[str, Path]:
    """An example, and the folder in which it left all that it writes."""
    return request.param, train(request.param, once)


def train(script: str, once: Once) -> Path:
    def make(folder: Path) -> None:
        folder.mkdir()
        more = ["--layers", 1] if script == "rotary.py" else ["--samples", folder / "samples.npz"]
        steps = STEPS[script]
        printed = run_example(script, "--output", folder / "model.bundle", "--steps", steps, *more)
        (folder / "printed.txt").write_text(printed, encoding="utf-8")

    return once(f"examples/{Path(script).stem}", make)


def test_tokens_are_those_of_pytorch(trained: tuple[str, Path]) -> None:
    _, folder = trained
    printed = (folder / "printed.txt").read_text(encoding="utf-8")
    assert re.search(r"of 100 .*\b100 as PyTorch", printed), printed


def test_command_line_decodes_without_torch(
    trained: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    script, folder = trained
    example = load(script, monkeypatch)
    bundle = folder / "model.bundle"
    if script == "rotary.py":
        texts, expected = rotary_texts(example, folder)
        found = translate_without_torch(bundle, text="".join(f"{text}\n" for text in texts))
    else:
        expected = read_samples(script, example, folder)
        found = translate_without_torch(bundle, "--inputs", folder / "samples.npz")
    assert found == expected


def read_samples(script: str, example: Any, folder: Path) -> list[str]:
    """What the example's own loop reads in its samples."""
    digits = script == "digits/digits.py"
    model = example.Reader() if digits else example.Listener()
    names = example.VOCABULARY if digits else [*example.SPECIAL, *example.NAMES]
    model.load_state_dict(torch.load(folder / "model.pt"))
    model.eval()
    with np.load(folder / "samples.npz") as samples:
        rows = [example.greedy(model, samples[name]) for name in samples.files]
    return [
        ("" if digits else " ").join(names[token] for token in row if token > 2) for row in rows
    ]


def rotary_texts(example: Any, folder: Path) -> tuple[list[str], list[str]]:
    """Dates, and what the example's own loop makes of them."""
    tokenizer = example.Tokenizer.from_file(str(folder / "model.tokenizer.json"))
    model = example.Recomputing(1)
    model.load_state_dict(torch.load(folder / "model.pt"))
    draw = example.random.Random(5)
    texts = [example.draw_pair(draw)[0] for _ in range(20)]
    rows = [example.greedy(model.eval(), tokenizer.encode(text).ids) for text in texts]
    return texts, [tokenizer.decode(row) for row in rows]


@pytest.mark.exhaustive
def test_rotary_without_its_cache_writes_the_same(
    once: Once, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One graph only: the whole bundle of ``--recompute`` takes as long as that with the cache."""
    folder = train("rotary.py", once)
    example = load("rotary.py", monkeypatch)
    texts, expected = rotary_texts(example, folder)
    model = example.Recomputing(1)
    model.load_state_dict(torch.load(folder / "model.pt"))

    def export_graph(*arguments: Any, tokenizer: Path, **options: Any) -> None:
        export(*arguments, graph="generate", verify=False, **options)

    monkeypatch.setattr(example, "export", export_graph)
    tokenizer_file = folder / "model.tokenizer.json"
    example.write_bundle(model.eval(), tmp_path / "recompute.onnx", tokenizer_file)
    tokenizer = example.Tokenizer.from_file(str(tokenizer_file))
    session = InferenceSession(tmp_path / "recompute.onnx")
    found = []
    for text in texts:
        ids = np.array([tokenizer.encode(text).ids])
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        feeds["max_length"] = np.array(example.MAX_LENGTH)
        found.append(tokenizer.decode(session.run(["sequences"], feeds)[0][0].tolist()))
    assert found == expected


@pytest.fixture(scope="module")
def page(once: Once, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page in a browser, with a model beside it."""
    trained = train("digits/digits.py", once)
    root = tmp_path_factory.mktemp("digits")
    folder = root / "modules" / "digits"
    folder.mkdir(parents=True)
    (root / "web").symlink_to(REPOSITORY / "examples" / "web")
    for part in (MODULES / "digits").iterdir():
        if part.suffix in (".html", ".css", ".mjs"):
            (folder / part.name).symlink_to(part)
    for name in ("model.onnx", "model.tokenizer.json"):
        (folder / name).symlink_to(trained / name)
    with open_page(root, "modules/digits/") as browser:
        browser.bundle = trained / "model.bundle"
        yield browser


def run_in_page(page: Any, code: str, *arguments: object) -> Any:
    """Run an asynchronous function of arguments, and give its result."""
    whole = f"const done = arguments[{len(arguments)}]; ({code})(...arguments).then(done, done);"
    return page.execute_async_script(whole, *arguments)


PIXELS = """async (strokes) => {
  const { rasterize } = await import("./pixels.mjs");
  const { drawing } = await import("./app.mjs");
  const { data, height, width } = rasterize(strokes ?? drawing.strokes);
  return [Array.from(data), height, width];
}"""


def pixels(page: Any, strokes: list[list[list[float]]] | None = None) -> Any:
    """The page's image of strokes, by default of those on its drawing area."""
    data, height, width = run_in_page(page, PIXELS, strokes)
    return np.array(data, np.float32).reshape(1, height, width)


@pytest.mark.exhaustive
def test_page_and_python_make_the_same_pixels(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = load("digits/drawing.py", monkeypatch)
    draw = np.random.default_rng(3)
    drawings = [drawing.draw_text(drawing.draw_formula(draw), draw) for _ in range(5)]
    drawings.append([np.array([[0.4, 0.3]]), np.array([[0.5, 0.3], [0.5, 0.3], [0.7, 0.3]])])
    for strokes in drawings:
        expected = drawing.rasterize(strokes)
        found = pixels(page, [stroke.tolist() for stroke in strokes])
        np.testing.assert_array_equal(found, expected)


def draw_on(page: Any, strokes: list[Any]) -> None:
    """Draw with the mouse: strokes in heights of the drawing area."""
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

    box = page.find_element("id", "area").rect
    actions: Any = ActionBuilder(page, duration=0)
    for stroke in strokes:
        places = [
            (round(box["x"] + x * box["height"]), round(box["y"] + y * box["height"]))
            for x, y in stroke
        ]
        actions.pointer_action.move_to_location(*places[0])
        actions.pointer_action.pointer_down()
        for place in places[1:]:
            actions.pointer_action.move_to_location(*place)
        actions.pointer_action.pointer_up()
    actions.perform()


@pytest.mark.exhaustive
def test_page_reads_what_is_drawn(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = load("digits/drawing.py", monkeypatch)
    translator = Translator(page.bundle)
    wait_for_status(page, "Ready")
    draw, right = np.random.default_rng(4), 0
    for formula in FORMULAS:
        strokes = drawing.draw_text(formula, draw)
        draw_on(page, [stroke * 0.5 + [0.2, 0.5] for stroke in strokes])
        wait_for_status(page, "Read in")
        shown = page.find_element("id", "text")
        [expected] = translator.generate_from([{"image": pixels(page)}])
        assert shown.text == expected.text
        tokens = [int(token) for token in shown.get_attribute("data-tokens").split()]
        assert tokens == expected.hypotheses[0].tokens
        right += shown.text == formula
        page.find_element("id", "clear").click()
        wait_for_status(page, "Ready")
        assert shown.text == ""
    assert right > len(FORMULAS) / 2
    assert page.get_log("browser") == []


@pytest.mark.exhaustive
def test_page_can_be_drawn_on_with_keys(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    area = page.find_element("id", "area")
    area.send_keys(Keys.SPACE, *[Keys.ARROW_DOWN] * 4, Keys.SPACE)  # a one
    wait_for_status(page, "Read in")
    found = pixels(page)
    assert found.sum(axis=(0, 2)).astype(bool).sum() > found.sum(axis=(0, 1)).astype(bool).sum()
    area.send_keys(Keys.CONTROL, "z")
    wait_for_status(page, "Ready")
