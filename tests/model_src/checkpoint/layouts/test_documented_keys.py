"""The key lists of docs/checkpoints.md compared with the key tables."""

import re

import pytest

from tests.support.paths import REPOSITORY
from tfexport.model_src.checkpoint.layouts import LAYOUTS


def expand(line: str) -> list[str]:
    """The keys that a line of the docs stands for: {a,b} is either, N and H are numbers."""
    if (choice := re.search(r"\{([^}]*)\}", line)) is None:
        return [re.sub(r"\b[NH]\b", "0", line)]
    before, after = line[: choice.start()], line[choice.end() :]
    return [key for part in choice[1].split(",") for key in expand(before + part + after)]


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "native"])
def test_docs_list_the_keys_of_every_layout(layout: str) -> None:
    page = (REPOSITORY / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    title = re.search(rf"^Keys of [^:;]*`{layout}`", page, re.MULTILINE)
    block = page[title.end() if title else len(page) :].partition("```text\n")[2]
    block = block.partition("```")[0]
    assert block
    keys = [key for line in block.splitlines() for key in expand(line)]
    rules = LAYOUTS[layout].table.rules
    found = {key: [rule.key for rule in rules if rule.match(key) is not None] for key in keys}
    assert [key for key, matches in found.items() if not matches] == []
    listed = {rule for matches in found.values() for rule in matches}
    assert {rule.key for rule in rules} <= listed
