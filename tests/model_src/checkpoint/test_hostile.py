"""Files made to do harm: refused by the project's own error, quickly and in little memory."""

import contextlib
import io
import json
import pickle
import pickletools
import resource
import struct
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support import tutorial
from tfexport.errors import CheckpointError, ConfigError
from tfexport.model_src import load_checkpoint
from tfexport.model_src.checkpoint.state_dict import load_state_dict

BOTH = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


@contextmanager
def at_once() -> Iterator[None]:
    """What is inside takes less than 2 s of processor time and less than 1 GB."""
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.process_time() - start < 2
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


@BOTH
@pytest.mark.parametrize("length", [1, 2])
def test_dictionary_inside_itself_ends(tmp_path: Path, length: int, zipped: bool) -> None:
    links: list[dict[str, Any]] = [{"x": torch.zeros(1)} for _ in range(length)]
    for i, link in enumerate(links):
        link["model"] = links[(i + 1) % length]
    torch.save(links[0], tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    refuse(tmp_path / "a.pt", "lie in one another more than 8 deep")


def test_module_whose_state_dict_is_inside_itself_ends() -> None:
    from tfexport.model_src.checkpoint.wrappers import flatten

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
    refuse(tmp_path / "a.pt", "two records of one name")


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
    refuse(tmp_path / "a.pt", "w reaches beyond the values that are stored")


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
        (deep_tuple_as_key(300_000), "nested tuples are keys"),
        (wide_tuple_as_key(60), "nested tuples are keys"),
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
        (b"\x80\x02K\x01Q.", "described in an unknown way"),
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


def unusual() -> dict[str, Tensor]:
    whole = torch.ones(4, 4)
    return {
        "meta": whole.to("meta"),
        "quantized": torch.quantize_per_tensor(whole, 0.1, 0, torch.qint8),
        "sparse": whole.to_sparse(),
        "sparse_csr": whole.to_sparse_csr(),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    }


@pytest.mark.parametrize("kind", ["meta", "quantized", "sparse", "sparse_csr", "nested"])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_tensor_without_plain_values_is_named(tmp_path: Path, kind: str) -> None:
    from tfexport.model_src.checkpoint.wrappers import flatten

    state = {**tutorial.make().state_dict(), "generator.weight": unusual()[kind]}
    word = kind.removesuffix("_csr")
    torch.save(state, tmp_path / "a.pt")
    refuse(tmp_path / "a.pt", rf"generator\.weight is a {word} tensor")
    with pytest.raises(CheckpointError, match=rf"generator\.weight is a {word} tensor"):
        flatten(state, Path("module"))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_float8_is_upcast(tmp_path: Path, dtype: str, suffix: str) -> None:
    state = tutorial.make().state_dict()
    if "fnuz" in dtype and suffix == ".safetensors":
        pytest.skip("safetensors has no such type")
    narrow = {key: value.to(getattr(torch, dtype)) for key, value in state.items()}
    path = tmp_path / f"a{suffix}"
    (torch.save if suffix == ".pt" else save_file)(narrow, path)
    found = load_checkpoint(path, {"num_heads": 4})
    expected = narrow["generator.weight"].float()
    torch.testing.assert_close(found.build().output_proj.weight, expected, atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int32, torch.bool, torch.uint8])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_other_types_are_refused_by_name(tmp_path: Path, dtype: torch.dtype, suffix: str) -> None:
    state = dict(tutorial.make().state_dict())
    state["generator.weight"] = state["generator.weight"].to(dtype)
    path = tmp_path / f"a{suffix}"
    (torch.save if suffix == ".pt" else save_file)(state, path)
    refuse(path, rf"generator\.weight holds {dtype} values")


def test_double_that_float32_cannot_hold_is_named(tmp_path: Path) -> None:
    state = dict(tutorial.make().state_dict())
    state["generator.bias"] = torch.full((19,), 1e300, dtype=torch.float64)
    torch.save(state, tmp_path / "a.pt")
    refuse(tmp_path / "a.pt", "generator.bias holds 19 values that are NaN or infinite in float32")


def test_many_keys_and_long_ones_are_refused(tmp_path: Path) -> None:
    one = torch.zeros(1)
    torch.save({f"{i}": one for i in range(2**13 + 1)}, tmp_path / "a.pt")
    refuse(tmp_path / "a.pt", "8193 keys, more than 8192")
    torch.save({"x" * 10**6: one}, tmp_path / "a.pt")
    refuse(tmp_path / "a.pt", "1000000 characters, more than 512")


@pytest.mark.parametrize("layers", [400, 3000])
def test_names_of_many_layers_take_no_time(tmp_path: Path, layers: int) -> None:
    one = torch.zeros(1)
    torch.save({f"encoder.layers.{i}.norm1.weight": one for i in range(layers)}, tmp_path / "a.pt")
    with at_once(), pytest.raises((CheckpointError, ConfigError)) as caught:
        load_checkpoint(tmp_path / "a.pt")
    assert "num_encoder_layers" in str(caught.value) or "missing" in str(caught.value)


