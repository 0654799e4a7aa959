"""Recurrent layers are ONNX's own operators, with weights that are stored reordered."""

from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.support.combinations import few_of
from tests.support.layer_export import (
    EXAMPLE,
    Axes,
    Called,
    check,
    compare,
    export,
    normal,
    operators,
)
from tfexport.errors import ExportError

pytestmark = pytest.mark.usefixtures("opset")
ROWS = normal("B", "S", 8)
LENGTHS = Axes(("B",), "lengths")
KINDS = [nn.GRU, nn.LSTM, nn.RNN]
Kind = type[nn.GRU] | type[nn.LSTM] | type[nn.RNN]
KIND = pytest.mark.parametrize("kind", few_of(KINDS, nn.GRU, nn.LSTM))
OPTIONS: dict[str, dict[str, Any]] = {
    "one layer": {},
    "time first": {"batch_first": False},
    "two layers, both directions": {"num_layers": 2, "bidirectional": True, "dropout": 0.5},
    "no bias": {"num_layers": 2, "bias": False},
}
# Every kind and every option once; the other pairs repeat them.
PAIRS = ["GRU-one layer", "LSTM-time first", "LSTM-two layers, both directions", "RNN-no bias"]
PAIR = pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(kind, options, id=pair, marks=() if pair in PAIRS else pytest.mark.exhaustive)
        for kind in KINDS
        for name, options in OPTIONS.items()
        for pair in [f"{kind.__name__}-{name}"]
    ],
)


def layer(kind: Kind, **options: Any) -> nn.RNNBase:
    torch.manual_seed(3)
    layer: nn.RNNBase = kind(8, 6, **{"batch_first": True, **options})
    return layer


def states(kind: Kind, count: int) -> list[Axes]:
    return [normal(count, "B", 6)] * (2 if kind is nn.LSTM else 1)


def with_state(module: nn.RNNBase, rows: Tensor, *state: Tensor) -> Any:
    return module(rows, state[0] if len(state) == 1 else state)


@PAIR
def test_layer_is_one_operator_for_any_length(
    kind: Kind, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = layer(kind, **options)
    rows = ROWS if module.batch_first else normal("S", "B", 8)
    model = check(module, [rows])
    assert operators(model).count(kind.__name__) == module.num_layers
    monkeypatch.setitem(EXAMPLE, "S", 9)
    longer = export(Called(module).eval(), [rows])
    assert operators(longer) == operators(model)


@KIND
def test_initial_state_is_given(kind: Kind) -> None:
    module = layer(kind, num_layers=2, bidirectional=True)
    check(module, [ROWS, *states(kind, 4)], with_state)


def test_rnn_with_relu() -> None:
    check(layer(nn.RNN, nonlinearity="relu", bidirectional=True), [ROWS])


@pytest.mark.parametrize("batch_first", few_of([True, False], True))
def test_rows_without_a_batch_axis(batch_first: bool) -> None:
    module = layer(nn.GRU, batch_first=batch_first)
    check(module, [normal("S", 8), normal(1, 6)], with_state)


@KIND
def test_step_of_a_decoder_is_the_operator_alone(kind: Kind) -> None:
    model = check(layer(kind), [normal("B", 1, 8), *states(kind, 1)], with_state)
    assert operators(model).count(kind.__name__) == 1
    assert set(operators(model)) <= {kind.__name__, "Squeeze", "Transpose"}


@KIND
def test_weights_are_stored_as_the_operator_takes_them(kind: Kind) -> None:
    module = kind(640, 512, batch_first=True)  # large ones are not folded by torch's exporter
    model = export(Called(module).eval(), [normal("B", "S", 640)])
    (node,) = [node for node in model.graph if node.op_type == kind.__name__]
    names = [value.name for value in node.inputs[1:4] if value is not None]
    assert names == ["layer.onnx_W_l0", "layer.onnx_R_l0", "layer.onnx_B_l0"]
    assert set(names) <= set(model.graph.initializers)
    assert parameters(model) == sum(tensor.numel() for tensor in module.parameters())


def parameters(model: ir.Model) -> int:
    """How many floating-point values a graph stores."""
    stored = [value.const_value for value in model.graph.initializers.values()]
    return sum(t.size for t in stored if t is not None and t.dtype == ir.DataType.FLOAT)


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
@pytest.mark.parametrize("given", few_of([True, False], True), ids=["state", "no state"])
def test_cells(kind: type[nn.RNNCellBase], given: bool) -> None:
    torch.manual_seed(3)
    state = [normal("B", 6)] * ((2 if kind is nn.LSTMCell else 1) if given else 0)
    call = with_state if given else None
    check(kind(8, 6), [normal("B", 8), *state], call)  # type: ignore[call-arg]


def packed(
    module: nn.RNNBase, rows: Tensor, lengths: Tensor, total: bool = False, fill: float = 0.0
) -> Any:
    sequence = pack_padded_sequence(
        rows, lengths.cpu(), batch_first=module.batch_first, enforce_sorted=False
    )
    output, state = module(sequence)
    length = rows.size(1 if module.batch_first else 0) if total else None
    padded = pad_packed_sequence(output, module.batch_first, fill, length)
    return padded, state


@PAIR
def test_packed_sequences(kind: Kind, options: dict[str, Any]) -> None:
    module = layer(kind, **options)
    rows = ROWS if module.batch_first else normal("S", "B", 8)
    model = check(module, [rows, LENGTHS], packed)
    for node in model.graph:
        if node.op_type == kind.__name__:
            assert node.inputs[4] is not None, "sequence_lens"


def test_packed_sequences_padded_to_the_length_of_the_input() -> None:
    module = layer(nn.GRU, bidirectional=True)
    check(module, [ROWS, LENGTHS], lambda m, x, n: packed(m, x, n, total=True, fill=-2.0))


def test_packed_sequences_sorted_by_the_caller() -> None:
    def call(module: nn.RNNBase, rows: Tensor, lengths: Tensor) -> Any:
        ordered = lengths.sort(descending=True).values
        output, state = module(pack_padded_sequence(rows, ordered, batch_first=True))
        return pad_packed_sequence(output, batch_first=True), state

    check(layer(nn.LSTM), [ROWS, LENGTHS], call)


@KIND
def test_packed_sequences_with_an_initial_state(kind: Kind) -> None:
    def call(module: nn.RNNBase, rows: Tensor, lengths: Tensor, *state: Tensor) -> Any:
        sequence = pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)
        return with_state(module, sequence, *state)[1]  # type: ignore[arg-type]

    module = layer(kind, num_layers=2)
    check(module, [ROWS, LENGTHS, *states(kind, 2)], call)


