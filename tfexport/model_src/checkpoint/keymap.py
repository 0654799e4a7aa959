"""Key tables: maps from a checkpoint's tensors to the model's weights.

A table is a literal dict from the checkpoint's keys to the model's weights, both with placeholders:

    {layer} {head}    a number; the tensors of all heads are joined along the first axis
    {weight}          any name
    {stack} {kind} {qkv} …   a word out of a list; see ``WORDS``

A table may have its own lists, each a dict of the checkpoint's words to the model's. A
placeholder that only the weight's name has takes all words of its list: a packed projection becomes
``{qkv}_proj``.
"""

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

# Conversions of one tensor of a checkpoint to the weights that it holds. Each has an inverse for
# shapes, so that messages can name the tensors and shapes that a checkpoint needs.


Shape = tuple[int, ...]


class Convert(Protocol):
    """A function of a tensor to a weight for each target of its rule, or to one for all."""

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        """Convert; the number of weights differs from that of the targets if the shape is wrong."""

    def original_shape(self, shape: Shape) -> Shape:
        """The shape of the tensor that is converted to weights of ``shape``."""


@dataclass(frozen=True)
class Unchanged:
    """Converts a tensor to itself."""

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        """Return the tensor."""
        return (tensor,)

    def original_shape(self, shape: Shape) -> Shape:
        """Return the shape unchanged."""
        return shape


@dataclass(frozen=True)
class Split:
    """Equal parts along the first axis: packed projections, (count * E, ...), to (E, ...) each."""

    count: int

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        """The parts; fewer, or of unequal shapes, if the number of rows is not divisible."""
        return torch.chunk(tensor, self.count, dim=0) if tensor.dim() else ()

    def original_shape(self, shape: Shape) -> Shape:
        """The same with ``count`` times the rows."""
        return (self.count * shape[0], *shape[1:]) if shape else shape


@dataclass(frozen=True)
class Squeezed:
    """A position table (M, E) with axes of length 1 around it."""

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        """The table without axes of length 1."""
        while tensor.dim() > 2 and 1 in tensor.shape:
            tensor = tensor.squeeze(list(tensor.shape).index(1))
        return (tensor,)

    def original_shape(self, shape: Shape) -> Shape:
        """The table's shape; axes of length 1 are not known, nor needed in messages."""
        return shape


@dataclass(frozen=True)
class RowsFrom:
    """A position table (M + count, E) whose first rows are unused, as in BART."""

    count: int

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        """The table (M, E) without the unused rows."""
        return (tensor[self.count :] if tensor.dim() else tensor,)

    def original_shape(self, shape: Shape) -> Shape:
        """The shape with the unused rows."""
        return (shape[0] + self.count, *shape[1:]) if shape else shape


@dataclass(frozen=True)
class SingleRow:
    """A vector (V) that is stored as (1, V)."""

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        """Return the vector (V)."""
        return (tensor[0] if tensor.dim() == 2 and len(tensor) == 1 else tensor,)

    def original_shape(self, shape: Shape) -> Shape:
        """With an axis of length 1 in front."""
        return (1, *shape)


@dataclass(frozen=True)
class Transposed:
    """A matrix that is stored as (in, out), and converted further as (out, in)."""

    then: Convert = field(default_factory=Unchanged)

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        """Convert the matrix as (out, in); nothing for a tensor that is not a matrix."""
        return self.then(tensor.T) if tensor.dim() == 2 else ()

    def original_shape(self, shape: Shape) -> Shape:
        """The shape with its axes exchanged."""
        return self.then.original_shape(shape)[::-1]


@dataclass(frozen=True)
class OneRow:
    """A vector that is stored as a matrix of one row."""

    def __call__(self, tensor: Tensor) -> Sequence[Tensor]:
        """Return the row as a vector."""
        return (tensor.reshape(-1),) if tensor.dim() < 2 or tensor.size(0) == 1 else ()

    def original_shape(self, shape: Shape) -> Shape:
        """The shape of a matrix of one row."""
        return (1, *shape)


