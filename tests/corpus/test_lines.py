"""Files of lines: every line comes once, in order, however a file is cut and compressed."""

import hashlib
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.corpus.files import PACKED, damaged, joined, packed, read_all, source_of, texts
from tfexport.corpus.formats import FORMATS, lines
from tfexport.corpus.formats.lines import Line, read_piece, scan_lines
from tfexport.corpus.pieces import PartitionError, SourceFile

LINES = st.lists(
    st.one_of(
        st.sampled_from(
            [b"", b"\r", b"\0", b"a\0b", b"\xef\xbb\xbf", b"\xff\xfe", "ü\u2028".encode()]
        ),
        st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")),
    ),
    max_size=20,
)


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines")


def split(content: bytes) -> list[bytes]:
    """The lines with their ends: as the standard library cuts a file of bytes."""
    return content.splitlines(keepends=True) if b"\r" not in content else _by_newline(content)


def _by_newline(content: bytes) -> list[bytes]:
    found = [line + b"\n" for line in content.split(b"\n")]
    found[-1] = found[-1][:-1]
    return found if found[-1] else found[:-1]


def pieces_of(source: SourceFile, batch_rows: int) -> list[Line]:
    found: list[Line] = []
    for place, piece in enumerate(scan_lines(source, batch_rows).pieces):
        read = read_piece(source, piece)
        assert (piece.index, piece.first, piece.rows) == (place, len(found), len(read))
        assert 1 <= piece.rows <= batch_rows
        found += read
    return found


@settings(max_examples=300)
@given(LINES, st.booleans(), st.integers(1, 7), st.integers(1, 40), st.integers(1, 30))
def test_all_pieces_together_are_the_lines(
    folder: Path, drawn: list[bytes], ended: bool, batch_rows: int, block: int, most: int
) -> None:
    content = b"\n".join(drawn) + (b"\n" if ended else b"")
    path = folder / "drawn.txt"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        # Blocks end anywhere in a line, and pieces at a number of bytes too.
        patch.setattr(lines, "BLOCK", block)
        patch.setattr(lines, "MAX_PIECE_BYTES", most)
        source = source_of(path)
        scanned = scan_lines(source, batch_rows)
        assert pieces_of(source, batch_rows) == split(content)
        assert scanned.digest == hashlib.sha256(content).hexdigest()
        starts = [piece.start for piece in scanned.pieces]
        longest = max(map(len, split(content)), default=0)
        for piece, start, end in zip(
            scanned.pieces, starts, [*starts[1:], len(content)], strict=False
        ):
            assert piece.rows == 1 or end - start <= most + longest


@pytest.mark.parametrize("compression", PACKED)
@pytest.mark.parametrize("members", [1, 3])
def test_a_compressed_file_has_the_lines_of_all_its_members(
    tmp_path: Path, compression: str, members: int
) -> None:
    parts = [b"".join(b"%d of %d\r\n" % (i, m) for i in range(50)) for m in range(members)]
    parts[-1] += b"no end"
    path = tmp_path / "packed"
    path.write_bytes(b"".join(packed(part, compression) for part in parts))
    source, whole = source_of(path, compression), b"".join(parts)
    for batch_rows in (1, 7, 1000):
        assert pieces_of(source, batch_rows) == split(whole)
    assert scan_lines(source, 7) == scan_lines(_plain(tmp_path, whole), 7)


def _plain(folder: Path, content: bytes) -> SourceFile:
    path = folder / "plain.txt"
    path.write_bytes(content)
    return source_of(path)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_pieces_may_be_read_in_any_order(tmp_path: Path, compression: str | None) -> None:
    sources, draw = list[SourceFile](), random.Random(4)
    for name in ("a", "b"):
        path = tmp_path / name
        path.write_bytes(
            packed(b"".join(b"%s%d\n" % (name.encode(), i) for i in range(50)), compression)
        )
        sources.append(source_of(path, compression))
    pieces = scan_lines(sources[0], 3).pieces
    for _ in range(100):
        source, piece = draw.choice(sources), draw.choice(pieces)
        name = Path(source.path).name
        expected = [f"{name}{piece.first + i}\n".encode() for i in range(piece.rows)]
        assert read_piece(source, piece) == expected


def test_what_lies_before_a_piece_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = b"".join(b"%d\n" % i for i in range(2000))
    read = list[int]()

    class Counting(lines._Stream):
        def read(self, most: int) -> bytes:
            fresh = not self._ahead
            block = super().read(most)
            read.append(len(block) if fresh else 0)
            return block

    monkeypatch.setattr(lines, "_Stream", Counting)
    monkeypatch.setattr(lines, "BLOCK", 100)
    for compression in ("gzip", None):
        (tmp_path / "file").write_bytes(packed(whole, compression))
        read.clear()
        assert b"".join(pieces_of(source_of(tmp_path / "file", compression), 9)) == whole  # type: ignore[arg-type]
        assert sum(read) == len(whole)


@pytest.mark.parametrize("compression", [None, *PACKED])
def test_an_empty_file_has_no_pieces(tmp_path: Path, compression: str | None) -> None:
    for content in {b"", packed(b"", compression)}:
        (tmp_path / "empty").write_bytes(content)
        assert scan_lines(source_of(tmp_path / "empty", compression), 3).pieces == ()


