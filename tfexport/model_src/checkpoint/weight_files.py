"""Reading of files to a flat state dict, without running code from a file.

Pickles are checked first (``pickle_checks``), then always loaded with ``weights_only=True``.
"""

import dataclasses
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from tfexport.errors import CheckpointError, join_problems, join_some, shown
from tfexport.file_access import HEAD, describe_content, open_file, refuse_name
from tfexport.gc_pause import no_collecting
from tfexport.marian_binary import describe_marian
from tfexport.model_src.checkpoint import pickle_checks, toolkit_files
from tfexport.model_src.checkpoint.files import CheckpointFiles
from tfexport.model_src.checkpoint.overrides import read_json
from tfexport.model_src.checkpoint.pickle_files import (
    MAX_INSTRUCTIONS,
    Contents,
    OtherArchiveError,
    mentions,
    read_contents,
)
from tfexport.model_src.checkpoint.pickle_parser import Call, Global, LongPickleError, Machine
from tfexport.model_src.checkpoint.state_dict import (
    StateDict,
    aliases,
    are_parts,
    check_keys,
    flatten,
    follow,
    locate,
    require_mapping,
)
from tfexport.model_src.checkpoint.toolkit_files import with_toolkit_options
from tfexport.model_src.checkpoint.toolkit_pickles import read_toolkit
from tfexport.model_src.checkpoint.unsupported import describe_form_of_file, describe_names
from tfexport.typing import PathLike

_MAX_SHARDS = 1024


def is_index(path: Path) -> bool:
    """Whether a file is the index of shards, by its name."""
    return path.name.endswith((".safetensors.index.json", ".bin.index.json"))


