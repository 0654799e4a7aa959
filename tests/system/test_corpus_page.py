"""docs/corpus.md: the commands and the Python of the page, on a small model and one core."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import Block, read_blocks, run_in_shell
from tests.support.paths import REPOSITORY, VERSION_1
from tfexport.runtime import Translator

PAGE = REPOSITORY / "docs" / "corpus.md"
TEXTS = ["w12 w4 w5", "w7", "w5 w5 w9 w4"]
CRAWL = """
import sys, pyarrow as pa
from pyarrow import parquet
parquet.write_table(pa.table({"body": sys.argv[1:], "number": [*range(len(sys.argv) - 1)]}),
                    "crawl/a.parquet")
"""

pytestmark = pytest.mark.slow


def of_section(heading: str) -> list[Block]:
    return [block for block in read_blocks(PAGE) if block.heading == heading and not block.not_run]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a reader is who has a bundle and pages."""
    (tmp_path / "de-en.bundle").symlink_to(VERSION_1)
    for name in ("pages", "crawl"):
        (tmp_path / name).mkdir()
    (tmp_path / "pages" / "a.txt").write_text("\n".join(TEXTS) + "\n")
    return tmp_path


def translations(beam_size: int = 1) -> list[str | None]:
    with Translator(VERSION_1, threads=1) as translator:
        return [result.text for result in translator.translate(TEXTS, beam_size=beam_size)]


def test_command_translates_a_folder(folder: Path) -> None:
    (block,) = of_section("A laptop")
    run_in_shell(block.text, folder)
    assert (folder / "translated" / "a.txt").read_text().splitlines() == translations()


@pytest.mark.exhaustive
def test_python_translates_datasets_and_folders(folder: Path) -> None:
    dataset, corpus = of_section("From Python")
    subprocess.run([sys.executable, "-c", CRAWL, *TEXTS], cwd=folder, check=True)
    show = 'import json\nprint(json.dumps(ray.data.read_parquet("english").take_all()))\n'
    begin = 'import ray\nray.init("local", num_cpus=1, include_dashboard=False)\n'
    text = dataset.text.replace('score"] > -2', 'score"] > -99').replace("workers=3", "workers=1")
    (folder / "program.py").write_text("\n".join([begin, corpus.text, text, show]))
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-5000:]
    report, *_, rows = done.stdout.splitlines()
    assert report == "True 3 0 {} {}"
    found = sorted(json.loads(rows), key=lambda row: row["number"])
    assert [row["body"] for row in found] == TEXTS
    assert [row["translation"] for row in found] == translations(beam_size=4)
    written = (folder / "translated" / "a.txt").read_text().splitlines()
    assert written == translations(beam_size=4)
