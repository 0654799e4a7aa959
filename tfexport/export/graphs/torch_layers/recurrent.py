"""Export of nn.GRU, nn.LSTM and nn.RNN as ONNX's GRU, LSTM and RNN operators.

torch's exporter adds nodes that reorder the weights of a GRU or LSTM at every run, and unrolls an
RNN over the time steps of the example. Here weights are reordered before the export, and nothing is
unrolled. Source: ONNX, docs/Operators.md: GRU, LSTM, RNN.

Axes: T time, B batch, I input size, H hidden size, D directions, G gates.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from tfexport.export.graphs.torch_layers.replaced import refusal, replaced

# Packed sequences: during the export, a padded tensor and its lengths replace each of them.
#
# torch packs rows of unequal length into one axis whose size depends on the lengths; ONNX's
# recurrent operators take padded rows and their lengths. So ``pack_padded_sequence`` leaves the
# rows padded here, and the layers pass the lengths to the operator.
#
# Axes: T time, B batch.


class PackedLengths:
    """The lengths of all sequences that were packed during the export."""

    def __init__(self) -> None:
        self._known: list[tuple[Tensor, Tensor]] = []

    def of(self, sequence: PackedSequence) -> Tensor:
        """The lengths of a packed sequence, (B,), in the order of its rows.

        Raises:
            ExportError: ``pack_padded_sequence`` did not create the sequence.
        """
        return self._find(sequence.batch_sizes)

    def _find(self, batch_sizes: Tensor) -> Tensor:
        for known, lengths in self._known:
            if known is batch_sizes:
                return lengths
        raise refusal(
            "PackedSequence",
            "it was not made by pack_padded_sequence, or its batch_sizes were changed",
            "create it with pack_padded_sequence from padded rows and a tensor of lengths",
        )

    def pack(self, rows: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        """Replaces torch's ``_pack_padded_sequence``; the rows stay padded.

        Args:
            rows: (T, B, ...), or (B, T, ...) if ``batch_first``.
            lengths: (B,) int64.
            batch_first: whether the batch is the first axis of ``rows``.

        Returns:
            data: (longest, B, ...).
            batch_sizes: (longest,), the number of rows that have each time step.
        """
        data = rows.transpose(0, 1) if batch_first else rows
        longest = lengths.max().item()
        torch._check(longest >= 1)
        torch._check(longest <= data.size(0))
        data = data[:longest]
        batch_sizes = (lengths > torch.arange(longest).unsqueeze(1)).sum(1)
        self._known.append((batch_sizes, lengths))
        return data, batch_sizes

    def unpack(
        self,
        data: Tensor,
        batch_sizes: Tensor,
        batch_first: bool,
        padding_value: float,
        total_length: int,
    ) -> tuple[Tensor, Tensor]:
        """Replaces torch's ``_pad_packed_sequence``.

        Returns:
            rows: (total_length, B, ...), or (B, total_length, ...) if ``batch_first``.
            lengths: (B,) int64.
        """
        lengths = self._find(batch_sizes)
        longest = data.size(0)
        inside = torch.arange(longest).unsqueeze(1) < lengths
        inside = inside.reshape(*inside.shape, *[1] * (data.dim() - 2))
        rows = torch.where(inside, data, padding_value)
        if total_length is not batch_sizes.size(0):
            missing = total_length - longest
            torch._check(missing >= 0)
            rows = torch.cat([rows, rows.new_full((missing, *rows.shape[1:]), padding_value)])
        return (rows.transpose(0, 1) if batch_first else rows), lengths


class ListedLengths(Sequence[int]):
    """The result of ``Tensor.tolist`` during the export, when the values are not known.

    ``pack_padded_sequence`` converts it back to a tensor. Reading a value raises an error.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __len__(self) -> int:
        raise self._refused()

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: Any) -> Any:
        """Raise an error: the values are not known."""
        raise self._refused()

    def __iter__(self) -> Iterator[int]:
        raise self._refused()

    def _refused(self) -> Exception:
        return refusal(
            "Tensor.tolist",
            "the graph would contain the values of the example inputs as constants",
            "use the tensor instead of a list; pack_padded_sequence accepts it",
        )


def listed(own: Any, values: Tensor) -> Any:
    """Replaces ``Tensor.tolist`` during tracing; ``own`` is the original."""
    return ListedLengths(values) if values.dim() == 1 else own(values)


