"""Files made to do harm, and the limits within which they are refused."""

import io
import resource
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tfexport.errors import CheckpointError
from tfexport.model_src import load_checkpoint


@contextmanager
def at_once() -> Iterator[None]:
    """What is inside takes less than 10 s of processor time and less than 1 GB."""
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    # Far more than it takes: what it guards against takes minutes, and the machine may be busy.
    assert time.process_time() - start < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # kB


def refuse(path: Path, message: str) -> None:
    with at_once(), pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(path)
    assert len(str(caught.value)) < 2000


def in_archive(
    path: Path, data: bytes, records: dict[str, bytes] | None = None, deflated: bool = False
) -> Path:
    """A zip as torch.save makes it, around a pickle of one's own."""
    method = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a/data.pkl", data)
        archive.writestr("a/version", "3\n")
        for name, record in (records or {}).items():
            archive.writestr(f"a/data/{name}", record)
    return path


def pickle_of(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    with zipfile.ZipFile(file) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        return archive.read(name)