@pytest.mark.parametrize("compression", PACKED)
def test_a_truncated_or_foreign_file_cannot_be_read(tmp_path: Path, compression: str) -> None:
    whole = packed(random.Random(3).randbytes(5000) + b"\n", compression)
    for content in (whole[:-1], whole[:-5], whole[: len(whole) // 2], whole[:3], b"plain\n" * 9):
        (tmp_path / "cut").write_bytes(content)
        with pytest.raises(PartitionError, match="cannot be read: "):
            scan_lines(source_of(tmp_path / "cut", compression), 3)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_file_that_shrinks_or_vanishes_is_noticed(
    tmp_path: Path, compression: str | None
) -> None:
    path = tmp_path / "file"
    path.write_bytes(packed(b"a\nb\nc\nd\n", compression))
    source = source_of(path, compression)
    *_, last = scan_lines(source, 3).pieces
    assert read_piece(source, last) == [b"d\n"]
    for content in (b"a\n", b"a\nb\nc\n", b""):
        path.write_bytes(packed(content, compression))
        with pytest.raises(PartitionError, match="was changed while it was read"):
            read_piece(source, last)
    path.unlink()
    for call in (lambda: read_piece(source, last), lambda: scan_lines(source, 3)):
        with pytest.raises(PartitionError, match="cannot be read: "):
            call()
    with pytest.raises(PartitionError, match="cannot be read: "):
        scan_lines(source_of(tmp_path, compression), 3)


@pytest.mark.parametrize("block", [1, 4, 5, 1000])
def test_a_line_that_is_too_long_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(lines, "BLOCK", block)
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 5)
    found = pieces_of(_plain(tmp_path, b"1234\n12345\n1\n" + b"x" * 30 + b"\n\n" + b"123456"), 4)
    short = [line for line in found if isinstance(line, bytes)]
    assert short == [b"1234\n", b"1\n", b"\n"]
    long = [(n, str(line)) for n, line in enumerate(found) if not isinstance(line, bytes)]
    texts = [
        (n, f"a line of {size} bytes; the limit is 5") for n, size in ((1, 6), (3, 31), (5, 6))
    ]
    assert long == texts
    for name in ("text", "jsonl"):
        rows, _ = read_all(name, source_of(tmp_path / "plain.txt"), 4)
        assert rows[3].source is None
        assert rows[3].problem == "a line of 31 bytes; the limit is 5"


def test_a_long_line_ends_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_PIECE_BYTES", 10)
    source = _plain(tmp_path, b"1\n2\n" + b"x" * 30 + b"\n3\n4\n5\n6\n7\n8\n9\n")
    pieces = scan_lines(source, 100).pieces
    assert [(piece.rows, piece.start) for piece in pieces] == [(2, 0), (1, 4), (4, 35), (3, 43)]
    assert len(pieces_of(source, 100)) == 10


def test_text_has_a_line_for_a_line(tmp_path: Path) -> None:
    content = "\ufeffein\r\n\n zwei\0 \n\ufeffdrei\n".encode() + b"\xff\n" + "vier\u2028".encode()
    source = _plain(tmp_path, content)
    rows, bodies = read_all("text", source, 4)
    # A byte order mark is one at the start only.
    assert texts(rows) == ["ein", "", " zwei\0 ", "\ufeffdrei", None, "vier\u2028"]
    assert rows[4].problem == "not UTF-8: invalid start byte at byte 0"
    written = joined("text", source, bodies).decode().split("\n")
    assert written[:1] + written[3:] == ["ein→0", "\ufeffdrei→3", "", "vier →5", ""]


@pytest.mark.parametrize("name", ["text", "jsonl"])
@pytest.mark.parametrize("compression", [None, *PACKED])
def test_hostile_bytes_are_rows_or_no_partition(
    tmp_path: Path, name: str, compression: str | None
) -> None:
    draw, path, ends = random.Random(f"{name} {compression}"), tmp_path / "hostile", set[str]()
    line = b'{"text": "\\ud83d\\ude00 \xc3\xbc", "n": 1e5}\n'
    for _ in range(75):
        inner = damaged(line * 6, draw)
        path.write_bytes(damaged(packed(inner, compression), draw) if draw.random() < 0.5
                         else packed(inner, compression))  # fmt: skip
        source = source_of(path, compression)
        try:
            rows, bodies = read_all(name, source, draw.randint(1, 7))
            whole = joined(name, source, bodies)
            assert whole.count(b"\n") == len(rows)
            ends.add("rows")
        except PartitionError:
            ends.add("error")
    assert ends == ({"rows"} if compression is None else {"rows", "error"})


def test_formats_are_known_by_their_suffixes() -> None:
    suffixes = [suffix for form in FORMATS.values() for suffix in form.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    assert all(name == form.name for name, form in FORMATS.items())


def test_zeros_behind_a_gzip_file_are_no_content(tmp_path: Path) -> None:
    path, two = tmp_path / "a.txt.gz", packed(b"a\n", "gzip") + packed(b"b\n", "gzip")
    for content in (packed(b"a\nb\n", "gzip") + bytes(10_240), two + bytes(5), two):
        path.write_bytes(content)
        rows, _ = read_all("text", source_of(path, "gzip"), 1)
        assert texts(rows) == ["a", "b"]
    for content in (two[:-3], two + b"x", b"no gzip"):
        path.write_bytes(content)
        with pytest.raises(PartitionError, match="cannot be read: "):
            read_all("text", source_of(path, "gzip"), 1)
