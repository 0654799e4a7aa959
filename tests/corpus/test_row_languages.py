"""Languages of rows: each row's own, else the task's, and only of models that are told them."""

import json
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.corpus.files import COUNTED, source_of
from tests.support.manifests import rewrite
from tfexport.corpus.columns import Columns, rows_of, schema_problems
from tfexport.corpus.formats import FORMATS
from tfexport.corpus.row_decoder import CorpusRow, RowDecoder, RowResult, Task
from tfexport.errors import ConfigError
from tfexport.languages import Languages
from tfexport.runtime import Translator
from tfexport.runtime.engine import Engine
from tfexport.runtime.parallel.cpu import ThreadLayout

IDS = {"de": 10, "en": 11, "fr": 12}
NLLB = Languages(IDS, "before", "first", "de", None)
Told = Callable[[Languages], Path]


@pytest.fixture(name="told")
def _told(tiny_bundle: Path, tmp_path: Path) -> Told:
    def told(languages: Languages) -> Path:
        folder = tmp_path / "told.bundle"
        shutil.copytree(tiny_bundle, folder)
        values = {"languages": asdict(languages)}

        def change(manifest: dict[str, Any]) -> None:
            manifest.update(values)
            manifest["config"]["start_id"] = manifest["special_ids"].get("start")

        rewrite(folder, change)
        return folder

    return told


def decode(folder: Path, rows: list[CorpusRow], **task: Any) -> list[RowResult]:
    return RowDecoder(Engine(folder, ThreadLayout(threads=1)), Task(**task)).decode(rows)


def test_rows_of_many_languages_are_what_a_translator_gives(told: Told) -> None:
    folder = told(NLLB)
    pairs = [(source, target) for source in (None, "", "de", "fr") for target in ("en", "fr", None)]
    rows = [
        CorpusRow("w5 w6 w7", number, source_language=source, target_language=target)
        for number, (source, target) in enumerate(pairs)
    ]
    found = decode(folder, rows, target_language="de", options={"max_length": 9})
    translator, made = Translator(folder, threads=1), list[str | None]()
    for source, target in pairs:
        (result,) = translator.translate(
            ["w5 w6 w7"],
            max_length=9,
            source_language=source or None,
            target_language=target or "de",
        )
        made.append(result.text)
    assert [row.translation for row in found] == made
    assert len(set(made)) > 3


def test_a_wrong_language_is_an_error_of_its_row(told: Told) -> None:
    rows = [
        CorpusRow("w5 w6", 0, target_language="en"),
        CorpusRow("w5 w6", 1),
        CorpusRow("w5 w6", 2, target_language="EN"),
        CorpusRow("w5 w6", 3, target_language="\ud800", source_language="xx"),
        CorpusRow("", 4, target_language="yy"),
        CorpusRow("w5 w6", 5, target_language="en"),
        CorpusRow("w5 w6", 6, target_language="EN"),
    ]
    found = decode(told(NLLB), rows)
    assert found[0].translation == found[5].translation is not None
    errors = [row.error for row in found]
    assert errors[0] is errors[5] is None
    assert "target_language: the model needs a target language" in str(errors[1])
    assert "'EN' is not a language of the model" in str(errors[2])
    assert errors[2] == errors[6]
    assert "'xx' is not a language" in str(errors[3])
    assert "'yy' is not a language" in str(errors[4])
    assert all(str(error).encode() for error in errors)


def test_a_model_that_is_not_told_takes_no_notice_of_columns(
    tiny_bundle: Path, told: Told, tmp_path: Path
) -> None:
    row = CorpusRow("w5 w6", 0, source_language="de", target_language="klingon")
    (plain,) = decode(tiny_bundle, [CorpusRow("w5 w6", 0)])
    assert decode(tiny_bundle, [row]) == [plain]
    # Nor of the side that it is not told of.
    target_only = told(Languages(IDS, None, "first"))
    (found,) = decode(
        target_only, [CorpusRow("w5 w6", 0, source_language="xx", target_language="fr")]
    )
    assert found.error is None
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "w5 w6", "source_language": "de"}))
    form = FORMATS["jsonl"]
    (piece,) = form.scan(source_of(path), 9, COUNTED).pieces
    assert decode(tiny_bundle, form.read(source_of(path), piece, COUNTED)[1]) == [plain]


def test_the_only_language_of_a_model_may_be_named(told: Told) -> None:
    folder = told(Languages({}, None, None, "de", "en"))
    rows = [
        CorpusRow("w5", 0, target_language="en"),
        CorpusRow("w5", 1, target_language="fr"),
        CorpusRow("w5", 2),
    ]
    found = decode(folder, rows)
    assert [row.error is None for row in found] == [True, False, True]
    assert "'fr' is not 'en', the model's only one" in str(found[1].error)


def test_a_task_of_a_model_that_every_row_has_to_tell_is_no_error(told: Told) -> None:
    folder = told(NLLB)
    assert decode(folder, []) == []
    with pytest.raises(ConfigError, match="'xx' is not a language of the model"):
        decode(folder, [], target_language="xx")
    with pytest.raises(ConfigError, match="target_prefix"):
        decode(folder, [], target_prefix="\ud800")


def test_wrong_languages_are_not_kept_in_memory(told: Told) -> None:
    given = RowDecoder(Engine(told(NLLB), ThreadLayout(threads=1)), Task())
    given.decode([CorpusRow("w5", 0, target_language="xx")])
    tracemalloc.start()
    try:
        for number in range(100):
            (found,) = given.decode([CorpusRow("w5", 0, target_language=f"{number}" * 20_000)])
            assert "is not a language" in str(found.error)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


@pytest.mark.parametrize(
    ("languages", "counted"),
    [
        (NLLB, ("source_language", "target_language", "target_prefix")),
        (Languages(IDS, None, "first"), ("target_language", "target_prefix")),
        (Languages({}, None, None, "de", "en"), COUNTED.of_rows),
        (None, ("target_prefix",)),
    ],
)
def test_columns_of_languages_are_read_where_they_count(
    tiny_bundle: Path, told: Told, tmp_path: Path, languages: Languages | None,
    counted: tuple[str, ...],
) -> None:  # fmt: skip
    folder = tiny_bundle if languages is None else told(languages)
    decoder = RowDecoder(Engine(folder, ThreadLayout(threads=1)), Task())
    assert decoder.row_columns == counted
    columns = Columns("text", counted)
    table = pa.table({"text": ["w5 w6"], "source_language": [5], "target_language": ["fr"]})
    problems = [*schema_problems(table.schema, columns)]
    assert problems == ["column 'source_language' has type int64; expected text"] * (
        "source_language" in counted
    )
    (row,) = rows_of(table, columns)
    assert (row.problem is None) == ("source_language" not in counted)
    assert (row.target_language == "fr") == ("target_language" in counted and row.problem is None)
