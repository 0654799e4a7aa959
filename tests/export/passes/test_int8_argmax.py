"""The token of int8 pre-selection is the argmax of all logits in float32."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tfexport.export.ir_tools.nodes import BEST_TOKEN, parse_graph
from tfexport.export.passes.int8_argmax import CHOICE, insert_argmax, remove_preselection

Floats = NDArray[np.float32]
OPSET = 20


def make_graph(table: Floats, bias: Floats | None) -> ir.Model:
    """States (R, 1, E) to best tokens (R, 1)."""
    shape = ir.Shape(["rows", 1, table.shape[1]])
    states = ir.Value(name="states", shape=shape, type=ir.TensorType(ir.DataType.FLOAT))
    domain, _, operator = BEST_TOKEN.partition("::")
    node = ir.Node(domain, operator, [states], num_outputs=1)
    best = ir.Value(name="best", shape=ir.Shape(["rows", 1]), type=ir.TensorType(ir.DataType.INT64))
    last = ir.Node("", "Identity", node.outputs, outputs=[best])
    graph = ir.Graph([states], [best], nodes=[node, last], opset_imports={"": OPSET}, name="g")
    insert_argmax(graph, graph, table, bias, OPSET)
    graph.sort()
    return ir.Model(graph, ir_version=10)


def run(
    model: ir.Model, states: Floats, watched: tuple[str, ...] = (), optimize: bool = True
) -> list[Any]:
    """The best tokens (R,), and values by name."""
    proto = ir.to_proto(model)
    for name in watched:
        proto.graph.output.append(onnx.ValueInfoProto(name=name))
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options)
    best, *others = session.run(["best", *watched], {"states": states[:, None]})
    return [best[:, 0], *others]


def check(table: Floats, bias: Floats | None, states: Floats, **options: Any) -> list[Any]:
    """Compare with all logits in float64; what rounds away in float32 may be either."""
    found, *others = run(make_graph(table, bias), states, **options)
    logits = states.astype(np.float64) @ table.T.astype(np.float64)
    size = np.linalg.norm(states, axis=-1) * np.linalg.norm(table, axis=-1).max()
    if bias is not None:
        logits += bias
        size = size + np.abs(bias[np.isfinite(bias)]).max(initial=0)
    lost = logits.max(-1) - np.take_along_axis(logits, found[:, None], -1)[:, 0]
    assert (lost <= 1e-6 * size).all()
    # Of words with one row and one bias, which are equal to the last bit, it is the first.
    for token in found:
        same = (table == table[token]).all(-1)
        if bias is not None:
            same &= bias == bias[token]
        assert token == np.flatnonzero(same)[0]
    return others


@example(rows=1, width=70, vocab=5, seed=0, kind="twins", biased="no")
@given(
    rows=st.integers(1, 5),
    width=st.sampled_from([1, 3, 16, 70]),
    vocab=st.sampled_from([1, 5, 63, 64, 65, 200, 1000]),
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["plain", "twins", "outliers", "zeros", "lengths", "tiny", "large"]),
    biased=st.sampled_from(["no", "some", "ruled out", "large"]),
)
def test_preselection_gives_the_argmax(
    rows: int, width: int, vocab: int, seed: int, kind: str, biased: str
) -> None:
    draw = np.random.default_rng(seed)
    table = draw.normal(size=(vocab, width)).astype(np.float32)
    states = draw.normal(size=(rows, width)).astype(np.float32)
    if kind == "twins":  # many words are the same one
        table = table[draw.integers(0, max(1, vocab // 8), vocab)]
    elif kind == "outliers":  # which cost int8 its precision
        states[:, 0] *= 1000
        table[:, -1] *= 100
    elif kind == "zeros":
        states[0] = 0
        table[:, ::2] = 0
    elif kind == "lengths":
        table *= np.exp(draw.normal(size=(vocab, 1)) * 3).astype(np.float32)
    elif kind == "tiny":
        states *= 1e-20
    elif kind == "large":
        states *= 1e10
    bias = None if biased == "no" else draw.normal(size=vocab).astype(np.float32)
    if bias is not None and biased == "ruled out":
        bias[1:][draw.random(vocab - 1) < 0.5] = -np.inf
    elif bias is not None and biased == "large":
        bias *= 1e6
    check(table, bias, states)


def peaked(vocab: int = 1000, width: int = 64) -> tuple[Floats, Floats]:
    """A table, and states that each point at one of its words, as a trained model's do."""
    draw = np.random.default_rng(0)
    table = draw.normal(size=(vocab, width)).astype(np.float32)
    return table, table[[7, 7, vocab - 1, 0, 500]]


