"""docs/serving.md: its commands and clients against a server of the demo model, and its tables."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.servers import Server, serving
from tests.support.documents import Block, read_blocks, run_in_shell
from tests.support.paths import REPOSITORY
from tests.system.demo.conftest import bundle
from tfexport.serve.settings import Settings

__all__ = ["bundle"]  # a fixture: the demo model

PAGE = REPOSITORY / "docs" / "serving.md"
TERMS = REPOSITORY / "docs" / "terms.md"
BLOCKS = [block for block in read_blocks(PAGE) if block.run_by]
BLOCKS += [
    block for block in read_blocks(TERMS) if block.run_by == "tests/system/test_serving_page.py"
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serving")
    with serving(folder, bundle, "--glossaries", folder / "glossaries") as running:
        yield running


def here(block: Block, server: Server) -> str:
    """The text of a block, with this server in place of the page's."""
    assert "localhost:8000" in block.text
    return block.text.replace("localhost:8000", f"127.0.0.1:{server.port}")


def shown(block: Block) -> str:
    """The text of the block after a block, which shows what it prints."""
    every = read_blocks(PAGE)
    return every[every.index(block) + 1].text


def rounded(value: Any) -> Any:
    """A JSON value with its fractions as the page has them."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return pytest.approx(value, abs=1e-3) if isinstance(value, float) else value


def of_language(language: str) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in BLOCKS if block.language == language]


@pytest.mark.parametrize("block", of_language("python"))
def test_clients_of_other_projects_work(block: Block, server: Server) -> None:
    for module in re.findall(r"^(?:from|import) (\w+)", block.text, re.MULTILINE):
        pytest.importorskip(module, reason="make .venv/clients")
    run = [sys.executable, "-c", here(block, server)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    wanted = re.findall(r"print\(.*\)  # (.+)$", block.text, re.MULTILINE)
    assert done.stdout.splitlines() == wanted
    assert len(wanted) == block.text.count("print(") > 0


def test_curl_speaks_forms_json_and_events(server: Server) -> None:
    form, posted, streamed = [block for block in BLOCKS if not block.language]
    for block in (form, posted):
        printed = run_in_shell(here(block, server), REPOSITORY)
        assert json.loads(printed) == rounded(json.loads(shown(block)))
    events = run_in_shell(here(streamed, server), REPOSITORY).strip().split("\n\n")
    wanted = shown(streamed).strip().split("\n\n")
    assert [json.loads(event.removeprefix("data: ")) for event in events] == [
        rounded(json.loads(event.removeprefix("data: "))) for event in wanted
    ]


def test_the_table_of_metrics_is_complete(server: Server) -> None:
    server.post("/v1/translate", {"texts": ["Ja"]})
    figures = server.ask("GET", "/metrics").body.decode()
    typed = dict(re.findall(r"^# TYPE (tfexport_\w+) (\w+)$", figures, re.MULTILINE))
    exposed = {name for name in typed if not name.endswith("_created")}
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `tfexport_")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    listed = {name: row for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert set(listed) == exposed
    for name, (_, labels, text) in listed.items():
        assert (typed[name] == "histogram") == ("histogram" in text), name
        for series in re.findall(rf"^{name}(?:_count)?{{(.*?)}} ", figures, re.MULTILINE):
            assert set(re.findall(r"(\w+)=", series)) - {"le"} == set(labels.split(", ")), name


def test_limits_are_those_of_the_settings() -> None:
    default = Settings()
    text = PAGE.read_text(encoding="utf-8")
    for option, value in {
        "max-texts": f"{default.max_texts}",
        "max-characters": f"{default.max_characters:,}",
        "max-queue": f"{default.max_queue}",
        "timeout": f"{default.timeout:.0f} s",
        "slots": f"{default.slots}",
        "max-connections": f"{default.max_connections:,}, or the system's limit .*?",
    }.items():
        assert re.search(rf"^\| `--{option}`.*? \| {value} \|", text, re.MULTILINE), option
    assert f"{default.max_body / 1e6:.2f} MB" in text


def test_paths_of_the_page_are_there(server: Server) -> None:
    paths = server.ask("GET", "/openapi.json").json["paths"]
    named = re.findall(r"`(GET|POST) (/[\w/{}]+)`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 8
    for method, path in named:
        assert method.lower() in paths[path], path
