"""Where tags go, beside another project's rule, on sentences whose alignment is given.

``aligned.jsonl`` has a sentence a line: with tags, its tokens, those of its translation, the
attention in percent, and the results that a reader accepts, made by hand before either rule was
run. "model": attention and translation are those of examples/de-en.bundle; "hand": by hand.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.paths import REPOSITORY
from tfexport.markup.alignment import Tokens
from tfexport.markup.document import Markup, Row
from tfexport.runtime.text.sentences import split_text

_NO_WORD = "\n ,.(){}[]"  # characters that a word neither starts nor ends with


@cache
def sentences() -> list[dict[str, Any]]:
    path = Path(__file__).with_name("aligned.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def ours(sentence: dict[str, Any]) -> str:
    target = sentence["target"]
    attention = np.array(sentence["attention"], np.float32)
    tokens = Tokens(sentence["pieces"], attention, lambda count: "".join(target[:count]))
    document = Markup("html").read(sentence["source"])
    document.cut(lambda text: split_text(text, "de", "none"))
    rows = [Row("".join(target), tokens)]
    return document.write(rows, document.choose(rows))


@dataclass(frozen=True)
class Span:
    """A part of a source with the same tags around it; an empty one for a tag without words."""

    begin: int
    end: int
    tags: tuple[str, ...]


def bergamot(sentence: dict[str, Any]) -> str:
    """The translation with tags by the rule of bergamot-translator, as its source describes it.

    Each token of the source has the tags of the last part of the text that it reaches into. Each
    token of the target has those of the source token with the highest attention, the first of
    equal ones; the tokens of a word have those of the token among them with the highest. Tags are
    opened and closed where they change. Parts of the source that have no token of the target are
    written, empty, where the tokens go past them.
    """
    text, spans = parts_of(sentence["source"])
    homes, place, current = list[int](), 0, 0
    for piece in sentence["pieces"]:
        place = text.index(piece, place) + len(piece)
        while current + 1 < len(spans) and spans[current + 1].begin < place:
            current += 1
        homes.append(current)
    target, attention = sentence["target"], sentence["attention"]
    best = [max(range(len(line)), key=line.__getitem__) for line in attention]
    for number in range(1, len(target)):
        if not goes_on(target, number):
            continue
        mine, other = best[number], best[number - 1]
        if attention[number][mine] < attention[number - 1][other]:
            best[number] = other
            continue
        while number > 0 and goes_on(target, number):
            number -= 1
            best[number] = mine
    numbers = [homes[one] for one in best]
    # The end of the sentence is aligned with that of the source; what follows, with all tags ended.
    steps = [*zip(target, numbers, strict=True), ("", homes[-1]), ("", len(spans) - 1)]
    used = {number for _, number in steps}
    written, before = list[str](), 0
    for piece, number in steps:
        passed = [
            between
            for between in range(before, number)
            if spans[between].begin == spans[between].end or between not in used
        ]
        written.append(with_tags(piece, [spans[one].tags for one in (before, *passed, number)]))
        before = number
    return "".join(written)


def parts_of(html: str) -> tuple[str, list[Span]]:
    text, stack, spans = "", list[str](), [Span(0, 0, ())]
    for part in re.findall(r"<[^>]*>|[^<]+", html):
        if part.startswith("</"):
            stack.pop()
        elif part.startswith("<img"):
            spans.append(Span(len(text), len(text), (*stack, part)))
        elif part.startswith("<"):
            stack.append(part)
        else:
            spans.append(Span(len(text), len(text) + len(part), tuple(stack)))
            text += part
    return text, [*spans, Span(len(text), len(text), ())]


def goes_on(target: list[str], number: int) -> bool:
    """Whether a token goes on with the word of the one before."""
    return target[number - 1][-1:] not in _NO_WORD and target[number][:1] not in _NO_WORD


def with_tags(piece: str, states: list[tuple[str, ...]]) -> str:
    """A token with the tags that lead from one state to the next, and so on."""
    word = piece.lstrip()
    left, right = "", ""
    for old, new in itertools.pairwise(states):
        same = 0
        while same < min(len(old), len(new)) and old[same] == new[same]:
            same += 1
        ends = "".join(
            f"</{re.findall(r'[a-z]+', tag)[0]}>"
            for tag in reversed(old[same:])
            if not tag.startswith("<img")
        )
        if right:
            right += ends
        else:
            left += ends
        right += "".join(new[same:])
    return left + piece[: len(piece) - len(word)] + right + word


def right(rule: Callable[[dict[str, Any]], str], ignored: str) -> tuple[int, int]:
    """How many sentences a rule gets right: of the model's attention, and of that by hand."""

    def seen(html: str) -> str:
        return re.sub(ignored, "", html)

    found = {"model": 0, "hand": 0}
    for one in sentences():
        found[one["by"]] += seen(rule(one)) in map(seen, one["accepted"])
    return found["model"], found["hand"]


def test_placement_is_as_the_documentation_counts_it() -> None:
    assert Counter(one["by"] for one in sentences()) == {"model": 60, "hand": 40}
    page = (REPOSITORY / "docs" / "markup.md").read_text(encoding="utf-8")
    for ignored, said in ((r"\s", ""), (r"[\s.,!?]", ", punctuation aside")):
        mine, other = right(ours, ignored), right(bergamot, ignored)
        assert mine[0] >= 56
        assert mine[1] >= 38
        assert min(np.subtract(mine, other)) >= 0
        for name, (model, hand) in (("tfexport", mine), ("bergamot-translator", other)):
            assert f"| {name}{said} | {model} | {hand} | {model + hand} |" in page


def test_every_tag_is_written_once() -> None:
    for one in sentences():
        made = ours(one)
        tags = Counter(re.findall("<[^>]*>", one["source"]))
        assert Counter(re.findall("<[^>]*>", made)) == tags
        assert re.sub(r"<[^>]*>|\s", "", made) == re.sub(r"\s", "", "".join(one["target"]))
