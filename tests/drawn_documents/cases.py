"""Drawn documents, translated and judged; the table of what became of them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tests.drawn_documents import bilingual, messages, pages
from tests.drawn_documents.drawing import Draw, Drawn
from tests.drawn_documents.engines import Translate, translate_drawn
from tests.drawn_documents.judge import BILINGUAL, judge
from tfexport.errors import InputError

GRAMMARS: dict[str, Callable[[Draw], str]] = {
    "html": pages.html, "xml": pages.xml, "markdown": pages.markdown, "text": messages.text,
    "srt": messages.srt, "vtt": messages.vtt, "po": messages.po,
    "json-strings": messages.json_strings, "arb": messages.arb, "strings": messages.strings,
    "xliff": bilingual.xliff, "ts": bilingual.ts,
}  # fmt: skip
FORMATS = tuple(GRAMMARS)
MARKING = ("mark", "careless")  # translators whose words are in capitals


@dataclass(frozen=True)
class Result:
    """What became of one document.

    Attributes:
        seed: of the draw; its format is one of ``FORMATS`` in turn.
        format: of the document.
        engine: the translator.
        refused: the message of an error; empty if it was translated.
        difference: see ``judge.Verdict``, as the numbers.
        words: characters of words that are to be translated.
        translated: characters of those that were.
        reported: texts of which the project says that they stay.
    """

    seed: int
    format: str
    engine: str
    refused: str = ""
    difference: str = ""
    words: int = 0
    translated: int = 0
    reported: int = 0


def draw(seed: int, german: bool = False, kind: str = "") -> Drawn:
    """Draw a document.

    Args:
        seed: of the draw.
        german: whether its words are those of German sentences, for a model.
        kind: one of ``FORMATS``; empty for one of them in turn.
    """
    kind = kind or FORMATS[seed % len(FORMATS)]
    drawing = Draw(seed, kind, german)
    drawing.drawn.content = GRAMMARS[kind](drawing)
    drawing.drawn.same |= not drawing.worded and kind != "po"
    drawing.drawn.same &= not (drawing.worded and kind in BILINGUAL)  # targets are written
    return drawing.drawn


def run(seeds: Iterable[int], engine: str, translate: Translate) -> list[Result]:
    """Translate documents, and judge them."""
    return [run_case(draw(seed, engine == "bundle"), engine, translate) for seed in seeds]


def run_case(drawn: Drawn, engine: str, translate: Translate) -> Result:
    """Translate a document, and judge it."""
    try:
        made, reported = translate_drawn(drawn, translate)
    except InputError as error:
        words = judge(drawn, None).words
        return Result(drawn.seed, drawn.format, engine, refused=str(error), words=words)
    verdict = judge(drawn, made, reported, engine in MARKING)
    if not verdict.difference and drawn.format != "po" and made != drawn.content:
        if engine == "copy" and drawn.same:
            verdict.difference = f"not the same bytes: {_first_change(drawn.content, made)}"
        elif not verdict.words and engine != "bundle":
            verdict.difference = f"nothing to translate: {_first_change(drawn.content, made)}"
    return Result(
        drawn.seed, drawn.format, engine, "", verdict.difference, verdict.words,
        verdict.translated, len(reported),
    )  # fmt: skip


def _first_change(old: str, new: str) -> str:
    place = next((n for n, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), 0)
    begin = max(0, place - 30)
    return f"{old[begin : place + 60]!r} is {new[begin : place + 60]!r}"


def table(results: Sequence[Result]) -> str:
    """For every format: cases, refused ones, differences, and the share that was translated."""
    by_format: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_format[result.format].append(result)
        by_format["all"].append(result)
    lines = [
        f"{'format':14}{'cases':>8}{'refused':>9}{'differ':>8}{'reported':>10}{'translated':>12}"
    ]
    for kind in (*FORMATS, "all"):
        found = by_format[kind]
        refused, bad = (
            sum(bool(one.refused) for one in found),
            sum(bool(one.difference) for one in found),
        )
        words = sum(one.words for one in found if one.engine in MARKING)
        share = f"{100 * sum(one.translated for one in found) / words:.2f} %" if words else ""
        reported = sum(one.reported for one in found)
        lines.append(f"{kind:14}{len(found):8}{refused:9}{bad:8}{reported:10}{share:>12}")
    return "\n".join(lines)


def list_bad(results: Sequence[Result], most: int = 40) -> str:
    """Refused and wrong cases, those alike together."""
    kinds: dict[str, list[Result]] = defaultdict(list)
    for one in results:
        if one.refused or one.difference:
            kinds[f"{one.format}: {(one.refused or one.difference)[:24]}"].append(one)
    ordered = sorted(kinds.items(), key=lambda item: -len(item[1]))[:most]
    return "\n".join(
        f"{len(found)} × {kind}: seeds {' '.join(str(one.seed) for one in found[:6])}\n"
        f"    {(found[0].refused or found[0].difference)[:400]}"
        for kind, found in ordered
    ) or "nothing bad"  # fmt: skip
