"""YAML made to do harm: refused quickly, or read to plain values."""

from pathlib import Path

import pytest

from tests.model_src.checkpoint.hostile_files import at_once
from tfexport.errors import CheckpointError
from tfexport.model_src.checkpoint.toolkit_files import parse_yaml, read_yaml


def test_tags_are_left_out() -> None:
    text = (
        b"!ModelConfig\na: !Foo {b: 1, c: [1, !bar x]}\nd: !!python/object/apply:os.system [echo]\n"
    )
    assert parse_yaml(text, "a") == {"a": {"b": 1, "c": [1, "x"]}, "d": ["echo"]}


LAUGHS = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(9)
)


@pytest.mark.parametrize(
    "content",
    [
        LAUGHS, b"a: " + b"[" * 5000, b"- " * 5000, b"a: " + b"9" * 10000, b"a: 0x" + b"f" * 60000,
        b"a: 1" + b":1" * 30000, b"<<: [{a: 1}, {b: 1}]", b"? [a]\n: b", b"a: 2020-99-99",
        b"a: &a [*a]", b"\xff\xfe\x00", b"- a", b"", b"a: b" * 20000, b"a: *b",
    ],
)  # fmt: skip
def test_harm_is_refused_at_once(content: bytes) -> None:
    with at_once(), pytest.raises(CheckpointError, match=r"^name: (not readable|more than)"):
        parse_yaml(content, "name")


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_yaml(tmp_path / "none.yaml")
