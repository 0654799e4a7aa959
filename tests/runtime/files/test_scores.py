"""Files of pairs, scored."""

import io
import json
from pathlib import Path

import pytest

from tests.support.command import invoke
from tfexport.errors import Message, OutputExistsError
from tfexport.runtime import Translator
from tfexport.runtime.files.scores import ScoreFormat, score_file
from tfexport.runtime.scorer import Scorer


@pytest.fixture(name="pair")
def _pair(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "a.txt").write_bytes(b"w5 w6\n\xff\n\nw7\n")
    (tmp_path / "b.txt").write_text("w6\nw7\n\n", encoding="utf-8")
    return tmp_path / "a.txt", tmp_path / "b.txt"


def test_a_pair_of_files_is_scored_line_by_line(
    translator: Translator, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    scorer, output, told = (
        Scorer(translator.engine),
        tmp_path / "out.jsonl",
        list[tuple[int, object]](),
    )
    options = scorer.resolve({"return_token_scores": True})
    line_format = ScoreFormat(jsonl=True)
    assert score_file(
        scorer, pair, output, options, line_format=line_format,
        on_result=lambda number, score: told.append((number, score)),
    ) == 2  # fmt: skip
    first, bad, empty, short = map(json.loads, output.read_text(encoding="utf-8").splitlines())
    (expected,) = translator.score(["w5 w6"], ["w6"], return_token_scores=True)
    assert first == expected.to_dict()
    assert "not UTF-8" in bad["error"]
    assert (empty["tokens"], empty["score"]) == ([], 0.0)
    assert short == {"score": None, "error": f"{pair[1]} has no such line"}
    assert [number for number, score in told if isinstance(score, Message)] == [2, 4]


def test_a_stream_takes_the_same_lines(translator: Translator, pair: tuple[Path, Path]) -> None:
    scorer, sink = Scorer(translator.engine), io.StringIO()
    assert score_file(scorer, pair, sink, scorer.resolve({})) == 2
    number, *rest = sink.getvalue().split("\n")
    assert float(number) == pytest.approx(translator.score(["w5 w6"], ["w6"])[0].score, abs=1e-6)
    assert rest == ["", "0.000000", "", ""]


def test_an_output_that_is_taken_is_named_as_each_front_end_says_it(
    translator: Translator, tiny_bundle: Path, pair: tuple[Path, Path]
) -> None:
    source, output = pair
    with pytest.raises(OutputExistsError, match=r"already exists\. force=True replaces it"):
        translator.translate_file(source, output)
    done = invoke("translate", tiny_bundle, source, "-o", output)
    assert "already exists. --force replaces it." in done.stderr
