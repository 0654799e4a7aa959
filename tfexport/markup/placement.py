"""Where tags and placeholders of a source go in its translation."""

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from tfexport.markup.alignment import Unit, is_mark
from tfexport.runtime.text.sentences import UNSPACED

# What a word adds to the range of an element: one of its own, of another element, and of none.
_OWN, _OTHER, _NEUTRAL = 2, -4, -1
_LONGEST_WORD = 100  # characters, of words that are divided
_ICON = re.compile(r"\sclass\s*=", re.IGNORECASE)  # of an empty element, which shows a picture
_RAISED = re.compile(r"<su[bp]\b", re.IGNORECASE)


@dataclass
class Node:
    """An inline element, a tag without content, or a placeholder.

    Attributes:
        start: where it starts in the source.
        end: where it ends there.
        opening: its start tag; of a tag without content and of a placeholder, all of it.
        closing: its end tag.
        children: what is in it, in order.
        kept: the number of the placeholder that it is; None if it is none.
        seen: whether a reader sees something where it is.
        spaces: whether white space is before and after it in the source.
        joined: whether a letter or a digit is before and after it in the source.
    """

    start: int
    end: int
    opening: str
    closing: str = ""
    children: list["Node"] = field(default_factory=list)
    kept: int | None = None
    seen: bool = True
    spaces: tuple[bool, bool] = (False, False)
    joined: tuple[bool, bool] = (False, False)

    @property
    def shown(self) -> bool:
        """Whether a reader sees something where it is, without its words."""
        if not self.closing:
            return self.seen
        if self.start == self.end and _ICON.search(self.opening):
            return True
        return any(child.shown for child in self.children)

    def as_it_is(self) -> str:
        """Its markup without words."""
        inside = "".join(child.as_it_is() for child in self.children)
        return f"{self.opening}{inside}{self.closing}"