UNCHANGED, THIRDS, HALVES, POSITION_TABLE = Unchanged(), Split(3), Split(2), Squeezed()


Words = Mapping[str, Mapping[str, str]]
Entries = Mapping[str, str | tuple[str, Convert]]

WORDS: Words = {
    "stack": {"encoder": "encoder", "decoder": "decoder"},
    "kind": {"weight": "weight", "bias": "bias"},
    "qkv": {"q": "q", "k": "k", "v": "v"},
    "side": {"source": "source", "target": "target"},
}
_OPEN = {"layer": r"\d{1,6}", "head": r"\d{1,6}", "weight": r".+"}
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_ANY = "{weight}"  # the key of a rule for every key
_NUMBER = re.compile(r"[0-9]+|\{layer\}|\{head\}")


def placeholders(text: str) -> list[str]:
    """The names of a key's placeholders."""
    return _PLACEHOLDER.findall(text)


def wrong_placeholders(text: str, words: Words) -> str | None:
    """Why a key cannot be used in a table; None if it can.

    Args:
        text: the key, with placeholders.
        words: the lists of words.
    """
    names = placeholders(text)
    if {"{", "}"} & {*_PLACEHOLDER.sub("", text)}:
        return "a brace that is not part of a {placeholder}"
    if strange := [name for name in names if name not in words and name not in _OPEN]:
        known = ", ".join(f"{{{name}}}" for name in (*_OPEN, *words))
        return f"{{{strange[0]}}} is not known; known are {known}"
    if twice := [name for name in names if names.count(name) > 1]:
        return f"{{{twice[0]}}} is in it more than once"
    return None


def fill(text: str, values: Mapping[str, str]) -> str:
    """A key with values in place of its placeholders."""
    return _PLACEHOLDER.sub(lambda found: values[found[1]], text)


def _pattern(text: str, lists: Mapping[str, Iterable[str]]) -> re.Pattern[str]:
    """A key with placeholders as a regular expression with a group for each."""
    expression = ""
    for literal, name in re.findall(r"([^{]*)(?:\{(\w+)\})?", text):
        expression += re.escape(literal)
        if name:
            choices = _OPEN.get(name) or "|".join(map(re.escape, lists[name]))
            expression += f"(?P<{name}>{choices})"
    return re.compile(expression, re.ASCII)


def _outline(key: str) -> str:
    """A key, or a rule's key, with every number in it replaced by 0."""
    return _NUMBER.sub("0", key)


