"""Weights of a trained size: rounding passes, and faults on the same weights are caught.

``benchmarks.planted_faults`` has all faults and whole grids; docs/parity.md its figures.
"""

import dataclasses

import pytest

from benchmarks.planted_faults import FAULTS, judge
from benchmarks.real import t5_folders
from tests.conftest import CONFIG
from tests.support import tutorial
from tfexport.export.report import LEAST_ALLOWED
from tfexport.model_src.checkpoint.read_options import checkpoint_of

# Fault to whether it changes what the model computes.
CHOSEN = {
    "another activation (gelu for relu, relu for others)": True,
    "epsilon 1e-3": True,
    "places of the norms": True,
    "twice as many heads": True,
    "padding of the source is not masked": True,
    "two source positions exchanged": True,
    "queries' square matrix transposed": True,
    "an encoder layer's weights twice": True,
    "one matrix times 1.01": True,
    "mask fill -1e4": False,
}


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("scale", [2.0, 6.0])
def test_faults_are_caught_where_rounding_passes(scale: float) -> None:
    model = tutorial.make(
        seed=5, scale=scale, d_model=16, num_heads=4, encoder_layers=3, decoder_layers=3, d_ff=24
    )
    chosen = tuple(fault for fault in FAULTS if fault.name in CHOSEN)
    assert len(chosen) == len(CHOSEN)
    right, verdicts = judge(checkpoint_of(model, CONFIG), chosen)
    assert all(each.passed and each.noise > 0 for each in right)
    assert all(each.allowed >= LEAST_ALLOWED for each in right)
    assert {each.fault.name: each.caught for each in verdicts} == CHOSEN


# Of the parts that T5 has and others have not, and of those that it has otherwise.
OF_T5 = {
    "gelu by tanh, or exact for that": True,
    "twice as many heads": True,
    "half as many heads": True,
    "two source distances exchanged": True,
    "two target distances exchanged": True,
    "gates and what they gate exchanged": True,
    "mask fill -1e4": False,
}


@pytest.mark.peers
@pytest.mark.usefixtures("few_shapes")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("seed", [0, 1], ids=["one table", "an output projection of its own"])
@pytest.mark.parametrize("family", ["t5", "umt5"])
def test_faults_of_t5_are_caught(family: str, seed: int) -> None:
    pytest.importorskip("transformers")
    chosen = tuple(fault for fault in FAULTS if fault.name in OF_T5)
    assert len(chosen) == len(OF_T5)
    model = t5_folders.draw(family, seed)
    checkpoint = checkpoint_of(model)
    assert checkpoint.config.tie_output is (seed == 0)
    given = dataclasses.replace(checkpoint, reference=t5_folders.code_of(model))
    right, verdicts = judge(given, chosen)
    assert all(each.passed for each in right)
    assert {each.fault.name: each.caught for each in verdicts} == OF_T5
