"""The grammar, the judge and the runner; and twelve drawn modules, exported.

``make fuzz-modules CASES=1000`` draws as many as one likes.
"""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.drawn_modules.case import (
    DIFFERENCE,
    EXPORTED,
    NATIVE,
    REFUSED,
    STEPS,
    Result,
    is_well_refused,
    load,
    run_case,
)
from tests.drawn_modules.judge import Judge
from tests.drawn_modules.model_source import source_of, spec_of
from tests.drawn_modules.planted import MISTAKES, draws_until_found
from tests.drawn_modules.productions import BY_LABEL, draw_design
from tests.drawn_modules.rows import draw_rows
from tests.drawn_modules.runner import read_results, run
from tests.drawn_modules.spec import BOS, EOS, InputSpec, Spec
from tests.drawn_modules.table import bad_table, production_table, summary

MANY = range(1000)
RUN = 30  # modules whose forward is run


# ---- the grammar --------------------------------------------------------------------------------


def test_every_production_is_drawn_in_a_thousand_seeds() -> None:
    """Fails if a condition never holds, or a weight is too small."""
    drawn = Counter(label for seed in MANY for label in draw_design(seed).labels)
    assert set(drawn) == set(BY_LABEL)
    assert min(drawn.values()) >= 5, sorted(drawn.items(), key=lambda item: item[1])[:5]


def test_one_seed_gives_one_source_and_others_give_others() -> None:
    """Fails if a draw depends on what was drawn before, or not on its seed."""
    sources = [source_of(draw_design(seed)) for seed in range(50)]
    assert sources[::-1] == [source_of(draw_design(seed)) for seed in reversed(range(50))]
    assert len(set(sources)) == 50
    assert draw_design(3).line.startswith("seed 3: input/")


def test_sources_are_files_of_a_user() -> None:
    """Fails if a source has an error of syntax, or knows the exporter."""
    for seed in MANY:
        source = source_of(draw_design(seed))
        compile(source, "drawn.py", "exec")
        assert "tfexport" not in source
        assert "tests" not in source


@pytest.mark.filterwarnings("ignore")
def test_forwards_give_finite_logits_that_depend_on_prefix_and_source(tmp_path: Path) -> None:
    """Fails if the pieces of a source do not fit, or if weights leave a part without effect."""
    for seed in range(RUN):
        design = draw_design(seed)
        if design.refused_because:
            continue
        spec = spec_of(design)
        judge = Judge(spec, *load(design, tmp_path))
        one, *_, other = draw_rows(spec)
        found = judge.log_probs(one, [5, 6])
        assert bool(found.isfinite().all()), design.line
        assert not torch.allclose(found, judge.log_probs(one, [6, 5, 5]), atol=1e-3), design.line
        assert not torch.allclose(found, judge.log_probs(other, [5, 6]), atol=1e-3), design.line


# ---- the judge ----------------------------------------------------------------------------------


def test_judge_imports_nothing_of_the_project() -> None:
    """Fails if the judge shares code with what it judges."""
    code = (
        "import sys, tests.drawn_modules.judge; "
        "print(*(name for name in sys.modules if name.partition('.')[0] == 'tfexport'))"
    )
    given = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert given.stdout.split() == []


