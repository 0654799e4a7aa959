"""Unwrapping of state dicts.

Removed are an enclosing training-state dictionary, the prefix ``module.`` of
DistributedDataParallel and of averaged models, and what torch.compile, FSDP and activation
checkpointing put into names. State dicts of a model's parts are joined.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tfexport.errors import CheckpointError, join_problems, join_some, shown
from tfexport.model_src.checkpoint.pickle_checks import ALWAYS_ALLOWED, MAX_GROWTH
from tfexport.model_src.checkpoint.unsupported import MODULE

MAX_KEYS = 2**13
MAX_KEY_LENGTH = 512
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_MAX_DEPTH = 8
_MARKS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_AVERAGED = "n_averaged"  # a counter of torch.optim.swa_utils.AveragedModel


@dataclass(frozen=True)
class StateDict:
    """The unwrapped state dict of a file.

    Attributes:
        path: the file itself, also where a folder was named.
        tensors: flat, with the wrappers' prefixes removed.
        others: keys whose values are no tensors.
        metadata: the metadata of a safetensors file.
        notes: remarks for the user on how the file was read.
        config: of a toolkit's checkpoint, its own options, with the ``model_type`` of its layout.
        config_name: what they are called in messages.
        inside: the keys that lead to the tensors in what ``torch.load`` gives; None if they have
            other names there, or the file is another.
    """

    path: Path
    tensors: dict[str, Tensor]
    others: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    config_name: str = ""
    inside: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class StateDictPath:
    """The keys under which a file has its state dict.

    Attributes:
        path: the keys that lead to it.
        guessed: whether one of them is not a usual name such as ``model``.
        candidates: keys of several possible state dicts, if the choice is ambiguous.
    """

    path: tuple[Any, ...]
    guessed: bool = False
    candidates: tuple[Any, ...] = ()


def locate(value: Mapping[Any, Any], is_tensor: Callable[[Any], bool]) -> StateDictPath:
    """Find the state dict: this dictionary, under a usual name, or under the one key that has one.

    Raises:
        ValueError: dictionaries are nested deeper than any training state's.
    """
    path: tuple[Any, ...] = ()
    guessed = False
    for _ in range(_MAX_DEPTH):
        inner = next((key for key in _WRAPPERS if isinstance(value.get(key), Mapping)), None)
        if inner is None:
            here = sum(map(is_tensor, value.values()))
            holders = tuple(
                key
                for key, item in value.items()
                if isinstance(item, Mapping) and sum(map(is_tensor, item.values())) > here
            )
            if len(holders) != 1:
                return StateDictPath(path, guessed, holders)
            inner, guessed = holders[0], True
        path = (*path, inner)
        value = value[inner]
    raise ValueError(f"dictionaries are nested more than {_MAX_DEPTH} deep")


def follow(value: Any, path: Iterable[Any]) -> Any:
    """The value at the end of a path of keys."""
    for key in path:
        value = value[key]
    return value


def require_mapping(value: Any, path: Path) -> None:
    """Refuse a file whose top level is not a dictionary.

    Raises:
        CheckpointError: ``value`` is something else.
    """
    if not isinstance(value, Mapping):
        raise CheckpointError(
            f"{path}: holds a {type(value).__name__}, not a state dict. Save the weights with "
            "torch.save(model.state_dict(), 'model.pt')."
        )


def flatten(value: Any, path: Path, metadata: Mapping[str, str] | None = None) -> StateDict:
    """Undo the wrappers around a state dict.

    Raises:
        CheckpointError: no dictionary, one without plain tensors, or with several state dicts.
    """
    require_mapping(value, path)
    try:
        way = locate(value, lambda item: isinstance(item, Tensor))
    except ValueError as error:
        raise CheckpointError(f"{path}: not a state dict: {error}.") from None
    above = follow(value, way.path[:-1])
    value = follow(value, way.path)
    notes = [f"weights taken from {'.'.join(map(str, way.path))}"] if way.guessed else []
    if are_parts(way.candidates):
        parts = join_some(list(way.candidates), 20)
        notes.append(f"state dicts of parts were joined, with their names in front: {parts}")
        value = _joined(value, way.candidates)
    elif way.candidates:
        inner = "".join(f"[{key!r}]" for key in (*way.path, way.candidates[0]))
        names = join_some([shown(key) for key in way.candidates])
        raise CheckpointError(
            f"{path}: holds several state dicts: {names}. If they are versions of one model, "
            f"save the one that is meant, e.g. torch.save(torch.load({path.name!r}, "
            f"map_location='cpu'){inner}, 'model.pt'); if they are parts of one, save "
            f"torch.save(model.state_dict(), 'model.pt') of all of it, or {MODULE}."
        )
    elif way.path and (twins := _twins(above, way.path[-1])):
        notes.append(f"weights taken from {way.path[-1]}, and not from {join_some(twins)}")
    tensors = {str(key): item for key, item in value.items() if isinstance(item, Tensor)}
    others = tuple(str(key) for key, item in value.items() if not isinstance(item, Tensor))
    if not tensors:
        raise CheckpointError(
            f"{path}: holds no tensors; its keys are {join_some(others) or 'none'}. "
            f"Expected a state dict, alone or under one key, such as {', '.join(_WRAPPERS)}."
        )
    if 2 * sum(not item.numel() for item in tensors.values()) > len(tensors):
        raise CheckpointError(
            f"{path}: most of its tensors are empty, as DeepSpeed ZeRO 3 leaves them. Join the "
            "parts with its own script: python zero_to_fp32.py FOLDER OUT."
        )
    if _AVERAGED in tensors and all(key.startswith(("module.", _AVERAGED)) for key in tensors):
        del tensors[_AVERAGED]
    check_keys((*tensors, *others), path)
    unusual = [f"{key} is {kind}" for key, item in tensors.items() if (kind := _unusual(item))]
    if unusual:
        raise CheckpointError(join_problems(str(path), unusual, "Give plain dense tensors."))
    short = _without_prefixes(tensors)
    if len({*short.values()}) < len(short):
        twice = next(name for name in short.values() if [*short.values()].count(name) > 1)
        both = [key for key, name in short.items() if name == twice]
        raise CheckpointError(f"{path}: {' and '.join(both)} would both be {twice}.")
    renamed = {short[key]: tensor for key, tensor in tensors.items()}
    as_saved = not way.candidates and all(key == name for key, name in short.items())
    inside = way.path if as_saved else None
    return StateDict(path, renamed, others, metadata or {}, tuple(notes), inside=inside)


def are_parts(names: Sequence[Any]) -> bool:
    """Whether state dicts of these names are parts of one model: of an encoder and a decoder."""
    words = [str(name).lower() for name in names]
    return any("enc" in word for word in words) and any("dec" in word for word in words)


def _joined(value: Mapping[Any, Any], parts: Iterable[Any]) -> dict[str, Any]:
    """One state dict of several, with each one's name in front of its keys."""
    joined = {str(key): item for key, item in value.items() if isinstance(item, Tensor)}
    for part in parts:
        name = re.sub(r"[._]?(state_dict|state|weights)$", "", str(part)) or str(part)
        inside = {str(key): item for key, item in value[part].items()}
        short = _without_prefixes(inside)
        joined |= {f"{name}.{short[key]}": item for key, item in inside.items()}
    return joined


