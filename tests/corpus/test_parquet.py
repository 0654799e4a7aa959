"""Parquet: the columns stay as they were, whatever their types, and three are added."""

import io
import random
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from tests.corpus.files import COUNTED, damaged, joined, packed, read_all, source_of, texts
from tfexport.corpus.columns import ADDED, rows_of, with_results
from tfexport.corpus.formats import FORMATS, parquet
from tfexport.corpus.pieces import PartitionError, SourceFile
from tfexport.corpus.row_decoder import RowResult

N = 10
WORDS = pa.array(["a", "b", None, "", "ü"] * 2)
DICTIONARY = WORDS.dictionary_encode()
COLUMNS: dict[str, pa.Array] = {
    "nested": pa.array([{"a": [1, 2], "b": {"c.d": None}}, None] * 5),
    "list": pa.array([[1], [], None, [2, 3], [None]] * 2),
    "large list": pa.array([["x"]] * N, pa.large_list(pa.large_string())),
    "fixed list": pa.array([[1, 2]] * N, pa.list_(pa.int8(), 2)),
    "map": pa.array([[("a", 1)], []] * 5, pa.map_(pa.string(), pa.int32())),
    "dictionary": DICTIONARY,
    "small dictionary": DICTIONARY.cast(pa.dictionary(pa.int8(), pa.large_string())),
    "ordered": DICTIONARY.cast(pa.dictionary(pa.int8(), pa.string(), ordered=True)),
    "numbers": pa.DictionaryArray.from_arrays(pa.array([0, None] * 5, pa.int8()), pa.array([5])),
    "large": WORDS.cast(pa.large_string()),
    "view": WORDS.cast(pa.string_view()),
    "seconds": pa.array([1, None] * 5, pa.timestamp("s", tz="Europe/Berlin")),
    "nanoseconds": pa.array([1] * N, pa.timestamp("ns")),
    "date": pa.array([date(2020, 1, 1)] * N, pa.date64()),
    "duration": pa.array([1] * N, pa.duration("s")),
    "decimal": pa.array([1] * N, pa.decimal256(50, 2)),
    "half": pa.array([1.5] * N).cast(pa.float16()),
    "null": pa.nulls(N),
    "bytes": pa.array([b"\xff", None] * 5, pa.binary(1)),
    "unsigned": pa.array([2**64 - 1] * N, pa.uint64()),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16] * N, pa.binary(16))),
}  # fmt: skip
TEXTS = [f"w{i}" for i in range(N)]


def write(path: Path, table: pa.Table, row_group_size: int = 4) -> Path:
    pq.write_table(table, path, row_group_size=row_group_size)
    return path


def output(path: Path, batch_rows: int = 3, column: str = "text") -> tuple[list[Any], pa.Table]:
    source = source_of(path)
    rows, bodies = read_all("parquet", source, batch_rows, column)
    return rows, pq.read_table(io.BytesIO(joined("parquet", source, bodies)))


@pytest.mark.parametrize("batch_rows", [1, 3, 4, 100])
def test_columns_of_any_type_stay(tmp_path: Path, batch_rows: int) -> None:
    fields = [pa.field("text", pa.string(), metadata={"of": "the field"})]
    fields += [pa.field(name, values.type) for name, values in COLUMNS.items()]
    schema = pa.schema(fields, metadata={"of": "the table"})
    given = pa.Table.from_arrays([pa.array(TEXTS), *COLUMNS.values()], schema=schema)
    path = write(tmp_path / "all.parquet", given)
    before = pq.read_table(path)
    rows, after = output(path, batch_rows)
    assert texts(rows) == TEXTS
    assert after.column_names == [*before.column_names, "translation", "score", "error"]
    assert after.select(before.column_names).equals(before, check_metadata=True)
    assert after["translation"].to_pylist() == [f"w{i}→{i}" for i in range(N)]
    assert after["score"].to_pylist() == [0.5] * N
    assert after["error"].null_count == N
    assert [after.schema.field(name).type for name in ("translation", "score", "error")] == [
        pa.string(), pa.float64(), pa.string()
    ]  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.large_string())],
    ids=str,
)
def test_texts_may_be_of_any_text_type(tmp_path: Path, kind: pa.DataType) -> None:
    values = DICTIONARY.cast(kind) if pa.types.is_dictionary(kind) else WORDS.cast(kind)
    path = write(tmp_path / "texts.parquet", pa.table({"text": values}))
    rows, after = output(path)
    assert texts(rows) == WORDS.to_pylist()
    assert after["text"].equals(pq.read_table(path)["text"])
    errors = [None, None, "None is not a string", None, None] * 2
    assert after["error"].to_pylist() == errors
    assert after["translation"].to_pylist()[:3] == ["a→0", "b→1", None]
    assert after["score"].to_pylist()[:3] == [0.5, 0.5, None]


