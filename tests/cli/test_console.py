"""Progress that commands print."""

import re

import pytest

from tfexport.cli.console import progress_bar


def test_each_step_of_a_command_is_told_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as tell:
        for step, done in (("reading", 0), ("writing", 0), ("writing", 1)):
            tell(step, done, 2)
    assert re.fullmatch(r"reading … \d+\.\d s\nwriting … \d+\.\d s\n", capsys.readouterr().err)
