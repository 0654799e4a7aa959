"""Tests of messages and a trial of every verb, with tfexport from a wheel.

    python -m tests.release.wheel ENVIRONMENT [ARGUMENTS OF PYTEST]

They run in a copy of the tests, next to which is no package: an import finds the wheel's alone.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.paths import REPOSITORY

COPY = REPOSITORY / "build" / "wheel"
LEFT_OUT = {"tfexport", "tests", "build", "dist"}
MARK = "pytest.mark.messages"


def copy_tests(folder: Path) -> None:
    """Copy the tests, and link what they read of the repository, but the package."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__", "node_modules")
    shutil.copytree(REPOSITORY / "tests", folder / "tests", ignore=ignored)
    for path in REPOSITORY.iterdir():
        if path.name not in LEFT_OUT and not path.name.startswith("."):
            (folder / path.name).symlink_to(path)


def marked(folder: Path) -> list[str]:
    """The files with tests of messages."""
    files = sorted((folder / "tests").rglob("test_*.py"))
    chosen = [path for path in files if MARK in path.read_text(encoding="utf-8")]
    return [str(path.relative_to(folder)) for path in chosen]


def main(environment: str, *arguments: str) -> None:
    """Run the tests in an environment that ``tests.support.installs`` has made."""
    copy_tests(COPY)
    bin_folder = Path(environment).absolute() / ("Scripts" if os.name == "nt" else "bin")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [
        str(bin_folder / "python"), "-m", "pytest", "-p", "no:cacheprovider", *marked(COPY),
        "tests/release/verbs_of_wheel.py", "-m", "messages and not exhaustive", *arguments,
    ]  # fmt: skip
    own = {"TFEXPORT_TESTS_INSTALLED": str(Path(environment).absolute())}
    sys.exit(subprocess.run(command, cwd=COPY, env={**kept, **own}).returncode)


if __name__ == "__main__":
    main(*sys.argv[1:])
