"""Code blocks of the README, of docs/ and of the other pages.

    python -m tests.support.documents

counts them: how many run, and why the others do not.
"""

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import REPOSITORY

README = REPOSITORY / "README.md"
QUICK_START_PAGE = REPOSITORY / "docs" / "quick-start.md"
OTHERS = ("CONTRIBUTING.md", "SECURITY.md", "examples/README.md", "native/README.md")
PAGES = [
    README,
    *(REPOSITORY / name for name in OTHERS),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*|\{[\w-]+\}[^\n]*)\n(?P<text>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
_REMARK = re.compile(r"<!-- (?P<kind>not run|run by): (?P<text>[^>]+) -->\s*$")


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        page: the file that it is in.
        line: number of its first line in the page.
        language: named after the backticks; empty for a shell.
        text: content, without the backticks.
        heading: of the section that it is in.
        not_run: reason why no test runs it; empty if one does.
        run_by: the test file that runs it, if not the one that runs all blocks; else empty.
    """

    page: Path
    line: int
    language: str
    text: str
    heading: str
    not_run: str = ""
    run_by: str = ""

    def __str__(self) -> str:
        """Its page and line."""
        return f"{self.page.relative_to(REPOSITORY).as_posix()}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Lines of a shell block; those that end with a backslash are joined to the next."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in lines if line.strip()]


def read_blocks(page: Path) -> list[Block]:
    """All code blocks of a page, in order."""
    content = page.read_text(encoding="utf-8")
    blocks = []
    for found in _FENCE.finditer(content):
        before = content[: found.start()]
        remark = _REMARK.search(before)
        told = {remark["kind"].replace(" ", "_"): remark["text"]} if remark else {}
        heading = re.findall(r"^##+ (.*)$", before, re.MULTILINE)[-1:]
        line = before.count("\n") + 2
        blocks.append(Block(page, line, found["language"], found["text"], "".join(heading), **told))
    assert content.count("```") == 2 * len(blocks), f"{page}: a code block is not closed"
    return blocks


def words(command: str) -> list[str]:
    """Split a command into words as a shell does, without comments and pipes."""
    return shlex.split(command.partition("|")[0], comments=True)


def run_in_shell(script: str, folder: Path) -> str:
    """Run commands of a page, with the environment that the tests run in; give what they print."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def count_blocks() -> list[str]:
    """Lines that say how many blocks there are, how many run, and why the others do not."""
    blocks = [block for page in PAGES for block in read_blocks(page)]
    reasons = Counter(block.not_run for block in blocks if block.not_run)
    run = len(blocks) - reasons.total()
    lines = [
        f"{len(blocks)} code blocks in {len(PAGES)} pages: {run} are run, {reasons.total()} not"
    ]
    return lines + [f"{count:4}  {reason}" for reason, count in reasons.most_common()]


if __name__ == "__main__":
    print("\n".join(count_blocks()))