class Counting(nn.Module):
    """Prefers the token after the last one, and ends after 8; BOS is followed by 3."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        following = torch.where(tgt == BOS, 3, tgt + 1)
        following = torch.where(following > 8, EOS, following)
        return 2.0 * nn.functional.one_hot(following, 12).float() + 0 * src.sum()


def counting() -> Judge:
    source = InputSpec("input_ids", "int64", ("batch", "source_length"), "ids", 12)
    sizes = {"source_length": 4}
    target = ("batch", "target_length")
    return Judge(Spec(0, (), (source,), target, False, 12, sizes, sizes, ""), Counting(), None)


def scores_of(judge: Judge, tokens: list[int], least: int = 0) -> list[float]:
    row = draw_rows(judge.spec)[0]
    return [float(judge.log_probs(row, tokens[:i], least)[token]) for i, token in enumerate(tokens)]


def test_judge_accepts_its_own_tokens_and_scores() -> None:
    judge = counting()
    row, tokens = draw_rows(judge.spec)[0], [3, 4, 5, 6, 7, 8]
    assert judge.greedy(row, 12) == tokens
    assert judge.difference(row, tokens, scores_of(judge, [*tokens, EOS]), 12) == ""
    assert judge.difference(row, tokens[:4], scores_of(judge, tokens[:4]), 4) == ""
    longer = judge.greedy(row, 9, 9)
    assert len(longer) == 9
    assert judge.difference(row, longer, scores_of(judge, longer, 9), 9, 9) == ""
    forced = [7, 7, 8]
    assert judge.difference(row, forced, scores_of(judge, forced), 3, 0, [7, 7]) == ""
    assert "begin with [7, 6]" in judge.difference(row, forced, [0.0] * 3, 3, 0, [7, 6])


@pytest.mark.parametrize(
    ("tokens", "ends", "change", "said"),
    [
        pytest.param([3, 5], True, 0.0, "token 1 is 5, by forward 4", id="token"),
        pytest.param([3, 4], True, 0.0, "token 2 is 2, by forward 5", id="early_end"),
        pytest.param([3, 4], False, 0.0, "2 tokens of 12, without an end", id="no_end"),
        pytest.param([3, 4, 5, 6, 7, 8], True, 0.01, "token 0 is 3, scored", id="score"),
        pytest.param([3, 4, 5, 6, 7, 8], True, float("nan"), "token 0 is 3, scored nan", id="nan"),
    ],
)
def test_judge_finds_a_wrong_token_end_and_score(
    tokens: list[int], ends: bool, change: float, said: str
) -> None:
    judge = counting()
    scores = scores_of(judge, [*tokens, EOS] if ends else tokens)
    scores[0] += change
    assert judge.difference(draw_rows(judge.spec)[0], tokens, scores, 12).startswith(said)


# ---- outcomes, tables, runs ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "well"),
    [
        ("Model.forward (drawn_7.py, line 12): a loop; use nn.GRU", True),
        ("add at drawn_7.py:12 in forward: give logits", True),
        ("a loop; use nn.GRU", False),
        ("Model.forward (drawn_7.py, line 12): something is wrong", False),
        (
            "Model.forward (drawn_7.py, line 12): gives 'dict', not logits. "
            "docs/training-script.md says what a forward may give.",
            False,
        ),
        ("Model.forward (case.py, line 12): a loop; use nn.GRU", False),
    ],
)
def test_a_refusal_names_the_users_line_and_a_way_out(message: str, well: bool) -> None:
    assert is_well_refused(message) == well


def result(seed: int, outcome: str, expected: str = "") -> Result:
    return Result(seed, draw_design(seed).labels, outcome, f"line {seed}", expected, 0, 2.0)


def test_results_are_kept_and_not_drawn_again(tmp_path: Path) -> None:
    """Fails if a seed with a result starts a process, or a line that was cut off is an error."""
    known = [result(3, STEPS), result(4, DIFFERENCE)]
    lines = "".join(each.to_json() + "\n" for each in known)
    (tmp_path / "results.jsonl").write_text(lines + '{"seed": 5, "lab')
    assert read_results(tmp_path) == known
    run([3, 4], tmp_path, tell=lambda each: pytest.fail(f"{each.seed} was run again"))
    assert read_results(tmp_path) == known


def test_a_result_of_another_grammar_is_drawn_again(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(replace(result(3, STEPS), labels=()).to_json())
    run([3], tmp_path, workers=1, wait=0.0)
    assert [each.outcome for each in read_results(tmp_path)] == ["died"]


def test_a_case_that_takes_too_long_has_died(tmp_path: Path) -> None:
    run([3], tmp_path, workers=1, wait=0.0)
    (died,) = read_results(tmp_path)
    assert (died.outcome, died.seed) == ("died", 3)
    assert died.is_bad


def test_tables_count_outcomes_and_list_what_is_bad() -> None:
    given = [result(1, NATIVE), result(2, REFUSED, "a loop"), result(3, REFUSED), result(4, NATIVE)]
    assert production_table(given).splitlines()[-1].split() == ["all", "4", "2", "2"]
    first = draw_design(1).labels[0]
    (row,) = (
        line.split() for line in production_table(given).splitlines() if line.split()[0] == first
    )
    alike = [each for each in given if first in each.labels]
    assert int(row[1]) == len(alike)
    assert bad_table(given).splitlines()[0] == "1 × refused, though no production says so: seeds 3"
    assert summary(given).startswith("4 cases: 2 native, 1 refused as expected")


# ---- drawn modules, exported --------------------------------------------------------------------

# Chosen so that together they have most productions; each by one that the others do not have.
EXPORTED_SEEDS = {
    205: "attention/memory_slots",
    269: "attention/sdpa_mask",
    343: "layout/transposed_around",
    837: "helpers/head_in_forward",
    953: "attention/cosine",
    1173: "attention/sdpa_causal",
    1672: "positions/relative_clamped",
    2210: "positions/relative_buckets",
    3048: "decoder/running_mean",
    3128: "feed_forward/conv_along_source",
    3200: "input/image_fixed",
    3550: "positions/alibi",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("no_beam_graph")  # the judge searches greedily
@pytest.mark.parametrize("seed", EXPORTED_SEEDS)
def test_drawn_module_is_exported_and_equal_to_its_forward(tmp_path: Path, seed: int) -> None:
    """Fails if the exporter refuses it, or its bundle gives other tokens or scores.

    Without the exporter's own comparison: the judge is another one.
    """
    made = run_case(seed, tmp_path, verify=False)
    assert EXPORTED_SEEDS[seed] in made.labels
    assert made.outcome in EXPORTED, f"{draw_design(seed).line}\n{made.message}"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_drawn_loop_over_the_target_is_refused_with_its_line(tmp_path: Path) -> None:
    """Fails if it is exported, raises another error, or has a message without line or way out."""
    made = run_case(81, tmp_path)
    assert "decoder/cell_loop" in made.labels
    assert (made.outcome, made.is_bad) == (REFUSED, False), made.message


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_planted_mistake_is_found(tmp_path: Path) -> None:
    """Fails if the judge does not see what the exporter does wrong."""
    (mistake,) = (each for each in MISTAKES if each.name == "a running sum begins again")
    draws, how = draws_until_found(mistake, 5000, tmp_path)
    assert draws, how
