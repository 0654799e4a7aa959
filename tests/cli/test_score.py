"""``tfexport score``."""

import json
from pathlib import Path

import pytest

from tests.support.command import invoke
from tfexport.runtime import Translator


def test_score_is_the_score_of_decoding(tmp_path: Path, tiny_bundle: Path) -> None:
    translator = Translator(tiny_bundle)
    sources = ["w5 w6", "w7", "", "w8 w9"]
    found = translator.translate(sources, max_length=30, beam_size=2)
    (tmp_path / "a.txt").write_text("".join(f"{s}\n" for s in sources) + "w4\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("".join(f"{r.text}\n" for r in found), encoding="utf-8")
    done = invoke("score", tiny_bundle, tmp_path / "a.txt", tmp_path / "b.txt")
    assert done.exit_code == 1
    assert "a.txt:5: " in done.stderr
    assert "has no such line" in done.stderr
    *scores, last = done.stdout.split("\n")[:-1]
    assert last == ""
    for line, result in zip(scores, found, strict=True):
        if result.hypotheses[0].finished:
            assert float(line) == pytest.approx(result.hypotheses[0].score, abs=2e-6)
    # As Windows writes files: a byte-order mark is no part of the first word.
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + (tmp_path / name).read_bytes())
    marked = invoke("score", tiny_bundle, tmp_path / "a.txt", tmp_path / "b.txt")
    assert marked.stdout == done.stdout
    for names, stdin in ((("-", "b.txt"), "a.txt"), (("a.txt", "-"), "b.txt")):
        paths = [name if name == "-" else tmp_path / name for name in names]
        piped = invoke("score", tiny_bundle, *paths, stdin=(tmp_path / stdin).read_bytes())
        assert piped.stdout == done.stdout
    both = invoke("score", tiny_bundle, "-", "-")
    assert both.exit_code == 2
    assert "cannot both be stdin" in both.stderr
    wrong = invoke("score", tiny_bundle, tmp_path / "a.txt", tmp_path / "b.txt", "--beam-size", 2)
    assert wrong.exit_code == 2
    jsonl = invoke("score", tiny_bundle, tmp_path / "a.txt", tmp_path / "b.txt", "--jsonl",
                   "--return-token-scores", "-o", tmp_path / "c.jsonl")  # fmt: skip
    assert jsonl.exit_code == 1
    values = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()]
    assert values[4]["score"] is None
    assert sum(values[0]["token_scores"]) / len(values[0]["token_scores"]) == pytest.approx(
        values[0]["score"]
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--force"], "--force needs --output"),
        (["--json", "--jsonl"], "--jsonl needs --output, as --json prints no lines"),
        (["--return-token-scores"], "--return-token-scores needs --jsonl"),
        (["--return-attention"], "--return-attention needs --jsonl"),
        (["--return-end-token"], "--return-end-token needs --jsonl"),
    ],
)
def test_options_without_effect_are_refused(
    tmp_path: Path, tiny_bundle: Path, options: list[str], said: str
) -> None:
    (tmp_path / "a.txt").write_text("w5\n")
    done = invoke("score", tiny_bundle, tmp_path / "a.txt", tmp_path / "a.txt", *options)
    assert done.exit_code == 2
    assert said in done.stderr


def test_lines_without_partners_are_told_in_short(tmp_path: Path, tiny_bundle: Path) -> None:
    (tmp_path / "a.txt").write_text("w5\n")
    (tmp_path / "b.txt").write_text("w6\n" * 300)
    done = invoke("score", tiny_bundle, tmp_path / "a.txt", tmp_path / "b.txt")
    assert done.exit_code == 1
    assert done.stderr.count("has no such line") == 5
    assert "a.txt: 294 more, lines 7-300" in done.stderr
    assert "299 pairs could not be scored" in done.stderr