def test_a_column_of_nulls_is_rows_without_text(tmp_path: Path) -> None:
    path = write(
        tmp_path / "nulls.parquet", pa.table({"text": pa.nulls(N), "target_prefix": WORDS})
    )
    rows, after = output(path)
    assert texts(rows) == [None] * N
    assert [row.target_prefix for row in rows][:5] == ["a", "b", None, None, "ü"]
    assert after["error"].null_count == 0


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_bytes_that_are_not_utf_8_are_an_error_of_their_row(
    tmp_path: Path, kind: pa.DataType
) -> None:
    raw = [b"ok", b"\xff\xfe", None, "ü".encode(), b""]
    like = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    buffers = pa.array(raw, like.get(kind, pa.binary_view())).buffers()
    column = pa.Array.from_buffers(kind, 5, buffers)
    path = write(tmp_path / "bytes.parquet", pa.table({"text": column, "target_language": column}))
    rows, after = output(path)
    assert texts(rows) == ["ok", None, None, "ü", ""]
    assert [row.target_language for row in rows] == ["ok", None, None, "ü", None]
    assert rows[1].problem is not None
    assert after["error"].to_pylist()[1::2] == [rows[1].problem, None]
    # What was there stays, even so.
    assert after["text"].cast(pa.binary()).to_pylist() == raw
    _, after = output(write(tmp_path / "text.parquet", pa.table({"text": column})))
    assert after["error"].to_pylist()[1] == r"b'\xff\xfe' is not a string"


def test_row_groups_are_cut_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "groups.parquet", pa.table({"text": TEXTS}), row_group_size=4)
    form = FORMATS["parquet"]
    pieces = form.scan(source_of(path), 3, COUNTED).pieces
    found = [(piece.group, piece.start, piece.rows) for piece in pieces]
    assert found == [(0, 0, 3), (0, 3, 1), (1, 0, 3), (1, 3, 1), (2, 0, 2)]
    monkeypatch.setattr(parquet, "MAX_PIECE_BYTES", 1)
    assert len(form.scan(source_of(path), 3, COUNTED).pieces) == N
    monkeypatch.setattr(parquet, "_ROWS_OF_A_GROUP", 4)
    written = joined("parquet", source_of(path), read_all("parquet", source_of(path), 3)[1])
    assert pq.ParquetFile(io.BytesIO(written)).num_row_groups == N
    monkeypatch.setattr(parquet, "MAX_PIECE_BYTES", 1 << 20)
    written = joined("parquet", source_of(path), read_all("parquet", source_of(path), 3)[1])
    assert pq.ParquetFile(io.BytesIO(written)).num_row_groups == 3
    assert pq.read_table(io.BytesIO(written))["text"].to_pylist() == TEXTS


def test_pieces_may_be_read_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, form, sources = random.Random(4), FORMATS["parquet"], list[SourceFile]()
    for name in ("a", "b"):
        table = pa.table({"text": [f"{name}{i}" for i in range(50)]})
        sources.append(source_of(write(tmp_path / name, table, row_group_size=20)))
    pieces = form.scan(sources[0], 3, COUNTED).pieces
    for ahead in (1, 4, 1000):
        monkeypatch.setattr(parquet, "_ROWS_AHEAD", ahead)
        for _ in range(50):
            source, piece = draw.choice(sources), draw.choice(pieces)
            given, rows = form.read(source, piece, COUNTED)
            name = Path(source.path).name
            assert texts(rows) == [f"{name}{piece.first + i}" for i in range(piece.rows)]
            assert given["text"].to_pylist() == texts(rows)


@pytest.mark.parametrize("groups", [0, 1])
def test_a_file_without_rows_keeps_its_schema(tmp_path: Path, groups: int) -> None:
    schema = pa.schema([("n", pa.int8()), ("text", pa.dictionary(pa.int8(), pa.string()))])
    with pq.ParquetWriter(tmp_path / "none.parquet", schema) as writer:
        for _ in range(groups):
            writer.write_table(schema.empty_table())
    rows, after = output(tmp_path / "none.parquet")
    assert (rows, after.num_rows) == ([], 0)
    assert after.column_names == ["n", "text", "translation", "score", "error"]
    assert after.schema.field("text").type == schema.field("text").type


def repeated(*names: str) -> pa.Table:
    return pa.Table.from_arrays([pa.array(TEXTS) for _ in names], names=list(names))


