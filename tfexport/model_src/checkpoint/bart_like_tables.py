"""Tables of BART and its kin: embeddings that go by several names, and saved sinusoids."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tfexport.model_src.checkpoint.layout import Prepared
from tfexport.model_src.position import halves_table, t2t_table

_SAME = 1e-5  # sinusoids of float32
_NEAR = 1e-2  # of float16 too


@dataclass(frozen=True)
class Tables:
    """Which tables a family has.

    Attributes:
        head: the key of the output projection.
        shared: both sides have one table, unless config.json says otherwise.
        head_always_tied: a file without an output projection means that it is the target's table,
            whatever ``tie_word_embeddings`` says.
    """

    head: str = "lm_head.weight"
    shared: bool = True
    head_always_tied: bool = False


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
    one = tables.shared and config.get("share_encoder_decoder_embeddings") is not False
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
    return _resolve(tensors, names, shared if one else None, tied, head)


def _resolve(
    tensors: Mapping[str, Tensor],
    names: Mapping[str, list[str]],
    shared: str | None,
    tied: bool,
    head: str,
) -> Prepared:
    made, read = dict(tensors), {}
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
            f"tie_word_embeddings is false in config.json, so that no table stands for {head}"
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
    """Drop saved sinusoids, which are computed anew; a table that is none stays, as learned.

    Args:
        tensors: of the file.
        facts: config values of the family.
        prefix: "model." or "".
        first: row of tensor2tensor's sinusoids for the first token.
    """
    kinds = {"sinusoidal_halves": halves_table, "sinusoidal_t2t": t2t_table}
    if facts["positions"] not in kinds:
        return Prepared(tensors)
    first = first if facts["positions"] == "sinusoidal_t2t" else 0
    stacks = {stack: f"{prefix}{stack}.embed_positions" for stack in ("encoder", "decoder")}
    kept, read, problems = dict(tensors), {}, []
    values, notes, others = {}, [], {}
    for stem in stacks.values():
        for name in (f"{stem}.weight", f"{stem}.weights"):
            table = kept.get(name)
            if table is None or table.dim() != 2 or table.is_meta or not table.isfinite().all():
                continue
            computed = kinds[facts["positions"]](*table.shape)
            distance = (table - computed)[first:].abs().max().item() if len(table) > first else 0
            if name.endswith("s"):  # of M2M-100, which never reads what a file has
                problems += [f"{name} is no table of sinusoids"] if distance > _NEAR else []
            elif distance > _SAME:
                others[name] = table[first:]
            elif facts["positions"] == "sinusoidal_halves":
                values["max_positions"] = len(table)
            del kept[name]
            read[name] = ()
    if others:
        both = {f"{stem}.weight": tensors.get(f"{stem}.weight") for stem in stacks.values()}
        kept |= {name: table[first:] for name, table in both.items() if table is not None}
        read = {name: targets for name, targets in read.items() if name not in kept}
        values = {"positions": "learned"}
        notes.append(f"{', '.join(others)} are not the sinusoids to 1e-5, and used as they are")
    return Prepared(kept, read, values, tuple(problems), tuple(notes))
