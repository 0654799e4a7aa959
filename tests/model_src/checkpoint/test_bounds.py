"""Bounds of keys, headers, tables, patterns and numbers."""

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model_src.checkpoint.hostile_files import at_once, refuse
from tests.support import tutorial
from tfexport.errors import CheckpointError, ConfigError
from tfexport.model_src import load_checkpoint


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
        ({"ignore": "a{99999999999}"}, "{99999999999} is not known"),
        ({"ignore": "(" * 5000 + ")" * 5000}, "more than 512 characters"),
        ({"ignore": "(" * 250 + "none" + ")" * 250}, ""),
        ({"ignore": ["a"] * 2000}, "2000 keys, more than 1024"),
        ({"rename": {f"a{i}": "b" for i in range(2000)}}, "2000 rules, more than 1024"),
        ({"rename": {"transformer.{weight}": "x" * 600}}, "more than 512 characters"),
        ({"rename": {"transformer.{weight}": "x" * 500 + "{weight}"}}, "becomes a name of"),
        ({"rename": {"a": ["deep"] * 1000}}, "is not a name"),
    ],
)
def test_tables_of_names_are_bounded(tmp_path: Path, config: dict[str, Any], message: str) -> None:
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
    assert time.monotonic() - start < 60  # a generous bound on what must not explode


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
