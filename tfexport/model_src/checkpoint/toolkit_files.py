"""Files of toolkits: options in YAML, and Marian-NMT's archives of arrays."""

import dataclasses
import io
import re
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import yaml
from numpy.lib import format as npy

from tfexport.errors import CheckpointError
from tfexport.file_access import open_file
from tfexport.model_src.checkpoint.pickle_files import check_directory, check_records
from tfexport.model_src.checkpoint.pickle_parser import PickleError
from tfexport.model_src.checkpoint.state_dict import StateDict, check_keys
from tfexport.model_src.checkpoint.toolkit_pickles import MODEL_TYPE
from tfexport.model_src.checkpoint.unsupported import describe_names

# Archives of arrays (``.npz``), read without Python objects and within bounds.


_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of a file by their names.

    Raises:
        CheckpointError: damaged, of objects, or larger than the file can hold.
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    try:
        with open_file(path) as file:
            check_directory(file, size)
            with zipfile.ZipFile(file) as archive:
                sizes = {info.filename: info.file_size for info in archive.infolist()}
                check_records(archive, sizes, size)
                return {name.removesuffix(".npy"): _parse(archive.read(name)) for name in sizes}
    except (
        zipfile.BadZipFile, zipfile.LargeZipFile, struct.error, EOFError, ValueError, SyntaxError,
        NotImplementedError, RuntimeError, TypeError, OverflowError, MemoryError, PickleError,
    ) as error:  # fmt: skip
        reason = (str(error) or type(error).__name__).splitlines()[0][:200].rstrip(". ")
        raise CheckpointError(f"{path}: damaged, or not an archive of arrays: {reason}.") from None


def _parse(record: bytes) -> npt.NDArray[np.generic]:
    file = io.BytesIO(record)
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"an array of version {version}")
    shape, by_columns, dtype = _HEADERS[version](file)
    if dtype.hasobject or dtype.itemsize == 0:
        raise ValueError("an array of objects, which were not read")
    count = 1
    for length in shape:
        count *= length
    if count < 0 or count * dtype.itemsize != len(record) - file.tell():
        raise ValueError("an array is longer or shorter than its header declares")
    flat = np.frombuffer(record, dtype, count, file.tell())
    return flat.reshape(shape, order="F" if by_columns else "C")


# Options in YAML, read to plain values: no tag makes an object, and aliases cannot use up memory.


_MOST_BYTES, _MOST_VALUES, _DEEPEST = 2**16, 20_000, 32


class _PlainLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Ignores tags of a program's own classes: the tagged value is read as plain data."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuse merges, which can multiply at every level."""
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise yaml.YAMLError("it uses merge keys (<<), which are not supported")

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuse nodes inside one another that are deeper than options are."""
        self.depth = getattr(self, "depth", 0) + 1
        if self.depth > _DEEPEST:
            raise yaml.YAMLError("it holds more values than options do")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def read_tagged(self, suffix: str, node: yaml.Node) -> Any:
        """A node with a tag that is not of YAML."""
        if isinstance(node, yaml.MappingNode):
            return self.construct_mapping(node, deep=True)
        if isinstance(node, yaml.SequenceNode):
            return self.construct_sequence(node, deep=True)
        return self.construct_scalar(node)


_PlainLoader.add_multi_constructor("", _PlainLoader.read_tagged)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping of a YAML file.

    Raises:
        CheckpointError: missing, damaged, no mapping, or more than options are.
    """
    try:
        with open_file(path) as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}.") from None
    return parse_yaml(content, str(path))


def parse_yaml(content: bytes, name: str) -> dict[str, Any]:
    """The mapping in YAML's text; ``name`` starts the message if there is none.

    Raises:
        CheckpointError: damaged, no mapping, or more than options are.
    """
    if len(content) > _MOST_BYTES:
        raise CheckpointError(f"{name}: more than {_MOST_BYTES} bytes, too large for options.")
    try:
        values = yaml.load(content, Loader=_PlainLoader)
        if not isinstance(values, dict):
            raise yaml.YAMLError(f"it holds a {type(values).__name__}, not a mapping")
        _check_size(values)
    except (
        yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, OverflowError,
        RecursionError,
    ) as error:  # fmt: skip
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise CheckpointError(f"{name}: not readable as YAML: {reason}.") from None
    return values


def _check_size(values: Any) -> None:
    """Refuse values that are many, or deep, when every alias is followed."""
    left, count = [(values, 0)], 0
    while left:
        value, depth = left.pop()
        count += 1
        if count > _MOST_VALUES or depth > _DEEPEST:
            raise yaml.YAMLError("it holds more values than options do")
        if isinstance(value, int) and value.bit_length() > 64:
            raise yaml.YAMLError("it holds a number that no option has")
        if isinstance(value, dict):
            left += [(item, depth + 1) for item in value.values()]
        elif isinstance(value, list | tuple | set):
            left += [(item, depth + 1) for item in value]


JOEYNMT, SOCKEYE = "joeynmt", "sockeye"
# Patterns of keys that only a toolkit has, with its file of options and its ``model_type``.
_OPTION_FILES = (
    (re.compile(r"\.(src_src|trg_trg)_att\."), "config.yaml", JOEYNMT),
    (re.compile(r"\.(self_attention|enc_attention)\.ff_(in|kv)\."), "config", SOCKEYE),
)


def with_toolkit_options(found: StateDict) -> StateDict:
    """A state dict with the options of its toolkit, where the folder has them.

    Raises:
        CheckpointError: the file of options is damaged.
    """
    if found.config:
        return found
    for pattern, name, model_type in _OPTION_FILES:
        path = found.path.with_name(name)
        if _any(pattern, found.tensors) and path.is_file():
            config = {**_read(path), MODEL_TYPE: model_type}
            return dataclasses.replace(found, config=config, config_name=name)
    return found


def _read(path: Path) -> dict[str, object]:
    return {str(key): value for key, value in read_yaml(path).items()}


def _any(pattern: re.Pattern[str], names: Iterable[str]) -> bool:
    return any(pattern.search(name) for name in names)


# Model files of Marian-NMT: arrays, one of which holds the options of the training.


SUFFIX = ".npz"
MARIAN_NMT = "marian-nmt"
_OPTIONS = "special:model.yml"


def read_marian(path: Path) -> StateDict:
    """The weights and options of a ``.npz`` file.

    Raises:
        CheckpointError: damaged, or not of Marian-NMT.
        OSError: the file cannot be read.
    """
    arrays = read_arrays(path)
    check_keys(arrays, path)
    options = arrays.pop(_OPTIONS, None)
    if options is None:
        other = describe_names(arrays) or f"because it has no {_OPTIONS}."
        raise CheckpointError(f"{path}: not a Marian-NMT model, {other}")
    text = options.tobytes().rstrip(b"\0")
    config = {"options": parse_yaml(text, f"{path}: {_OPTIONS}"), MODEL_TYPE: MARIAN_NMT}
    kinds = (np.float32, np.float64, np.float16)
    wrong = [name for name, array in arrays.items() if array.dtype.newbyteorder("=") not in kinds]
    if wrong:
        raise CheckpointError(
            f"{path}: {wrong[0]} holds {arrays[wrong[0]].dtype} values; a model whose weights are "
            "packed or quantized is not supported. Pass the model.npz that it was converted from."
        )
    tensors = {name: torch.from_numpy(array.astype(np.float32)) for name, array in arrays.items()}
    return StateDict(path, tensors, config=config, config_name=_OPTIONS)