def test_safetensors_header_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", 2**26) + b"{" + b" " * 2**26)
    refuse(path, "its header claims 67108864 bytes, more than 16777216")
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"k{i}": entry for i in range(50_000)}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    refuse(path, "50000 keys, more than 8192")


@pytest.mark.parametrize("shape", [[2**62, 0], [2**40, 0]])
def test_safetensors_shape_without_values_is_bounded(tmp_path: Path, shape: list[int]) -> None:
    path = tmp_path / "a.safetensors"
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
    header = json.dumps({"encoder.layers.0.linear1.weight": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with at_once(), pytest.raises((CheckpointError, ConfigError)):
        load_checkpoint(path, layout="nn-transformer")


@pytest.mark.parametrize("value", [10**12, 2**24 + 1, 10**100])
def test_computed_position_table_is_bounded(tmp_path: Path, value: int) -> None:
    state = dict(tutorial.make().state_dict())
    del state["positional_encoding.pos_embedding"]
    torch.save(state, tmp_path / "a.pt")
    with at_once(), pytest.raises(ConfigError, match=r"max_positions: .* is more than 16777216"):
        load_checkpoint(tmp_path / "a.pt", {"num_heads": 4, "max_positions": value})
    with at_once(), pytest.raises(ConfigError, match="max_positions: a table of"):
        load_checkpoint(tmp_path / "a.pt", {"num_heads": 4, "max_positions": 2**23})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"ignore": "a{99999999999}"}, "is not a regular expression"),
        ({"ignore": "(" * 5000 + ")" * 5000}, "more than 512 characters"),
        ({"ignore": "(" * 250 + "none" + ")" * 250}, ""),
        ({"ignore": ["a"] * 1000}, "1000 patterns, more than 256"),
        ({"rename": [["a", "b"]] * 1000}, "1000 pairs, more than 256"),
        ({"ignore": r"([a-z_.]+)+\d+$x"}, "takes longer than"),
        ({"rename": [[r"^(\w|\w)*(\.|.)*0$", "x"]]}, "takes longer than"),
        ({"rename": [["^transformer", "x" * 600]]}, "makes a name of"),
        ({"rename": [[["deep"] * 1000, 1]]}, "is not a [pattern, replacement] pair"),
    ],
)
def test_tables_of_patterns_are_bounded(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    torch.save(tutorial.make().state_dict(), tmp_path / "a.pt")
    (tmp_path / "config.json").write_text(json.dumps({"num_heads": 4, **config}))
    start = time.monotonic()
    if message:
        with pytest.raises(ConfigError) as caught:
            load_checkpoint(tmp_path / "a.pt")
        assert message in str(caught.value)
        assert len(str(caught.value)) < 1000
    else:
        load_checkpoint(tmp_path / "a.pt")
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10**5,
        '{"num_heads": ' + "[" * 900 + "]" * 900 + "}",
        '{"num_heads": ' + "9" * 5000 + "}",
        '{"num_heads": ' + "9" * 4000 + "}",
        '{"norm_eps": 1' + "0" * 400 + "}",
        '{"num_heads": 4, "activation": {"a": []}}',
        '{"\\ud800": 1, "num_heads": 4}',
        json.dumps({"x": "y" * 2**21}),
        json.dumps({f"num_head{i}": 1 for i in range(2000)}),
    ],
    ids=["deep", "deep value", "digits", "fewer", "real", "type", "surrogate", "long", "keys"],
)
def test_config_file_of_any_form_gives_our_error(tmp_path: Path, text: str) -> None:
    torch.save(tutorial.make().state_dict(), tmp_path / "a.pt")
    (tmp_path / "config.json").write_text(text)
    with at_once(), pytest.raises((CheckpointError, ConfigError)) as caught:
        load_checkpoint(tmp_path / "a.pt")
    assert len(str(caught.value)) < 3000
    str(caught.value).encode()


def test_number_of_5000_digits_is_named(tmp_path: Path) -> None:
    torch.save(tutorial.make().state_dict(), tmp_path / "a.pt")
    with pytest.raises(ConfigError, match="num_heads: a number of 5000 digits"):
        load_checkpoint(tmp_path / "a.pt", settings=[f"num_heads={'9' * 5000}"])
    with pytest.raises(ConfigError, match="num_heads: a number of more than 60 digits"):
        load_checkpoint(tmp_path / "a.pt", settings=[f"num_heads={'9' * 4000}"])


def test_pickles_of_this_test_are_what_they_are_named() -> None:
    # A pickle that ends early would pass for any reason.
    for data in (deep_tuple_as_key(3), wide_tuple_as_key(3), BYTEARRAY):
        assert [op.name for op, _, _ in pickletools.genops(data)][-1] == "STOP"
    assert pickle.loads(deep_tuple_as_key(3)) == {((((),),),): None}
    assert pickle.loads(wide_tuple_as_key(2)) == {(((), ()), ((), ())): None}
