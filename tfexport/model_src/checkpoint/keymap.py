"""Key tables: which of a checkpoint's tensors becomes which of the model's weights.

A layout is a table of rules and nothing else. A rule's key may hold ``{stack}`` (encoder or
decoder), ``{layer}`` and ``{head}``, or be ``{weight}``, any name; its targets are the model's own
state-dict names.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Convert = Callable[[Tensor], Sequence[Tensor]]

_PLACEHOLDERS = {"{stack}": r"(?P<stack>encoder|decoder)", "{layer}": r"(?P<layer>\d{1,6})"}
_PLACEHOLDERS |= {"{head}": r"(?P<head>\d{1,6})", "{weight}": r"(?P<weight>.+)"}

_ANY = "{weight}"  # the key of a rule for every key
_NUMBER = re.compile(r"[0-9]+|\{layer\}|\{head\}")


def as_it_is(tensor: Tensor) -> Sequence[Tensor]:
    """One tensor for one weight."""
    return (tensor,)


def thirds(tensor: Tensor) -> Sequence[Tensor]:
    """Packed query, key and value projections, (3 * E, ...), to three of (E, ...)."""
    return torch.chunk(tensor, 3, dim=0) if tensor.dim() else ()


def as_table(tensor: Tensor) -> Sequence[Tensor]:
    """A position table with axes of length 1 around it to (M, E)."""
    while tensor.dim() > 2 and 1 in tensor.shape:
        tensor = tensor.squeeze(list(tensor.shape).index(1))
    return (tensor,)


@functools.cache
def _pattern(key: str) -> re.Pattern[str]:
    pattern = re.escape(key)
    for name, expression in _PLACEHOLDERS.items():
        pattern = pattern.replace(re.escape(name), expression)
    return re.compile(pattern, re.ASCII)


def _outline(key: str) -> str:
    """A key, or a rule's, with every number in it alike."""
    return _NUMBER.sub("0", key)


@dataclass(frozen=True)
class Rule:
    """One line of a key table.

    Attributes:
        key: the checkpoint's key, with placeholders.
        targets: the model's weights that it becomes, with the same placeholders. If several keys
            (the heads of one attention) name one target, they are joined along the first axis.
        convert: the tensor to one tensor a target.
    """

    key: str
    targets: tuple[str, ...]
    convert: Convert = as_it_is

    def match(self, key: str) -> dict[str, str] | None:
        """The placeholders' values, or None if the rule is not for this key."""
        found = _pattern(self.key).fullmatch(key)
        return None if found is None else found.groupdict()


@dataclass(frozen=True)
class Layout:
    """How one family of models names its weights.

    Attributes:
        name: as ``--format`` takes it.
        title: as people call it.
        rules: the key table.
        defaults: config values where the file and the user say nothing.
        required: config keys that nothing can stand in for.
    """

    name: str
    title: str
    rules: tuple[Rule, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()

    def map_keys(self, keys: Iterable[str]) -> dict[str, tuple[Rule, dict[str, str]]]:
        """Every key that the table knows, with its rule and placeholder values."""
        mapped = {}
        for key in keys:
            for rule in (*self._by_outline.get(_outline(key), ()), *self._by_outline[_ANY]):
                if (values := rule.match(key)) is not None:
                    mapped[key] = (rule, values)
                    break
        return mapped

    @functools.cached_property
    def _by_outline(self) -> dict[str, list[Rule]]:
        """The few rules that a key can be for, so that not all are tried on every key."""
        rules: dict[str, list[Rule]] = {_ANY: []}
        for rule in self.rules:
            for key in {rule.key.replace("{stack}", stack) for stack in ("encoder", "decoder")}:
                rules.setdefault(_outline(key), []).append(rule)
        return rules

    def origin_of(self, target: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """The key, and the shape of its tensor, that would become a weight of this shape."""
        for rule in self.rules:
            for name in rule.targets:
                if (values := Rule(name, ()).match(target)) is not None:
                    key = rule.key.format(**{"head": "*", **values})
                    return key, (3 * shape[0], *shape[1:]) if rule.convert is thirds else shape
        return target, shape


@dataclass(frozen=True)
class Conversion:
    """What a key table made of a state dict.

    Attributes:
        weights: by the model's names.
        fates: what each key that was read became.
        num_heads: where every head has a tensor of its own; else None.
        problems: sentences about tensors that could not be converted.
    """

    weights: dict[str, Tensor]
    fates: dict[str, tuple[str, ...]]
    num_heads: int | None
    problems: list[str]


def convert_weights(layout: Layout, tensors: Mapping[str, Tensor]) -> Conversion:
    """Apply a key table."""
    mapped = layout.map_keys(tensors)
    heads = {int(values["head"]) for _, values in mapped.values() if "head" in values}
    num_heads = len(heads) if heads else None  # a gap shows up below as a head that is missing
    parts: dict[str, dict[int, Tensor]] = {}
    fates: dict[str, tuple[str, ...]] = {}
    problems = []
    for key, (rule, values) in mapped.items():
        targets = tuple(target.format(**values) for target in rule.targets)
        fates[key] = targets
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
    return Conversion(weights, fates, num_heads, list(dict.fromkeys(problems)))


def _missing_heads(
    rule: Rule, values: Mapping[str, str], mapped: Mapping[str, object], num_heads: int
) -> list[str]:
    keys = (rule.key.format(**{**values, "head": str(head)}) for head in range(num_heads))
    return [f"{key} is missing" for key in keys if key not in mapped]
