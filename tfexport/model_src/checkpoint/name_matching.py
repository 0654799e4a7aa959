"""Matching of a file's keys with the modules' own names, by words and shapes.

Most models of tutorials are a ``TransformerConfig`` under other names. ``layer_matching`` places
the keys of layers, this file the others: embeddings, positions, the output table, and last norms.
A key without a certain place gets none.

Letters: E the width of the model, V a vocabulary, M positions.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tfexport.errors import Message, Option
from tfexport.model_src.checkpoint.layer_matching import (
    KERNEL,
    Matched,
    Owner,
    is_norm,
    layers_of,
    place,
    place_stacks,
    refuse_square,
    words_of,
)
from tfexport.model_src.checkpoint.rename_tables import AUTO, write_table
from tfexport.model_src.embedding import halves_table, sinusoidal_table, t2t_table

_WEIGHT = ("weight", KERNEL, "gamma", "alpha", "a_2", "scale", "g")
_BIAS = ("bias", "beta", "b_2")
_SOURCE = {"src", "source", "enc", "encoder", "input", "inputs", "i"}
_TARGET = {"tgt", "trg", "target", "dec", "decoder", "output", "outputs", "t"}
_EMBEDDING = {"emb", "embed", "embedding", "embeddings", "embedder", "lut", "wte"}
_OUTPUT = {
    "generator", "head", "logits", "prj", "proj", "projection", "classifier", "fc", "linear",
    "dense", "out", "output", "final", "prediction", "unembed", "unembedding",
}  # fmt: skip
_FINAL = {"final", "last"}
_LISTED = 12  # lines about keys without a place
_NO_WEIGHTS = ("_float_tensor", "version")  # buffers of a device or a version
_TABLES = (
    ("sinusoidal", sinusoidal_table), ("sinusoidal_halves", halves_table),
    ("sinusoidal_t2t", t2t_table),
)  # fmt: skip


def match_names(tensors: Mapping[str, Tensor], stated: Mapping[str, Any]) -> Matched:
    """Match the keys of a file with the own names.

    Args:
        tensors: the tensors of the file.
        stated: config values that files or the caller give.
    """
    matched = Matched()
    matched.ignored += [
        key
        for key, tensor in tensors.items()
        if key.rpartition(".")[2] in _NO_WEIGHTS or _is_causal_mask(tensor)
    ]
    braces = [key for key in tensors if {"{", "}"} & {*key} and key not in matched.ignored]
    matched.unplaced |= dict.fromkeys(braces, "a table cannot have a name with braces")
    left = {*tensors} - {*matched.ignored, *braces}
    owners = _owners({key: it for key, it in tensors.items() if key in left})
    sizes = Counter(size for it in tensors.values() for size in {*it.shape} if size > 1)
    width = max(sizes, key=lambda size: sizes[size], default=0)
    layers, others = layers_of(owners)
    if len(layers) != 2:
        found = ", ".join(f"{prefix}N" for prefix in layers) or "none"
        why = f"numbered layers of an encoder and a decoder were not found ({found})"
        matched.unplaced |= {key: why for it in owners for key in it.keys.values()}
        return matched
    place_stacks(matched, layers, width, _placements(stated))
    if any(it.transposed for it in owners):
        refuse_square(matched, owners)
    _place_tables(matched, others, tensors, width, stated)
    _place_norms(matched, [it for it in others if is_norm(it, width)], stated)
    if stated.get("positions") == "none" and "positions" not in matched.values:
        matched.required.append("relative_positions")
    _read_norm(matched, [it for it in owners if is_norm(it, width)])
    for owner in owners:
        for key in owner.keys.values():
            if key not in matched.names and key not in matched.ignored:
                matched.unplaced.setdefault(key, "its words and its shape fit no place")
    _refuse_shared_places(matched)
    return matched


def _placements(stated: Mapping[str, Any]) -> dict[str, str | None]:
    """Where the norms of each stack are, if config values say it."""
    encoder = stated.get("norm_placement")
    decoder = stated.get("decoder_norm_placement", "same")
    return {"encoder": encoder, "decoder": encoder if decoder == "same" else decoder}


def _owners(tensors: Mapping[str, Tensor]) -> list[Owner]:
    keys: dict[str, dict[str, str]] = {}
    for key in tensors:
        path, kind = _split_kind(key)
        if kind in keys.setdefault(path, {}):
            path, kind = key, "weight"  # two weights of one module
        keys.setdefault(path, {})[kind] = key
    return [
        Owner(path, its, {kind: tuple(tensors[key].shape) for kind, key in its.items()}, order)
        for order, (path, its) in enumerate(keys.items())
        if its
    ]


def _split_kind(key: str) -> tuple[str, str]:
    path, _, leaf = key.rpartition(".")
    if path and leaf in (*_WEIGHT, *_BIAS):
        return path, "bias" if leaf in _BIAS else "weight"
    for kind in ("weight", "bias"):  # in_proj_weight
        if leaf.endswith(f"_{kind}"):
            return key.removesuffix(f"_{kind}"), kind
    return key, "bias" if leaf in _BIAS else "weight"


def _is_causal_mask(tensor: Tensor) -> bool:
    """Whether a tensor is a constant mask of later positions."""
    if tensor.is_complex():
        return False
    while tensor.dim() > 2 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.dim() != 2 or tensor.shape[0] != tensor.shape[1] or tensor.shape[0] < 2:
        return False
    corners = (tensor[0, 0], tensor[0, -1], tensor[-1, 0])  # weights are told apart quickly
    if tensor.is_meta or not {float(it) for it in corners} <= {0.0, 1.0, float("-inf")}:
        return False
    if tensor.is_floating_point():
        tensor = tensor.float()
    allowed = torch.ones_like(tensor, dtype=torch.bool).tril()
    if tensor.dtype == torch.bool:
        return torch.equal(tensor, allowed) or torch.equal(tensor, ~allowed)
    one, minus = torch.ones_like(tensor), torch.full_like(tensor.float(), float("-inf"))
    return (
        torch.equal(tensor, one * allowed)
        or torch.equal(tensor, one * ~allowed)
        or torch.equal(tensor.float(), torch.where(allowed, 0.0, minus))
    )


# What is outside of the layers.


def _side(path: str) -> str | None:
    """The side that the first segment of a path with such a word says."""
    for segment in path.split("."):
        named = {*words_of(segment)}
        if _is_positional(named):
            named -= {"enc", "encoder"}  # position_enc encodes positions
        source, target = bool(named & _SOURCE), bool(named & _TARGET)
        if source != target:
            return "source" if source else "target"
    return None


def _is_positional(words: Iterable[str]) -> bool:
    return any(it.startswith("pos") or it in ("pe", "wpe", "places") for it in words)


def _place_tables(
    matched: Matched,
    owners: Sequence[Owner],
    tensors: Mapping[str, Tensor],
    width: int,
    stated: Mapping[str, Any],
) -> None:
    tokens: dict[str | None, list[Owner]] = {}
    positions: dict[str | None, list[Owner]] = {}
    outputs = []
    for owner in owners:
        shape, words = owner.shape, {*owner.words}
        if len(shape) < 2 or shape[-1] != width:
            continue
        if _is_positional(words) or len(shape) > 2:
            if len([size for size in shape if size != 1]) == 2:
                positions.setdefault(_side(owner.path), []).append(owner)
        elif "bias" in owner.keys:  # which no embedding has
            outputs.append(owner)
        elif words & _EMBEDDING or not words & _OUTPUT:
            tokens.setdefault(_side(owner.path), []).append(owner)
        else:
            outputs.append(owner)
    _ignore_twins(matched, tokens, tensors)
    _place_sides(matched, tokens, "tokens", "tokens.weight")
    _place_sides(matched, positions, "positions", "positions.table")
    for owner in tokens.get("target", ()) if not outputs else ():
        if {*owner.words} & {"output", "outputs"} and stated.get("tie_output") is not True:
            why = "it may be the output table, or that of the target's tokens with tie_output=true"
            matched.unplaced |= dict.fromkeys(owner.keys.values(), why)
            matched.names.pop(owner.keys["weight"], None)
    if len(outputs) == 1:
        place(matched, outputs[0], "output_proj")
    for owner in outputs if len(outputs) > 1 else ():
        matched.unplaced |= dict.fromkeys(owner.keys.values(), "several may be the output table")
    matched.tie_output = not outputs
    placed = [key for key, name in matched.names.items() if name.endswith("positions.table")]
    if placed:
        matched.values["positions"] = _kind_of_positions([tensors[key] for key in placed])


def _place_sides(
    matched: Matched, found: Mapping[str | None, Sequence[Owner]], what: str, name: str
) -> None:
    """Place tables of the two sides, or one of both."""
    single = {side for side, owners in found.items() if len(owners) == 1}
    if {*found} == single == {None}:
        matched.names[found[None][0].keys["weight"]] = name
        return
    for side, owners in found.items():
        one = "target" if side is None and single == {*found} == {"source", None} else side
        for owner in owners:
            if one is not None and side in single:
                matched.names[owner.keys["weight"]] = f"{one}_embedding.{name}"
            else:
                count = sum(map(len, found.values()))
                why = f"of {count} tables of {what}, names do not show which it is"
                matched.unplaced |= dict.fromkeys(owner.keys.values(), why)


def _ignore_twins(
    matched: Matched, tokens: dict[str | None, list[Owner]], tensors: Mapping[str, Tensor]
) -> None:
    """Ignore a table of no side, if both sides have the same one."""
    sided = [
        tensors[it.keys["weight"]] for side in ("source", "target") for it in tokens.get(side, ())
    ]
    for owner in tokens.get(None, []) if len(sided) == 2 else ():
        mine = tensors[owner.keys["weight"]]
        alike = (mine.shape, mine.dtype, False)
        same = all((it.shape, it.dtype, it.is_meta) == alike for it in (mine, *sided))
        if same and all(torch.equal(it, mine) for it in sided):
            matched.ignored.append(owner.keys["weight"])
            tokens[None].remove(owner)
    if not tokens.get(None, [0]):
        del tokens[None]


def _kind_of_positions(tables: Sequence[Tensor]) -> str:
    """The kind of sinusoids that all tables are; "learned" for other values."""
    real = [it for it in tables if not it.is_meta and not it.is_complex()]
    flat = [it.reshape(-1, it.shape[-1]).float() for it in real]
    for kind, make in _TABLES:
        if flat and all(torch.allclose(it, make(*it.shape), rtol=0, atol=1e-4) for it in flat):
            return kind
    return "learned"


def _place_norms(matched: Matched, norms: Sequence[Owner], stated: Mapping[str, Any]) -> None:
    """Place the norms of the stacks and of the embeddings."""
    of_stacks: dict[str, list[Owner]] = {"source": [], "target": []}
    unsided = []
    for owner in norms:
        if not any(re.search("norm|ln", word) for word in owner.words):
            continue
        side = _side(owner.path)
        if {*owner.words} & _EMBEDDING:
            _place_embedding_norm(matched, owner, side, stated)
        elif side is None:
            unsided.append(owner)
        else:
            of_stacks[side].append(owner)
    if len(unsided) == 1 and of_stacks["source"] and not of_stacks["target"]:
        of_stacks["target"] = unsided
    for side, stack in (("source", "encoder"), ("target", "decoder")):
        if len(of_stacks[side]) != 1:
            continue
        (owner,) = of_stacks[side]
        final = stated.get(f"{stack}_final_norm")
        certain = {*owner.words} & _FINAL or stated.get("norm_placement") == "pre"
        if final is None and not certain:  # it may be of the embeddings instead
            matched.values[f"{stack}_final_norm"] = None
            matched.required.append(f"{stack}_final_norm")
        name = f"{side}_embedding.norm" if final is False else f"{stack}.norm"
        place(matched, owner, name)


def _place_embedding_norm(
    matched: Matched, owner: Owner, side: str | None, stated: Mapping[str, Any]
) -> None:
    if side is None:
        return
    key = f"{side}_embedding_norm"
    if stated.get(key) is None:
        matched.values[key] = None
        matched.required.append(key)
    name = "token_norm" if stated.get(key) == "tokens" else "norm"
    place(matched, owner, f"{side}_embedding.{name}")


def _read_norm(matched: Matched, norms: Sequence[Owner]) -> None:
    """The kind of norm, if the names of its weights show it."""
    leaves = {key.rpartition(".")[2] for it in norms for key in it.keys.values()}
    if leaves == {"a_2", "b_2"}:
        matched.values["norm"] = "annotated"
    elif any(word.startswith("rms") for it in norms for word in it.words):
        matched.values["norm"] = "rms"
    elif leaves == {"weight", "bias"}:
        matched.values["norm"] = "layer"


def _refuse_shared_places(matched: Matched) -> None:
    """Refuse keys that would get one place."""
    keys: dict[str, list[str]] = {}
    for key, name in matched.names.items():
        keys.setdefault(name, []).append(key)
    for name, several in keys.items():
        if len(several) > 1:
            for key in several:
                del matched.names[key]
                matched.unplaced[key] = f"{' and '.join(several)} would both be {name}"


def describe_unplaced(matched: Matched, tensors: Mapping[str, Tensor]) -> Message:
    """The keys that have no place, and the table of the others, for a config."""
    if len(reasons := {*matched.unplaced.values()}) == 1 and not matched.names:
        return Message(f"its names could not be matched: {reasons.pop()}.")
    alike: dict[tuple[str, str], list[str]] = {}
    for key, why in matched.unplaced.items():
        alike.setdefault((re.sub("[0-9]+", "N", _split_kind(key)[0]), why), []).append(key)
    lines = []
    for (general, why), keys in alike.items():
        named = keys[0] if len(keys) == 1 else f"{general}.* ({len(keys)} keys)"
        lines.append(f"\n  {named} {tuple(tensors[keys[0]].shape)}: {why}")
    if len(lines) > _LISTED:
        lines[_LISTED:] = [f"\n  … and {len(lines) - _LISTED} more"]
    count = len(matched.unplaced)
    head = f"{count} of {count + len(matched.names) + len(matched.ignored)} keys have no place:"
    table = write_table({**matched.names, **matched.likely})
    if not table:
        return Message(head, *lines)
    return Message(
        head, *lines, "\nThe others are in this table. Correct and complete it, put it into a "
        "file, and pass that with ", Option("config", "FILE"), "; ", Option("rename", AUTO),
        " is then not needed. Keys without a use belong into 'ignore' (docs/checkpoints.md).\n",
        _print_config(table, matched),
    )  # fmt: skip


def _print_config(table: Mapping[str, Any], matched: Matched) -> str:
    """A config as JSON, with one rule of its rename table a line."""
    rules = [f"{json.dumps(key)}: {json.dumps(name)}" for key, name in table.items()]
    others = {"ignore": matched.ignored, "norm": matched.values.get("norm")}
    others["tie_output"] = matched.tie_output
    rest = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in others.items() if value]
    return ",\n ".join(['{"rename": {\n  ' + ",\n  ".join(rules) + "\n }", *rest]) + "}"
