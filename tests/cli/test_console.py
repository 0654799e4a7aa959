"""Progress that commands print."""

import re

import pytest

from tfexport.cli.console import ProblemLines, progress_bar


def test_each_step_of_a_command_is_told_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as progress:
        for step, done in (("reading", 0), ("writing", 0), ("writing", 1)):
            progress(step, done, 2)
    assert re.fullmatch(r"reading … \d+\.\d s\nwriting … \d+\.\d s\n", capsys.readouterr().err)


def test_of_many_bad_lines_the_first_are_told_and_which_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    problems = ProblemLines("a.txt")
    for number in range(2, 20_001):
        problems.add(number, "b.txt has no such line")
    problems.end()
    told = capsys.readouterr().err.splitlines()
    assert told[:5] == [f"a.txt:{number}: b.txt has no such line" for number in range(2, 7)]
    assert told[5:] == ["a.txt: 19,994 more, lines 7-20000"]
    problems = ProblemLines("a.txt")
    for number in range(1, 100, 2):
        problems.add(number, f"id {number} is not in the vocabulary")
    problems.end()
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 21
    assert told[-1].startswith("a.txt: 30 more, lines 41, 43, 45, ")
    assert told[-1].endswith("79, … and 10 more")
