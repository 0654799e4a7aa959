"""numpy's archives of arrays (``.npz``), read without objects and within bounds."""

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from tfexport.errors import CheckpointError
from tfexport.file_access import open_file
from tfexport.model_src.checkpoint.archive import check_directory, check_records
from tfexport.model_src.checkpoint.pickled import PickleError

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of a file by their names.

    Raises:
        CheckpointError: damaged, of objects, or larger than the file can mean.
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
        raise CheckpointError(f"{path}: damaged, or no archive of arrays: {reason}.") from None


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
