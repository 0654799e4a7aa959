"""Loop state goes through graphs in the order of its specs."""

from collections.abc import Callable

import pytest

from tfexport.export.graphs import beam, greedy_state
from tfexport.export.graphs.batch_compaction import WholeBatch
from tfexport.export.graphs.beam import BeamState
from tfexport.export.graphs.greedy_state import GreedyState
from tfexport.graph_io import PAST, CacheShape, GraphSpec

CACHE = CacheShape(num_layers=2, num_heads=3, head_dim=4)


def names(spec: GraphSpec) -> tuple[list[str], list[str]]:
    return [t.name for t in spec.inputs], [t.name for t in spec.outputs]


@pytest.mark.parametrize("form", [GreedyState, BeamState])
def test_unpacked_state_is_what_was_packed(form: type[GreedyState[str] | BeamState[str]]) -> None:
    state = form.unpack("abcdefgh")
    assert "".join(state.pack()) == "abcdefgh"
    assert state.past == tuple("efgh") if form is GreedyState else tuple("defgh")


def test_the_whole_batch_comes_before_the_rows_that_are_left() -> None:
    whole = WholeBatch.unpack_first("abcdefgh")
    assert "".join(whole.pack()) == "abcde"


@pytest.mark.parametrize(
    ("spec", "state"),
    [
        (greedy_state.step_spec(CACHE, 12, output_attentions=False), greedy_state.state_spec),
        (beam.step_spec(CACHE), beam.state_spec),
    ],
    ids=["greedy", "beam"],
)
def test_a_step_gives_the_state_that_it_takes_one_token_longer(
    spec: GraphSpec, state: Callable[..., GreedyState[object] | BeamState[object]]
) -> None:
    taken = state(CACHE, PAST).pack()
    given = state(CACHE, f"{PAST} + 1", "next_").pack()
    assert spec.inputs[-len(taken) :] == taken
    assert spec.outputs[1 : 1 + len(given)] == given


@pytest.mark.parametrize(
    ("start", "step"),
    [
        (greedy_state.start_spec(CACHE), greedy_state.step_spec(CACHE, 12, True)),
        (beam.start_spec(CACHE), beam.step_spec(CACHE)),
    ],
    ids=["greedy", "beam"],
)
def test_the_start_gives_the_first_steps_state(start: GraphSpec, step: GraphSpec) -> None:
    given = [name.removeprefix("first_") for name in names(start)[1] if name.startswith("first_")]
    assert names(step)[0][-len(given) :] == given
