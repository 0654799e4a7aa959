"""What mapped files take of memory, and that giving it back loses nothing."""

import ctypes
import mmap
import os
import re
import shutil
import sys
import time
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tfexport.runtime import Translator
from tfexport.runtime.model import mapped_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is looked at in /proc")
SIZE = 64 * mmap.PAGESIZE


def resident(path: Path) -> int:
    """How many bytes of a file's mappings are in memory."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_bytes().splitlines():
        if re.match(rb"[0-9a-f]+-", line):
            inside = line.endswith(os.fsencode(path))
        elif inside and line.startswith(b"Rss:"):
            found += 1024 * int(line.split()[1])
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "wéights of mine.bin"
    with made.open("wb") as opened:
        opened.write(os.urandom(SIZE))
        os.fsync(opened.fileno())  # the kernel moves no page out that is not written yet
    return made


def release_all(file: Path) -> None:
    """Release the pages of a file; the kernel leaves those that it is busy with."""
    for _ in range(50):
        mapped_memory.release_mapped_pages(file)
        if not resident(file):
            break
        time.sleep(0.1)


def test_pages_are_given_back_and_read_anew(file: Path) -> None:
    content = file.read_bytes()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert bytes(mapped) == content
        assert resident(file) == SIZE
        release_all(file)
        assert resident(file) == 0
        assert bytes(mapped) == content


def test_a_map_is_given_back_and_read_anew(file: Path) -> None:
    with mapped_memory.map_file(file) as mapped:
        assert bytes(mapped) == file.read_bytes()
        assert resident(file) == SIZE
        mapped_memory.release_map(mapped)
        assert resident(file) == 0
        assert bytes(mapped) == file.read_bytes()


def test_what_was_written_stays(file: Path) -> None:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) as own:
        own[5000] ^= 255
        written = bytes(own)
        assert written != file.read_bytes()
        mapped_memory.release_mapped_pages(file)
        assert bytes(own) == written


def test_memory_that_took_the_place_of_a_mapping_keeps_its_content(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the mappings and the release, another thread has unmapped the file."""
    with mmap.mmap(-1, SIZE) as other:
        other[:] = content = os.urandom(SIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(other))
        line = f"{start:x}-{start + SIZE:x} r--p 00000000 fe:00 77         {file}\n"
        (tmp_path / "maps").write_text(line)
        monkeypatch.setattr(mapped_memory, "_MAPS", tmp_path / "maps")
        mapped_memory.release_mapped_pages(file)
        assert bytes(other) == content


def test_other_files_keep_theirs(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.bin"
    other.write_bytes(b"x" * SIZE)
    with other.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert len(bytes(mapped)) == SIZE
        mapped_memory.release_mapped_pages(file)
        assert resident(other) == SIZE


def test_elsewhere_nothing_is_done(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert len(bytes(mapped)) == SIZE
        monkeypatch.setattr(sys, "platform", "darwin")
        mapped_memory.release_mapped_pages(file)
        assert resident(file) == SIZE


@pytest.mark.onnxruntime
def test_an_open_bundle_holds_little_of_what_it_has_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(REPOSITORY / "examples" / "de-en.bundle", tmp_path / "copy.bundle")
    with monkeypatch.context() as patched:
        patched.setattr(
            "tfexport.runtime.model.onnxruntime_model.release_mapped_pages", lambda path: 0
        )
        keeping = Translator(folder)
        expected = keeping.generate([[4, 5, 6]], max_length=8)
        kept = resident(folder / "weights.bin")
        del keeping
    releasing = Translator(folder)
    assert releasing.generate([[4, 5, 6]], max_length=8) == expected
    # Embeddings stay, and pages that two mappings share.
    assert resident(folder / "weights.bin") < 0.9 * kept


def test_other_mappings_are_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, here = mmap.PAGESIZE, "-p 00000000 fe:00 77                         "
    names = ["/a b/w.bin", "", "/a b/w.bin", "/a b/w.bin", "/b/a b/w.bin", "/a b/w.bin.old"]
    lines = [
        f"{(i + 1) * page:x}-{(i + 2) * page:x} rw{here}{name}\n" for i, name in enumerate(names)
    ]
    (tmp_path / "maps").write_text("".join(lines))
    monkeypatch.setattr(mapped_memory, "_MAPS", tmp_path / "maps")
    found = list(mapped_memory._mappings(b"/a b/w.bin"))
    assert found == [(page, 2 * page), (3 * page, 4 * page), (4 * page, 5 * page)]