def test_few_words_are_left_where_one_stands_out() -> None:
    table, states = peaked()
    left, too_many = check(table, None, states, watched=("best/left_size", "best/too_many"))
    assert left == 2 * len(states), "a row's block and its place in it, once for each"
    assert not too_many


def test_a_long_row_of_the_table_leaves_no_words_of_other_blocks() -> None:
    draw = np.random.default_rng(3)
    table = draw.normal(size=(1000, 64)).astype(np.float32)
    states = draw.normal(size=(8, 64)).astype(np.float32)
    states[:, :2] = 20, -0.1  # the first costs int8 its precision
    table[:, 0] = 0
    (others,) = check(table, None, states, watched=("best/left_size",))
    table[2] = 0
    table[2, 1] = 4 * np.abs(table).max()
    left, too_many = check(table, None, states, watched=("best/left_size", "best/too_many"))
    assert left < 1.5 * others
    assert not too_many


def test_all_logits_decide_where_too_many_are_left() -> None:
    draw = np.random.default_rng(1)
    table = np.ones((1000, 64), np.float32) + 1e-6 * draw.normal(size=(1000, 64)).astype(np.float32)
    (too_many,) = check(table, None, np.ones((3, 64), np.float32), watched=("best/too_many",))
    assert too_many


def test_a_processor_whose_sums_of_bytes_are_cut_off_gets_smaller_ones() -> None:
    table, states = peaked()
    states = np.sign(states) * np.abs(states).max()  # the largest bytes there are
    table = np.abs(table)
    model = make_graph(table, None)
    (expected,) = [node for node in model.graph if node.name == "coarse/expected"]
    expected.attributes.add(ir.AttrTensor("value", ir.tensor(np.array([[-1]], np.int32))))
    found, coarse = run(model, states, watched=("best/x_coarse",))
    assert (found == (states @ table.T).argmax(-1)).all()
    assert coarse.max() <= 127, "two products of 127 by 127 fit into 16 bits"
    model = make_graph(table, None)
    (expected,) = [node for node in model.graph if node.name == "coarse/expected"]
    expected.attributes.add(ir.AttrTensor("value", ir.tensor(_sum_of_bytes())))
    (fine,) = run(model, states, watched=("best/x_coarse",))[1:]
    assert fine.max() == 255


def _sum_of_bytes() -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """What this processor makes of the sum by which a graph judges it."""
    part = parse_graph(
        """
        try (uint8[1, 4] bytes, int8[4, 1] signed) => (int32[1, 1] total)
        { total = MatMulInteger (bytes, signed) }
        """,
        20,
    )
    model = ir.to_proto(ir.Model(part, ir_version=10))
    session = ort.InferenceSession(model.SerializeToString())
    feeds = {"bytes": np.full((1, 4), 255, np.uint8), "signed": np.full((4, 1), 127, np.int8)}
    found: np.ndarray[tuple[int, ...], np.dtype[np.int32]] = session.run(None, feeds)[0]
    return found


@pytest.mark.parametrize("optimize", [True, False])
def test_it_needs_no_optimisation(optimize: bool) -> None:
    table, states = peaked(777)
    check(table, None, states % 3, optimize=optimize)


def test_what_is_no_number_does_not_choose_a_word_that_is_none() -> None:
    table, states = peaked()
    states[1] = np.nan
    (found,) = run(make_graph(table, None), states)
    assert ((found >= 0) & (found < len(table))).all()


def test_taken_out_again_it_is_the_projection_and_the_best() -> None:
    table, states = peaked(777)
    model = make_graph(table, None)
    remove_preselection(model, lambda table: True)
    assert any(node.name == f"best/{CHOICE}" for node in model.graph)
    remove_preselection(model, lambda table: False)
    assert not any(node.op_type == "If" for node in model.graph)
    assert sum(node.op_type == "MatMul" for node in model.graph) == 1
    (found,) = run(model, states)
    assert (found == (states @ table.T).argmax(-1)).all()