def _twins(value: Mapping[Any, Any], taken: Any) -> list[str]:
    """Keys of other state dicts with the names of the one that was taken, such as averages."""
    keys = value[taken].keys()
    return [
        str(key)
        for key, item in value.items()
        if key != taken and isinstance(item, Mapping) and len(keys) > 1 and item.keys() == keys
    ]


def aliases(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], path: Path, size: int
) -> dict[str, Tensor]:
    """Tensors that a file's metadata lists under another name.

    ``safetensors.torch.save_model`` and Hugging Face store one of tied tensors, and write so where
    the others went.

    Args:
        tensors: the stored tensors.
        metadata: the metadata of the safetensors file, or of the index of its shards.
        path: the path of that file, for messages.
        size: the number of stored bytes.

    Raises:
        CheckpointError: the metadata makes far more of them than is stored.
    """
    found = {
        alias: tensors[stored]
        for alias, stored in metadata.items()
        if isinstance(stored, str) and stored in tensors and alias not in tensors
    }
    check_keys((*tensors, *found), path)
    values = sum(tensor.numel() for tensor in (*tensors.values(), *found.values()))
    if found and 4 * values > max(ALWAYS_ALLOWED, MAX_GROWTH * size):
        raise CheckpointError(
            f"{path}: its metadata names one tensor so often that {values} values would be read."
        )
    return found


def check_keys(keys: Iterable[str], path: Path) -> None:
    """Refuse more names, or longer ones, than a model has.

    Raises:
        CheckpointError: a bound is exceeded; the message names it.
    """
    keys = list(keys)
    if len(keys) > MAX_KEYS:
        raise CheckpointError(f"{path}: holds {len(keys)} keys, more than {MAX_KEYS}.")
    longest = max(keys, key=len, default="")
    if len(longest) > MAX_KEY_LENGTH:
        raise CheckpointError(
            f"{path}: key {longest[:40]}… has {len(longest)} characters, more than "
            f"{MAX_KEY_LENGTH}."
        )


def _unusual(tensor: Tensor) -> str:
    """The kind of a tensor without plain dense values; empty for one that has them."""
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout != torch.strided:
        return f"a sparse tensor ({tensor.layout})"
    if tensor.is_quantized:
        return f"a quantized tensor ({tensor.dtype})"
    if tensor.is_meta:
        return "a meta tensor, which has no values"
    return ""


def _without_prefixes(keys: Mapping[str, Any]) -> dict[str, str]:
    names = {key: key for key in keys}
    for mark in _MARKS:
        names = {key: name.replace(mark, "") for key, name in names.items()}
    while names and all(name.startswith("module.") for name in names.values()):
        names = {key: name.removeprefix("module.") for key, name in names.items()}
    return names