def unlisted(own: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
    """Replaces ``torch.as_tensor`` and ``torch.tensor``; ``own`` is the original."""
    if isinstance(values, ListedLengths):
        dtype = kwargs.get("dtype")
        return values.values if dtype is None else values.values.to(dtype)
    return own(values, *args, **kwargs)


_OPERATORS = {"GRU": "GRU", "LSTM": "LSTM", "RNN_TANH": "RNN", "RNN_RELU": "RNN"}
# The index in torch of each of ONNX's gates: update, reset, new; input, output, forget, cell.
_GATES = {"GRU": (1, 0, 2), "LSTM": (0, 3, 1, 2), "RNN_TANH": (0,), "RNN_RELU": (0,)}
_CLASSES = (nn.GRU, nn.LSTM, nn.RNN)
_BUFFER = "onnx_{kind}_l{layer}"  # kind: W input, R recurrent, B bias, as ONNX names them


@contextlib.contextmanager
def recurrent_operators(module: nn.Module, lengths: PackedLengths) -> Iterator[None]:
    """Within the block, export the recurrent layers of a module as ONNX operators.

    Args:
        module: the module; within the block its layers have buffers with reordered weights.
        lengths: the lengths of the sequences that are packed within the block.

    Raises:
        ExportError: a layer has an option that ONNX does not support.
    """
    layers = {name: part for name, part in module.named_modules() if isinstance(part, nn.RNNBase)}
    for name, layer in layers.items():
        _check(name, layer)

    def forward(own: Callable[..., Any], layer: nn.RNNBase, *args: Any, **kwargs: Any) -> Any:
        return _forward(layer, lengths, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for layer in layers.values():
            stack.callback(_remove_buffers, layer)
            _add_buffers(layer)
        for cls in _CLASSES:
            stack.enter_context(replaced(cls, "forward", forward))
        yield


def _check(name: str, layer: nn.RNNBase) -> None:
    kind = f"{name or 'the module'} (nn.{_OPERATORS.get(layer.mode, layer.mode)})"
    if layer.mode not in _OPERATORS:
        raise refusal(kind, "this kind of cell is not supported", "use nn.GRU, nn.LSTM or nn.RNN")
    if layer.proj_size:
        raise refusal(
            kind,
            f"ONNX has no operator for proj_size={layer.proj_size}",
            "use proj_size=0 and an nn.Linear on the output, or loop over nn.LSTMCell in step",
        )
    if layer.training and layer.dropout:
        raise refusal(kind, "it is in training mode", "call .eval() first")


def _add_buffers(layer: nn.RNNBase) -> None:
    # The older weight_norm and spectral_norm compute the weights when the layer is called.
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm | SpectralNorm):
            hook(layer, ())
    ends = ("", "_reverse") if layer.bidirectional else ("",)
    gates = list(_GATES[layer.mode])

    def reordered(kind: str, number: int, end: str) -> Tensor:
        weight: Tensor = getattr(layer, f"{kind}_l{number}{end}").detach()
        rows = weight.size(0) // len(gates)
        return torch.cat([weight.split(rows)[gate] for gate in gates])

    for number in range(layer.num_layers):
        stacked = {
            "W": [reordered("weight_ih", number, end) for end in ends],
            "R": [reordered("weight_hh", number, end) for end in ends],
        }
        if layer.bias:
            stacked["B"] = [
                torch.cat([reordered("bias_ih", number, end), reordered("bias_hh", number, end)])
                for end in ends
            ]
        for kind, tensors in stacked.items():
            name = _BUFFER.format(kind=kind, layer=number)
            layer.register_buffer(name, torch.stack(tensors), persistent=False)


def _remove_buffers(layer: nn.RNNBase) -> None:
    for number in range(layer.num_layers):
        for kind in "WRB":
            name = _BUFFER.format(kind=kind, layer=number)
            if name in layer._buffers:
                delattr(layer, name)


def _forward(
    layer: nn.RNNBase, known: PackedLengths, inputs: Tensor | PackedSequence, hx: Any = None
) -> tuple[Any, Any]:
    """Replaces the ``forward`` of ``nn.GRU``, ``nn.LSTM`` and ``nn.RNN``."""
    if _BUFFER.format(kind="W", layer=0) not in layer._buffers:
        raise refusal(
            f"nn.{_OPERATORS[layer.mode]}",
            "the layer is not a submodule of the exported module",
            "assign it to an attribute of the module, or keep it in an nn.ModuleList",
        )
    if isinstance(inputs, PackedSequence):
        states = _states(hx)
        if inputs.sorted_indices is not None:
            states = [state.index_select(1, inputs.sorted_indices) for state in states]
        output, finals = _run(layer, inputs.data, known.of(inputs), states)
        if inputs.unsorted_indices is not None:
            finals = [state.index_select(1, inputs.unsorted_indices) for state in finals]
        return inputs._replace(data=output), _like_torch(finals)
    batched = inputs.dim() == 3
    x, states = inputs, _states(hx)
    if not batched:
        x = x.unsqueeze(0 if layer.batch_first else 1)
        states = [state.unsqueeze(1) for state in states]
    layer.check_input(x, None)
    x = x.transpose(0, 1) if layer.batch_first else x
    output, finals = _run(layer, x, None, states)
    output = output.transpose(0, 1) if layer.batch_first else output
    if not batched:
        output = output.squeeze(0 if layer.batch_first else 1)
        finals = [state.squeeze(1) for state in finals]
    return output, _like_torch(finals)


def _states(hx: Any) -> list[Tensor]:
    """The initial states as a list: none, one, or the two of an LSTM."""
    if hx is None:
        return []
    return [hx] if isinstance(hx, Tensor) else list(hx)


def _like_torch(finals: list[Tensor]) -> Any:
    return finals[0] if len(finals) == 1 else tuple(finals)


def _run(
    layer: nn.RNNBase, x: Tensor, lengths: Tensor | None, states: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Run all layers of one module.

    Args:
        layer: the module.
        x: (T, B, I).
        lengths: (B,) int64; None if every row has T time steps.
        states: each (layers * D, B, H); empty for zeros.

    Returns:
        output: (T, B, D * H), zeros past a row's length.
        finals: each (layers * D, B, H).
    """
    expected = (layer.num_layers * (2 if layer.bidirectional else 1), x.size(1), layer.hidden_size)
    for state in states:
        layer.check_hidden_size(state, expected)
    directions = expected[0] // layer.num_layers
    counts = None if lengths is None else lengths.to(torch.int32)
    finals: list[Sequence[Tensor]] = []
    for number in range(layer.num_layers):
        begun = states
        if layer.num_layers > 1:
            begun = [state[number * directions : (number + 1) * directions] for state in states]
        output, *final = _operator(layer, number, x, counts, begun)
        # (T, D, B, H) to (T, B, D * H)
        x = output.squeeze(1) if directions == 1 else output.transpose(1, 2).flatten(2)
        finals.append(final)
    last = zip(*finals, strict=True)
    return x, [states[0] if len(states) == 1 else torch.cat(states) for states in last]


def _operator(
    layer: nn.RNNBase, number: int, x: Tensor, counts: Tensor | None, states: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Run one layer, all directions: output (T, D, B, H) and final states, each (D, B, H)."""
    directions = 2 if layer.bidirectional else 1
    attributes: dict[str, Any] = {
        "hidden_size": layer.hidden_size,
        "direction": "bidirectional" if layer.bidirectional else "forward",
    }
    if layer.mode == "GRU":
        attributes["linear_before_reset"] = 1
    if layer.mode == "RNN_RELU":
        attributes["activations"] = ["Relu"] * directions
    weights = [layer._buffers.get(_BUFFER.format(kind=kind, layer=number)) for kind in "WRB"]
    state = (directions, x.size(1), layer.hidden_size)
    finals = 2 if layer.mode == "LSTM" else 1
    return torch.onnx.ops.symbolic_multi_out(
        _OPERATORS[layer.mode],
        [x, *weights, counts, *states],
        attrs=attributes,
        dtypes=(x.dtype,) * (1 + finals),
        shapes=((x.size(0), *state), *(state,) * finals),
    )


# One step of a layer. torch's exporter has no form of these: it traces a program with one again.


def gru_cell(x: Tensor, hidden: Tensor, *weights: Any) -> Tensor:
    """See ``nn.GRUCell``."""
    of_input, of_hidden = (each.chunk(3, 1) for each in _of_gates(x, hidden, *weights))
    reset = torch.sigmoid(of_hidden[0] + of_input[0])
    update = torch.sigmoid(of_hidden[1] + of_input[1])
    new = torch.tanh(of_input[2] + of_hidden[2] * reset)
    return (hidden - new) * update + new


def lstm_cell(x: Tensor, states: Sequence[Tensor], *weights: Any) -> tuple[Tensor, Tensor]:
    """See ``nn.LSTMCell``."""
    of_input, of_hidden = _of_gates(x, states[0], *weights)
    into, forget, new, out = (of_hidden + of_input).chunk(4, 1)
    cell = torch.sigmoid(forget) * states[1] + torch.sigmoid(into) * torch.tanh(new)
    return torch.sigmoid(out) * torch.tanh(cell), cell


def rnn_cell(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """See ``nn.RNNCell``."""
    return lambda *given: function(torch.add(*_of_gates(*given)))


def _of_gates(
    x: Tensor, hidden: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
) -> tuple[Tensor, Tensor]:
    """The gates' sums of the input and of the state, each (B, G * H)."""
    return F.linear(x, w_ih, b_ih), F.linear(hidden, w_hh, b_hh)


# torch's function, which the layer calls, to its form.
CELLS: dict[Any, Callable[..., Any]] = {
    torch.gru_cell: gru_cell,
    torch.lstm_cell: lstm_cell,
    torch.rnn_tanh_cell: rnn_cell(torch.tanh),
    torch.rnn_relu_cell: rnn_cell(torch.relu),
}
