"""``weights.json``: the offset of each parameter of a Transformer in a bundle's ``weights.bin``.

The graphs contain it too, in a form that only readers of ONNX understand. Bundles of int4
weights and of custom modules have no such file.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfexport.errors import BundleError, join_problems
from tfexport.json_checks import integer, list_of, one_of, record
from tfexport.manifest import REEXPORT

WEIGHT_TABLE = "weights.json"
_MOST_BYTES = 16 << 20
# Parameters may share bytes: tied tables, equal layers, zeros. An engine allocates memory for each
# of them, so a small file may not claim any number of values.
_MOST_SHARED, _ALWAYS_SHARED = 64, 16 << 20
_SIZES = {"float32": 4, "int8": 1}
_COUNT = integer(0, 2**48)
_ENTRY = record(
    {
        "dtype": one_of(*_SIZES),
        "offset": _COUNT,
        "shape": list_of(integer(1, 2**31 - 1)),
        "strides": list_of(_COUNT),
    },
    {"scales": _COUNT},
)


class StoredWeight(NamedTuple):
    """Where one parameter is stored, in the orientation that it has in the model.

    Attributes:
        dtype: "float32", or "int8" with scales.
        offset: offset of its first value, in bytes.
        shape: one or two axes.
        strides: the distance between its values along each axis, in values.
        scales: offset of float32 values in bytes, one for each row; None for float32.
    """

    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    scales: int | None = None

    def values(self, file: NDArray[np.uint8]) -> NDArray[Any]:
        """A view into the file's bytes."""
        steps = tuple(stride * _SIZES[self.dtype] for stride in self.strides)
        return np.ndarray(self.shape, self.dtype, file, self.offset, steps)

    def row_scales(self, file: NDArray[np.uint8]) -> NDArray[np.float32] | None:
        """A view of the scales, one for each row; None for float32."""
        if self.scales is None:
            return None
        return np.ndarray(self.shape[:1], np.float32, file, self.scales)

    @property
    def nbytes(self) -> int:
        """Size of its values in bytes."""
        return math.prod(self.shape) * _SIZES[self.dtype]

    def find_problems(self, size: int) -> Iterator[str]:
        """Why these values do not fit in a file of ``size`` bytes."""
        if len(self.shape) not in (1, 2) or len(self.shape) != len(self.strides):
            yield f"has shape {self.shape} and strides {self.strides}; expected one or two axes"
            return
        if (self.dtype == "int8") != (self.scales is not None):
            yield "int8 values need scales, and float32 values have none"
            return
        last = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        ends = [self.offset + (last + 1) * _SIZES[self.dtype]]
        offsets = [self.offset] if self.dtype == "float32" else []
        if self.scales is not None:
            offsets.append(self.scales)
            ends.append(self.scales + 4 * self.shape[0])
        if self.nbytes > size:
            yield f"has more values, {self.shape}, than a file of {size} bytes"
        if any(offset % 4 for offset in offsets):
            yield "its float32 values are not aligned"
        if max(ends) > size:
            yield f"ends at byte {max(ends)} of a file of {size}"


def write_weight_table(folder: Path, table: Mapping[str, StoredWeight]) -> None:
    """Write ``weights.json`` into a bundle that is being written."""
    entries = {name: weight._asdict() for name, weight in table.items()}
    for entry in entries.values():
        if entry["scales"] is None:
            del entry["scales"]
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (folder / WEIGHT_TABLE).write_text(text, encoding="utf-8", newline="\n")


def read_weight_table(folder: Path, size: int) -> dict[str, StoredWeight]:
    """Read and check ``weights.json``.

    Args:
        folder: the folder of the bundle, whose files were checked against its manifest.
        size: bytes of ``weights.bin``.

    Raises:
        BundleError: the file is invalid; all problems are listed.
    """
    path = folder / WEIGHT_TABLE
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BundleError(f"{path}: has more than {_MOST_BYTES} bytes. {REEXPORT}")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path}: not JSON: {error}. {REEXPORT}") from None
    if not isinstance(values, dict):
        raise BundleError(f"{path}: not an object of parameters. {REEXPORT}")
    problems: list[str] = []
    table: dict[str, StoredWeight] = {}
    for name, entry in values.items():
        wrong = list(_ENTRY(name, entry))
        if not name.isascii() or not name.isprintable():
            wrong.append(f"{name!a}: not the name of a parameter")
        if not wrong:
            sizes = {axis: tuple(entry[axis]) for axis in ("shape", "strides")}
            table[name] = StoredWeight(**{**entry, **sizes})
            wrong = [f"{name}: {problem}" for problem in table[name].find_problems(size)]
        problems += wrong
    every = sum(weight.nbytes for weight in table.values())
    if not problems and every > _MOST_SHARED * size + _ALWAYS_SHARED:
        problems.append(
            f"its parameters have {every} bytes together, which share a file of {size}; expected "
            f"at most {_MOST_SHARED} times as many, and {_ALWAYS_SHARED} more"
        )
    if problems:
        raise BundleError(join_problems(str(path), problems, REEXPORT))
    return table
