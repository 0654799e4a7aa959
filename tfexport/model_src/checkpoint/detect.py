"""Detection of the layout of a state dict."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tfexport.errors import CheckpointError, Message, Option, join_some
from tfexport.model_src.checkpoint.layout import Layout
from tfexport.model_src.checkpoint.layouts import LAYOUTS, layouts_of
from tfexport.model_src.checkpoint.layouts.native import LAYOUT as NATIVE
from tfexport.model_src.checkpoint.layouts.native import METADATA_KEY, renamed_layout
from tfexport.model_src.checkpoint.state_dict import StateDict
from tfexport.model_src.checkpoint.unsupported import (
    MODULE,
    describe_config,
    describe_form,
    describe_names,
    describe_unsupported,
)


@dataclass(frozen=True)
class Detected:
    """The layout of a state dict.

    Attributes:
        layout: the layout whose key table matches.
        prefix: common prefix of all keys, to be removed before they match.
        known: number of keys that match.
    """

    layout: Layout
    prefix: str
    known: int

    @property
    def notes(self) -> list[str]:
        """Remarks for the user."""
        taken_off = f"every key starts with {self.prefix!r}, which was taken off"
        return [taken_off] if self.prefix else []


def detect_layout(
    raw: StateDict,
    names: Iterable[str],
    forced: str | None = None,
    config: Mapping[str, Any] | None = None,
    renamed: bool = False,
) -> Detected:
    """The layout whose table knows most of the keys; ``forced`` names one.

    Args:
        raw: the file; its metadata may mark it as tfexport's own format.
        names: the names of the tensors, after the rename table.
        forced: the name of a layout, or None.
        config: the config.json next to the file, of any project; a layout with its ``model_type``
            that knows half of the keys is chosen.
        renamed: whether there is a rename table, which may lead to the modules' own names.

    Raises:
        CheckpointError: no table knows half of the keys.
    """
    names = list(names)
    _refuse_form(raw, names)
    if METADATA_KEY in raw.metadata and forced in (None, NATIVE.name):
        return Detected(NATIVE, "", len(names))
    all_ours = renamed and _count_known(NATIVE, names, "") == len(names)
    if forced == NATIVE.name or (forced is None and all_ours):
        return Detected(renamed_layout(names), "", len(names))
    config = config or {}
    layouts = [LAYOUTS[forced]] if forced else [v for v in LAYOUTS.values() if v is not NATIVE]
    by_config = layouts_of(config)
    undecided = [v for v in layouts if v.needs_config and not forced and v not in by_config]
    layouts = [v for v in layouts if v not in undecided]
    prefixes = ("", *_common_prefixes(names))
    found = [Detected(v, p, _count_known(v, names, p)) for v in layouts for p in prefixes]
    best = _best(found, names)
    recognised = [it for it in found if it.layout in by_config]
    if recognised and 2 * _best(recognised, names).known >= len(names):
        best = _best(recognised, names)
    if forced is None and (2 * best.known < len(names) or not best.known):
        other_project = None if recognised else describe_config(config)
        other_project = other_project or describe_unsupported(names)
        if other_project is None and (several := _undecided(undecided, names)):
            raise CheckpointError(Message(f"{raw.path}: ", several))
        if (other_project := other_project or describe_names(names)) is not None:
            raise CheckpointError(f"{raw.path}: {other_project}")
        raise CheckpointError(_no_layout(raw, names, found, best))
    return best


def _refuse_form(raw: StateDict, names: list[str]) -> None:
    """Refuse weights in a form that no layout reads, such as adapters.

    Raises:
        CheckpointError: it is one, or there are no names.
    """
    if not names:
        raise CheckpointError(f"{raw.path}: 'ignore' matches every tensor.")
    if (form := describe_form(names)) is not None:
        raise CheckpointError(f"{raw.path}: {form}")


def _undecided(layouts: list[Layout], names: list[str]) -> Message | None:
    """Advice if several layouts match nearly all keys equally well; None otherwise."""
    known = {layout.name: _count_known(layout, names, "") for layout in layouts}
    most = max(known.values(), default=0)
    if 10 * most < 9 * len(names):
        return None
    fitting = [name for name, count in known.items() if count == most]
    return Message(
        f"the keys match several layouts, which compute differently: {join_some(fitting, 20)}. "
        "Pass the folder with the model's own config.json, or set the layout with ",
        Option("layout", "NAME"),
        " and its config with ",
        Option("settings", ["key=value"]),
        ".",
    )


def _best(found: list[Detected], names: list[str]) -> Detected:
    best = max(found, key=lambda it: it.known)  # the first of equals: the shortest prefix
    if best.prefix and best.known < len(names):
        # Removed only if all keys fit afterwards; otherwise an error tells the user.
        best = max((it for it in found if not it.prefix), key=lambda it: it.known)
    return best


def _common_prefixes(names: list[str]) -> list[str]:
    """Every dotted prefix that most keys share, shortest first."""
    counts: dict[str, int] = {}
    for name in names:
        parts = name.split(".")[:-1]
        for length in range(1, min(len(parts), 4) + 1):
            prefix = ".".join(parts[:length]) + "."
            counts[prefix] = counts.get(prefix, 0) + 1
    shared = [prefix for prefix, count in counts.items() if 10 * count >= 9 * len(names)]
    return sorted(shared, key=len)


def _count_known(layout: Layout, names: list[str], prefix: str) -> int:
    inside = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    return len(layout.table.map_keys(inside))


def _no_layout(raw: StateDict, names: list[str], found: list[Detected], best: Detected) -> Message:
    known = best.layout.table.map_keys(names)
    unknown = [name for name in names if name not in known]
    text = (
        f"{raw.path}: no known layout; the closest is {best.layout.name} "
        f"({best.known} of {len(names)} keys). Unknown keys: {join_some(unknown)}."
    )
    better = max(found, key=lambda it: it.known)
    if better.prefix and 2 * better.known >= len(names):
        return Message(
            f"{text}\nWithout the prefix {better.prefix!r}, {better.known} keys match "
            f'{better.layout.name}: set "rename": {_without(better.prefix)} in the config.'
        )
    if (inner := _inner_model(names)) is not None:
        return Message(f"{text}\n{inner}")
    return Message(
        f"{text}\n{MODULE.capitalize()}, which needs no layout; or, if it is an ordinary "
        "Transformer, map its names in a table (docs/checkpoints.md, other names), ",
        Option("rename", "names.json"),
        " or 'rename' in the config.",
    )


def _inner_model(names: list[str]) -> str | None:
    """Advice if a file holds several models, such as averaged weights; None otherwise."""
    groups: dict[str, list[str]] = {}
    for name in names:
        for length in range(1, 1 + min(3, name.count("."))):
            prefix = "".join(f"{part}." for part in name.split(".")[:length])
            groups.setdefault(prefix, []).append(name)
    for prefix, inside in groups.items():
        if len(inside) <= max(8, len(names) // 8) or len(inside) == len(names):
            continue
        others = [name for name in names if not name.startswith(prefix)]
        first = list(dict.fromkeys(name.partition(".")[0] for name in others))
        layouts = [it for it in LAYOUTS.values() if it is not NATIVE and not it.needs_config]
        fits = max(_count_known(it, inside, prefix) for it in layouts) == len(inside)
        if fits and len(first) <= 8:
            ignore = [name if name in others else f"{name}.{{weight}}" for name in first]
            return (
                f"The {len(inside)} keys under {prefix!r} are a separate model: give "
                f'"rename": {_without(prefix)}, "ignore": {json.dumps(ignore)} in the config.'
            )
    return None


def _without(prefix: str) -> str:
    """A rename table that takes a prefix off."""
    return json.dumps({f"{prefix}{{weight}}": "{weight}"})
