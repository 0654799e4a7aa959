"""docs/corpus.md: its recipe for Spark, run on two cores of this machine."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import read_blocks
from tests.support.paths import REPOSITORY, VERSION_1
from tfexport.runtime import Translator

PAGE = REPOSITORY / "docs" / "corpus.md"
# Spark says much on stderr, pyspark warns of new releases of pandas: a process of its own.
PROGRAM = """
import json
from pyspark.sql import SparkSession

build = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = build.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
given = json.load(open("rows.json"))
rows = spark.createDataFrame(given, "number long, text string").repartition(3)
rows.write.parquet("pages")
{recipe}
found = [row.asDict() for row in spark.read.parquet("translated").collect()]
json.dump(found, open("found.json", "w"))
"""

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


@pytest.fixture
def java() -> None:
    pytest.importorskip("pyspark", reason="needs pyspark: make .venv/pyspark")
    if not shutil.which("java"):
        pytest.skip("needs java")


@pytest.mark.usefixtures("java")
def test_recipe_gives_what_a_translator_gives(tmp_path: Path) -> None:
    draw = random.Random(1)
    texts: list[str | None] = [
        " ".join(f"w{draw.randrange(4, 16)}" for _ in range(draw.randrange(1, 12)))
        for _ in range(60)
    ]
    texts += ["", None, "w4 " * 100]  # the last is too long for the model
    (tmp_path / "rows.json").write_text(json.dumps(list(enumerate(texts))))
    (tmp_path / "de-en.bundle").symlink_to(VERSION_1)
    (recipe,) = [block for block in read_blocks(PAGE) if block.heading == "Spark"]
    (tmp_path / "program.py").write_text(PROGRAM.format(recipe=recipe.text))
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found = {row["number"]: row for row in json.loads((tmp_path / "found.json").read_text())}
    assert {number: row["text"] for number, row in found.items()} == dict(enumerate(texts))
    with Translator(VERSION_1) as translator:
        results = translator.translate([text or "" for text in texts[:-1]])
    wanted = [*(result.text for result in results), None]
    assert len(set(wanted)) > 40  # so that rows out of order are noticed
    assert [found[number]["translation"] for number in range(len(texts))] == wanted
