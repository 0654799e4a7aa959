"""What mapped files take of memory, and that giving it back loses nothing."""

import mmap
import os
import re
import sys
from pathlib import Path

import pytest

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
    made.write_bytes(os.urandom(SIZE))
    return made


def test_pages_are_given_back_and_read_anew(file: Path) -> None:
    content = file.read_bytes()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert bytes(mapped) == content
        assert resident(file) == SIZE
        assert mapped_memory.release_mapped_pages(file) == SIZE
        assert resident(file) == 0
        assert bytes(mapped) == content


def test_what_was_written_stays(file: Path) -> None:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) as own:
        own[5000] ^= 255
        written = bytes(own)
        assert written != file.read_bytes()
        assert mapped_memory.release_mapped_pages(file) == 0
        assert bytes(own) == written


def test_other_files_keep_theirs(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.bin"
    other.write_bytes(b"x" * SIZE)
    with other.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert len(bytes(mapped)) == SIZE
        assert mapped_memory.release_mapped_pages(file) == 0
        assert resident(other) == SIZE


def test_elsewhere_nothing_is_done(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert len(bytes(mapped)) == SIZE
        monkeypatch.setattr(sys, "platform", "darwin")
        assert mapped_memory.release_mapped_pages(file) == 0
        assert resident(file) == SIZE


@pytest.mark.onnxruntime
def test_an_open_bundle_holds_nothing_that_it_has_copied(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tiny_bundle / "weights.bin"
    with monkeypatch.context() as patched:
        patched.setattr(
            "tfexport.runtime.model.onnxruntime_model.release_mapped_pages", lambda path: 0
        )
        keeping = Translator(tiny_bundle)
        kept = resident(weights)
    given = mapped_memory.release_mapped_pages(weights)
    assert resident(weights) == 0 < kept <= given
    before = keeping.generate([[4, 5, 6]], max_length=8)
    mapped_memory.release_mapped_pages(weights)
    opened = Translator(tiny_bundle)
    assert resident(weights) == 0
    assert opened.generate([[4, 5, 6]], max_length=8) == before
    assert resident(weights) > 0, "rows of the embeddings are read from the file"
    assert keeping.generate([[4, 5, 6]], max_length=8) == before


def test_other_mappings_are_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, here = mmap.PAGESIZE, "-p 00000000 fe:00 77                         "
    names = ["/a b/w.bin", "", "/a b/w.bin", "/a b/w.bin", "/b/a b/w.bin", "/a b/w.bin.old"]
    lines = [
        f"{(i + 1) * page:x}-{(i + 2) * page:x} rw{here}{name}\n" for i, name in enumerate(names)
    ]
    (tmp_path / "maps").write_text("".join(lines))
    written, read, absent = 1 << 63, 1 << 63 | 1 << 61, 0
    entries = [absent, written, written, read, absent, read, read]
    (tmp_path / "pagemap").write_bytes(
        b"".join(each.to_bytes(8, sys.byteorder) for each in entries)
    )
    monkeypatch.setattr(mapped_memory, "_MAPS", tmp_path / "maps")
    monkeypatch.setattr(mapped_memory, "_PAGES", tmp_path / "pagemap")
    found = list(mapped_memory._unwritten(b"/a b/w.bin"))
    assert found == [(3 * page, 4 * page), (4 * page, 5 * page)]
