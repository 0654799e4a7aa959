"""Archives and pickles made to do harm: refused quickly, in little memory, by our own error."""

import contextlib
import io
import pickle
import pickletools
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model_src.checkpoint.hostile_files import in_archive, pickle_of, refuse
from tfexport.errors import CheckpointError
from tfexport.model_src.checkpoint.weight_files import load_state_dict

BOTH = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


@BOTH
@pytest.mark.parametrize("length", [1, 2])
def test_dictionary_inside_itself_ends(tmp_path: Path, length: int, zipped: bool) -> None:
    links: list[dict[str, Any]] = [{"x": torch.zeros(1)} for _ in range(length)]
    for i, link in enumerate(links):
        link["model"] = links[(i + 1) % length]
    torch.save(links[0], tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    refuse(tmp_path / "a.pt", "more than 8 deep")


def test_module_whose_state_dict_is_inside_itself_ends() -> None:
    from tfexport.model_src.checkpoint.state_dict import flatten

    state: dict[str, Any] = {"x": torch.zeros(1)}
    state["model"] = state
    with pytest.raises(CheckpointError, match="more than 8 deep"):
        flatten(state, Path("a"))


@BOTH
@pytest.mark.parametrize(
    ("count", "values", "dtype"),
    [(3, 2**28 - 1, torch.float16), (200, 2**27, torch.float32), (2000, 2**20, torch.float32)],
)
def test_views_are_counted_over_the_whole_file(
    tmp_path: Path, count: int, values: int, dtype: torch.dtype, zipped: bool
) -> None:
    one = torch.zeros(1, dtype=dtype)
    state = {f"w{i}": one.expand(values) for i in range(count)}
    torch.save(state, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    refuse(tmp_path / "a.pt", r"claims far more values than it holds.*largest: w0")


def test_tables_tied_and_layers_shared_by_name_are_read(tmp_path: Path) -> None:
    table = torch.randn(100, 8)
    state = {f"layers.{i}": table for i in range(24)} | {"row": torch.randn(1, 8).expand(30, 8)}
    torch.save(state, tmp_path / "a.pt")
    assert len(load_state_dict(tmp_path / "a.pt").tensors) == 25


def test_state_dict_of_many_plain_values_is_read(tmp_path: Path) -> None:
    # More than what is allowed in any file: each value is stored, and half as wide as float32.
    state = {"w": torch.zeros(2**25 + 1, dtype=torch.float16)}
    torch.save(state, tmp_path / "a.pt")
    assert load_state_dict(tmp_path / "a.pt").tensors["w"].numel() == 2**25 + 1


@pytest.mark.parametrize("what", ["data.pkl", "data/0"])
def test_deflated_records_are_measured_before_they_inflate(tmp_path: Path, what: str) -> None:
    path, size = tmp_path / "a.pt", 2**26
    if what == "data/0":
        in_archive(path, pickle_of({"w": torch.zeros(size // 4)}), {"0": bytes(size)}, True)
    else:
        in_archive(path, b"\x80\x02" + b"N" * size, deflated=True)
    assert path.stat().st_size < 2**20
    refuse(path, "would inflate to")


def test_records_that_share_their_bytes_are_counted_each(tmp_path: Path) -> None:
    # Directory entries that all point to one record: a small file of any size that it likes.
    data, path = bytes(2**21), tmp_path / "a.pt"
    in_archive(path, pickle_of({"w": torch.zeros(1)}), {"0": data})
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        start = archive.start_dir
    content, last = path.read_bytes(), entries[-1]
    more = 16
    file = io.BytesIO(content[:start])
    with zipfile.ZipFile(file, "a") as archive:
        archive.filelist = [*entries]
        for i in range(1, more):
            copy = zipfile.ZipInfo(f"a/data/{i}")
            for name in ("CRC", "compress_size", "file_size", "header_offset", "external_attr"):
                setattr(copy, name, getattr(last, name))
            archive.filelist.append(copy)
        archive.NameToInfo = {info.filename: info for info in archive.filelist}
        archive._didModify = True  # type: ignore[attr-defined]
        archive.start_dir = start
    path.write_bytes(file.getvalue())
    refuse(path, "would inflate to")


def test_two_records_of_one_name_are_refused(tmp_path: Path) -> None:
    # Readers differ in which they take, so what was judged might not be what is read.
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", pickle_of({"w": torch.zeros(1)}))
        archive.writestr("a/DATA.PKL", pickle_of([1]))
    refuse(tmp_path / "a.pt", "two records with the same name")


def test_directory_of_more_names_than_a_model_has_is_not_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        for i in range(2000):
            archive.writestr(f"a/{'x' * 4000}{i}", b"")
    refuse(tmp_path / "a.pt", "bytes of names, more than a model has")


def storage_claims(size: int) -> bytes:
    """The pickle of a checkpoint with one tensor that takes all of a storage of ``size`` values."""
    return pickle_of({"w": torch.zeros(3)}).replace(b"K\x03", b"J" + struct.pack("<i", size))


def test_storage_longer_than_its_record_is_refused(tmp_path: Path) -> None:
    # torch would read what lies behind the record in memory.
    refuse(in_archive(tmp_path / "a.pt", storage_claims(10**6), {"0": bytes(12)}), "shorter than")


def test_storage_without_a_record_is_refused(tmp_path: Path) -> None:
    refuse(in_archive(tmp_path / "a.pt", storage_claims(3)), "record 0 is missing")


def test_tensor_beyond_its_storage_is_refused(tmp_path: Path) -> None:
    # torch would make the storage of a legacy file longer.
    torch.save({"w": torch.zeros(5)}, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    content = (tmp_path / "a.pt").read_bytes()
    assert content.count(b"K\x05\x85") == 1
    longer = content.replace(b"K\x05\x85", b"J" + struct.pack("<i", 2**30) + b"\x85")
    (tmp_path / "a.pt").write_bytes(longer)
    refuse(tmp_path / "a.pt", "w extends beyond the stored values")


def test_legacy_file_shorter_than_its_storages_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(5)}, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    content = (tmp_path / "a.pt").read_bytes().replace(b"K\x05", b"J" + struct.pack("<i", 2**30))
    (tmp_path / "a.pt").write_bytes(content)
    refuse(tmp_path / "a.pt", "ends before the 4294967296 bytes")


def deep_tuple_as_key(count: int) -> bytes:
    return b"\x80\x02}" + b")" + b"\x85" * count + b"Ns."


def wide_tuple_as_key(count: int) -> bytes:
    return b"\x80\x02}" + b")" + b"q\x00h\x00\x86" * count + b"Ns."


BYTEARRAY = b"\x80\x02c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R."


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x02(" + b"\x8f" * 1_000_000 + b"t.", "more than 400000 instructions"),
        (deep_tuple_as_key(300_000), "nested tuples as keys"),
        (wide_tuple_as_key(60), "nested tuples as keys"),
        (BYTEARRAY, "holds Python objects .*bytearray"),
        (BYTEARRAY.replace(b"__builtin__\nbytearray", b"torch\nzeros"), "objects .*torch.zeros"),
        (BYTEARRAY.replace(b"__builtin__\nbytearray", b"torch\nFloatStorage"), "Python objects"),
        (b"\x80\x02" + b"]" * 150_000 + b"a" * 149_999 + b".", "holds a list"),
        (b"\x80\x02X\xff\xff\xff\x7fa.", "damaged pickle"),
        (b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".", "holds a int"),
        (b"\x80\x02}X\x01\x00\x00\x00a", "no end|exhausted"),
        (b"\x80\x02h\x07.", "damaged pickle"),
        (b"\x80\x02R.", "damaged pickle"),
        (b"\x80\x02)\x81.", "damaged pickle"),
        (b"\x80\x020.", "an instruction POP, which torch.save never writes"),
        (b"\x80\x02K\x01Q.", "an unknown format"),
    ],
    ids=[
        "instructions", "deep key", "wide key", "bytearray", "torch.zeros", "storage", "deep list",
        "string", "digits", "no end", "no memo", "empty stack", "no class", "foreign", "no storage",
    ],
)  # fmt: skip
def test_pickle_that_would_take_memory_or_time_is_refused(
    tmp_path: Path, data: bytes, message: str
) -> None:
    refuse(in_archive(tmp_path / "a.pt", data), message)


def test_every_flipped_byte_of_a_pickle_gives_our_error_or_none(tmp_path: Path) -> None:
    data = pickle_of({"w": torch.zeros(3), "v": torch.nn.Parameter(torch.zeros(2).half())})
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x80 if place % 2 else 1
        path = in_archive(tmp_path / "a.pt", bytes(changed), {"0": bytes(12), "1": bytes(4)})
        with contextlib.suppress(CheckpointError):
            load_state_dict(path)


def test_pickles_of_this_test_are_what_they_are_named() -> None:
    # A pickle that ends early would pass for any reason.
    for data in (deep_tuple_as_key(3), wide_tuple_as_key(3), BYTEARRAY):
        assert [op.name for op, _, _ in pickletools.genops(data)][-1] == "STOP"
    assert pickle.loads(deep_tuple_as_key(3)) == {((((),),),): None}
    assert pickle.loads(wide_tuple_as_key(2)) == {(((), ()), ((), ())): None}
