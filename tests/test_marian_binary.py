"""Binary files of Marian-NMT, as Firefox's students are: said to be what they are."""

import gzip
import os
import random
import struct
from pathlib import Path

import pytest

from tfexport.cli.file_kind import name_kind
from tfexport.errors import CheckpointError
from tfexport.marian_binary import describe_marian
from tfexport.model_src import load_checkpoint

INTGEMM8, FLOAT32, PACKED8, TEXT = 0x4101, 0x404, 0x1801, 0x101
SHORTLIST = struct.pack("<6Q", 0xF11A48D5013417F5, 7, 50, 50, 3, 4)


def binary(*kinds: int) -> bytes:
    """A model in Marian's binary form, with an item of each type and its options."""
    names = [b"Wemb\0", *[b"decoder_l%d_rnn_W\0" % number for number in range(1, len(kinds))]]
    heads, shapes, data = b"", b"", b""
    items = [*zip(names, kinds, strict=True), (b"special:model.yml\0", TEXT)]
    for name, kind in items:
        size = 8 * (kind & 0xFF)
        heads += struct.pack("<4Q", len(name), kind, 2, size)
        shapes += struct.pack("<2i", 2, 4)
        data += bytes(size)
    text = b"".join(name for name, _ in items)
    return struct.pack("<2Q", 1, len(items)) + heads + text + shapes + struct.pack("<Q", 0) + data


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kinds", "weights"),
    [
        ((INTGEMM8, FLOAT32), "weights in int8 (intgemm)"),
        ((FLOAT32,), "weights in floating point"),
        ((FLOAT32, PACKED8), "weights packed for a processor"),
    ],
    ids=["intgemm", "float32", "fbgemm"],
)
@pytest.mark.parametrize("suffix", [".bin", ".bin.gz", ".dat"])
def test_model_is_named_by_its_first_bytes(
    tmp_path: Path, kinds: tuple[int, ...], weights: str, suffix: str
) -> None:
    path, content = tmp_path / f"some{suffix}", binary(*kinds)
    path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    message = refusal(path)
    assert message.startswith(f"{path}: a binary model of Marian-NMT")
    assert ("(packed with gzip)" in message) is suffix.endswith(".gz")
    for part in (f"with {weights}", "Firefox", "not supported yet", "model.npz"):
        assert part in message


@pytest.mark.parametrize("packed", [True, False])
def test_folder_of_a_student_is_named(tmp_path: Path, packed: bool) -> None:
    files = {
        "lex.50.50.enpt.s2t.bin": SHORTLIST, "model.enpt.intgemm.alphas.bin": binary(INTGEMM8),
        "vocab.enpt.spm": b"\n\x0e\n\x05<unk>", "config.intgemm8bitalpha.yml": b"beam-size: 1\n",
    }  # fmt: skip
    for name, content in files.items():
        name, content = (f"{name}.gz", gzip.compress(content)) if packed else (name, content)
        (tmp_path / name).write_bytes(content)
    message = refusal(tmp_path)
    assert "holds model.enpt.intgemm.alphas.bin" in message
    assert "a binary model of Marian-NMT" in message
    assert "no checkpoint in this folder" not in message
    if packed:
        with pytest.raises(CheckpointError, match="a binary model of Marian-NMT"):
            name_kind(tmp_path)  # of inspect, which reads the other one as export does
    with pytest.raises(CheckpointError, match="a binary model of Marian-NMT"):
        name_kind(next(tmp_path.glob("model*")))
    lists = next(tmp_path.glob("lex*"))
    assert "a binary shortlist of Marian-NMT" in refusal(lists)


def test_folder_packed_otherwise_is_named_by_its_names(tmp_path: Path) -> None:
    (tmp_path / "model.enpt.intgemm.alphas.bin.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    assert "by the name a binary model of Marian-NMT" in refusal(tmp_path)


def test_other_bytes_are_not_taken_for_a_model(tmp_path: Path) -> None:
    draw, path, whole = random.Random(0), tmp_path / "x.bin", binary(INTGEMM8, FLOAT32)
    others = [b"", whole[:40], gzip.compress(whole)[:12], b"\x1f\x8b\x08", b"\x80\x02}q\0."]
    others += [struct.pack("<2Q", *pair) + whole[16:] for pair in ((2, 3), (1, 0), (1, 1 << 60))]
    others += [whole[:16] + struct.pack("<4Q", *item) + whole[48:] for item in (
        (0, FLOAT32, 2, 8), (1 << 63, FLOAT32, 2, 8), (5, 0, 2, 8), (5, 1 << 40, 2, 8),
        (5, FLOAT32, 1 << 50, 8), (5, FLOAT32, 2, 0),
    )]  # fmt: skip
    for content in others:
        path.write_bytes(content)
        assert describe_marian(content) is None, content
        assert "Marian" not in refusal(path)
    for _ in range(300):  # damaged in any place: described or not, and never raised
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 6)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(gzip.compress(damaged)[: draw.randint(3, 200)] if draw.random() < 0.5
                         else damaged[: draw.randint(0, len(damaged))])  # fmt: skip
        describe_marian(path.read_bytes())


def test_little_is_read_of_a_packed_file_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "model.bin.gz"
    path.write_bytes(gzip.compress(bytes(50_000_000)))
    assert "packed with gzip" in refusal(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_no_pipe_of_a_folder_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.bin.gz")
    (tmp_path / "lex.bin").mkdir()
    assert "no checkpoint in this folder" in refusal(tmp_path)