def load_shards(index: Path, load: Callable[[Path], StateDict]) -> StateDict:
    """Read all shards of an index.

    Args:
        index: a JSON file with a ``weight_map`` from keys to the names of files next to it.
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
        if not isinstance(name, str) or not _is_plain_name(name):
            raise CheckpointError(f"{index}: {shown(name)}, of {key}, is not a file in its folder.")
        files.setdefault(name, set()).add(key)
    if len(files) > _MAX_SHARDS:
        raise CheckpointError(f"{index}: names {len(files)} shards, more than {_MAX_SHARDS}.")
    return files


def _is_plain_name(name: str) -> bool:
    return name not in ("", "..") and Path(name).name == name and not {"\\", "\0"} & {*name}


_PICKLE_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".tar")
_MAX_HEADER_BYTES = 2**24


def load_state_dict(checkpoint: PathLike) -> StateDict:
    """Read a .safetensors file or a PyTorch pickle of tensors, or all files that an index names.

    Raises:
        CheckpointError: the file is missing, damaged, no checkpoint, holds other objects than
            tensors, or declares tensors that are too large for it.
    """
    path = CheckpointFiles.of(checkpoint).find_weights()
    if is_index(path):
        return load_shards(path, _load_file)
    return with_toolkit_options(_load_file(path))


def _load_file(path: Path) -> StateDict:
    head = _read_head(path)
    other = describe_marian(head) or describe_content(head)
    if other := other or describe_form_of_file(path, head):
        raise CheckpointError(f"{path}: {other}")
    if not head:
        raise CheckpointError(f"{path}: the file is empty.")
    if path.suffix == toolkit_files.SUFFIX:
        return toolkit_files.read_marian(path)
    if path.suffix == ".safetensors":
        return _load_safetensors(path, head)
    if path.suffix not in _PICKLE_SUFFIXES and not _looks_like_pickle(path, head):
        raise CheckpointError(
            f"{path}: not a checkpoint. Expected a .pt, .pth or .bin file that torch.save "
            "wrote, or a .safetensors file."
        )
    return _load_pickle(path, head)


def _read_head(path: Path) -> bytes:
    """The first bytes of a file, which tell its form."""
    try:
        with open_file(path) as file:
            return file.read(HEAD)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}.") from None


def _looks_like_pickle(path: Path, head: bytes) -> bool:
    return head[:1] == b"\x80" or zipfile.is_zipfile(path)


def _load_safetensors(path: Path, head: bytes) -> StateDict:
    if (reason := refuse_name(path, "safetensors")) is not None:
        raise CheckpointError(f"{path}: {reason}")
    try:
        (length,) = struct.unpack("<Q", head[:8])
        if length > _MAX_HEADER_BYTES:
            raise CheckpointError(
                f"{path}: its header claims {length} bytes, more than {_MAX_HEADER_BYTES}."
            )
        with safe_open(path, framework="pt", device="cpu") as file:
            keys = list(file.keys())
            check_keys(keys, path)
            tensors = {key: file.get_tensor(key) for key in keys}
            metadata = dict(file.metadata() or {})
        tensors |= aliases(tensors, metadata, path, path.stat().st_size)
    except CheckpointError:
        raise
    except Exception as error:  # also of torch, for types that it does not know
        reason = _first_line(error)
        raise CheckpointError(f"{path}: damaged, or not a safetensors file: {reason}.") from None
    return flatten(tensors, path, metadata)


def _load_pickle(path: Path, head: bytes) -> StateDict:
    try:
        with no_collecting(), warnings.catch_warnings():
            contents = _read_pickles(path)
            if (found := read_toolkit(path, contents)) is not None:
                return found if found.tensors else _with_safetensors(found)
            _refuse_unusual(contents, path)
            if not isinstance(contents.value, Call | Global):  # torch knows what these make
                require_mapping(contents.value, path)
            warnings.simplefilter("ignore")  # about pickles of unusual versions
            return flatten(torch.load(path, map_location="cpu", weights_only=True), path)
    except CheckpointError:
        raise
    except OtherArchiveError as error:
        raise CheckpointError(f"{path}: {_describe_archive(error.names)}") from None
    except Exception as error:  # torch raises anything from KeyError to RuntimeError on bad bytes
        if not _looks_like_pickle(path, head):
            raise CheckpointError(f"{path}: not a PyTorch checkpoint.") from None
        raise CheckpointError(
            f"{path}: truncated, damaged, or not a PyTorch checkpoint ({_first_line(error)}). "
            "Copy it again."
        ) from None


def _with_safetensors(found: StateDict) -> StateDict:
    """The options of OpenNMT-py with its weights, saved as safetensors in one file or shards."""
    path = found.path
    pattern = re.compile(rf"{re.escape(path.stem)}(\.\d+)?\.safetensors")
    files = sorted(it for it in path.parent.iterdir() if pattern.fullmatch(it.name))
    parts = [_load_safetensors(file, _read_head(file)) for file in files]
    tensors = {key: tensor for part in parts for key, tensor in part.tensors.items()}
    if not tensors:
        raise CheckpointError(
            f"{path}: options without weights, and no {path.stem}.safetensors next to it."
        )
    check_keys(tensors, path)
    return dataclasses.replace(found, tensors=tensors)


def _read_pickles(path: Path) -> Contents:
    try:
        return read_contents(path)
    except LongPickleError:
        # A toolkit's checkpoint has its vocabularies too.
        if not mentions(path, b"argparse\nNamespace"):
            raise
        return read_contents(path, Machine(MAX_INSTRUCTIONS))


def _first_line(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text.splitlines()[0][:200].rstrip(". ")


def _describe_archive(names: list[str]) -> str:
    if any(name.endswith("/constants.pkl") for name in names):
        return (
            "a TorchScript archive, not a checkpoint. Save the weights where it was trained: "
            "torch.save(model.state_dict(), 'model.pt')."
        )
    other_project = describe_names([name.removesuffix(".npy") for name in names])
    return other_project or (
        f"a zip archive that torch.save did not write; it holds {join_some(names) or 'nothing'}. "
        "Unpack it, and name the checkpoint itself."
    )


def _refuse_unusual(contents: Contents, path: Path) -> None:
    """Refuse files with other contents than plain tensors."""
    found = pickle_checks.survey(contents)
    if found.objects:
        names = list(dict.fromkeys(found.objects))
        raise CheckpointError(
            f"{path}: holds Python objects ({join_some(names, 4)}), not only tensors; reading "
            "them could run code, so the file was refused. Where you trust it, re-save the "
            f"weights alone:\n  checkpoint = torch.load({path.name!r}, map_location='cpu', "
            "weights_only=False)\n"
            f"  torch.save({_weights_in(contents.value)}, 'model.pt')"
        )
    if found.unusual:
        problems = [f"{key or 'the file'} is {kind}" for key, kind in found.unusual.items()]
        raise CheckpointError(join_problems(str(path), problems, "Save plain dense tensors."))


def _weights_in(value: Any) -> str:
    """A Python expression for the state dict inside a loaded file, as a guess."""
    if isinstance(value, Call):
        return "checkpoint.state_dict()"
    if not isinstance(value, Mapping):
        return "checkpoint"
    modules = [key for key, item in value.items() if isinstance(item, Call) and item.state]
    way = locate(value, pickle_checks.is_tensor)
    inside = follow(value, way.path)
    if are_parts(way.candidates):
        where = "checkpoint" + "".join(f"[{key!r}]" for key in way.path)
        return f"{{key: {where}[key] for key in {list(way.candidates)}}}"
    if any(map(pickle_checks.is_tensor, inside.values())) or not modules:
        keys = way.path or tuple(way.candidates[:1])
        return "checkpoint" + "".join(f"[{key!r}]" for key in keys)
    if are_parts(modules):
        return f"{{key: checkpoint[key].state_dict() for key in {modules}}}"
    return f"checkpoint[{modules[0]!r}].state_dict()"
