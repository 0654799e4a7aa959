"""Lines of an output: text and JSON."""

import json
from pathlib import Path

import pytest

from tfexport.runtime import Translator
from tfexport.runtime.files.line_format import LineFormat
from tfexport.runtime.files.line_task import LineTask
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
