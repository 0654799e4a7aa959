"""Loop state goes through graphs in the order of its specs."""

from collections.abc import Callable

import pytest

from tfexport.export.graphs import beam, greedy
from tfexport.export.graphs.beam import BeamState
from tfexport.export.graphs.greedy import FullBatch, GreedyState
from tfexport.export.graphs.transformer_steps import TransformerSteps
from tfexport.graph_io import PAST, GraphSpec
from tfexport.model_src.build import build_transformer
from tfexport.model_src.config import TransformerConfig

STEPS = TransformerSteps(
    build_transformer(
        TransformerConfig(
            d_model=12, num_heads=3, num_encoder_layers=1, num_decoder_layers=2, d_ff=8,
            source_vocab_size=9, target_vocab_size=9, pad_id=0, bos_id=1, eos_id=2,
        )
    )
)  # fmt: skip


def names(spec: GraphSpec) -> tuple[list[str], list[str]]:
    return [t.name for t in spec.inputs], [t.name for t in spec.outputs]


@pytest.mark.parametrize("form", [GreedyState, BeamState])
def test_unpacked_state_is_what_was_packed(form: type[GreedyState[str] | BeamState[str]]) -> None:
    state = form.unpack("abcdefgh")
    assert "".join(state.pack()) == "abcdefgh"
    assert state.past == tuple("efgh") if form is GreedyState else tuple("defgh")


def test_the_whole_batch_comes_before_the_rows_that_are_left() -> None:
    whole = FullBatch.unpack_first("abcdefgh")
    assert "".join(whole.pack()) == "abcde"


@pytest.mark.parametrize(
    ("spec", "state"),
    [
        (greedy.step_spec(STEPS), greedy.state_spec),
        (beam.step_spec(STEPS), beam.state_spec),
    ],
    ids=["greedy", "beam"],
)
def test_a_step_gives_the_state_that_it_takes_one_token_longer(
    spec: GraphSpec, state: Callable[..., GreedyState[object] | BeamState[object]]
) -> None:
    taken = state(STEPS, PAST).pack()
    given = state(STEPS, f"{PAST} + 1", "next_").pack()
    assert spec.inputs[-len(taken) :] == taken
    assert spec.outputs[1 : 1 + len(given)] == given


@pytest.mark.parametrize(
    ("start", "step"),
    [
        (greedy.start_spec(STEPS), greedy.step_spec(STEPS)),
        (beam.start_spec(STEPS), beam.step_spec(STEPS)),
    ],
    ids=["greedy", "beam"],
)
def test_the_start_gives_the_first_steps_state(start: GraphSpec, step: GraphSpec) -> None:
    given = [name.removeprefix("first_") for name in names(start)[1] if name.startswith("first_")]
    assert names(step)[0][-len(given) :] == given