@dataclass(frozen=True)
class Rule:
    """One line of a key table.

    Attributes:
        key: the checkpoint's key, with placeholders.
        target: the name of the model's weight that it becomes, with placeholders.
        convert: turns the tensor into one weight for each target.
        words: placeholder to the checkpoint's words and the model's.
    """

    key: str
    target: str
    convert: Convert = UNCHANGED
    words: Words = field(default_factory=lambda: WORDS, hash=False)

    @functools.cached_property
    def targets(self) -> tuple[str, ...]:
        """The weights' names, without the words that the key has no placeholder for."""
        free = [name for name in placeholders(self.target) if name not in placeholders(self.key)]
        return tuple(_spread(self.target, {name: self.words[name].values() for name in free}))

    @functools.cached_property
    def _key_pattern(self) -> re.Pattern[str]:
        return _pattern(self.key, self.words)

    @functools.cached_property
    def _target_pattern(self) -> re.Pattern[str]:
        return _pattern(self.target, {name: it.values() for name, it in self.words.items()})

    def match(self, key: str) -> dict[str, str] | None:
        """The placeholders' values in the model's words; None if the rule is not for this key."""
        if (found := self._key_pattern.fullmatch(key)) is None:
            return None
        lists = self.words
        return {name: lists.get(name, {}).get(it, it) for name, it in found.groupdict().items()}

    def key_of(self, target: str, head: str = "*") -> str | None:
        """The key that becomes a weight; None if the rule does not make this one."""
        if (found := self._target_pattern.fullmatch(target)) is None:
            return None
        return self.write_key({"head": head, **found.groupdict()})

    def write_key(self, values: Mapping[str, str]) -> str:
        """The key for placeholder values in the model's words."""
        theirs = dict(values)
        for name in placeholders(self.key):
            if (words := self.words.get(name)) is not None:
                # The first word with this meaning, or of all if the weight has none of them.
                theirs[name] = next(it for it in words if words[it] == values.get(name, words[it]))
        return self.key.format(**theirs)

    def original_shape(self, shape: Shape, num_heads: int) -> Shape:
        """The shape of the tensor, of each head's where there are several, for a weight."""
        if shape and "{head}" in self.key and num_heads > 0 and shape[0] % num_heads == 0:
            shape = (shape[0] // num_heads, *shape[1:])
        return self.convert.original_shape(shape)

    def outlines(self) -> set[str]:
        """Outlines of all keys that the rule matches."""
        return self._outlines(self.key, {name: it.keys() for name, it in self.words.items()})

    def target_outlines(self) -> set[str]:
        """Outlines of all weights that the rule makes."""
        return self._outlines(self.target, {name: it.values() for name, it in self.words.items()})

    @staticmethod
    def _outlines(text: str, lists: Mapping[str, Iterable[str]]) -> set[str]:
        used = {name: lists[name] for name in placeholders(text) if name in lists}
        return {_ANY if _ANY in text else _outline(it) for it in _spread(text, used)}


def _spread(text: str, lists: Mapping[str, Iterable[str]]) -> list[str]:
    """Fill placeholders with every combination of words; others are kept."""
    spread = []
    for words in itertools.product(*lists.values()):
        one = text
        for name, word in zip(lists, words, strict=True):
            one = one.replace(f"{{{name}}}", word)
        spread.append(one)
    return spread


class KeyTable:
    """The rules of a layout, found by the outlines of keys and of weights.

    Args:
        entries: the checkpoint's key to the weight's name, or to the name and a conversion.
        words: lists of words that add to those of ``WORDS``, or replace them.
    """

    def __init__(self, entries: Entries, words: Words | None = None) -> None:
        lists = {**WORDS, **(words or {})}
        self.rules = tuple(
            Rule(key, value, words=lists) if isinstance(value, str) else Rule(key, *value, lists)
            for key, value in entries.items()
        )
        # Indexed by outline, so that thousands of keys are matched quickly.
        self._by_key: dict[str, list[Rule]] = {}
        self._by_target: dict[str, list[Rule]] = {}
        for rule in self.rules:
            for outline in rule.outlines():
                self._by_key.setdefault(outline, []).append(rule)
            for outline in rule.target_outlines():
                self._by_target.setdefault(outline, []).append(rule)

    def map_keys(self, keys: Iterable[str]) -> dict[str, tuple[Rule, dict[str, str]]]:
        """Every key that the table knows, with its rule and placeholder values."""
        mapped = {}
        for key in keys:
            for rule in (*self._by_key.get(_outline(key), ()), *self._by_key.get(_ANY, ())):
                if (values := rule.match(key)) is not None:
                    mapped[key] = (rule, values)
                    break
        return mapped

    def origin_of(self, target: str, shape: Shape, num_heads: int = 1) -> tuple[str, Shape]:
        """The key, and the shape of its tensor, that would become a weight of this shape."""
        for rule in (
            *self._by_target.get(_outline(target), ()),
            *self._by_target.get(_ANY, ()),
        ):
            if (key := rule.key_of(target)) is not None:
                return key, rule.original_shape(shape, num_heads)
        return target, shape


@dataclass(frozen=True)
class Converted:
    """A state dict under the model's names.

    Attributes:
        weights: the weights, by the model's names.
        key_report: every key that was read to the weights that it became.
        num_heads: number of heads, if each has its own tensor; else None.
        problems: sentences about tensors that could not be converted.
    """

    weights: dict[str, Tensor]
    key_report: dict[str, tuple[str, ...]]
    num_heads: int | None
    problems: list[str]


def convert_weights(table: KeyTable, tensors: Mapping[str, Tensor]) -> Converted:
    """Apply a key table."""
    mapped = table.map_keys(tensors)
    heads = {int(values["head"]) for _, values in mapped.values() if "head" in values}
    num_heads = len(heads) if heads else None  # gaps are reported below as missing heads
    parts: dict[str, dict[int, Tensor]] = {}
    key_report: dict[str, tuple[str, ...]] = {}
    problems = []
    for key, (rule, values) in mapped.items():
        targets = tuple(target.format(**values) for target in rule.targets)
        key_report[key] = targets
        pieces = rule.convert(tensors[key])
        if len(pieces) == 1:  # one tensor may serve several weights
            pieces = [*pieces] * len(targets)
        if len(pieces) != len(targets) or len({piece.shape for piece in pieces}) > 1:
            shape = tuple(tensors[key].shape)
            problems.append(f"{key} has shape {shape}, which does not split into {len(targets)}")
            continue
        for target, piece in zip(targets, pieces, strict=True):
            parts.setdefault(target, {})[int(values.get("head", 0))] = piece
        if num_heads is not None and "head" in values:
            problems += _missing_heads(rule, values, mapped, num_heads)
    weights = _join_heads(parts, problems)
    return Converted(weights, key_report, num_heads, list(dict.fromkeys(problems)))


def _join_heads(
    parts: Mapping[str, Mapping[int, Tensor]], problems: list[str]
) -> dict[str, Tensor]:
    weights = {}
    for target, by_head in parts.items():
        pieces = [by_head[head] for head in sorted(by_head)]
        if len({piece.shape for piece in pieces}) > 1:
            problems.append(f"the heads of {target} differ in shape")
            continue
        if len(pieces) > 1 and not pieces[0].dim():
            problems.append(f"the heads of {target} are single values, not matrices")
            continue
        weights[target] = pieces[0] if len(pieces) == 1 else torch.cat(list(pieces), dim=0)
    return weights


def _missing_heads(
    rule: Rule, values: Mapping[str, str], mapped: Mapping[str, object], num_heads: int
) -> list[str]:
    keys = (rule.write_key({**values, "head": str(head)}) for head in range(num_heads))
    return [f"{key} is missing" for key in keys if key not in mapped]


def compact_report(report: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """A key report in which keys that differ in the number of a layer or head share an entry."""
    rows = {key: list(targets) for key, targets in report.items()}
    for place in range(2):  # the layer, then the head
        groups: dict[tuple[str, ...], list[tuple[str, list[str]]]] = {}
        for key, targets in rows.items():
            general = (name for _, name in _without_numbers([key, *targets], place))
            groups.setdefault(tuple(general), []).append((key, targets))
        rows = {}
        for general_names, members in groups.items():
            if len(members) == 1:
                rows[members[0][0]] = members[0][1]
                continue
            numbers = zip(*(
                [number for number, _ in _without_numbers([key, *targets], place)]
                for key, targets in members
            ), strict=True)  # fmt: skip
            key, *became = (
                name.replace("{}", _span(of))
                for name, of in zip(general_names, numbers, strict=True)
            )
            rows[key] = became
    return rows


def _without_numbers(names: Iterable[str], place: int) -> Iterator[tuple[str, str]]:
    """The ``place``-th number of each dotted name, and the name with {} instead of it."""
    for name in names:
        found = list(re.finditer(r"(?<=\.)(\d+|\{[\d…,]+\})(?=\.)", name))
        if place >= len(found):
            yield "", name
        else:
            match = found[place]
            yield match[0], f"{name[: match.start()]}{{}}{name[match.end() :]}"


def _span(numbers: Sequence[str]) -> str:
    """The numbers of several layers: {0…5}, or {1,3,5}."""
    found = sorted({int(number) for number in numbers if number.isdigit()})
    if len(found) < 2:
        return "".join(map(str, found))
    if len(found) == found[-1] - found[0] + 1:
        return f"{{{found[0]}…{found[-1]}}}"
    return f"{{{','.join(map(str, found))}}}"