def test_lengths_as_a_list() -> None:
    module = layer(nn.GRU)
    check(module, [ROWS, LENGTHS], lambda m, x, n: m(pack(x, n.tolist()))[1])


def pack(rows: Tensor, lengths: Any) -> Any:
    return pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)


def test_attention_over_what_was_packed() -> None:
    def call(module: nn.RNNBase, rows: Tensor, padding: Tensor) -> Tensor:
        (output, _), _ = packed(module, rows, (~padding).sum(1), total=True)
        scores = (output @ output.transpose(1, 2)).masked_fill(padding.unsqueeze(1), -1e9)
        context: Tensor = scores.softmax(-1) @ output
        return context

    check(layer(nn.GRU), [ROWS, Axes(("B", "S"), "padding")], call)


@pytest.mark.parametrize(
    "normed",
    [
        lambda module: parametrizations.weight_norm(module, "weight_hh_l0"),
        lambda module: torch.nn.utils.weight_norm(module, "weight_hh_l0"),
    ],
    ids=["parametrization", "hook"],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_weights_that_are_computed(normed: Any) -> None:
    check(normed(layer(nn.GRU)), [ROWS])


def test_weights_changed_after_one_export_are_in_the_next() -> None:
    module = Called(layer(nn.GRU)).eval()
    export(module, [ROWS])
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.mul_(-0.5)
    compare(module, export(module, [ROWS]), [ROWS])


def test_projection_is_refused() -> None:
    module = nn.ModuleDict({"speech": nn.LSTM(8, 6, proj_size=3, batch_first=True)})
    with pytest.raises(ExportError, match=r"layer\.speech \(nn\.LSTM\): ONNX has no operator for"):
        export(Called(module, lambda m, x: m["speech"](x)), [ROWS])


def test_layer_outside_the_module_is_refused() -> None:
    hidden = [layer(nn.GRU)]
    with pytest.raises(ExportError, match=r"nn\.GRU: the layer is not a submodule"):
        export(Called(nn.Identity(), lambda m, x: hidden[0](x)[0]), [ROWS])


def test_values_of_a_list_of_lengths_are_refused() -> None:
    with pytest.raises(ExportError, match=r"Tensor\.tolist: .* as constants; use the tensor"):
        export(Called(nn.Identity(), lambda m, x, n: x * max(n.tolist())), [ROWS, LENGTHS])
