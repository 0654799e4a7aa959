"""Hostile and misplaced tokenizer files: refused by name, before a library runs their rules."""

import base64
import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from tests.support.tokenizer_folders import train_pieces
from tfexport.errors import TokenizerError
from tfexport.runtime.text.tokenizer import load_tokenizer
from tfexport.runtime.text.tokenizer_json import read_rules

pytestmark = pytest.mark.no_model

DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 5\n"


def content(**values: Any) -> bytes:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, "<unk>"))
    return json.dumps({**json.loads(tokenizer.to_str()), **values}).encode()


def sequence(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": [*rules]}


def charsmap(text: str) -> dict[str, Any]:
    blob = struct.pack("<I", 4) + bytes(4) + text.encode() + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(blob).decode()}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"normalizer": sequence(*[DOUBLE] * 40)}, "its normalizer can make more than"),
        ({"normalizer": sequence(*[sequence(DOUBLE)] * 40)}, "its normalizer can make more than"),
        ({"decoder": {"type": "Sequence", "decoders": [DOUBLE] * 40}}, "its decoder can make more"),
        (
            {"normalizer": {**DOUBLE, "pattern": {"Regex": ""}, "content": "a" * 9999}},
            "its normalizer can make more than",
        ),
        ({"normalizer": {"type": "Prepend", "prepend": "a" * 9999}}, "its normalizer can make"),
        ({"normalizer": charsmap("a" * 9999)}, "its normalizer can make more than"),
        ({"normalizer": sequence(*[{"type": "Lowercase"}] * 300)}, "has 301 rules, more than 256"),
        (
            {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a" * 9999}}},
            "has a pattern of 9999 characters",
        ),
    ],
)
def test_rules_without_bound_are_refused(
    tmp_path: Path, values: dict[str, Any], problem: str
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content(**values))
    with pytest.raises(TokenizerError, match=problem) as caught:
        load_tokenizer(path, "tokenizers", 10, None)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 500


def test_nesting_and_keys_that_stand_twice_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b'{"normalizer":' + b'{"type":"Sequence","normalizers":[' * 50_000)
    with pytest.raises(TokenizerError, match="nested too deep"):
        load_tokenizer(path, "tokenizers", 10, None)
    path.write_bytes(content(normalizer=sequence(DOUBLE)).replace(b'"content"', b'"type"', 1))
    with pytest.raises(TokenizerError, match="a key twice"):
        load_tokenizer(path, "tokenizers", 10, None)


def test_rules_of_known_tokenizers_are_within_the_bounds() -> None:
    rules = [normalizers.NFKD(), normalizers.Lowercase(), normalizers.Prepend("▁")]
    rules += [normalizers.Replace(tokenizers.Regex(" {2,}"), " ")] * 4
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0}, "a"))
    tokenizer.normalizer = normalizers.Sequence(rules)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    values = json.loads(tokenizer.to_str())
    nfkc = charsmap("صلى الله عليه وسلم")  # the longest replacement of NFKC
    values["normalizer"]["normalizers"].append(nfkc)
    assert read_rules(json.dumps(values).encode()) == values


def draw_rule(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    if depth < 4 and draw.random() < 0.4:
        inner = [draw_rule(draw, depth + 1) for _ in range(draw.randrange(5))]
        return sequence(*inner)
    pattern = draw.choice([{"String": "a"}, {"Regex": "a+"}, {"Regex": "(a|a)*"}, {"String": ""}])
    text = "a" * draw.choice([0, 1, 2, 40])
    return draw.choice(
        [
            {"type": "Replace", "pattern": pattern, "content": text},
            {"type": "Prepend", "prepend": text or "b"},
            {"type": "Lowercase"},
        ]
    )


RUN = """
import sys, resource
from pathlib import Path
from tfexport.errors import TfexportError
from tfexport.runtime.text.tokenizer import load_tokenizer
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
refused = 0
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        load_tokenizer(path, "tokenizers", 10, None).encode("a" * 200)
    except TfexportError:
        refused += 1
print(refused)
"""


def test_drawn_rules_end_soon_and_end_no_process(tmp_path: Path) -> None:
    draw, accepted = random.Random(7), 0
    for number in range(150):
        values = content(normalizer=sequence(*[draw_rule(draw) for _ in range(10)]))
        (tmp_path / f"{number:03}.json").write_bytes(values)
        try:
            read_rules(values)
            accepted += 1
        except ValueError:
            pass
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert 10 < accepted < 140
    assert int(done.stdout) >= 150 - accepted


@pytest.mark.parametrize("kind", ["tokenizers", "sentencepiece", "words", "vocabulary", "pieces"])
@pytest.mark.parametrize(
    ("data", "problem"),
    [(LFS, "a Git LFS pointer"), (b"<!doctype html>", "a web page"), (b"", "the file is empty")],
)
def test_what_lies_in_place_of_a_tokenizer(
    tmp_path: Path, kind: str, data: bytes, problem: str
) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(TokenizerError, match=problem):
        load_tokenizer(tmp_path / "file", kind, 10, None)


@pytest.mark.parametrize("kind", ["tokenizers", "sentencepiece", "words", "vocabulary", "bytes"])
def test_a_pipe_is_never_waited_for(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "file")
    with pytest.raises(TokenizerError, match="a named pipe, and a file is expected"):
        load_tokenizer(tmp_path / "file", kind, 10, None)


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text elsewhere")
@pytest.mark.parametrize("kind", ["tokenizers", "sentencepiece"])
def test_a_path_that_is_not_utf8_is_opened(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "m\udcf6del"
    folder.mkdir()
    if kind == "tokenizers":
        (folder / "file").write_bytes(content())
    else:
        train_pieces(folder / "file")
    assert load_tokenizer(folder / "file", kind, 500, None).encode("a")
