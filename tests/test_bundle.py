"""Bundles: read, and written so that no half of one is ever seen."""

import hashlib
import json
import mmap
import os
import random
import sys
from pathlib import Path

import pytest

from tests.support.manifests import rewrite, write
from tests.support.paths import VERSION_1
from tfexport import bundle
from tfexport.bundle import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    SpecialIds,
    check_output,
    is_bundle,
    new_bundle,
    open_bundle,
    opening_bundle,
)
from tfexport.errors import BundleError, ConfigError, OutputExistsError


def test_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = write(tmp_path / "a.bundle")
    assert open_bundle(tmp_path / "a.bundle") == written
    assert set(written.files) == {"encoder.onnx", "decoder.onnx"}


def test_stored_version_1_bundle_stays_readable() -> None:
    found = open_bundle(VERSION_1)  # made by tests/support/stored_bundle.py
    assert json.loads((VERSION_1 / MANIFEST).read_text())["format_version"] == 1
    assert found.special_ids == SpecialIds(0, 1, 2, 3)
    assert set(found.graphs) == {"encoder", "decoder", "shortlist", "generate", "beam", "step"}


@pytest.mark.parametrize("at", [0, -1], ids=["first byte", "last byte"])
def test_changed_byte_is_named(tmp_path: Path, at: int) -> None:
    write(tmp_path / "a.bundle")
    file = tmp_path / "a.bundle" / "decoder.onnx"
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    with pytest.raises(BundleError, match=r"decoder\.onnx was changed"):
        open_bundle(tmp_path / "a.bundle")


def test_all_damage_is_named_at_once(tmp_path: Path) -> None:
    write(tmp_path / "a.bundle")
    (tmp_path / "a.bundle" / "encoder.onnx").unlink()
    (tmp_path / "a.bundle" / "decoder.onnx").write_bytes(b"longer graph")
    with pytest.raises(BundleError, match=r"decoder\.onnx has 12 bytes instead of 5") as caught:
        open_bundle(tmp_path / "a.bundle")
    assert "encoder.onnx is missing" in str(caught.value)


@pytest.mark.parametrize("folder", ["a\0b", "\ud800"])
def test_a_path_that_no_file_can_have_is_named(folder: str) -> None:
    with pytest.raises(BundleError, match="not the name of a file"):
        open_bundle(folder)


def test_file_of_a_bundle_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.bundle")
    name = "a" * 300
    rewrite(
        tmp_path / "a.bundle", lambda m: m["files"].update({name: {"size": 0, "sha256": "0" * 64}})
    )
    with pytest.raises(BundleError, match="aaa cannot be read: File name too long"):
        open_bundle(tmp_path / "a.bundle")


def test_files_that_git_lfs_has_not_fetched_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "x.bundle"
    write(folder)
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 5\n"
    (folder / "decoder.onnx").write_bytes(pointer)
    (folder / "encoder.onnx").unlink()
    (folder / "encoder.onnx").symlink_to("../.git/annex/objects/x/SHA256")
    with pytest.raises(BundleError, match=r"decoder\.onnx is a Git LFS pointer, of a file of 5 by"):
        open_bundle(folder)
    with pytest.raises(BundleError, match=r"encoder\.onnx is a pointer of git-annex"):
        open_bundle(folder)
    (folder / "manifest.json").write_bytes(pointer)
    with pytest.raises(BundleError, match=r"manifest\.json: a Git LFS pointer"):
        open_bundle(folder)


def test_missing_bundle_and_folder_without_manifest_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no such file or folder"):
        open_bundle(tmp_path / "nothing")
    with pytest.raises(BundleError, match=r"it contains no manifest\.json"):
        open_bundle(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match="not a bundle"):
        open_bundle(tmp_path / "file")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(BundleError, match=r"manifest\.json: cannot be read: it is a named pipe"):
        open_bundle(tmp_path)
    assert not is_bundle(tmp_path)


