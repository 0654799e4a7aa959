import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import VERSION_1
from tfexport import bundle
from tfexport.bundle import (
    FORMAT_VERSION,
    MANIFEST,
    Limits,
    Manifest,
    SpecialIds,
    new_bundle,
    open_bundle,
    read_manifest,
    write_manifest,
)
from tfexport.errors import BundleError, OutputExistsError


def manifest(**changes: Any) -> Manifest:
    values: dict[str, Any] = {
        "tfexport_version": "0.1.0",
        "opset": {"": 20},
        "ir_version": 10,
        "minimum_onnxruntime": "1.18",
        "config": {
            "d_model": 8,
            "num_decoder_layers": 1,
            "num_heads": 2,
            "head_dim": 4,
            "add_source_bos": False,
            "add_source_eos": True,
            "mask_fill": "-inf",
        },
        "special_ids": SpecialIds(0, 1, 2),
        "limits": Limits(11, 13, 64, None),
        "graphs": {"encoder": "encoder.onnx", "decoder": "decoder.onnx"},
    }
    return Manifest(**{**values, **changes})


def write(path: Path, content: bytes = b"graph") -> Manifest:
    with new_bundle(path, force=True) as folder:
        (folder / "encoder.onnx").write_bytes(content)
        (folder / "decoder.onnx").write_bytes(content)
        return write_manifest(folder, manifest())


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest by hand and give it a right digest again."""
    file = path / MANIFEST
    values = json.loads(file.read_text())
    change(values)
    values["digest"] = bundle._digest(values)
    file.write_text(json.dumps(values))


def test_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = write(tmp_path / "a.bundle")
    assert open_bundle(tmp_path / "a.bundle") == written
    assert set(written.files) == {"encoder.onnx", "decoder.onnx"}


def test_stored_version_1_bundle_stays_readable() -> None:
    found = open_bundle(VERSION_1)
    assert json.loads((VERSION_1 / MANIFEST).read_text())["format_version"] == 1
    assert found.special_ids == SpecialIds(0, 1, 2, 3)


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


def test_any_changed_byte_of_the_manifest_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.bundle")
    file = tmp_path / "a.bundle" / MANIFEST
    original = file.read_bytes()
    for at in range(0, len(original), 7):
        content = bytearray(original)
        content[at] ^= 4
        file.write_bytes(content)
        try:
            same = json.loads(content) == json.loads(original)  # white space does not count
        except ValueError:
            same = False
        if not same:
            with pytest.raises(BundleError):
                read_manifest(tmp_path / "a.bundle")


def test_newer_format_names_both_versions(tmp_path: Path) -> None:
    write(tmp_path / "a.bundle")
    rewrite(tmp_path / "a.bundle", lambda m: m.update(format_version=FORMAT_VERSION + 1, new={}))
    with pytest.raises(BundleError, match=r"bundle format 2; this tfexport reads up to 1"):
        open_bundle(tmp_path / "a.bundle")


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "a/../../b", "C:\\windows", "..\\up", "\\\\host\\share", ""],
)
def test_path_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path / "a.bundle")
    rewrite(
        tmp_path / "a.bundle", lambda m: m["files"].update({name: {"size": 0, "sha256": "0" * 64}})
    )
    with pytest.raises(BundleError, match="leaves the bundle's folder"):
        open_bundle(tmp_path / "a.bundle")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["graphs"].update(encoder="other.onnx"), "'other.onnx' is used but not listed"),
        (lambda m: m["graphs"].pop("decoder"), "decoder is missing"),
        (lambda m: m["special_ids"].update(eos="2"), "special_ids.eos: '2' is not a whole number"),
        (lambda m: m["special_ids"].update(bos=None), "special_ids.bos: None"),
        (lambda m: m["limits"].update(source_vocab_size=0), "limits.source_vocab_size: 0"),
        (lambda m: m["config"].update(num_heads=True), "config.num_heads: True"),
        (lambda m: m["config"].pop("add_source_bos"), "config.add_source_bos"),
        (lambda m: m["config"].pop("d_model"), "config.d_model: missing"),
        (lambda m: m.update(minimum_onnxruntime=1.2), "minimum_onnxruntime: 1.2 is not a version"),
        (lambda m: m.pop("limits"), "limits: missing"),
        (lambda m: m.update(surprise=1), "surprise: not a key of a version-1 manifest"),
        (lambda m: m.update(files=[]), r"files: \[\] is not an object"),
        (
            lambda m: m.update(minimum_onnxruntime="1" * 4000),
            "minimum_onnxruntime: '111.* is not a version",
        ),
        (lambda m: m["special_ids"].update(pad=10**20), r"special_ids.pad: 1000.* to 2147483647"),
        (lambda m: m["special_ids"].update(pad=11), "pad: 11 is not an id of the source voc"),
        (lambda m: m["special_ids"].update(bos=13), "bos: 13 is not an id of the target voc"),
        (lambda m: m["special_ids"].update(eos=11), "eos: 11 is not an id of the source voc"),
        (lambda m: m["special_ids"].update(unk=11), "unk: 11 is not an id of the source voc"),
        (lambda m: m["config"].update(eos_id=3), "special_ids.eos: 2 contradicts config.eos_id"),
        (lambda m: m["config"].update(target_vocab_size=9), "limits.target_vocab_size: 13 contr"),
        (lambda m: m["config"].update(num_decoder_layers=10**9), "a whole number from 1 to 10000"),
        (lambda m: m.update(opset=22), "opset: 22 is not an object"),
        (lambda m: m.update(opset={"": "22"}), "opset.: '22' is not a whole number"),
        (lambda m: m.update(quantization="int8"), "quantization: 'int8' is not an object"),
        (lambda m: m.update(quantization={"kept": 1, "gate": {}}), "quantization.weights: missing"),
        (lambda m: m.update(parity={"tokens": 3}), "parity.reference: missing"),
        (lambda m: m["files"].update(a={"size": -1, "sha256": ""}), "files.a.sha256: '' is not 64"),
        (
            lambda m: m["files"].update({"a\0": {"size": 1, "sha256": "0" * 64}}),
            "leaves the bundle",
        ),
        (lambda m: m["tokenizers"].update(both={"kind": "words", "file": "x"}), "both: not one of"),
        (lambda m: m.update(format_version="1"), "format_version is '1'"),
        (lambda m: m.update(format="zip"), "not the manifest of a tfexport bundle"),
    ],
)
def test_manifest_made_by_hand_is_checked(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    write(tmp_path / "a.bundle")
    rewrite(tmp_path / "a.bundle", change)
    with pytest.raises(BundleError, match=message):
        open_bundle(tmp_path / "a.bundle")


def test_nesting_as_deep_as_json_can_read_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.bundle")

    def rewrite_and_open() -> None:
        deep = json.loads("[" * 950 + "]" * 950)
        rewrite(tmp_path / "a.bundle", lambda m: m["config"].update(x=deep))
        open_bundle(tmp_path / "a.bundle")

    # A thread of its own has the whole of Python's stack, whoever runs the test.
    with ThreadPoolExecutor(1) as pool, pytest.raises(BundleError, match="nested more than 20"):
        pool.submit(rewrite_and_open).result()


def test_all_problems_of_a_manifest_are_named_at_once(tmp_path: Path) -> None:
    write(tmp_path / "a.bundle")

    def change(values: dict[str, Any]) -> None:
        values.update(opset=[], parity=3, ir_version=None)
        values["limits"].update(max_source_length=2**31, target_vocab_size="13")

    rewrite(tmp_path / "a.bundle", change)
    with pytest.raises(BundleError, match="5 problems"):
        open_bundle(tmp_path / "a.bundle")


@pytest.mark.parametrize("change", [{"tfexport_version": "\ud800"}, {"opset": {"\udfff": 1}}])
def test_half_a_surrogate_pair_is_no_text(tmp_path: Path, change: dict[str, Any]) -> None:
    write(tmp_path / "a.bundle")
    file = tmp_path / "a.bundle" / MANIFEST
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(BundleError, match="is not valid Unicode text"):
        open_bundle(tmp_path / "a.bundle")
    assert not bundle.is_bundle(tmp_path / "a.bundle")


def test_manifest_of_many_megabytes_is_not_read(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(b" " * (bundle.MOST_BYTES + 1))
    with pytest.raises(BundleError, match="more than 4194304 bytes"):
        open_bundle(tmp_path)


@pytest.mark.parametrize("folder", ["a\0b", "\ud800"])
def test_what_is_no_file_name_is_said_to_be_none(folder: str) -> None:
    with pytest.raises(BundleError, match="not the name of a file"):
        open_bundle(folder)


def test_file_of_a_bundle_that_cannot_be_looked_at_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.bundle")
    name = "a" * 300
    rewrite(
        tmp_path / "a.bundle", lambda m: m["files"].update({name: {"size": 0, "sha256": "0" * 64}})
    )
    with pytest.raises(BundleError, match="aaa cannot be read: File name too long"):
        open_bundle(tmp_path / "a.bundle")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"\xff\xfe", b"null", b"[" * 100_000], ids=range(6)
)
def test_manifest_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(BundleError):
        open_bundle(tmp_path)


def test_missing_bundle_and_folder_without_manifest_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no such file or folder"):
        open_bundle(tmp_path / "nothing")
    with pytest.raises(BundleError, match=r"it holds no manifest\.json"):
        open_bundle(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match="not a bundle"):
        open_bundle(tmp_path / "file")


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
    with pytest.raises(BundleError, match="the previous bundle is whole at"):
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
