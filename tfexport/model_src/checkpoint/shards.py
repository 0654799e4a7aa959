"""Checkpoints in several files, as Hugging Face saves large ones: an index, and its shards."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from tfexport.errors import CheckpointError, join_problems, join_some, shown
from tfexport.model_src.checkpoint.json_values import read_json
from tfexport.model_src.checkpoint.wrappers import StateDict, aliases, check_keys

INDEX_NAMES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_MAX_SHARDS = 1024


def is_index(path: Path) -> bool:
    """Whether a file is the index of shards, by its name."""
    return path.name.endswith((".safetensors.index.json", ".bin.index.json"))


def load_shards(index: Path, load: Callable[[Path], StateDict]) -> StateDict:
    """Read all shards of an index.

    Args:
        index: a JSON file with a ``weight_map`` from keys to the names of files beside it.
        load: reads one shard.

    Raises:
        CheckpointError: the index is malformed; shards, or tensors in them, are missing or not in
            the index; all are named.
    """
    values = read_json(index)
    files = _read_map(index, values.get("weight_map"))
    missing = [name for name in files if not (index.parent / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{index}: {len(missing)} of its {len(files)} shards are missing: "
            f"{join_some(missing)}. Copy the folder again."
        )
    tensors: dict[str, Tensor] = {}
    others: list[str] = []
    problems: list[str] = []
    for name, keys in files.items():
        shard = load(index.parent / name)
        problems += [f"{name} lacks {key}" for key in sorted(keys - shard.tensors.keys())]
        problems += [
            f"{name} holds {key}, which the index places elsewhere"
            for key in sorted(shard.tensors.keys() - keys - shard.metadata.keys())  # aliases
        ]
        tensors |= shard.tensors
        others += shard.others
    if problems:
        raise CheckpointError(join_problems(str(index), problems[:8], "Copy the folder again."))
    metadata = values.get("metadata")
    if isinstance(metadata, dict):
        stored = sum((index.parent / name).stat().st_size for name in files)
        tensors |= aliases(tensors, metadata, index, stored)
    return StateDict(index, tensors, tuple(others))


def _read_map(index: Path, values: Any) -> dict[str, set[str]]:
    """Each shard's file with its keys, in the order of the index."""
    if not isinstance(values, dict) or not values:
        raise CheckpointError(f"{index}: holds no weight_map from keys to files.")
    check_keys(values, index)
    files: dict[str, set[str]] = {}
    for key, name in values.items():
        if not isinstance(name, str) or not _is_beside(name):
            raise CheckpointError(f"{index}: {shown(name)}, of {key}, is not a file in its folder.")
        files.setdefault(name, set()).add(key)
    if len(files) > _MAX_SHARDS:
        raise CheckpointError(f"{index}: names {len(files)} shards, more than {_MAX_SHARDS}.")
    return files


def _is_beside(name: str) -> bool:
    return name not in ("", "..") and Path(name).name == name and not {"\\", "\0"} & {*name}