@dataclass(frozen=True)
class Placement:
    """Puts the nodes of a source into a translation.

    Each node is in the result once, in the node that it was in. An element gets the words that came
    from inside it, as one range. Tags without words get the place after the words that came from
    the words before them, or before those of the words after them, if they touch these alone.

    Attributes:
        text: the translation.
        units: the words of the translation, in order.
        escape: makes markup of text.
    """

    text: str
    units: Sequence[Unit]
    escape: Callable[[str], str]

    def write(self, nodes: Sequence[Node]) -> str:
        """The translation with nodes, which are the outermost ones, in order."""
        return self._level(nodes, 0, len(self.units))

    @cached_property
    def _by_source(self) -> list[tuple[int, int]]:
        """Places in the source that words came from, each with a word."""
        return sorted(
            (unit.source, place) for place, unit in enumerate(self.units) if unit.source is not None
        )

    def _level(self, nodes: Sequence[Node], first: int, last: int) -> str:
        """The words from ``first`` to ``last``, with nodes among them."""
        ranges, points = self._assign(nodes, first, last)
        written, place = "", first
        while True:
            inner = first < place < last
            space = self.text[self.units[place - 1].end : self.units[place].start] if inner else ""
            if not written or written[-1].isspace():  # after a placeholder that is in a node
                space = space.lstrip()
            written += self._between(points.get(place, ()), place, first, last, space)
            if place == last:
                return written
            if place in ranges:
                node, end = ranges[place]
                if node.kept is not None:
                    written += node.opening
                else:
                    inside = self._level(node.children, place, end)
                    written += f"{node.opening}{inside}{node.closing}"
                place = end
            else:
                unit = self.units[place]
                if unit.kept is None:  # else its node is within another one, and is written there
                    written += self.escape(self.text[unit.start : unit.end])
                place += 1

    def _between(self, nodes: Sequence[Node], place: int, first: int, last: int, space: str) -> str:
        """Nodes without words, and the white space between two words."""
        if not nodes:
            return space
        text = nodes[0].as_it_is()
        for last_node, node in pairwise(nodes):
            both = last_node.kept is not None and node.kept is not None
            text += (" " if both or (node.shown and node.spaces[0]) else "") + node.as_it_is()
        before = nodes[0].spaces[0] or self._would_join(nodes[0], place - 1, 0, first, last)
        after = nodes[-1].spaces[1] or self._would_join(nodes[-1], place, 1, first, last)
        seen = any(node.shown for node in nodes)
        if space:
            if before:
                return f"{space}{text} " if after and seen else f"{space}{text}"
            return f"{text}{space}"
        if seen and before and place > first:
            text = f" {text}"
        if seen and after and place < last and not is_mark(self.text[self.units[place].start]):
            text = f"{text} "
        return text

    def _would_join(self, node: Node, place: int, side: int, first: int, last: int) -> bool:
        """Whether a placeholder and the word beside it would become one word, which they were not.

        Args:
            node: the placeholder.
            place: of the word.
            side: 0 if the word is before the placeholder, 1 if it is after it.
            first: the first word that may be beside it.
            last: after the last one.
        """
        if node.kept is None or not first <= place < last:
            return False
        unit = self.units[place]
        letter = self.text[unit.start if side else unit.end - 1]
        return unit.kept is not None or (
            letter.isalnum() and not UNSPACED.match(letter) and not node.joined[side]
        )

    def _assign(
        self, nodes: Sequence[Node], first: int, last: int
    ) -> tuple[dict[int, tuple[Node, int]], dict[int, list[Node]]]:
        """A range for each node that has words, and a place for each other one."""
        owners = self._owners(nodes, first, last)
        owned: dict[int, list[int]] = {}
        for place, number in enumerate(owners, first):
            if number is not None:
                owned.setdefault(number, []).append(place)
        free = bytearray(b"\x01") * (last - first)
        taken = list[tuple[int, int, int]]()  # start, end and the number of a node, in order
        numbers = sorted(owned, key=lambda n: (nodes[n].kept is None, -len(owned[n]), n))
        for number in [*numbers, *self._drawn(nodes, owners, owned, first)]:
            found = self._range(owned[number], number, owners, free, first)
            if found is not None:
                start, end = found
                free[start - first : end - first] = bytes(end - start)
                insort(taken, (start, end, number))
        ranges = {start: (nodes[number], end) for start, end, number in taken}
        placed = {number for *_, number in taken}
        points: dict[int, list[Node]] = {}
        for number, node in enumerate(nodes):
            if number not in placed:
                place = self._point(node, first, last)
                points.setdefault(self._outside(place, node, nodes, taken), []).append(node)
        return ranges, points

    def _owners(self, nodes: Sequence[Node], first: int, last: int) -> list[int | None]:
        """For each word the number of the node that it came from."""
        wide = [number for number, node in enumerate(nodes) if node.end > node.start]
        starts = [nodes[number].start for number in wide]
        owners = list[int | None]()
        for unit in self.units[first:last]:
            index = -1 if unit.source is None else bisect_right(starts, unit.source) - 1
            number = wide[index] if index >= 0 else None
            if number is not None:
                node = nodes[number]
                outside = unit.source is None or unit.source >= node.end
                if outside or node.kept not in (None, unit.kept):
                    number = None
            owners.append(number)
        return owners

    def _drawn(
        self,
        nodes: Sequence[Node],
        owners: list[int | None],
        owned: dict[int, list[int]],
        first: int,
    ) -> list[int]:
        """Give elements from which no word came the words that attend to theirs most.

        Returns:
            The numbers of these elements; ``owners`` and ``owned`` have their words.
        """
        waiting = [
            number
            for number, node in enumerate(nodes)
            if number not in owned and node.kept is None and node.closing and node.end > node.start
        ]
        for number in waiting:
            node = nodes[number]
            for place, owner in enumerate(owners, first):
                drawn = self.units[place].drawn
                if owner is None and any(node.start <= one < node.end for one in drawn):
                    owners[place - first] = number
                    owned.setdefault(number, []).append(place)
        return [number for number in waiting if number in owned]

    def _range(
        self,
        mine: Sequence[int],
        number: int,
        owners: Sequence[int | None],
        free: bytearray,
        first: int,
    ) -> tuple[int, int] | None:
        """The best range of words for a node among those that are free; None for none."""
        best: tuple[int, int, int] | None = None  # the sum, the start and the end
        begin, total = mine[0], 0
        for place in range(mine[0], mine[-1] + 1):
            if not free[place - first]:
                total = 0
                continue
            if total <= 0:
                begin, total = place, 0
            owner = owners[place - first]
            if owner == number:
                total += _OWN
                if best is None or (total, -begin) >= (best[0], -best[1]):
                    best = (total, begin, place + 1)
            elif owner is not None:
                total += _OTHER
            elif self.units[place].source is not None:
                total += _NEUTRAL
        return None if best is None else best[1:]

    def _point(self, node: Node, first: int, last: int) -> int:
        """The place among words for a node without any."""
        known = self._by_source
        index = bisect_left(known, (node.start, -1))
        after = bisect_left(known, (node.end, -1))
        following = known[after : after + 1]
        touches = node.spaces[0] and not node.spaces[1]
        place = None
        if index > 0 and not (touches and following):
            source = known[index - 1][0]
            same = known[bisect_left(known, (source, -1)) : index]
            place = same[-1][1] + 1
        elif following:
            place = following[0][1]
        if place is None:
            place = first if node.start == 0 else last
        return min(max(place, first), last)

    @staticmethod
    def _outside(
        place: int, node: Node, nodes: Sequence[Node], taken: Sequence[tuple[int, int, int]]
    ) -> int:
        """Move a place out of the range of another node, to its nearer end in the source."""
        index = bisect_right(taken, (place, place, len(nodes))) - 1
        while index >= 0 and taken[index][0] >= place:
            index -= 1
        if index < 0 or place >= taken[index][1]:
            return place
        start, end, number = taken[index]
        return start if node.start <= nodes[number].start else end


