"""docs/development.md: the files that it names are there.

Its recipes are run by ``tests/export/reference/test_family.py`` (a family through the registry of
layouts), ``tests/export/test_forms.py`` (a form through the registry of graphs) and
``tests/runtime/test_every_option.py`` (every option).
"""

import re

from tests.support.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "development.md"


def test_every_file_that_is_named_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"`((?:tfexport|tests|docs|cli)/[\w/.]+)`", text)
    linked = re.findall(r"\]\(([^)#]+)\)", text)
    assert len(named) > 5
    assert len(linked) > 25
    for path in named:
        assert (REPOSITORY / path).exists(), path
    for path in linked:
        assert (PAGE.parent / path).exists(), path


def test_every_room_is_in_the_picture() -> None:
    picture = PAGE.read_text(encoding="utf-8").partition("```text")[2].partition("```")[0]
    for side in ("export", "runtime"):
        folder = REPOSITORY / "tfexport" / side
        rooms = [path.name for path in folder.iterdir() if (path / "__init__.py").exists()]
        assert rooms
        for room in rooms:
            assert re.search(rf"\b{room}\b", picture), f"{side}/{room}"
