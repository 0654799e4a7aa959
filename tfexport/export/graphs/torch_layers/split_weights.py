"""The packed weights of attention, split before exporting: torch's exporter splits at every run."""

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn

_WEIGHTS = ("onnx_q_weight", "onnx_k_weight", "onnx_v_weight")
_BIASES = ("onnx_q_bias", "onnx_k_bias", "onnx_v_bias")


@contextlib.contextmanager
def split_weights(module: nn.Module) -> Iterator[None]:
    """Give each ``nn.MultiheadAttention`` the thirds of its weights as buffers, inside the block.

    Args:
        module: whose layers are looked through.
    """
    layers = [part for part in module.modules() if isinstance(part, nn.MultiheadAttention)]
    try:
        for layer in layers:
            _add(layer, _WEIGHTS, layer.in_proj_weight)
            _add(layer, _BIASES, layer.in_proj_bias)
        yield
    finally:
        for layer in layers:
            for name in _WEIGHTS + _BIASES:
                layer._buffers.pop(name, None)
                layer._non_persistent_buffers_set.discard(name)


def _add(layer: nn.Module, names: tuple[str, ...], packed: Tensor | None) -> None:
    if packed is None:
        return
    for name, third in zip(names, packed.detach().chunk(3), strict=True):
        layer.register_buffer(name, third.clone(), persistent=False)


def split_projections(layer: nn.Module) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]] | None:
    """Weights and biases of queries, keys and values; None outside of ``split_weights``.

    Args:
        layer: an ``nn.MultiheadAttention`` with packed weights; there are no biases if it has none.
    """
    if _WEIGHTS[0] not in layer._buffers:
        return None
    weights, biases = (
        tuple(found for name in names if (found := layer._buffers.get(name)) is not None)
        for names in (_WEIGHTS, _BIASES)
    )
    return weights, biases
