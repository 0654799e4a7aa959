"""Corpora in one process and on Ray, run by a Python without torch, as a user runs them."""

import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.combinations import few_of
from tests.support.paths import REPOSITORY
from tfexport.runtime import Translator

FOLDER = REPOSITORY / ".venv-runtime" / ("Scripts" if os.name == "nt" else "bin")
PYTHON = FOLDER / "python"

pytestmark = [
    pytest.mark.skipif(
        not FOLDER.exists(), reason="needs .venv-runtime: run the tests with 'make test'"
    ),
    pytest.mark.slow,
]
TEXTS = [f"w{4 + i % 12} w{5 + i % 7}{' w9' * (i % 5)}" for i in range(150)]


def run(*arguments: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environment = {
        **os.environ,
        "TMPDIR": str(cwd),
        "RAY_TMPDIR": "/tmp",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    return subprocess.run(
        [str(PYTHON), *map(str, arguments)],
        capture_output=True, text=True, cwd=cwd, env=environment, timeout=300, check=False,
    )  # fmt: skip


def corpus(*arguments: object, cwd: Path) -> tuple[int, dict[str, Any], str]:
    """Exit status, report and messages of the command."""
    done = run("-m", "tfexport", "corpus", *arguments, "--json", cwd=cwd)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_input(folder: Path) -> None:
    """A file of every kind, with what can be wrong with one."""
    (folder / "deep").mkdir(parents=True)
    lines = [*(text.encode() for text in TEXTS), b"\xff\xfe", b"", b"a" * 20_000_000, b"w5"]
    (folder / "lines.txt").write_bytes(b"\n".join(lines))
    (folder / "empty.txt").write_bytes(b"")
    packed = gzip.compress("".join(f"{text}\n" for text in TEXTS).encode())
    (folder / "deep" / "packed.txt.gz").write_bytes(packed)
    rows = [json.dumps({"id": 10**30 + i, "text": text}) for i, text in enumerate(TEXTS)]
    rows += ["{broken", json.dumps({"id": 1}), json.dumps({"text": "w4 " * 1000, "x": 1.0})]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    table = pa.table({"n": range(len(TEXTS)), "text": TEXTS})
    parquet.write_table(table, folder / "deep" / "table.parquet", row_group_size=40)
    (folder / "broken.parquet").write_bytes(b"PAR1 nothing")
    (folder / ".hidden.txt").write_text("w4\n")


@pytest.mark.parametrize(
    ("first", "then"),
    few_of([("ray", "auto"), ("local", "ray")], ("ray", "auto")),
)
def test_a_folder_is_translated_and_gone_on_with(
    tiny_bundle: Path, tmp_path: Path, first: str, then: str
) -> None:
    given, output = tmp_path / "in", tmp_path / "out"
    write_input(given)
    expected = [found.text for found in Translator(tiny_bundle, threads=1).translate(TEXTS)]
    last = Translator(tiny_bundle, threads=1).translate(["w5"])[0].text

    status, report, said = corpus(
        tiny_bundle, given, output, "--batch-rows", 32, "--engine", first, cwd=tmp_path
    )
    assert status == 1
    assert report["failed"].keys() == {"broken.parquet"}, said
    assert (report["partitions"], report["finished"], report["errors"]) == (6, 5, 5)
    assert [found["row"] for found in report["row_errors"]["lines.txt"]] == [151, 153]
    assert "20,000,001 bytes" in said
    assert "broken.parquet: cannot be read as Parquet" in said
    assert report["tokens"] > 0
    assert report["complete"] is False
    # What failed, and nothing of Ray's, beside progress where a run takes long.
    assert len([line for line in said.splitlines() if not line.endswith("%")]) == 10, said

    lines = (output / "lines.txt").read_text().splitlines()
    assert lines == [*expected, "", "", "", last]
    assert (output / "empty.txt").read_bytes() == b""
    packed = gzip.decompress((output / "deep" / "packed.txt.gz").read_bytes()).decode()
    assert packed.splitlines() == expected
    rows = json_lines(output / "rows.jsonl")
    assert [row["translation"] for row in rows] == [*expected, None, None, None]
    assert [row["error"] is None for row in rows] == [True] * 150 + [False] * 3
    assert rows[3]["id"] == 10**30 + 3
    assert (rows[152]["x"], rows[151]["id"]) == (1.0, 1)
    table = parquet.read_table(output / "deep" / "table.parquet")
    assert table.column_names == ["n", "text", "translation", "score", "error"]
    assert table["translation"].to_pylist() == expected
    assert table["n"].to_pylist() == list(range(150))
    assert not (output / "broken.parquet").exists()
    assert sorted(path.name for path in output.rglob(".*")) == [
        ".empty.txt.done", ".lines.txt.done", ".packed.txt.gz.done", ".rows.jsonl.done",
        ".table.parquet.done",
    ]  # fmt: skip

    # The same again does what is missing, and what is not what it was, whatever runs it.
    parquet.write_table(pa.table({"text": TEXTS[:3]}), given / "broken.parquet")
    (given / "deep" / "packed.txt.gz").write_bytes(gzip.compress(b"w7\nw8\n"))
    (output / "empty.txt").write_text("somebody's\n")
    (output / "rows.jsonl").unlink()
    arguments = (tiny_bundle, given, output, "--engine", then, "--force")
    status, report, said = corpus(*arguments, cwd=tmp_path)
    assert (status, report["failed"]) == (1, {})
    assert (report["already_finished"], report["finished"], report["outdated"]) == (2, 4, 1), said
    assert report["decoded_rows"] == 3 + 2 + 153
    assert [row["translation"] for row in json_lines(output / "rows.jsonl")[:150]] == expected
    assert (output / "empty.txt").read_bytes() == b""
    assert len(gzip.decompress((output / "deep" / "packed.txt.gz").read_bytes()).splitlines()) == 2


def test_other_options_are_noticed_and_foreign_files_kept(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    given, output = tmp_path / "in", tmp_path / "out"
    given.mkdir()
    output.mkdir()
    (given / "a.txt").write_text("w4 w5\nw6\n")
    (given / "b.txt").write_text("w4 w5\nw6\n")
    (output / "b.txt").write_text("not ours\n")
    status, report, said = corpus(tiny_bundle, given, output, cwd=tmp_path)
    assert (status, report["failed"].keys()) == (1, {"b.txt"}), said
    assert (output / "b.txt").read_text() == "not ours\n"
    (output / "b.txt").unlink()
    before = (output / "a.txt").read_text()
    status, report, said = corpus(
        tiny_bundle, given, output, "--max-length", 1, "--workers", "1:2", cwd=tmp_path
    )
    assert (status, report["finished"], report["outdated"]) == (0, 2, 1), said
    report_lines = [line for line in said.splitlines() if not line.endswith("%")]
    assert len(report_lines) == 4, said  # beside progress where a run takes long
    assert (output / "a.txt").read_text() != before
    assert all(len(line.split()) <= 1 for line in (output / "a.txt").read_text().splitlines())


@pytest.mark.exhaustive
def test_datasets_by_workers_that_do_not_see_the_bundle(tiny_bundle: Path, tmp_path: Path) -> None:
    import shutil

    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "copy.bundle"))
    rows: list[dict[str, Any]] = [
        {"id": i, "text": text, "target_prefix": "w6" if i == 5 else None}
        for i, text in enumerate(TEXTS[:40])
    ]
    rows += [{"id": 40, "text": None, "target_prefix": None},
             {"id": 41, "text": "w4 " * 1000, "target_prefix": None},
             {"id": 42, "text": "", "target_prefix": None}]  # fmt: skip
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    script = Path(__file__).with_name("dataset_script.py")
    done = run(script, bundle, "rows.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])

    made = sorted(found["rows"], key=lambda row: int(row["id"]))
    assert [row["id"] for row in made] == list(range(43))
    assert [row["text"] for row in made] == [row["text"] for row in rows]
    translator = Translator(tiny_bundle, threads=1)
    expected = translator.translate(TEXTS[:40], target_prefix=["w6" if i == 5 else None
                                                               for i in range(40)])  # fmt: skip
    assert [row["translation"] for row in made[:40]] == [result.text for result in expected]
    scores = [result.hypotheses[0].score for result in expected]
    assert [row["score"] for row in made[:40]] == pytest.approx(scores)
    assert [row["error"] is None for row in made] == [True] * 40 + [False, False, True]
    assert (made[42]["translation"], made[40]["score"]) == ("", None)

    # A sample depends on its row alone: not on batches, blocks or workers.
    one, other = ({row["id"]: row["translation"] for row in rows} for rows in found["sampled"])
    assert one == other
    assert one != {row["id"]: row["translation"] for row in made}
    assert [text.partition(":")[0] for text in found["refused"]] == [
        "decoding options", "decoding options", "corpus", "corpus",
    ]  # fmt: skip
    assert "weights" in found["damaged"]
    assert found["left"] == []
    assert found["torch"] is False
