"""Drawn cases of every group, and proof that the runner notices what can go wrong.

``make fuzz CASES=100000`` runs as many as one likes.
"""

from pathlib import Path

import pytest

from tests.fuzz.runner import GROUPS, WAIT, Case, make_cases, run
from tests.support.combinations import few_of


@pytest.mark.parametrize("cases", few_of([5, 25], 5))  # of each group
def test_drawn_cases_end_well_or_in_errors_of_our_own(tiny_bundle: Path, cases: int) -> None:
    outcome = run(make_cases(cases * len(GROUPS)), tiny_bundle)
    assert set(outcome.cases.values()) == {cases}
    assert not outcome.failures, "\n".join(
        f"{case.command}  # {problem}" for case, problem in outcome.failures.items()
    )


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("none", ""),
        ("error", "ZeroDivisionError at faults.py"),
        ("own error", "InputError at faults.py"),
        ("crash", "process died in the case: signal SIGSEGV"),
        ("exit", "process died in the case: exit code 3"),
        ("hang", "hung in the case: no answer within 2 s"),
        ("memory", "MemoryError at faults.py"),
    ],
)
def test_runner_notices_every_kind_of_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, problem: str
) -> None:
    monkeypatch.setenv("FUZZ_FAULT", fault)
    told: list[str] = []
    outcome = run(
        make_cases(2, ["faults"], seed=7),
        tmp_path,
        wait=2 if fault == "hang" else WAIT,
        tell=lambda case, why: told.append(why),
    )
    assert outcome.cases == {"faults": 2}, "a worker that died has another in its place"
    assert len(outcome.failures) == len(told) == (2 if problem else 0)
    assert all(why.startswith(problem) for why in told)


def test_case_that_takes_long_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUZZ_FAULT", "slow")
    (problem,) = run([Case("faults", 0)], tmp_path).failures.values()
    assert problem.startswith("took 2.")


def test_cases_are_those_of_group_and_seed_and_the_table_counts_them(tmp_path: Path) -> None:
    assert make_cases(4, ["inputs", "options"], seed=5) == [
        Case("inputs", 5), Case("options", 5), Case("inputs", 6), Case("options", 6),
    ]  # fmt: skip
    assert Case("inputs", 5).command == "python -m tests.fuzz --group inputs --seed 5 --cases 1"
    outcome = run([], tmp_path)
    assert outcome.table().splitlines()[-1].split() == ["all", "0", "0"]


def test_every_group_is_run() -> None:
    files = {path.stem for path in (Path(__file__).parent / "groups").glob("[a-z]*.py")}
    assert files - {"faults"} == set(GROUPS)
