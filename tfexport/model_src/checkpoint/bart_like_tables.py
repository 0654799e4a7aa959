"""Tables of BART and its kin: embeddings that go by several names, and saved sinusoids."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tfexport.model_src.checkpoint.layout import Prepared
from tfexport.model_src.position import halves_table, t2t_table

_SAME = 1e-5  # sinusoids of float32
_NEAR = 1e-2  # of float16 too
_COMPUTED: Mapping[str, Callable[[int, int], Tensor]] = {
    "sinusoidal_halves": halves_table,
    "sinusoidal_t2t": t2t_table,
}


@dataclass(frozen=True)
class Tables:
    """Which tables a family has.

    Attributes:
        head: the key of the output projection.
        shared: both sides have one table.
        may_differ: unless ``share_encoder_decoder_embeddings`` says otherwise.
        head_always_tied: a file without an output projection means that it is the target's table,
            whatever ``tie_word_embeddings`` says.
    """

    head: str = "lm_head.weight"
    shared: bool = True
    may_differ: bool = False
    head_always_tied: bool = False

    def differ(self, config: Mapping[str, Any]) -> bool:
        """Whether config.json gives each side a table of its own."""
        return self.may_differ and config.get("share_encoder_decoder_embeddings") is False


def share_tables(
    tensors: Mapping[str, Tensor], tables: Tables, prefix: str, config: Mapping[str, Any]
) -> Prepared:
    """Find every embedding table under its own name, or else under that of one it is tied to.

    A .safetensors file holds a tensor once, under one of its names; a .bin file under all.

    Args:
        tensors: of the file.
        tables: of the family.
        prefix: "model." or "".
        config: values of config.json and its class's defaults.
    """
    shared = f"{prefix}shared.weight"
    source, target = (f"{prefix}{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))
    head = tables.head if prefix else tables.head.removeprefix("model.")
    tied = config.get("tie_word_embeddings") is not False
    tied_head = tied or tables.head_always_tied
    one = tables.shared and not tables.differ(config)
    if one:
        names = {source: [shared, target], target: [shared, source], head: []}
        names[source] += [head] if tied else []
        names[target] += [head] if tied else []
        names[head] += [shared, target, source] if tied else []
    else:
        sized = tied and tables.head_always_tied  # FSMT's config speaks of all three
        names = {source: [target, head] if sized else [], target: [], head: []}
        names[target] += [head] if tied_head else []
        names[head] += [target] if tied_head else []
    found = _resolve(tensors, names, shared if one else None, tied, head)
    if one or shared not in tensors:
        return found
    alone = f"{shared} has no use in a model with a separate table on each side"
    kept = {name: tensor for name, tensor in found.tensors.items() if name != shared}
    return Prepared(kept, {**found.read, shared: ()}, problems=(alone,), notes=found.notes)


def _resolve(
    tensors: Mapping[str, Tensor],
    names: Mapping[str, list[str]],
    shared: str | None,
    tied: bool,
    head: str,
) -> Prepared:
    made = dict(tensors)
    read: dict[str, tuple[str, ...]] = {}
    for name, others in names.items():
        there = next((other for other in (name, *others) if other in tensors), None)
        if there is not None and there != name:
            made[name] = tensors[there]
            read[there] = (*read.get(there, ()), name)
    if shared in tensors:
        assert shared is not None
        del made[shared]
        read.setdefault(shared, ())  # every other name is there
    notes = []
    if not tied and head not in made:
        notes.append(
            f"tie_word_embeddings is false in config.json, so no table takes the place of {head}"
        )
    present = [name for name in (shared, *names) if name is not None and name in tensors]
    if tied and shared is not None and not all(_equal(tensors, present[0], it) for it in present):
        notes.append(
            f"{', '.join(present)} differ, although config.json ties them: each is used as it is"
        )
    return Prepared(made, read, notes=tuple(notes))


def _equal(tensors: Mapping[str, Tensor], first: str, second: str) -> bool:
    a, b = tensors[first], tensors[second]
    return a is b or a.is_meta or b.is_meta or torch.equal(a, b)


def read_positions(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any], prefix: str, first: int
) -> Prepared:
    """Drop saved sinusoids, which are computed anew; tables that are none stay, as learned.

    Args:
        tensors: of the file.
        facts: config values of the family.
        prefix: "model." or "".
        first: row of tensor2tensor's sinusoids for the first token.
    """
    kind = facts["positions"]
    if kind not in _COMPUTED:
        return Prepared(tensors)
    first = first if kind == "sinusoidal_t2t" else 0
    stems = [f"{prefix}{stack}.embed_positions" for stack in ("encoder", "decoder")]
    # M2M-100 had these in its files, and never reads them.
    unread = {name: it for name in (f"{stem}.weights" for stem in stems)
              if (it := _distance(tensors, name, kind, first)) is not None}  # fmt: skip
    saved = {name: it for name in (f"{stem}.weight" for stem in stems)
             if (it := _distance(tensors, name, kind, first)) is not None}  # fmt: skip
    problems = [f"{name} is no table of sinusoids" for name, it in unread.items() if it > _NEAR]
    others = [name for name, distance in saved.items() if distance > _SAME]
    dropped = {**unread, **({} if others else saved)}
    values: dict[str, Any] = {"positions": "learned"} if others else {}
    if saved and not others and kind == "sinusoidal_halves":
        values["max_positions"] = len(tensors[next(iter(saved))])
    kept = {name: tensor for name, tensor in tensors.items() if name not in dropped}
    if others:
        kept |= {name: tensors[name][first:] for name in saved}
    says = f"{', '.join(others)} are not sinusoids to {_SAME}, and used as they are"
    return Prepared(
        kept, dict.fromkeys(dropped, ()), values, tuple(problems), (says,) if others else ()
    )


def _distance(tensors: Mapping[str, Tensor], name: str, kind: str, first: int) -> float | None:
    """How far a saved table is from the computed one; None if it is no table."""
    table = tensors.get(name)
    if table is None or table.dim() != 2 or table.is_meta or not table.isfinite().all():
        return None
    difference = (table - _COMPUTED[kind](*table.shape))[first:]
    return difference.abs().max().item() if difference.numel() else 0.0
