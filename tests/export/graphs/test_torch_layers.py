"""Layers are replaced for one thread inside the block, and what cannot be exported is refused."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.layer_export import Axes, Called, compare, export, normal
from tfexport.errors import ExportError
from tfexport.export.graphs.torch_layers import exportable_layers

ROWS = normal("B", "S", 8)


def module() -> nn.ModuleDict:
    torch.manual_seed(1)
    return nn.ModuleDict(
        {
            "gru": nn.GRU(8, 8, batch_first=True),
            "attention": nn.MultiheadAttention(8, 2, batch_first=True),
            "encoder": nn.TransformerEncoderLayer(8, 2, 8, batch_first=True),
        }
    ).eval()


def run(layers: nn.Module, rows: Tensor) -> Tensor:
    assert isinstance(layers, nn.ModuleDict)
    rows, _ = layers["gru"](rows)
    rows, _ = layers["attention"](rows, rows, rows)
    encoded: Tensor = layers["encoder"](F.max_pool1d(rows, 1))
    return encoded


def owned() -> list[Any]:
    """Everything that is replaced inside the block."""
    return [
        nn.GRU.forward,
        nn.MultiheadAttention.forward,
        nn.TransformerEncoder.forward,
        nn.TransformerEncoderLayer.forward,
        nn.modules.transformer._detect_is_causal_mask,
        torch.fx.proxy.TracerBase._filter_traceback_frames,
        torch.SymBool.__bool__,
        torch.fx.experimental.symbolic_shapes.ShapeEnv._set_replacement,
        torch._C._len_torch_function_stack(),
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_restored(fails: bool) -> None:
    layers, rows = module(), torch.randn(2, 3, 8)
    before, buffers = owned(), list(layers.state_dict())
    with torch.no_grad():
        wanted = run(layers, rows)
    if fails:
        with pytest.raises(ExportError, match=r"F\.dropout: it is random"):
            export(Called(layers, lambda m, x: F.dropout(run(m, x))), [ROWS])
    else:
        export(Called(layers, run).eval(), [ROWS])
    assert owned() == before
    assert [name for name, _ in layers.named_buffers()] == []
    assert list(layers.state_dict()) == buffers
    with torch.no_grad():
        assert torch.equal(run(layers, rows), wanted)


def test_weights_are_saved_without_those_of_the_export() -> None:
    layers = module()
    with exportable_layers(layers):
        assert not any("onnx" in name for name in layers.state_dict())


def test_other_threads_run_torchs_own_layers() -> None:
    layers, rows = module(), torch.randn(2, 3, 8)
    found: list[Tensor] = []

    def eager() -> None:
        with torch.no_grad():
            found.append(run(layers, rows))

    eager()
    with exportable_layers(layers):
        thread = threading.Thread(target=eager)
        thread.start()
        thread.join()
    torch.testing.assert_close(found[0], found[1])  # threads may round otherwise


def test_two_threads_export_at_once() -> None:
    modules = [Called(module(), run).eval() for _ in range(2)]
    graphs: list[Any] = []

    def work(one: nn.Module) -> None:
        with exportable_layers(one):  # quiet() and shortcuts() are not for threads
            graphs.append(torch.export.export(one, (torch.randn(2, 3, 8),), strict=False))

    threads = [threading.Thread(target=work, args=(one,)) for one in modules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(graphs) == 2


def test_subclass_that_calls_its_parent() -> None:
    class Louder(nn.GRU):
        def forward(self, *args: Any) -> Any:
            output, state = super().forward(*args)
            return output * 2, state

    torch.manual_seed(1)
    louder = Called(Louder(8, 6, batch_first=True)).eval()
    compare(louder, export(louder, [ROWS]), [ROWS])


def baked_sum(layer: nn.Module, rows: Tensor) -> Tensor:
    return rows + torch.zeros(5, 8)


def loop_over_time(layer: nn.Module, rows: Tensor) -> Tensor:
    return torch.stack([rows[:, t] for t in range(rows.size(1))], 1)


@pytest.mark.messages
@pytest.mark.parametrize(
    ("call", "line", "remedy"),
    [
        (baked_sum, r"rows \+ torch\.zeros\(5, 8\)", "x.size()"),
        (loop_over_time, r"range\(rows\.size\(1\)\)", "complete tensors"),
    ],
    ids=["constant", "loop"],
)
def test_size_of_the_example_is_refused_with_its_line(
    call: Callable[..., Any], line: str, remedy: str
) -> None:
    with pytest.raises(ExportError) as caught:
        export(Called(nn.Identity(), call), [ROWS])
    assert caught.match(r"the code works for the example's size only, in .*size\(\)\[1\]; at ")
    assert f"at {Path(__file__).name}:" in str(caught.value)
    assert caught.match(f"in {call.__name__}: .*{line}.*; ")
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)


RANDOM: dict[str, Callable[..., Any]] = {
    "F.dropout": lambda m, x: F.dropout(x, 0.5),
    "torch.dropout": lambda m, x: torch.dropout(x, 0.5, True),
    "F.rrelu": lambda m, x: F.rrelu(x, training=True),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_functions_are_refused(name: str) -> None:
    with pytest.raises(ExportError, match=f"{name}: it is random, in eval mode too"):
        export(Called(nn.Identity(), RANDOM[name]), [ROWS])


@pytest.mark.parametrize("name", ["max_pool1d", "adaptive_max_pool1d", "adaptive_max_pool2d"])
def test_indices_of_pooling_are_refused(name: str) -> None:
    with pytest.raises(ExportError, match=rf"F\.{name}: return_indices=True"):
        export(
            Called(nn.Identity(), lambda m, x: getattr(F, name)(x, 2, return_indices=True)),
            [normal("B", "S", "T")],
        )


def test_sequence_that_was_packed_by_hand_is_refused() -> None:
    def call(layer: nn.Module, rows: Tensor, lengths: Tensor) -> Any:
        return layer(nn.utils.rnn.PackedSequence(rows[0], lengths))[1]

    with pytest.raises(ExportError, match="PackedSequence: it was not made by pack_padded"):
        export(Called(nn.GRU(8, 6), call), [ROWS, Axes(("B",), "lengths")])
