"""Twelve modules of different kinds say in every form what their own eager loops say."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.conftest import Once
from tests.support import eager_search
from tests.support.combinations import few_of
from tests.support.eager_search import Found, Rules
from tests.support.modules.all_kinds import KINDS
from tests.support.modules.kind import BOS, EOS, PAD, Kind, Row
from tests.support.modules.proven import (
    batches_of,
    module_of,
    proven_rows,
    rules_of,
)
from tests.support.node import in_node
from tests.system.test_oldest_onnxruntime import INSTALLED, python
from tfexport.export import Input, export
from tfexport.runtime import Hypothesis, Translator

# torch says so of its own encoder.
pytestmark = pytest.mark.filterwarnings("ignore:.*nested.tensor:UserWarning")
LONGEST = 40  # tokens that the modules are exported for
BY_NAME = {kind.name: kind for kind in KINDS}
# One with a state of several types, one with caches that grow, as those of test_exports do, and one
# that recomputes, as a module of test_sizes does too.
NAMES = ("coverage", "rotary", "image")
FEW = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            BY_NAME[name], id=name, marks=() if name == NAMES[0] else pytest.mark.exhaustive
        )
        for name in NAMES
    ],
)
ALL = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind, id=kind.name, marks=() if kind.name == "coverage" else pytest.mark.exhaustive
        )
        for kind in KINDS
    ],
)
# In one call of a graph; and step by step, which an option asks for that no graph has.
WAYS: tuple[dict[str, Any], ...] = ({}, {"min_length": 0})
Exported = Callable[[Kind, str], Path]


@pytest.fixture(scope="module")
def exported(once: Once) -> Exported:
    """A kind in one form: "bundle", "generate" or "portable". Do not change it."""
    forms: dict[str, dict[str, Any]] = {
        "bundle": {},
        "generate": {"graph": "generate"},
        "portable": {"graph": "generate", "portable": True},
    }

    def get(kind: Kind, form: str) -> Path:
        def make(path: Path) -> None:
            export(
                kind.build(), path, inputs=[Input(*each) for each in kind.inputs], pad_id=PAD,
                bos_id=BOS, eos_id=EOS, max_length=LONGEST, verify="quick", **forms[form],
            )  # fmt: skip

        ending = "bundle" if form == "bundle" else "onnx"
        return once(f"modules/{kind.name}-{form}.{ending}", make)

    return get


def said(found: Found | Hypothesis) -> tuple[Any, ...]:
    return list(found.tokens), found.finished, pytest.approx(found.score, abs=1e-4)


@ALL
def test_the_eager_loops_say_different_things(kind: Kind) -> None:
    greedy = [proven.greedy for proven in proven_rows(kind)]
    assert len({tuple(found.tokens) for found in greedy}) > len(greedy) / 2
    assert len({len(found.tokens) for found in greedy}) >= 3
    assert sum(found.finished for found in greedy) >= 3
    assert any(len(set(found.tokens)) >= 3 for found in greedy)


@ALL
@pytest.mark.slow
def test_greedy_search_over_a_bundle(kind: Kind, exported: Exported) -> None:
    rows = [proven.row for proven in proven_rows(kind)]
    expected = [said(proven.greedy) for proven in proven_rows(kind)]
    with Translator(exported(kind, "bundle")) as translator:
        for options in (*WAYS, {"batch_size": 1}):
            results = translator.generate_from(rows, max_length=kind.max_length, **options)
            assert [said(result.hypotheses[0]) for result in results] == expected
        if kind.takes_ids:
            ids = [row["input_ids"].tolist() for row in rows]
            results = translator.generate(ids, max_length=kind.max_length)
            assert [said(result.hypotheses[0]) for result in results] == expected


@ALL
def test_beams_over_a_bundle(kind: Kind, exported: Exported) -> None:
    rows = [proven.row for proven in proven_rows(kind)]
    expected = [[said(found) for found in proven.beams] for proven in proven_rows(kind)]
    with Translator(exported(kind, "bundle")) as translator:
        for options in WAYS:
            results = translator.generate_from(
                rows, max_length=kind.max_length, beam_size=3, num_hypotheses=3, **options
            )
            assert [[said(each) for each in result.hypotheses] for result in results] == expected


@ALL
@pytest.mark.parametrize("form", ["generate", "portable"])
def test_one_file_in_onnxruntime(kind: Kind, form: str, exported: Exported) -> None:
    session = ort.InferenceSession(exported(kind, form))

    def run(feeds: dict[str, Any]) -> list[list[int]]:
        found, scores = session.run(["sequences", "scores"], feeds)
        assert scores.shape == (len(found),)
        rows: list[list[int]] = found.tolist()
        return rows

    check_file(kind, run)


@ALL
def test_one_file_in_node(kind: Kind, exported: Exported) -> None:
    path = exported(kind, "portable")
    check_file(kind, lambda feeds: in_node(path, feeds))


RUN_OLD = """
import json, sys
import numpy as np
import onnxruntime as ort
options = ort.SessionOptions()
options.log_severity_level = 4
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print(json.dumps(session.run(["sequences"], dict(np.load(sys.argv[2])))[0].tolist()))
"""


@pytest.mark.parametrize("name", few_of(["image", "speech", "rotary", "coverage"], "coverage"))
def test_one_file_in_the_oldest_onnxruntime(name: str, exported: Exported, tmp_path: Path) -> None:
    path, given = exported(BY_NAME[name], "portable"), tmp_path / "feeds.npz"
    named = ort.InferenceSession(path).get_modelmeta().custom_metadata_map
    old = python(INSTALLED[named["tfexport_minimum_onnxruntime"]])

    def run(feeds: dict[str, Any]) -> list[list[int]]:
        np.savez(given, **feeds)
        done = subprocess.run([old, "-c", RUN_OLD, path, given], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found: list[list[int]] = json.loads(done.stdout)
        return found

    check_file(BY_NAME[name], run)


def check_file(kind: Kind, run: Callable[[dict[str, Any]], list[list[int]]]) -> None:
    """Compare sequences of a generate graph, all batches of the rows, with eager search."""
    proven = proven_rows(kind)
    for numbers, batch in batches_of([each.row for each in proven]):
        expected = [sequence(proven[number].greedy) for number in numbers]
        longest = max(map(len, expected))
        padded = [tokens + [PAD] * (longest - len(tokens)) for tokens in expected]
        assert run({**batch, "max_length": np.array(kind.max_length)}) == padded


def sequence(found: Found) -> list[int]:
    return found.tokens + [EOS] * found.finished


@FEW
def test_sampling_repeats_with_its_seed(kind: Kind, exported: Exported) -> None:
    rows = [proven.row for proven in proven_rows(kind)]
    with Translator(exported(kind, "bundle")) as translator:

        def sample(seed: int, **options: Any) -> list[list[list[int]]]:
            results = translator.generate_from(
                rows, sampling=True, seed=seed, num_hypotheses=2, max_length=12, **options
            )
            return [[made.tokens for made in result.hypotheses] for result in results]

        assert sample(7) == sample(7, batch_size=3)
        assert sample(7) != sample(8)


RULES: dict[str, dict[str, Any]] = {
    "suppress_tokens": {"suppress_tokens": (5, 7, 9, 12)},
    "min_length": {"min_length": 9},
    "target_prefix": {"target_prefix": (6, 4, 8)},
}


@FEW
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("beam_size", [1, 3])
def test_constraints_and_prefixes(
    kind: Kind, rule: str, beam_size: int, exported: Exported
) -> None:
    rows = [proven.row for proven in proven_rows(kind)]
    rules = rules_of(kind, **RULES[rule], beam_size=beam_size)
    given = dict(RULES[rule])
    if "target_prefix" in given:
        given["target_prefix"] = [list(given["target_prefix"])] * len(rows)
    with Translator(exported(kind, "bundle")) as translator:
        results = translator.generate_from(
            rows, max_length=kind.max_length, beam_size=beam_size, **given
        )
    found = [said(result.hypotheses[0]) for result in results]
    assert found == [said(eager(kind, row, rules)) for row in rows]
    free = proven_rows(kind)
    assert found != [said(each.beams[0] if beam_size > 1 else each.greedy) for each in free]


def eager(kind: Kind, row: Row, rules: Rules) -> Found:
    if rules.beam_size == 1:
        return eager_search.greedy(module_of(kind), row, rules)
    return eager_search.beam(module_of(kind), row, rules)[0]


@FEW
def test_scores_of_tokens(kind: Kind, exported: Exported) -> None:
    proven = proven_rows(kind)
    with Translator(exported(kind, "bundle")) as translator:
        results = translator.generate_from(
            [each.row for each in proven], max_length=kind.max_length, return_token_scores=True
        )
    for result, each in zip(results, proven, strict=True):
        assert result.hypotheses[0].token_scores == pytest.approx(
            each.greedy.token_scores, abs=1e-4
        )


@pytest.mark.exhaustive
def test_beams_that_do_not_stop_early(exported: Exported) -> None:
    kind = BY_NAME["speech"]
    rules = Rules(
        kind.max_length, beam_size=3, num_hypotheses=2, early_stopping=False, length_penalty=0.6
    )
    rows = [proven.row for proven in proven_rows(kind)]
    with Translator(exported(kind, "bundle")) as translator:
        results = translator.generate_from(
            rows, max_length=kind.max_length, beam_size=3, num_hypotheses=2,
            early_stopping=False, length_penalty=0.6,
        )  # fmt: skip
    expected = [eager_search.beam(module_of(kind), row, rules) for row in rows]
    found = [[said(made) for made in result.hypotheses] for result in results]
    assert found == [[said(made) for made in each] for each in expected]