def test_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> None:
        with new_bundle(tmp_path / "a.bundle") as folder:
            (folder / "weights.bin").write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_existing_output_needs_force(tmp_path: Path) -> None:
    write(tmp_path / "a.bundle", b"old")
    with pytest.raises(OutputExistsError, match="force=True"), new_bundle(tmp_path / "a.bundle"):
        pass
    write(tmp_path / "a.bundle", b"new")
    assert (tmp_path / "a.bundle" / "encoder.onnx").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.bundle"]


def test_failure_with_force_keeps_the_old_bundle(tmp_path: Path) -> None:
    write(tmp_path / "a.bundle", b"old")
    with pytest.raises(RuntimeError), new_bundle(tmp_path / "a.bundle", force=True):
        raise RuntimeError
    open_bundle(tmp_path / "a.bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["a.bundle"]


def test_force_does_not_replace_what_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").touch()
    with (
        pytest.raises(OutputExistsError, match="replaces bundles only"),
        new_bundle(tmp_path / "home", force=True),
    ):
        pass
    assert (tmp_path / "home" / "thesis.txt").exists()


def test_output_in_a_missing_folder_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(OutputExistsError, match="does not exist"), new_bundle(tmp_path / "a" / "b"):
        pass


def test_killed_between_the_renames_the_old_bundle_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.bundle", b"old")
    rename = Path.rename

    def die_on_second(self: Path, target: Path) -> Path:
        if self.name.startswith(".a.bundle.partial"):
            os._exit(9)
        return rename(self, target)

    child = os.fork()
    if child == 0:
        monkeypatch.setattr(Path, "rename", die_on_second)
        write(tmp_path / "a.bundle", b"new")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9

    assert not (tmp_path / "a.bundle").exists()
    with pytest.raises(BundleError, match="the previous bundle is complete at"):
        open_bundle(tmp_path / "a.bundle")
    (aside,) = tmp_path.glob(".a.bundle.aside-*")
    aside.rename(tmp_path / "a.bundle")
    open_bundle(tmp_path / "a.bundle")


def test_failed_second_rename_puts_the_old_bundle_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.bundle", b"old")
    rename = Path.rename

    def fail_on_second(self: Path, target: Path) -> Path:
        if self.name.startswith(".a.bundle.partial"):
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_on_second)
    with pytest.raises(OSError, match="no"):
        write(tmp_path / "a.bundle", b"new")
    assert (tmp_path / "a.bundle" / "encoder.onnx").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.bundle"]


def test_link_to_a_bundle_is_replaced_and_its_target_kept(tmp_path: Path) -> None:
    write(tmp_path / "real.bundle", b"old")
    (tmp_path / "a.bundle").symlink_to(tmp_path / "real.bundle")
    write(tmp_path / "a.bundle", b"new")
    assert (tmp_path / "a.bundle" / "encoder.onnx").read_bytes() == b"new"
    assert (tmp_path / "real.bundle" / "encoder.onnx").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bundle", "real.bundle"]


def test_everything_is_flushed_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, rename = os.fsync, Path.rename

    def record_sync(descriptor: int) -> None:
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    def record_rename(self: Path, target: Path) -> Path:
        events.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "rename", record_rename)
    write(tmp_path / "a.bundle")
    before, after = events[: events.index("rename")], events[events.index("rename") + 1 :]
    assert {"encoder.onnx", "decoder.onnx", MANIFEST} <= set(before)
    assert any(name.startswith(".a.bundle.partial") for name in before), "the folder itself"
    assert after == [tmp_path.name]


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text elsewhere")
def test_an_output_that_onnxruntime_could_not_open_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its path is not UTF-8, which onnxruntime"):
        check_output(tmp_path / "m\udcf6del", force=False)


