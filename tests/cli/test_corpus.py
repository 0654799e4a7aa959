"""``tfexport corpus``: what is wrong is said before anything runs. tests/corpus has the runs."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.command import invoke
from tfexport.cli import corpus_command
from tfexport.corpus import Advance, CorpusReport


@pytest.fixture(name="given")
def _given(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("w4 w5\n")
    return folder


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--workers", "many"], 2, "--workers: 'many' is neither N nor MIN:MAX"),
        (["--workers", "1:2:3"], 2, "--workers: '1:2:3' is neither N nor MIN:MAX"),
        (["--workers", "0"], 2, "--workers: 0 is not an integer from 1 to 100000"),
        (["--workers", "5:2"], 2, "--workers: the minimum 5 exceeds the maximum 2"),
        (["--threads-per-worker", "0"], 2, "0 is not in the range"),
        (["--engine", "spark"], 2, "'spark' is not one of 'auto', 'local', 'ray'"),
        (
            ["--engine", "local", "--address", "auto"],
            2,
            "--address: the local engine uses only this",
        ),
        (
            ["--engine", "local", "--workers", "2000"],
            2,
            "--workers: 2000 of 1 threads each",
        ),
        (["--num-hypotheses", "2"], 2, "No such option"),
        (["--return-attention"], 2, "No such option"),
        (["--return-end-token"], 2, "No such option"),
        (["--min-alternative-probability", "0.1"], 2, "No such option"),
        (["--beam-size", "2", "--sampling"], 2, "decoding options"),
        (["--target-language", "de"], 2, "--target-language"),
        (["--vocabulary-map", "nowhere"], 1, "nowhere: No such file or directory"),
        (["--address", "127.0.0.1:1"], 2, "no Ray cluster at 127.0.0.1:1"),
    ],
)
def test_wrong_options_leave_nothing(
    tiny_bundle: Path, given: Path, options: list[str], code: int, said: str
) -> None:
    output = given.with_name("new") / "folder" / "out"
    done = invoke("corpus", tiny_bundle, given, output, *options)
    assert done.exit_code == code
    assert said in done.stderr
    assert [path.name for path in given.parent.iterdir()] == ["in"]


def test_files_of_no_format_are_told(tiny_bundle: Path, given: Path) -> None:
    (given / "train.de").write_text("w4\n")
    (given / "c.xz").write_text("w4\n")
    done = invoke("corpus", tiny_bundle, given, given.with_name("out"), "--json")
    assert done.exit_code == 0
    told = "c.xz: .xz files are not supported, train.de: .de is not a known suffix"
    assert f"2 files skipped: {told} (--format, --include)" in done.stderr
    assert json.loads(done.stdout)["passed_over"] == told.split(", ")
    done = invoke("corpus", tiny_bundle, given, given.with_name("new"), "--include", "*.de")
    assert done.exit_code == 1
    assert "train.de: .de is not a known suffix" in done.stderr
    assert "--format sets the format of all files" in done.stderr
    options = ["--include", "*.de", "--format", "text"]
    done = invoke("corpus", tiny_bundle, given, given.with_name("new"), *options)
    assert done.exit_code == 0
    assert [path.name for path in given.with_name("new").glob("[a-z]*")] == ["train.de"]


@pytest.mark.parametrize(
    "options",
    [["--column", "body"], ["--output-column", "en"], ["--column", "text", "--format", "text"]],
)
def test_options_of_columns_are_refused_for_text(
    tiny_bundle: Path, given: Path, options: list[str]
) -> None:
    done = invoke("corpus", tiny_bundle, given, given.with_name("out"), *options)
    assert done.exit_code == 2
    said = f"{options[0]}: {options[1]!r}: the files are lines of text, which have no columns"
    assert said in done.stderr
    (given / "b.jsonl").write_text('{"body": "w4", "text": "w5", "score": 1}\n')
    done = invoke("corpus", tiny_bundle, given, given.with_name("out"), *options)
    assert ("--column" in done.stderr) == ("--format" in options)


def test_a_column_that_is_there_already_is_told(tiny_bundle: Path, given: Path) -> None:
    for name, content in (
        ("b.jsonl", '{"text": "w5", "score": 1}\n'), ("c.csv", "text,score\nw5,1\n")
    ):  # fmt: skip
        (given / name).write_text(content)
    output = given.with_name("out")
    done = invoke("corpus", tiny_bundle, given, output)
    assert done.exit_code == 1
    named = "already has the output columns 'score'; choose other names with --output-column."
    assert f"b.jsonl: row 1 {named}" in done.stderr
    assert f"c.csv: {named}" in done.stderr
    assert invoke("corpus", tiny_bundle, given, output, "--output-column", "en").exit_code == 0
    (made,) = map(json.loads, (output / "b.jsonl").read_text().splitlines())
    assert made["score"] == 1
    assert made["en"]
    header, row = (output / "c.csv").read_text().splitlines()
    assert header == "text,score,en,en_score,en_error"
    assert row.startswith(f"w5,1,{made['en']},")


def test_a_missing_bundle_and_input_are_named(tiny_bundle: Path, given: Path) -> None:
    done = invoke("corpus", given / "no.bundle", given, given.with_name("out"))
    assert done.exit_code == 1
    assert "no.bundle: no such file or folder" in done.stderr
    done = invoke("corpus", tiny_bundle, given / "missing", given.with_name("out"))
    assert done.exit_code == 1
    assert "missing: no such file or folder" in done.stderr


def test_an_edited_output_is_replaced_by_force_alone(tiny_bundle: Path, given: Path) -> None:
    output = given.with_name("out")
    assert invoke("corpus", tiny_bundle, given, output).exit_code == 0
    made = (output / "a.txt").read_text()
    (output / "a.txt").write_text("post-edited\n")
    for options in ([], ["--beam-size", "2"]):
        done = invoke("corpus", tiny_bundle, given, output, *options)
        assert done.exit_code == 1
        assert "a.txt was changed after a run wrote it. Move it away, choose" in done.stderr
        assert "or replace it with --force. It was not translated." in done.stderr
        assert (output / "a.txt").read_text() == "post-edited\n"
    done = invoke("corpus", tiny_bundle, given, output, "--force")
    assert (done.exit_code, (output / "a.txt").read_text()) == (0, made)


def test_an_output_inside_the_input_is_refused(tiny_bundle: Path, given: Path) -> None:
    done = invoke("corpus", tiny_bundle, given, given / "out")
    assert done.exit_code == 2
    assert "name another output" in done.stderr


def test_a_report_says_how_many_more_files_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    report = CorpusReport(
        partitions=1000, finished=500, already=100, failures=150, with_errors=102, errors=200,
        stopped="output /out: No space left on device", failed={"a.txt": "cannot be read."},
        row_errors={"b.txt": [(3, "null is not a string")]},
    )  # fmt: skip
    corpus_command._print(report, "out")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:4] == [
        "b.txt:3: null is not a string",
        "101 files more with errors of rows",
        "a.txt: cannot be read. It was not translated.",
        "149 files more that were not translated",
    ]
    for line, facts in zip(
        lines[-3:],
        [
            "150 files could not be translated",
            "250 files not ",
            "output /out: No space left on device",
        ],
        strict=True,
    ):
        assert facts in line


def test_progress_tells_the_time_that_is_left() -> None:
    advance = Advance(done=0.5, rows=1234, tokens=5678, errors=2, seconds_left=600.0)
    assert corpus_command._text(advance) == "1,234 rows, 5,678 tokens, 2 errors, 10 min left"
    soon = replace(advance, seconds_left=12.4)
    assert corpus_command._text(soon) == "1,234 rows, 5,678 tokens, 2 errors, 12 s left"
    begun = replace(advance, errors=0, seconds_left=None)
    assert corpus_command._text(begun) == "1,234 rows, 5,678 tokens"


def test_rows_that_were_cut_are_counted(tiny_bundle: Path, given: Path) -> None:
    output, options = given.with_name("out"), ("--max-length", 1, "--json")
    done = invoke("corpus", tiny_bundle, given, output, *options)
    assert done.exit_code == 0
    assert "1 row was cut, before the translation's end; see --max-length" in done.stderr
    assert json.loads(done.stdout)["cut"] == 1
    again = invoke("corpus", tiny_bundle, given, output, *options)
    assert "1 row was cut" in again.stderr
    assert " tokens in " not in again.stderr  # nothing was decoded


def test_tokens_that_the_model_does_not_know_are_counted(tiny_bundle: Path, given: Path) -> None:
    (given / "a.txt").write_text("w5\n<b> Ω\n")
    for _ in range(2):  # it is in the record, too
        done = invoke("corpus", tiny_bundle, given, given.with_name("out"), "--json")
        assert " of the source, in 1 row, unknown to the model" in done.stderr
        assert json.loads(done.stdout)["unknown_tokens"] == 2


def test_an_interrupted_run_says_how_far_it_came(
    tiny_bundle: Path, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(
        *arguments: object, on_advance: Callable[[Advance], object], **_: object
    ) -> None:
        on_advance(Advance(done=0.4, rows=1, tokens=2, errors=0, seconds_left=None))
        raise KeyboardInterrupt

    monkeypatch.setattr("tfexport.corpus.run.translate_corpus", interrupted)
    done = invoke("corpus", tiny_bundle, given, given.with_name("out"))
    assert done.exit_code == 130
    assert "40% of the input is done. " in done.stderr
    assert done.stderr.endswith("\nInterrupted.\n")
