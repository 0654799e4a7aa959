"""A run of markup as a text with nodes, its sentences, and what a model reads of each."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tfexport.errors import InputError
from tfexport.markup.placeholders import Placeholders, is_in_turn, is_picture, stand_ins
from tfexport.markup.placement import Node
from tfexport.markup.tokens import WHITE, Run, Token
from tfexport.runtime.text.sentences import SplitText

_SPACES = " \t\n\r\f"
_LEADING = re.compile(r"[ \t\n\r\f]*")
_SIGNS = re.compile(r"[%{}$@]")  # of what programs fill in, not of <code>a</code>
_MARK = re.compile(r"[.,;:!?…]")
_IN_TAG = re.compile(r"(?<!\d)%[sd@]")  # <a href="%s">
MOST_NODES = 2000  # of a paragraph
MOST_LEVELS = 100  # of inline elements in one another


@dataclass(frozen=True)
class Variant:
    """A form of a sentence for the model: with placeholders, with names for them, or without.

    Attributes:
        text: the sentence.
        literals: what its translation has to contain, for the number of each placeholder; empty if
            placeholders are left out.
        starts: where each of its parts starts, placeholders and the texts around them.
        sources: where each part starts in the segment.
        keeps: for each part, the number of the placeholder that it is.
        worded: whether there is a letter outside of placeholders.
        left_out: the placeholders that are not in its text, but for those that are words.
        optional: whether there is another variant, which has fewer tokens.
    """

    text: str
    literals: dict[int, str]
    starts: list[int]
    sources: list[int]
    keeps: list[int | None]
    worded: bool
    left_out: tuple[str, ...] = ()
    optional: bool = False

    def places(self) -> list[tuple[int, int]]:
        """Where each of ``literals`` is in the sentence itself."""
        starts = dict(zip(self.keeps, self.starts, strict=True))
        return [
            (starts[number], starts[number] + len(literal))
            for number, literal in self.literals.items()
        ]

    def source(self, place: int) -> int:
        """Where a place of the sentence is in the segment."""
        part = max(0, bisect_right(self.starts, place) - 1)
        if self.keeps[part] is not None:
            return self.sources[part]
        return self.sources[part] + place - self.starts[part]


@dataclass
class Segment:
    """Words that belong together, such as a paragraph, without markup.

    Attributes:
        raw: its markup.
        before: white space and tags before its first word.
        after: those after its last word.
        text: its words, without tags.
        nodes: its outermost inline elements and placeholders, in order.
        kept: start and end of each placeholder, in order.
        escape: makes markup of text.
        split: its sentences; set by ``cut``.
        spans: start and end of each sentence.
        variants: what the model may read of each sentence, the best first.
    """

    raw: str
    before: str
    after: str
    text: str
    nodes: list[Node]
    kept: list[tuple[int, int]]
    escape: Callable[[str], str]
    split: SplitText = field(default_factory=lambda: SplitText([], [""]))
    spans: list[tuple[int, int]] = field(default_factory=list)
    variants: list[list[Variant]] = field(default_factory=list)

    @property
    def aligned(self) -> bool:
        """Whether its translation has to be aligned."""
        return bool(self.nodes)

    @property
    def in_turn(self) -> list[str]:
        """Its directives that have to stay in their order, those in tags too."""
        directives = [one for span in self.kept if is_in_turn(one := self.text[slice(*span)])]
        for node in _all(self.nodes):
            if node.kept is None:
                directives += _IN_TAG.findall(node.opening)
        return directives

    def takes_turns(self, variant: Variant) -> bool:
        """Whether a sentence, by the form of it that is as it is, has any of ``in_turn``."""
        return any(map(is_in_turn, variant.literals.values()))

    def cut(self, split: SplitText) -> None:
        """Take the sentences of its text; a placeholder is never divided."""
        sentences, gaps = list[str](), [split.gaps[0]]
        spans, place = list[tuple[int, int]](), 0
        for gap, sentence in zip(split.gaps, split.sentences, strict=False):
            start = place + len(gap)
            place = start + len(sentence)
            if spans and self._is_inside(spans[-1][1], start):
                spans[-1] = (spans[-1][0], place)
                sentences[-1] = self.text[spans[-1][0] : place]
            else:
                if spans:
                    gaps.append(gap)
                spans.append((start, place))
                sentences.append(sentence)
        if sentences:
            gaps.append(split.gaps[-1])
        self.split, self.spans = SplitText(sentences, gaps, split.join), spans
        self.variants = [self._variants(*span) for span in spans]

    def _is_inside(self, end: int, start: int) -> bool:
        """Whether a placeholder is around the end of a sentence, or the start of the next."""
        return any(first < end < last or first < start < last for first, last in self.kept)

    def _variants(self, start: int, end: int) -> list[Variant]:
        numbers = [
            number
            for number, (first, last) in enumerate(self.kept)
            if start <= first and last <= end
        ]
        literals = {number: self.text[slice(*self.kept[number])] for number in numbers}
        found = [self._variant(start, end, literals)]
        if not numbers or not found[0].worded:
            return found
        named = [number for number in numbers if not is_picture(literals[number])]
        names = stand_ins(self.text[start:end], len(named))
        if named and names is not None:
            written = {**dict.fromkeys(numbers, ""), **dict(zip(named, names, strict=True))}
            found.append(replace(self._variant(start, end, written), optional=True))
        return [*found, self._variant(start, end, dict.fromkeys(numbers, ""))]

    def _variant(self, start: int, end: int, written: dict[int, str]) -> Variant:
        if not written:  # words alone
            words = self.text[start:end]
            first = end - len(words.lstrip())
            sources = [first] if first < end else []
            worded = any(map(str.isalpha, words))
            return Variant(
                words.strip(), {}, [0 for _ in sources], sources, [None for _ in sources], worded
            )
        text, starts, sources, keeps = "", list[int](), list[int](), list[int | None]()
        parts, place = list[tuple[int, int, int | None]](), start
        for one in written:
            first, last = self.kept[one]
            parts += [(place, first, None), (first, last, one)]
            place = last
        for first, last, number in [*parts, (place, end, None)]:
            part = self.text[first:last] if number is None else written[number]
            if number is None and (not text or text[-1].isspace()):
                first += len(part) - len(part.lstrip())
                part = part.lstrip()
            if number is None and _MARK.match(part):
                text = text.rstrip()  # of a placeholder that is left out
            if part:
                starts.append(len(text))
                sources.append(first)
                keeps.append(number)
                text += part
        literals = {number: literal for number, literal in written.items() if literal}
        worded = any(
            any(map(str.isalpha, self.text[first:last]))
            for first, last, number in [*parts, (place, end, None)]
            if number is None
        )
        originals = [self.text[slice(*self.kept[number])] for number in written]
        left_out = tuple(
            dict.fromkeys(
                each for each in originals if each not in written.values() and _SIGNS.search(each)
            )
        )
        return Variant(text.rstrip(), literals, starts, sources, keeps, worded, left_out)


def make_segment(run: Run, placeholders: Placeholders, escape: Callable[[str], str]) -> Segment:
    """Make a segment of a run of markup.

    Args:
        run: text and inline markup.
        placeholders: those that its text may contain.
        escape: makes markup of text.

    Raises:
        InputError: it has too many tags, or too many in one another.
    """
    if len(run.tokens) == 1 and run.tokens[0].kind == "text":
        segment = _of_words(run.tokens[0], escape)
        if not placeholders.find(segment.text):
            return segment
    low, high = _without_edges(run)
    builder = _Builder(escape)
    for token in run.tokens[low:high]:
        builder.add(token)
    before = "".join(token.raw for token in run.tokens[:low])
    after = "".join(token.raw for token in run.tokens[high:])
    raw = "".join(token.raw for token in run.tokens)
    words = "".join(token.raw for token in run.tokens[low:high] if token.kind == "text")
    builder.end(placeholders, words)
    return Segment(
        raw, before + builder.leading, builder.trailing + after, builder.text,
        builder.root.children, builder.kept, escape,
    )  # fmt: skip


def _of_words(token: Token, escape: Callable[[str], str]) -> Segment:
    """The segment of a text without tags and placeholders; see ``_Builder._write``."""
    raw = token.raw
    leading: str = _LEADING.match(raw)[0]  # type: ignore[index]
    trailing = raw[len(raw.rstrip(_SPACES)) :]
    text = WHITE.sub(" ", token.text).removeprefix(" ").rstrip(" ")
    return Segment(raw, leading, trailing, text, [], [], escape)


def _without_edges(run: Run) -> tuple[int, int]:
    """The tokens between white space and tags that are around, before or after all words."""
    low, high = 0, len(run.tokens)
    starts = {end: start for start, end in run.ends.items()}
    while low < high:
        first, last = run.tokens[low], run.tokens[high - 1]
        if run.ends.get(low) == high - 1:
            low, high = low + 1, high - 1
        elif _is_edge(first):
            low += 1
        elif _is_edge(last):
            high -= 1
        elif low in run.ends and all(map(_is_empty, run.tokens[low : run.ends[low]])):
            low = run.ends[low] + 1
        elif high - 1 in starts and all(map(_is_empty, run.tokens[starts[high - 1] : high])):
            high = starts[high - 1]
        else:
            break
    return low, high


def _is_empty(token: Token) -> bool:
    return token.kind in ("open", "close") or _is_edge(token)


def _is_edge(token: Token) -> bool:
    if token.kind == "text":
        return not WHITE.sub("", token.text)
    return token.kind == "empty" or (
        token.kind == "kept" and (token.flow == "hidden" or not token.text)
    )


class _Builder:
    """Collects the text of tokens, with white space as a browser shows it, and its nodes."""

    def __init__(self, escape: Callable[[str], str]) -> None:
        self._escape = escape
        self.leading = self.trailing = self.text = ""
        self.root = Node(0, 0, "")
        self.kept = list[tuple[int, int]]()
        self._parts, self._length, self._space = list[str](), 0, False
        self._apart = False  # whether something that is seen, such as an image, is after the text
        self._stack = [self.root]
        self._count = 0
        self._waiting = list[Node]()  # whose white space after them is not known yet

    def add(self, token: Token) -> None:
        if token.kind == "text":
            self._write(token.text, token.raw)
        elif token.kind == "close":
            node = self._stack.pop()
            node.closing, node.end = token.raw, self._length
            if node.end == node.start:
                self._waiting.append(node)
        else:
            self._count += 1
            if self._count > MOST_NODES:
                raise InputError(f"a paragraph has more than {MOST_NODES} tags")
            seen = token.flow != "hidden"
            node = Node(self._length, self._length, token.raw, seen=seen)
            node.spaces = (self._space or not self._length, False)
            self._stack[-1].children.append(node)
            if token.kind == "open":
                self._stack.append(node)
                if len(self._stack) > MOST_LEVELS:
                    raise InputError(
                        f"a paragraph has more than {MOST_LEVELS} elements in one another"
                    )
            elif token.kind == "kept" and token.text:
                self._write(token.text, token.text)
                node.start, node.end = self._length - len(token.text), self._length
                node.kept = len(self.kept)
                self.kept.append((node.start, node.end))
                self._waiting.append(node)
            else:
                self._apart = self._apart or seen
                self._waiting.append(node)

    def _write(self, text: str, raw: str) -> None:
        plain = WHITE.sub(" ", text)
        if not self._length:
            self.leading += _LEADING.match(raw)[0]  # type: ignore[index]
            plain = plain.removeprefix(" ")
        elif self._space:
            plain = plain.removeprefix(" ")
        elif self._apart and plain[:1].isalnum() and self._parts[-1][-1].isalnum():
            plain = f" {plain}"  # an image between two letters is between two words
        if text:
            self._apart = False
            for node in self._waiting:
                node.spaces = (node.spaces[0], text[0] in _SPACES)
            self._waiting.clear()
        if plain:
            self._parts.append(plain)
            self._length += len(plain)
            self._space = plain.endswith(" ")
            self.trailing = raw[len(raw.rstrip(_SPACES)) :]

    def end(self, placeholders: Placeholders, raw: str) -> None:
        """Cut white space from the end, and find placeholders.

        Args:
            placeholders: those that the text may contain.
            raw: the text as it is written, in which placeholders may need no escape.
        """
        stripped = "".join(self._parts).rstrip(" ")
        self.text = stripped
        for node in self._waiting:
            node.spaces = (node.spaces[0], True)
            if node.shown and node.spaces[0]:  # which is written before it
                self.trailing = ""
        # First those of the whole text, then those that a tag ends, as in <b>%d</b>kg.
        found = placeholders.find(stripped)
        if self.root.children:
            ends = {0, len(stripped)}
            for node in _all(self.root.children):
                ends |= {node.start, node.end}
            for begin, until in pairwise(sorted(ends)):
                found += [
                    (begin + start, begin + end)
                    for start, end in placeholders.find(stripped[begin:until])
                ]
        if len(set(found)) + self._count > MOST_NODES:
            raise InputError(f"a paragraph has more than {MOST_NODES} tags and placeholders")
        for start, end in found:
            if all(end <= first or last <= start for first, last in self.kept):
                self._keep(stripped, start, end, raw)
        self.kept.sort()
        numbers = {start: number for number, (start, _) in enumerate(self.kept)}
        for node in _all(self.root.children):
            if node.kept is not None:
                node.kept = numbers[node.start]
                before = stripped[max(0, node.start - 1) : node.start]
                after = stripped[node.end : node.end + 1]
                node.joined = (before.isalnum(), after.isalnum())

    def _keep(self, text: str, start: int, end: int, raw: str) -> None:
        """Add a placeholder, unless a tag is within it."""
        parent: Node | None = self.root
        while parent is not None:
            around, parent = parent, None
            for child in around.children:
                if child.start < end and start < child.end:
                    if child.kept is not None or child.start > start or end > child.end:
                        return
                    parent = child
                    break
        if any(start < child.start < end for child in around.children):
            return
        spaces = (
            start == 0 or text[start - 1].isspace(),
            end == len(text) or text[end].isspace(),
        )
        number = len(self.kept)
        self.kept.append((start, end))
        literal = text[start:end]
        written = literal if literal in raw else self._escape(literal)
        node = Node(start, end, written, kept=number, spaces=spaces)
        index = sum(child.start < end for child in around.children)
        around.children.insert(index, node)


def _all(nodes: list[Node]) -> Iterator[Node]:
    """Nodes and those in them."""
    waiting = [*nodes]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children