@pytest.mark.parametrize("damaged", [True, False])
def test_a_large_file_that_changes_while_it_is_opened_is_refused(
    damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "_LARGE", 0)
    folder = tmp_path / "a.bundle"
    file = folder / next(iter(write(folder).files))
    other = tmp_path / "other"
    content = file.read_bytes()
    other.write_bytes(b"y" * len(content) if damaged else content)

    def replace_while_open() -> None:
        with opening_bundle(folder):
            other.replace(file)

    with pytest.raises(BundleError, match=r"its sha256 is not|was replaced or changed"):
        replace_while_open()


def test_a_changed_file_is_the_error_whatever_opening_it_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "_LARGE", 0)
    folder = tmp_path / "a.bundle"
    manifest = write(folder)
    for name in manifest.files:
        (folder / name).write_bytes(b"y" * manifest.files[name].size)
    with pytest.raises(BundleError, match="its sha256 is not"), opening_bundle(folder):
        raise ValueError("what the block found in it")


@pytest.mark.parametrize("beyond", [0, 1])
@pytest.mark.parametrize("parts", [0, 1, 3])
def test_sha256_of_a_file_that_is_mapped_in_parts(
    parts: int, beyond: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "_MAPPED", mmap.ALLOCATIONGRANULARITY)
    content = random.Random(0).randbytes(parts * mmap.ALLOCATIONGRANULARITY + beyond)
    (tmp_path / "file").write_bytes(content)
    assert bundle._sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_a_noted_file_is_not_read_again_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "_LARGE", 0)
    monkeypatch.setattr(bundle, "_ROUNDING", 0.05)
    folder = tmp_path / "a.bundle"
    manifest = write(folder)
    with bundle.noting(folder) as checked:
        assert checked == manifest
    read = list[Path]()
    digest = bundle._sha256

    def note(path: Path) -> str:
        read.append(path)
        return digest(path)

    monkeypatch.setattr(bundle, "_sha256", note)
    with opening_bundle(folder):
        pass
    assert not read
    open_bundle(folder)  # which always reads them
    assert len(read) == len(manifest.files)
    name, entry = next(iter(manifest.files.items()))
    before = (folder / name).stat()
    (folder / name).write_bytes(b"y" * entry.size)
    os.utime(folder / name, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(BundleError, match="its sha256 is not"), opening_bundle(folder):
        pass


def test_files_are_read_once_ahead_and_refused_if_they_change_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "_LARGE", 0)
    folder = tmp_path / "a.bundle"
    assert bundle.check_ahead(folder) is None  # which the other call reports
    with pytest.raises(BundleError, match="no such file"), opening_bundle(folder, None):
        pass
    manifest = write(folder)
    read, digest = list[Path](), bundle._sha256

    def note(path: Path) -> str:
        read.append(path)
        return digest(path)

    monkeypatch.setattr(bundle, "_sha256", note)
    for times in (1, 2):
        check = bundle.check_ahead(folder)
        assert check is not None
        with opening_bundle(folder, check) as found:
            assert found == manifest
        assert len(read) == times * len(manifest.files)
    check = bundle.check_ahead(folder)
    file = folder / next(iter(manifest.files))
    other = tmp_path / "other"
    other.write_bytes(file.read_bytes())
    other.replace(file)
    with pytest.raises(BundleError, match="was replaced or"), opening_bundle(folder, check):
        pass


@pytest.mark.parametrize(
    "note", ["", "[]", '{"weights.bin": null}', "{", "[" * 100_000, " " * (MAX_MANIFEST_BYTES + 1)]
)
def test_a_damaged_note_is_none(note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_LARGE", 0)
    monkeypatch.setattr(sys, "platform", "win32")  # where times do not tell of changes
    folder = tmp_path / "a.bundle"
    manifest = write(folder)
    bundle.note_file(folder).write_text(note)
    for name in manifest.files:
        (folder / name).write_bytes(b"y" * manifest.files[name].size)
    with pytest.raises(BundleError, match="its sha256 is not"), opening_bundle(folder):
        pass


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_named_pipe_instead_of_a_note_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "a.bundle"
    write(folder)
    os.mkfifo(bundle.note_file(folder))
    with opening_bundle(folder):  # without waiting for somebody to write
        pass
