"""Layers of torch in forms that its ONNX exporter keeps dynamic, while a module is exported.

Each form computes what the layer computes in eval mode without gradients. Where ONNX has no equal
form, the layer is refused by name.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from tfexport.export import torch_names
from tfexport.export.graphs.torch_layers import attention
from tfexport.export.graphs.torch_layers.attention import split_weights
from tfexport.export.graphs.torch_layers.capture import (
    Baked,
    dynamic_len,
    of_number,
    recorded_lines,
    replaced_if_there,
)
from tfexport.export.graphs.torch_layers.functions import functions, stay_on_cpu
from tfexport.export.graphs.torch_layers.of_transformers import forms_of
from tfexport.export.graphs.torch_layers.recurrent import PackedLengths, listed, recurrent_operators
from tfexport.export.graphs.torch_layers.replaced import first_refusal, replaced

_ONE_EXPORT = threading.RLock()
# (class or module, attribute, its replacement)
_FORWARDS: Sequence[tuple[Any, str, Callable[..., Any]]] = (
    (nn.MultiheadAttention, "forward", attention.attention_module),
    (nn.TransformerEncoder, "forward", attention.encoder),
    (nn.TransformerEncoderLayer, "forward", attention.encoder_layer),
    (nn.Module, "to", stay_on_cpu),
)
_PRIVATE: Mapping[str, Callable[..., Any]] = {
    torch_names.CAUSAL_HINT: attention.is_causal_hint,
    **dict.fromkeys(torch_names.TENSOR_LISTS, listed),
    torch_names.TRUTH: of_number,
}


@contextlib.contextmanager
def exportable_layers(module: nn.Module) -> Iterator[None]:
    """Give torch's layers their exportable forms, in this thread and inside the block.

    Args:
        module: what is exported. Its recurrent and attention layers have more buffers inside the
            block.

    Raises:
        ExportError: a layer or an option that has no equal form in ONNX, or code that works for
            one size of an axis only.
    """
    lengths, baked = PackedLengths(), Baked()
    with _ONE_EXPORT, contextlib.ExitStack() as stack:
        for owner, name, form in (*_FORWARDS, *forms_of(module)):
            stack.enter_context(replaced(owner, name, form))
        for private, form in _PRIVATE.items():
            stack.enter_context(replaced_if_there(private, form))
        stack.enter_context(recorded_lines(baked))
        stack.enter_context(dynamic_len())
        stack.enter_context(split_weights(module))
        stack.enter_context(recurrent_operators(module, lengths))
        stack.enter_context(_Functions(lengths))
        try:
            yield
        except Exception as error:
            refused = first_refusal(error) or baked.error(error)
            if refused is None or refused is error:
                raise
            raise refused from error


class _Functions(TorchFunctionMode):
    """Calls of torch's functions, under any imported name."""

    def __init__(self, lengths: PackedLengths) -> None:
        super().__init__()
        self._forms = functions(lengths)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        form = self._forms.get(func)
        if form is None:
            return func(*args, **kwargs or {})
        return form(func, *args, **kwargs or {})
