"""JSON lines: an error stays in its row, and all that a row had keeps its own text."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.corpus.files import COUNTED, joined, read_all, source_of, texts
from tfexport.corpus.columns import added_columns
from tfexport.corpus.formats import FORMATS
from tfexport.corpus.pieces import PartitionError, Piece
from tfexport.corpus.row_decoder import CorpusRow, RowResult

ADDED = '"translation": "{}→{}", "score": 0.5, "error": null}}'


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("json")


def through(
    folder: Path, *lines: str | bytes, column: str = "text", batch_rows: int = 2
) -> tuple[list[CorpusRow], list[str]]:
    """The rows, and the lines of the output, each of which is an object of JSON."""
    path = folder / "rows.jsonl"
    content = [line.encode() if isinstance(line, str) else line for line in lines]
    path.write_bytes(b"\n".join(content))
    rows, bodies = read_all("jsonl", source_of(path), batch_rows, column)
    written = joined("jsonl", source_of(path), bodies).decode().split("\n")
    assert written.pop() == ""
    assert len(written) == len(rows)
    for row, line in zip(rows, written, strict=True):
        made = json.loads(line, parse_constant=pytest.fail, parse_int=str)
        assert (made["error"] is None) == (made["translation"] is not None)
        assert row.problem in (None, made["error"])
    return rows, written


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        ('"text": "a"', "a"),
        ('"z": 1.0, "text": "a", "b": 1e5, "a": -0.0, "E": 1E+5', "a"),
        ('"id": 123456789012345678901234567890, "text":"a"', "a"),
        ('"id": -' + "9" * 5000 + ', "x": 0.1000000000000000000000001, "text":"a"', "a"),
        (r'"\u00fc\/": "\u0041\n", "text": "\ud83d\ude00\t"', "😀\t"),
        ('"ü😀\u2028\u0085": ["\x7f", "日本"], "text": "ü\u2028b"', "ü\u2028b"),
        ('"text": "a", "deep": {"text": "b", "translation": [null, true, {}]}', "a"),
        ('"text" :"a" ,\t"b":\r{ }', "a"),
        ('"text": "b", "text": "a"', "a"),
        (r'"lone": "\ud800", "text": "a"', "a"),
        ('"huge": 1e999, "text": "a"', "a"),
        ('"Translation": 1, "text": ""', ""),
    ],
    ids=range(12),
)
@pytest.mark.parametrize("around", [("{", "}"), (" \t{ ", " } "), ("{", "}\r")])
def test_the_rest_of_a_row_keeps_its_text(
    folder: Path, kept: str, text: str, around: tuple[str, str]
) -> None:
    rows, (line, other) = through(folder, f"{around[0]}{kept}{around[1]}", '{"text": "last"}')
    assert texts(rows) == [text, "last"]
    written = json.dumps({"translation": f"{text}→0", "score": 0.5, "error": None},
                         ensure_ascii=False)  # fmt: skip
    assert line == f"{{{kept}, {written[1:]}"
    assert other == '{"text": "last", ' + ADDED.format("last", 1)


@pytest.mark.parametrize(
    ("line", "problem", "remains"),
    [
        ("", "not JSON: Expecting value", ""),
        ("{", "not JSON: Expecting property name", ""),
        ('{"text": "a"', "not JSON: Expecting ',' delimiter", ""),
        ('{"text": "a"} {"text": "b"}', "not JSON: Extra data", ""),
        ('{"text": "a\0"}', "not JSON: Invalid control character", ""),
        ('{"text": NaN}', "not JSON: NaN is not a valid JSON number", ""),
        ('{"text": "a", "x": -Infinity}', "not JSON: -Infinity is not a valid", ""),
        ('["text"]', "not a JSON object: ['text']", ""),
        ("5", "not a JSON object: 5", ""),
        ("9" * 5000, "not a JSON object: inf", ""),
        ("null", "not a JSON object: None", ""),
        (r'["\ud800"]', r"not a JSON object: ['\ud800']", ""),
        (b'{"text": "\xff"}', "not UTF-8: invalid start byte at byte 10", ""),
        ('\ufeff{"text": "a"}', "not JSON: Unexpected UTF-8 BOM", ""),
        ('{"text":' + "[" * 100_000, "not readable as JSON: nested too deeply", ""),
        ("{}", "has no 'text'", ""),
        ('{"texts": "a"}', "has no 'text'", '"texts": "a"'),
        ('{"text": null}', "None is not a string", '"text": null'),
        ('{"text": 5}', "5 is not a string", '"text": 5'),
        ('{"text": ["a"]}', "['a'] is not a string", '"text": ["a"]'),
        (r'{"text": "\ud800"}', r"'\ud800' is not a string", r'"text": "\ud800"'),
        ('{"text": "a", "target_prefix": 5}', "target_prefix: 5 is not a string",
         '"text": "a", "target_prefix": 5'),
    ],
    ids=range(22),
)  # fmt: skip
def test_an_error_stays_in_its_row(
    folder: Path, line: str | bytes, problem: str, remains: str
) -> None:
    rows, written = through(folder, '{"text": "a"}', line, '{"text": "b"}')
    assert texts(rows)[::2] == ["a", "b"]
    assert written[::2] == [
        f'{{"text": "{t}", ' + ADDED.format(t, n) for t, n in (("a", 0), ("b", 2))
    ]
    made = json.loads(written[1])
    assert made["error"].startswith(problem)
    assert (made["translation"], made["score"]) == (None, None)
    if not remains and line != "{}":  # what is no object keeps its text
        text = line if isinstance(line, str) else line.decode(errors="backslashreplace")
        assert made["line"] == text
        remains = f'"line": {json.dumps(text, ensure_ascii=False)}'
    start = f"{{{remains}, " if remains else "{"
    assert written[1].startswith(start + '"translation": null, "score": null, "error": "')


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (r'{"text": "a", "error": null}', "row 2 already has the output columns 'error'; choose "
         "other names with output_column"),
        (r'{"text": "a", "t\u0072anslation": 1, "score": 2}', "columns 'translation', 'score';"),
    ],
)  # fmt: skip
def test_a_key_that_is_to_be_added_fails_the_file(folder: Path, line: str, problem: str) -> None:
    with pytest.raises(PartitionError, match=problem):
        through(folder, '{"text": "a"}', line)


def test_the_keys_that_are_added_may_have_other_names(folder: Path) -> None:
    path = folder / "named.jsonl"
    path.write_text('{"text": "a", "score": 5, "error": 1, "translation": 2}\nno\n')
    columns = replace(COUNTED, added=added_columns("en"))
    _, (body,) = read_all("jsonl", source_of(path), 2, columns=columns)
    assert [json.loads(line) for line in body.splitlines()] == [
        {"text": "a", "score": 5, "error": 1, "translation": 2, "en": "a→0", "en_score": 0.5,
         "en_error": None},
        {"line": "no", "en": None, "en_score": None,
         "en_error": "not JSON: Expecting value: line 1 column 1 (char 0)"},
    ]  # fmt: skip


def test_a_byte_order_mark_may_stand_at_the_start(folder: Path) -> None:
    rows, written = through(folder, '\ufeff{"text": "a"}', '{"text": "b"}')
    assert texts(rows) == ["a", "b"]
    assert written[0].startswith('{"text": "a", "translation"')


def test_languages_and_prefix_of_a_row_are_read(folder: Path) -> None:
    rows, _ = through(
        folder,
        '{"from": "a", "source_language": "de", "target_language": null, "target_prefix": ""}',
        '{"from": "b", "target_language": "en", "target_prefix": "c"}',
        column="from",
    )
    assert [vars(row) for row in rows] == [
        vars(CorpusRow("a", 0, source_language="de")),
        vars(CorpusRow("b", 1, target_language="en", target_prefix="c")),
    ]


def test_a_score_that_is_no_number_of_json_is_null(folder: Path) -> None:
    path = folder / "one.jsonl"
    path.write_bytes(b'{"text": "a"}\n' * 3)
    form = FORMATS["jsonl"]
    given_, _ = form.read(source_of(path), Piece(0, 0, 3, 0), COUNTED)
    scores = (math.nan, -math.inf, -0.25)
    body = form.write(given_, [RowResult("b", score) for score in scores], COUNTED)
    found = [json.loads(line, parse_constant=pytest.fail) for line in body.splitlines()]
    assert [row["score"] for row in found] == [None, None, -0.25]


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)  # fmt: skip
KEYS = st.sampled_from(["text", "target_prefix", "target_language", "x", "ü", "mark", ""])


@settings(max_examples=150)
@given(
    st.lists(st.dictionaries(KEYS, VALUES, max_size=4) | VALUES, min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from([None, (",", ":"), (" , ", "\t:  ")]),
)
def test_what_a_row_had_is_what_it_has(
    folder: Path, drawn: list[Any], escaped: bool, separators: tuple[str, str] | None
) -> None:
    lines = [json.dumps(values, ensure_ascii=escaped, separators=separators) for values in drawn]
    sound = [line.encode(errors="surrogatepass") for line in lines]
    rows, written = through(folder, *sound)
    for values, row, line in zip(drawn, rows, written, strict=True):
        made = json.loads(line)
        added = [made.pop(name) for name in ("translation", "score", "error")]
        if isinstance(values, dict) and escaped:
            assert made == values
            assert list(made) == list(values)
        if row.problem is None and added[2] is None:
            assert made["text"] == row.source


def test_hostile_objects_are_rows(folder: Path) -> None:
    draw, parts = random.Random(5), [
        '"text"', ":", ",", "{", "}", "[", "]", '"', "\\", "\\u", "d800", "1", "e5", "-", ".",
        "null", "NaN", "true", " ", "\r", "\0", "\x85", "ü", "\ufeff", '"error"', "a", "{}",
        "9" * 30,
    ]  # fmt: skip
    for _ in range(100):
        lines = ["".join(draw.choices(parts, k=draw.randrange(12))) for _ in range(8)]
        through(folder, *lines, '{"text": ' + lines[0] + "}", batch_rows=3)
