"""Live modules as functions of unpadded rows: evaluated, and left as they were."""

import contextlib
import copy
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tfexport.errors import ConfigError
from tfexport.export.reference.signatures import Call, find_known
from tfexport.model_src.checkpoint.checkpoint import Checkpoint


class LiveModule:
    """A module whose ``forward``, or ``encode`` and ``decode``, has a known signature.

    Attributes:
        title: which methods are run, for people.
    """

    def __init__(self, module: nn.Module, checkpoint: Checkpoint) -> None:
        """Find out how the module is called.

        Args:
            module: whose weights the checkpoint holds.
            checkpoint: its layout and config.

        Raises:
            ConfigError: it is not known; the message is a phrase without a full stop.
        """
        self._known = find_known(module, checkpoint.layout)
        self.title = f"your {type(module).__name__}.{' and '.join(self._known.methods)}"
        self._config = checkpoint.config
        batch_first = self._known.batch_first
        self._batch_first = _is_batch_first(module) if batch_first is None else batch_first
        self._module = in_single_precision(module)

    def __call__(self, source: Tensor, target: Tensor) -> Tensor:
        """Source (B, S) and target (B, T) to logits, log-probabilities or probabilities.

        Axes: B rows, S source, T target. The output is (B, T, V), V the vocabulary; without
        embeddings the inputs are vectors and the output decoder states (B, T, E).
        """
        own_source, own_target = (
            each if self._batch_first else each.transpose(0, 1)
            for each in like_parameters(self._module, source, target)
        )
        with evaluated(self._module):
            found = self._known.run(Call(self._module, own_source, own_target, len(source)))
            if self._known.may_give_states:
                found = self._projected(found)
        return found if self._batch_first else found.transpose(0, 1)

    def _projected(self, found: Tensor) -> Tensor:
        width, vocabulary = self._config.d_model, self._config.target_vocab_size
        if vocabulary is None or found.size(-1) != width:
            return found
        if width == vocabulary:
            raise ConfigError(
                f"{width} is the model's width and the vocabulary's size: which is it"
            )
        generator = getattr(self._module, "generator", None)
        return generator(found) if isinstance(generator, nn.Module) else found


class PlainModule:
    """A module that is called with source and target ids alone."""

    def __init__(self, module: nn.Module) -> None:
        self._module = in_single_precision(module)

    def __call__(self, source: Tensor, target: Tensor) -> Tensor:
        """Source (B, S) and target (B, T) to whatever the module gives."""
        with evaluated(self._module):
            found: Tensor = self._module(*like_parameters(self._module, source, target))
        return found


@contextlib.contextmanager
def evaluated(module: nn.Module) -> Iterator[None]:
    """Run a module in eval mode without gradients, then give every part its mode back."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        module.eval()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about masks and its fast path
            yield
    finally:
        for part, training in modes:
            part.training = training


def in_single_precision(module: nn.Module) -> nn.Module:
    """The module, or a copy in float32 if it holds half precision: its export is in float32."""
    tensors = [*module.parameters(), *module.buffers()]
    if any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in tensors):
        return copy.deepcopy(module).float()
    return module


def like_parameters(module: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """Inputs on the device of a module's parameters; vectors in their precision too."""
    example = next(module.parameters(), torch.zeros(()))
    return [each.to(example if each.is_floating_point() else example.device) for each in inputs]


def _is_batch_first(module: nn.Module) -> bool:
    parts = [
        part
        for part in module.modules()
        if part is module or isinstance(part, nn.Transformer | nn.MultiheadAttention)
    ]
    found = {value for part in parts if isinstance(value := vars(part).get("batch_first"), bool)}
    if len(found) != 1:
        raise ConfigError(f"{type(module).__name__} has no single value of batch_first")
    return found.pop()