@pytest.mark.parametrize(
    ("table", "problems"),
    [
        (repeated("texts", "n"), ["has no column 'text'; it has 'texts', 'n'"]),
        (repeated("text", "n", "n", "a", "a"), ["has several columns named 'a', 'n'"]),
        (repeated("text", "text"), ["has several columns named 'text'"]),
        (pa.table({"text": range(N)}), ["column 'text' has type int64; expected text"]),
        (pa.table({"text": COLUMNS["list"]}), ["column 'text' has type list<"]),
        (pa.table({"text": COLUMNS["numbers"]}), ["column 'text' has type int64; expected"]),
        (
            repeated("text", "error"),
            ["already has the output columns 'error'; choose other names with output_column"],
        ),
        (
            pa.table({"target_prefix": range(N), "score": range(N), "translation": TEXTS}),
            [
                "no column 'text'",
                "'target_prefix' has type int64",
                "has the output columns 'translation', 'score'",
            ],
        ),
    ],
    ids=range(8),
)
def test_columns_that_do_not_do_are_all_named(
    tmp_path: Path, table: pa.Table, problems: list[str]
) -> None:
    path = write(tmp_path / "wrong.parquet", table)
    with pytest.raises(PartitionError) as caught:
        FORMATS["parquet"].scan(source_of(path), 3, COUNTED)
    assert all(problem in str(caught.value) for problem in problems)


def test_another_column_may_hold_the_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "other.parquet", pa.table({"text": range(N), "über satz": TEXTS}))
    assert texts(output(path, column="über satz")[0]) == TEXTS


def test_what_is_no_parquet_is_no_partition(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", pa.table({"text": TEXTS})).read_bytes()
    path = tmp_path / "damaged.parquet"
    for content in (b"", b"PAR1", b"PAR1PAR1", b"text\n" * 99, whole[:-1], whole[:-9],
                    packed(whole, "gzip"), whole[: len(whole) // 2]):  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(PartitionError, match="cannot be read as Parquet: "):
            FORMATS["parquet"].scan(source_of(path), 3, COUNTED)
    path.write_bytes(whole[9:])  # its end is sound
    with pytest.raises(PartitionError, match="cannot be read as Parquet: "):
        output(path)
    for wrong in (tmp_path, tmp_path / "absent.parquet"):
        with pytest.raises(PartitionError, match="cannot be read as Parquet: "):
            FORMATS["parquet"].scan(source_of(wrong), 3, COUNTED)


def test_a_file_that_changes_under_way_is_noticed(tmp_path: Path) -> None:
    path, form = write(tmp_path / "file.parquet", pa.table({"text": TEXTS})), FORMATS["parquet"]
    source = source_of(path)
    *_, last = form.scan(source, 3, COUNTED).pieces
    write(path, pa.table({"text": TEXTS[:9]}))
    with pytest.raises(PartitionError, match="was changed while it was read"):
        form.read(source, last, COUNTED)
    write(path, pa.table({"text": TEXTS}), row_group_size=N)
    with pytest.raises(PartitionError):
        form.read(source, last, COUNTED)
    path.write_bytes(b"")
    for call in (lambda: form.read(source, last, COUNTED), lambda: joined("parquet", source, [])):
        with pytest.raises(PartitionError, match="cannot be read as Parquet: "):
            call()


@pytest.mark.parametrize("compression", ["snappy", "none", "zstd"])
def test_hostile_bytes_are_rows_or_no_partition(tmp_path: Path, compression: str) -> None:
    table = pa.table({"text": TEXTS, "dictionary": DICTIONARY, "nested": COLUMNS["nested"]})
    pq.write_table(table, tmp_path / "whole", row_group_size=4, compression=compression)
    whole, path = (tmp_path / "whole").read_bytes(), tmp_path / "hostile.parquet"
    draw, ends = random.Random(compression), set[str]()
    for _ in range(400):
        path.write_bytes(damaged(whole, draw))
        try:
            rows, after = output(path, draw.randint(1, 7))
            assert after.num_rows == len(rows)
            ends.add("rows")
        except PartitionError:
            ends.add("error")
    assert ends == {"rows", "error"}


@pytest.mark.parametrize("compression", ["snappy", "gzip", "brotli", "lz4", "zstd", "none"])
def test_an_output_is_compressed_inside_as_its_input(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "packed.parquet"
    pq.write_table(pa.table({"n": range(N), "text": TEXTS}), path, compression=compression)
    source = source_of(path)
    written = joined("parquet", source, read_all("parquet", source, 3)[1])
    groups = [pq.ParquetFile(given).metadata.row_group(0) for given in (path, io.BytesIO(written))]
    names = {group.column(i).compression for group in groups for i in range(group.num_columns)}
    assert len(names) == 1
    assert pq.read_table(io.BytesIO(written))["text"].to_pylist() == TEXTS


def test_a_table_of_parts_gets_its_results(tmp_path: Path) -> None:
    table = pa.concat_tables([pa.table({"text": ["a"]}), pa.table({"text": ["b", None]})])
    rows = rows_of(table, COUNTED, 7)
    assert [(row.source, row.number) for row in rows] == [("a", 7), ("b", 8), (None, 9)]
    decoded = [RowResult("x", 1.0), RowResult(None, None, "why"), RowResult("", 0.0)]
    made = with_results(table, decoded, ADDED)
    assert made.to_pylist()[1] == {"text": "b", "translation": None, "score": None, "error": "why"}
    assert with_results(table.slice(0, 0), [], ADDED).schema == made.schema
