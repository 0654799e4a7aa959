"""All layouts, and which of them a state dict is in."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tfexport.errors import CheckpointError, ConfigError, Message, Option, join_some
from tfexport.model_src.checkpoint.foreign import describe_config, describe_names
from tfexport.model_src.checkpoint.keymap import Layout
from tfexport.model_src.checkpoint.layouts.annotated import ANNOTATED
from tfexport.model_src.checkpoint.layouts.native import METADATA_KEY, NATIVE
from tfexport.model_src.checkpoint.layouts.nn_transformer import NN_TRANSFORMER, REBUILT
from tfexport.model_src.checkpoint.layouts.rmsnorm import RMSNORM
from tfexport.model_src.checkpoint.wrappers import StateDict

LAYOUTS = {layout.name: layout for layout in (NN_TRANSFORMER, REBUILT, ANNOTATED, RMSNORM, NATIVE)}


@dataclass(frozen=True)
class Detected:
    """The layout of a state dict.

    Attributes:
        layout: whose table knows the keys.
        prefix: what all keys have in front of the table's; it is to be taken off.
        known: how many keys the table knows then.
    """

    layout: Layout
    prefix: str
    known: int


def require_layout_name(name: str | None) -> None:
    """Refuse a name that no layout has.

    Raises:
        ConfigError: naming those there are.
    """
    if name is not None and name not in LAYOUTS:
        choices = ", ".join(repr(choice) for choice in LAYOUTS)
        raise ConfigError(Message(Option("layout"), f": {name!r} is not one of {choices}."))


def detect_layout(
    raw: StateDict,
    names: Iterable[str],
    forced: str | None = None,
    foreign_config: Mapping[str, Any] | None = None,
) -> Detected:
    """The layout whose table knows most of the keys; ``forced`` names one.

    Args:
        raw: the file, whose metadata may say that it is the project's own.
        names: of its tensors, after the rename table.
        forced: the name of a layout, or None.
        foreign_config: a config.json of another project beside the file, for the message.

    Raises:
        CheckpointError: no table knows half of the keys.
    """
    names = list(names)
    if not names:
        raise CheckpointError(f"{raw.path}: 'ignore' leaves no tensor of it.")
    if forced == NATIVE.name or (forced is None and METADATA_KEY in raw.metadata):
        return Detected(NATIVE, "", len(names))
    layouts = [LAYOUTS[forced]] if forced else [v for v in LAYOUTS.values() if v is not NATIVE]
    prefixes = ("", *_common_prefixes(names))
    found = [Detected(v, p, _count_known(v, names, p)) for v in layouts for p in prefixes]
    best = max(found, key=lambda it: it.known)  # the first of equals: the shortest prefix
    if best.prefix and best.known < len(names):
        # Taken off only where all keys fit then; else it is left to the user, who is told.
        best = max((it for it in found if not it.prefix), key=lambda it: it.known)
    if forced is None and (2 * best.known < len(names) or not best.known):
        raise CheckpointError(_no_layout(raw, names, found, best, foreign_config))
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
    return len(layout.map_keys(inside))


def _no_layout(
    raw: StateDict,
    names: list[str],
    found: list[Detected],
    best: Detected,
    foreign_config: Mapping[str, Any] | None,
) -> str:
    foreign = describe_config(foreign_config or {}) or describe_names(names)
    if foreign is not None:
        return f"{raw.path}: {foreign}"
    known = best.layout.map_keys(names)
    unknown = [name for name in names if name not in known]
    text = (
        f"{raw.path}: no known layout; nearest is {best.layout.name} "
        f"({best.known} of {len(names)} keys). Not among its keys: {join_some(unknown)}."
    )
    better = max(found, key=lambda it: it.known)
    if better.prefix and 2 * better.known >= len(names):
        pattern = "^" + better.prefix.replace(".", "\\\\.")
        return (
            f"{text}\nWithout the prefix {better.prefix!r}, {better.known} keys are those of "
            f'{better.layout.name}: give "rename": [["{pattern}", ""]] in the config.'
        )
    return (
        f"{text}\nIf this is a Transformer of encoder and decoder, map its names onto a layout's "
        "(docs/checkpoints.md lists them) with the config's 'rename' table. Other models are not "
        "supported."
    )
