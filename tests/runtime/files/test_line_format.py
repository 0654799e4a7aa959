"""Lines of an output: text and JSON."""

import json
from pathlib import Path

import pytest

from tests.support.command import invoke
from tfexport.cli.console import spell
from tfexport.errors import Message, Option
from tfexport.runtime import Hypothesis, TranslationResult, Translator
from tfexport.runtime.files.line_stream import LineFormat, LineResult, LineTask
from tfexport.runtime.files.resumable import translate_file


def test_json_lines_hold_everything(translator: Translator, tmp_path: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_bytes(b"w5 w6\n\xff\n\n")
    resolved, _ = translator.engine.resolver.resolve(
        {"beam_size": 2, "num_hypotheses": 2, "max_length": 4, "return_token_scores": True,
         "return_attention": True}
    )  # fmt: skip
    translate_file(
        translator.engine,
        source,
        output,
        LineTask(resolved, LineFormat(jsonl=True, num_hypotheses=2)),
    )
    first, bad, empty = map(json.loads, output.read_text(encoding="utf-8").splitlines())
    assert len(first["hypotheses"]) == 2
    best = first["hypotheses"][0]
    assert best == {key: value for key, value in first.items() if key != "hypotheses"}
    counted = len(best["tokens"]) + best["finished"]
    assert sum(best["token_scores"]) / counted == pytest.approx(best["score"])
    assert len(best["attention"]) == len(best["tokens"])
    assert all(len(row) == len(best["source_tokens"]) == 3 for row in best["attention"])
    assert len(best["alignment"].split()) == len(best["tokens"])
    assert bad["tokens"] is None
    assert "not UTF-8" in bad["error"]
    assert empty["text"] == ""
    assert empty["tokens"] == []


FOUND = TranslationResult(
    "a\x85b", [Hypothesis([4, 5], -1.0), Hypothesis([6], -2.0)], [4, 2], ["a\x85b", "c\n"]
)
BAD = Message("too long; cut it with ", Option("truncate", True))


def test_one_line_in_is_so_many_lines_out() -> None:
    assert LineFormat().write(LineResult(1, FOUND)) == ["a b"]
    three = LineFormat(num_hypotheses=3)
    assert three.write(LineResult(1, FOUND)) == ["a b", "c", ""]
    assert three.write(LineResult(1, None, BAD)) == ["", "", ""]
    assert LineFormat(ids=True, num_hypotheses=2).write(LineResult(1, FOUND)) == ["4 5", "6"]
    assert len(LineFormat(jsonl=True, num_hypotheses=3).write(LineResult(1, FOUND))) == 1


@pytest.mark.parametrize(
    ("line_format", "text", "option"),
    [
        (LineFormat(jsonl=True), "", "truncate=True"),
        (LineFormat(jsonl=True, ids=True, spell=spell), None, "--truncate"),
    ],
)
def test_errors_spell_options_as_their_front_end_does(
    line_format: LineFormat, text: str | None, option: str
) -> None:
    (line,) = line_format.write(LineResult(1, None, BAD))
    error = f"too long; cut it with {option}"
    assert json.loads(line) == {"text": text, "tokens": None, "score": None, "error": error}


def test_a_line_that_is_too_long_names_the_option_that_cuts_it(
    translator: Translator, tiny_bundle: Path, tmp_path: Path
) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("w5 " * 80, encoding="utf-8")
    translator.translate_file(source, output, jsonl=True)
    ours = json.loads(output.read_text(encoding="utf-8"))
    assert ours["error"].endswith("or truncate it with truncate=True")
    flags = invoke("translate", tiny_bundle, source, "--jsonl")
    assert json.loads(flags.stdout)["error"].endswith("or truncate it with --truncate")
    scored = invoke("score", tiny_bundle, source, source, "--jsonl")
    assert json.loads(scored.stdout)["error"].endswith("or truncate it with --truncate")
    # A finished output is the same, whichever of both resumes it.
    again = invoke("translate", tiny_bundle, source, "--jsonl", "-o", output, "--resume")
    assert (again.exit_code, json.loads(output.read_text(encoding="utf-8"))) == (1, ours)


def test_a_prefix_of_ids_is_read_as_lines_of_ids_are(tiny_bundle: Path) -> None:
    for prefix, problem in (("5 ٣", "'٣' is not an integer"), ("9" * 5000, "integer"),
                            ("-1", "id -1 is not in the vocabulary")):  # fmt: skip
        done = invoke("translate", tiny_bundle, "--ids", f"--target-prefix={prefix}", stdin="5\n")
        assert done.exit_code == 2
        assert "--target-prefix" in done.stderr
        assert problem in done.stderr
