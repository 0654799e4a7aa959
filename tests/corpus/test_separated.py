"""CSV and TSV: records keep their own bytes, and get three fields."""

import csv
import io
from pathlib import Path

import pytest

from tests.corpus.files import COUNTED, joined, packed, read_all, source_of, texts
from tfexport.corpus.formats import FORMATS
from tfexport.corpus.pieces import PartitionError
from tfexport.corpus.row_decoder import CorpusRow


def through(
    path: Path, content: str | bytes, batch_rows: int = 2, compression: str | None = None
) -> tuple[list[CorpusRow], str]:
    """The rows of a file, and the output."""
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(packed(content, compression))
    source, name = source_of(path, compression), path.suffix[1:]
    rows, bodies = read_all(name, source, batch_rows)
    whole = joined(name, source, bodies)
    for fewer in (1, 3, 100):  # pieces of another size give the same
        again, others = read_all(name, source, fewer)
        assert [vars(row) for row in again] == [vars(row) for row in rows]
        assert joined(name, source, others) == whole
    return rows, whole.decode(errors="surrogateescape")


def parsed(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
def test_records_of_csv_keep_their_bytes(tmp_path: Path, compression: str | None) -> None:
    content = (
        "\ufeffid,text,note\r\n"
        "1,a,plain\r\n"
        '2,"b, ""c""\nd",\'x\'\r\n'
        "\r\n"
        '3,5" disk,"""q"""\n'
        "4,,\n"
        '"5","\n\n",z'
    )
    rows, made = through(tmp_path / "a.csv", content, compression=compression)
    assert texts(rows) == ["a", 'b, "c"\nd', '5" disk', "", "\n\n"]
    assert [row.number for row in rows] == [0, 1, 2, 3, 4]
    assert made == (
        "\ufeffid,text,note,translation,score,error\r\n"
        "1,a,plain,a→0,0.5,\r\n"
        '2,"b, ""c""\nd",\'x\',"b, ""c""\nd→1",0.5,\r\n'
        '3,5" disk,"""q""","5"" disk→2",0.5,\n'
        "4,,,→3,0.5,\n"
        '"5","\n\n",z,"\n\n→4",0.5,\n'
    )
    assert {len(record) for record in parsed(made)} == {6}


def test_fields_of_tsv_are_not_quoted(tmp_path: Path) -> None:
    content = 'text\tid\n"a\t1\nb "c"\t"2"\n'
    rows, made = through(tmp_path / "a.tsv", content)
    assert texts(rows) == ['"a', 'b "c"']
    assert made == (
        'text\tid\ttranslation\tscore\terror\n"a\t1\t"a→0\t0.5\t\nb "c"\t"2"\tb "c"→1\t0.5\t\n'
    )


def test_a_file_of_one_column_has_empty_texts(tmp_path: Path) -> None:
    rows, made = through(tmp_path / "a.csv", "text\na\n\nb\n")
    assert texts(rows) == ["a", "", "b"]
    assert made == "text,translation,score,error\na,a→0,0.5,\n,→1,0.5,\nb,b→2,0.5,\n"


def test_an_error_stays_in_its_row_which_is_kept(tmp_path: Path) -> None:
    content = b'id,text\n1,a\n2\n3,b,c\n4,"d"e\n5,\xff\n\xff,f\n6,g\n7,"h\n8,i\n'
    rows, made = through(tmp_path / "a.csv", content)
    assert texts(rows) == ["a", None, None, None, None, "f", "g", None]
    problems = [row.problem for row in rows]
    assert problems[1:3] == [
        "has 1 fields, but the header has 2",
        "has 3 fields, but the header has 2",
    ]
    assert str(problems[3]).startswith("not CSV: ',' expected after '\"'")
    assert problems[4] == "'text' is not UTF-8"
    assert problems[7] == "not CSV: unexpected end of data"
    records = parsed(made)
    assert {len(record) for record in records} == {5}
    assert [record[:2] for record in records[1:]] == [
        ["1", "a"], ["2", ""], ["3,b,c", ""], ['4,"d"e', ""], ["5", "\udcff"], ["\udcff", "f"],
        ["6", "g"], ['7,"h\n8,i', ""],
    ]  # fmt: skip
    assert [record[4] for record in records[1:]] == [row.problem or "" for row in rows]


def test_languages_of_a_row_are_read(tmp_path: Path) -> None:
    rows, _ = through(tmp_path / "a.csv", "text,target_language\na,de\nb,\n")
    assert [row.target_language for row in rows] == ["de", None]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is empty: a header is missing"),
        (b"\n", "has no column 'text' in its first line; it has"),
        (b"Guten Morgen!\tGood morning!\n", "'Guten Morgen!', 'Good morning!'"),
        (b"text\ttext\tn\n", "has several columns named 'text'"),
        (b"n\tscore\n", "has no column 'text'.*; already has the output columns 'score'"),
        (b"text\rn\r", "new-line character seen in unquoted field"),
    ],
)
def test_a_header_that_does_not_do_fails_the_file(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    (tmp_path / "a.tsv").write_bytes(content)
    with pytest.raises(PartitionError, match=problem):
        FORMATS["tsv"].scan(source_of(tmp_path / "a.tsv"), 2, COUNTED)


def test_a_file_without_rows_has_its_header(tmp_path: Path) -> None:
    assert through(tmp_path / "a.csv", "id,text\n") == ([], "id,text,translation,score,error\n")