def divide_words(
    source: str, target: str, units: Sequence[Unit], nodes: Sequence[Node]
) -> list[Unit]:
    """Divide words of a translation for elements that are around a part of a word.

    Where the translation has the part's own letters, as in ``H<sub>2</sub>O``, these become a word
    of their own. Else the element gets all of the word's translation, unless it has no letters, or
    is a subscript or a superscript.

    Args:
        source: the text that was translated.
        target: its translation.
        units: the words of the translation, in order.
        nodes: the outermost nodes of the source.
    """
    parted = _Parted(source, target, units)
    waiting = [(nodes, node) for node in reversed(nodes)]
    while waiting:
        siblings, node = waiting.pop()
        waiting += [(node.children, child) for child in reversed(node.children)]
        if node.kept is None and _is_inside_word(source, node):
            parted.divide(node, siblings)
    return sorted(parted.units, key=lambda unit: unit.start)


def _is_inside_word(source: str, node: Node) -> bool:
    """Whether an end of an element is between two letters or digits."""
    return 0 <= node.start < node.end and any(
        0 < end < len(source) and source[end - 1 : end + 1].isalnum()
        for end in (node.start, node.end)
    )


class _Parted:
    """The words of a translation, some of them in parts."""

    def __init__(self, source: str, target: str, units: Sequence[Unit]) -> None:
        self.units = list(units)
        self._source, self._target = source, target
        self._places: dict[int, list[int]] = {}  # of the words that came from a place
        for place, unit in enumerate(units):
            if unit.kept is None and unit.source is not None:
                self._places.setdefault(unit.source, []).append(place)
        self._starts = sorted(self._places)

    def divide(self, node: Node, siblings: Sequence[Node]) -> None:
        """Divide the words that came from the word that an element is a part of."""
        index = bisect_right(self._starts, node.start) - 1
        begin = self._starts[index] if index >= 0 else -_LONGEST_WORD
        if node.end - begin > _LONGEST_WORD:
            return
        if any(map(str.isspace, self._source[begin : node.end])):
            return
        part = self._source[node.start : node.end].casefold()
        matches = [
            (place, at)
            for place in self._places[begin]
            if (at := _only(self._text(place).casefold(), part)) == 0
            or (at > 0 and begin < node.start)
        ]
        if len(matches) == 1:
            self._split(*matches[0], node, begin)
        elif (
            begin < node.start
            and any(map(str.isalpha, part))
            and not _RAISED.match(node.opening)
            and not any(other.start <= begin < other.end for other in siblings)
        ):
            for place in self._places.pop(begin):
                self._put(place, replace(self.units[place], source=node.start))
            self._starts.remove(begin)

    def _text(self, place: int) -> str:
        return self._target[self.units[place].start : self.units[place].end]

    def _split(self, place: int, at: int, node: Node, begin: int) -> None:
        unit = self.units[place]
        start, end = unit.start + at, unit.start + at + node.end - node.start
        pieces = ((unit.start, start, begin), (start, end, node.start), (end, unit.end, node.end))
        self._places[begin].remove(place)
        for piece in pieces:
            if piece[0] < piece[1]:
                self._put(place, Unit(*piece))
                place = len(self.units)

    def _put(self, place: int, unit: Unit) -> None:
        """Write a word over another, or after all."""
        self.units[place : place + 1] = [unit]
        if unit.source is not None:
            if unit.source not in self._places:
                insort(self._starts, unit.source)
            self._places.setdefault(unit.source, []).append(place)


def _only(text: str, part: str) -> int:
    """Where a part occurs, if it does once; else -1."""
    return text.find(part) if text.count(part) == 1 else -1
