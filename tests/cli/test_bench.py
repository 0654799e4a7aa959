"""``tfexport bench``: timings, and the split of cores that ``--tune`` keeps for ``translate``."""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import invoke
from tests.support.manifests import rewrite
from tests.support.paths import VERSION_1
from tfexport.cli import tuning
from tfexport.languages import Languages
from tfexport.runtime import Translator
from tfexport.runtime.benchmark import Plan, benchmark_rows, measure
from tfexport.runtime.engine import Engine
from tfexport.runtime.parallel import cpu
from tfexport.runtime.parallel.cpu import ThreadLayout
from tfexport.runtime.text.codec import LanguagePair


@pytest.fixture(autouse=True)
def _own_tuning_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tuning.VARIABLE, str(tmp_path / "settings" / "tuning.json"))


@pytest.fixture(name="lines")
def _lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("w4 w5 w6\n\nw7\nw8 w9\n", encoding="utf-8")
    return path


@pytest.fixture(name="opened")
def _opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Workers and threads of every bundle that a command opens."""
    seen: list[tuple[int, int]] = []
    begin = Engine.__init__

    def spy(self: Engine, bundle: Any, layout: ThreadLayout | None = None, *rest: Any) -> None:
        layout = layout or ThreadLayout()
        seen.append((layout.workers, layout.threads))
        begin(self, bundle, layout, *rest)

    monkeypatch.setattr(Engine, "__init__", spy)
    return seen


def test_json_holds_what_every_run_took(tiny_bundle: Path, lines: Path) -> None:
    result = invoke("bench", tiny_bundle, lines, "--runs", 3, "--batch-size", 2, "--batch-size",
                    5, "--threads", 1, "--max-length", 4, "--json")  # fmt: skip
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert [t["batch_size"] for t in facts["timings"]] == [2, 5]
    expected = Translator(tiny_bundle).translate(["w4 w5 w6", "w7", "w8 w9"], max_length=4)
    for timing in facts["timings"]:
        assert timing["sentences"] == 3, "blank lines are none"
        assert timing["tokens"] == sum(len(found.hypotheses[0].tokens) for found in expected)
        assert len(timing["seconds"]) == 3
        middle = sorted(timing["seconds"])[1]
        assert timing["sentences_per_second"] == pytest.approx(3 / middle)
        waits = timing["batch_milliseconds"]
        assert waits["median"] <= waits["95%"]
        assert waits["95%"] <= 1000 * max(timing["seconds"])


def test_a_table_for_people_and_random_ids_without_a_file(tiny_bundle: Path) -> None:
    result = invoke("bench", tiny_bundle, "--runs", 1, "--beam-size", 2)
    assert result.exit_code == 0, result.output
    assert "32 rows of random ids" in result.stdout
    for size in ("1", "8", "32"):
        assert any(f" {size} │" in line for line in result.stdout.splitlines())


def test_batches_of_tokens(tiny_bundle: Path, lines: Path) -> None:
    timings = measure(tiny_bundle, [[4, 5, 3], [4, 3], [5, 3]], [Plan(1, 1, 4, "tokens")], 2, {})
    assert len(timings[0].batches) == 2 * 2, "two of two tokens, one of three; two runs"
    result = invoke("bench", tiny_bundle, lines, "--batch-type", "tokens")
    assert result.exit_code == 2
    assert "--batch-size" in result.stderr


def test_tune_tries_every_split_and_translate_takes_the_fastest(
    tiny_bundle: Path,
    lines: Path,
    tmp_path: Path,
    opened: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "usable_cores", lambda: 4)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    result = invoke("bench", tiny_bundle, lines, "--tune", "--runs", 1, "--json")
    assert result.exit_code == 0, result.output
    timings = json.loads(result.stdout)["timings"]
    assert {(t["workers"], t["threads"]) for t in timings} == {(4, 1), (2, 2), (1, 4)}
    best = min(timings, key=lambda timing: timing["seconds"][0])
    split = tuning.read_layout(tiny_bundle)
    assert split == ThreadLayout(best["workers"], best["threads"])
    assert "tuned:" in invoke("inspect", tiny_bundle).stdout

    tuning.write_layout(tiny_bundle, ThreadLayout(3, 2))
    opened.clear()
    assert invoke("translate", tiny_bundle, lines).exit_code == 0
    assert invoke("translate", tiny_bundle, lines, "--threads", 1).exit_code == 0
    assert invoke("translate", tiny_bundle, lines, "--workers", 2).exit_code == 0
    assert invoke("translate", tiny_bundle, stdin="w4\n").exit_code == 0
    assert opened == [(3, 2), (1, 1), (2, 0), (1, 0)], "what is given wins, and a pipe is no file"


@pytest.mark.parametrize(
    "text",
    [
        None, "", "[]", "{", '{"KEY": 7}', '{"KEY": {"workers": 0, "threads": 1}}',
        "[" * 100_000, "\udcff", '{"KEY": {"workers": 1, "threads": 100000}}',
        '{"KEY": {"workers": true, "threads": 1}}',
    ],
)  # fmt: skip
def test_a_broken_or_missing_tuning_file_is_ignored(
    text: str | None, tiny_bundle: Path, lines: Path
) -> None:
    tuning.write_layout(tiny_bundle, ThreadLayout(1, 1))
    path = tuning.tuning_file()
    (key,) = json.loads(path.read_text())
    assert tuning.read_layout(tiny_bundle) == ThreadLayout(1, 1)
    assert tuning.read_layout(lines.parent) is None, "another bundle has its own"
    if text is None:
        path.unlink()
    else:
        path.write_bytes(text.replace("KEY", key).encode(errors="surrogateescape"))
    assert tuning.read_layout(tiny_bundle) is None
    assert invoke("translate", tiny_bundle, lines).exit_code == 0


def test_a_split_that_cannot_be_kept_is_shown_all_the_same(
    lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "tuning.json", tmp_path):
        monkeypatch.setenv(tuning.VARIABLE, str(place))
        result = invoke("bench", VERSION_1, lines, "--tune", "--runs", 1, "--json")
        assert result.exit_code == 1
        assert json.loads(result.stdout)["timings"]
        assert "Fastest: " in result.stderr
        assert f"the layout could not be saved: {place}" in result.stderr
        assert "translate --workers " in result.stderr


def test_every_bad_line_is_named(tiny_bundle: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"4 5\nx\n4 99999\n")
    result = invoke("bench", tiny_bundle, bad, "--ids")
    assert result.exit_code == 1
    assert "line 2" in result.stderr
    assert "line 3" in result.stderr
    bad.write_text("\n \n")
    assert "no line that is not blank" in invoke("bench", tiny_bundle, bad).stderr


def test_contradictions(tiny_bundle: Path) -> None:
    assert invoke("bench", tiny_bundle, "--tune", "--threads", 1).exit_code == 2
    result = invoke("bench", tiny_bundle, "--beam-size", 0)
    assert result.exit_code == 2
    assert "--beam-size" in result.stderr


@pytest.mark.parametrize("place", ["first", "start", "source"])
def test_languages_are_told(tiny_bundle: Path, tmp_path: Path, place: Any) -> None:
    folder, file = tmp_path / "told.bundle", tmp_path / "in.txt"
    shutil.copytree(tiny_bundle, folder)
    told = Languages({"de": 10, "en": 11}, "before", place)
    rewrite(folder, lambda m: m.update(languages=asdict(told)))
    file.write_text("w5 w6\n")
    language_pair = LanguagePair("de", "en")
    rows, keywords = benchmark_rows(
        folder, str(file), {"max_length": 3}, language_pair=language_pair
    )
    plain = Translator(tiny_bundle, threads=1).encode("w5 w6")
    assert rows == [[10, *([11] if place == "source" else []), *plain]]
    assert keywords == {"max_length": 3, **({} if place == "source" else {"target_language": "en"})}
    arguments = ("bench", folder, file, "--runs", 1, "--batch-size", 1, "--json")
    done = invoke(*arguments, "--source-language", "de", "--target-language", "en")
    assert done.exit_code == 0, done.stderr
    wrong = invoke(*arguments, "--source-language", "de", "--target-language", "fr")
    assert "--target-language: 'fr' is not a language of the model" in wrong.stderr
    without = invoke("bench", folder, "--source-language", "de")
    assert "--source-language: has no effect on ids" in without.stderr


def test_ids_without_a_file_are_refused(tiny_bundle: Path) -> None:
    done = invoke("bench", tiny_bundle, "--ids")
    assert done.exit_code == 2
    assert "--ids applies to the lines of FILE" in done.stderr
