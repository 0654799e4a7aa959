"""Loop state goes through graphs in the order of its specs."""

import pytest

from tfexport.export.graphs import beam, greedy
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


def test_unpacked_state_is_what_was_packed() -> None:
    state = GreedyState.unpack("abcdefgh")
    assert "".join(state.pack()) == "abcdefgh"
    assert state.past == tuple("efgh")


def test_the_whole_batch_comes_before_the_rows_that_are_left() -> None:
    whole = FullBatch.unpack_first("abcdefgh")
    assert "".join(whole.pack()) == "abcde"


def test_a_greedy_step_gives_the_state_that_it_takes_one_token_longer() -> None:
    spec = greedy.step_spec(STEPS)
    taken = greedy.state_spec(STEPS, PAST).pack()
    given = greedy.state_spec(STEPS, f"{PAST} + 1", "next_").pack()
    assert spec.inputs[-len(taken) :] == taken
    assert spec.outputs[1 : 1 + len(given)] == given


def test_a_beam_step_gives_the_past_that_it_takes_one_token_longer() -> None:
    spec = beam.step_spec(STEPS)
    logits, *given = spec.outputs
    taken = spec.inputs[-len(given) :]
    assert logits.name == "step_logits"
    assert [tensor.name for tensor in given] == [f"next_{tensor.name}" for tensor in taken]
    for one, other in zip(taken, given, strict=True):
        assert other.axes == tuple(f"{PAST} + 1" if axis == PAST else axis for axis in one.axes)
    assert any(PAST in tensor.axes for tensor in taken)


@pytest.mark.parametrize(
    ("start", "step"),
    [
        (greedy.start_spec(STEPS), greedy.step_spec(STEPS)),
        (beam.start_spec(STEPS), beam.step_spec(STEPS)),
    ],
    ids=["greedy", "beam"],
)
def test_the_start_gives_the_first_steps_state(start: GraphSpec, step: GraphSpec) -> None:
    firsts = [name for name in names(start)[1] if name.startswith("first_")]
    given = [name.removeprefix("first_") for name in firsts if name != "first_sums"]
    assert names(step)[0][-len(given) :] == given
