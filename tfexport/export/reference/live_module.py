"""Calling a user's module, as held in memory, on unpadded rows; the module is not changed."""

import contextlib
import copy
import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tfexport.errors import ConfigError
from tfexport.model_src.checkpoint.checkpoint import Checkpoint

# Known signatures of modules, and how to call each. A module with one of them is compared by
# default.
#
# The signatures are those of PyTorch's tutorial, nn.Transformer (also rebuilt), the Annotated
# Transformer, the RMSNorm Transformer, and the models of transformers. A signature matches only if
# the parameters have exactly these names in this order; models of transformers are recognised by
# their class. Rows are never padded, so masks only hide later tokens.
#
# Axes: B rows, S source, T target, V vocabulary, E model width.


Names = tuple[str, ...]


@dataclass(frozen=True)
class ForwardCall:
    """One call of a module.

    Attributes:
        module: the module to call.
        source: source ids or vectors, with axes in the module's order: (B, S) or (S, B).
        target: target ids or vectors, in the same order of axes.
        rows: the number of rows, B.
    """

    module: Any
    source: Tensor
    target: Tensor
    rows: int

    @property
    def lengths(self) -> tuple[int, int]:
        """The lengths of source and target, S and T."""
        first, second = self.source.shape[:2], self.target.shape[:2]
        return first.numel() // self.rows, second.numel() // self.rows

    def future(self) -> Tensor:
        """(T, T), True above the diagonal."""
        return self.no_mask(self.lengths[1], self.lengths[1]).logical_not().triu(1)

    def added_future(self) -> Tensor:
        """(T, T), -inf above the diagonal, 0 elsewhere."""
        blocked = self.future()
        return torch.zeros(blocked.shape, device=blocked.device).masked_fill(blocked, -torch.inf)

    def no_mask(self, *shape: int) -> Tensor:
        """False everywhere."""
        return torch.zeros(*shape, dtype=torch.bool, device=self.source.device)


@dataclass(frozen=True)
class Known:
    """A known signature.

    Attributes:
        layouts: the layouts for which it is known; in other models the same parameter names may
            have another meaning.
        methods: method name to the names of its parameters.
        run: calls the methods; returns logits, log-probabilities, probabilities or decoder states.
        batch_first: whether the batch is the first axis; None to read it from the attention layers.
        may_give_states: whether the output may be decoder states, of width ``d_model``, to which
            the module's ``generator`` is then applied.
    """

    layouts: Names
    methods: dict[str, Names]
    run: Callable[[ForwardCall], Tensor]
    batch_first: bool | None = True
    may_give_states: bool = True


def find_known(module: nn.Module, layout: str) -> Known:
    """Find the signature of a module.

    Raises:
        ConfigError: the signature is not known; the message is a phrase without a full stop.
    """
    for known in KNOWN:
        if layout in known.layouts and all(
            _parameters(module, method) == names for method, names in known.methods.items()
        ):
            return known
    if _is_of_transformers(module):
        return Known((layout,), {"forward": _OF_TRANSFORMERS}, _transformers, may_give_states=False)
    names = ", ".join(_parameters(module, "forward") or ())
    raise ConfigError(f"{type(module).__name__}.forward({names}) has an unknown signature")


def _parameters(module: nn.Module, method: str) -> Names | None:
    try:
        return tuple(inspect.signature(getattr(module, method)).parameters)
    except (AttributeError, TypeError, ValueError):  # none, or not a Python function
        return None


def _is_of_transformers(module: nn.Module) -> bool:
    """Whether a module is a model of transformers; all of these name their parameters alike."""
    packages = {kind.__module__.partition(".")[0] for kind in type(module).__mro__}
    parameters = _parameters(module, "forward") or ()
    return "transformers" in packages and {*_OF_TRANSFORMERS} <= {*parameters}


def _transformers(call: ForwardCall) -> Tensor:
    mask = torch.ones_like(call.source)
    given = dict(zip(_OF_TRANSFORMERS, (call.source, mask, call.target), strict=True))
    logits: Tensor = call.module(**given, use_cache=False, return_dict=True).logits
    return logits


def _tutorial(call: ForwardCall) -> Tensor:
    source, target = call.lengths
    padding = call.no_mask(call.rows, source)
    logits: Tensor = call.module(
        call.source,
        call.target,
        call.no_mask(source, source),
        call.added_future(),
        padding,
        call.no_mask(call.rows, target),
        padding,
    )
    return logits


def _tutorial_steps(call: ForwardCall) -> Tensor:
    source, _ = call.lengths
    memory = call.module.encode(call.source, call.no_mask(source, source))
    states: Tensor = call.module.decode(call.target, memory, call.added_future())
    return states


def _nn_transformer(call: ForwardCall) -> Tensor:
    states: Tensor = call.module(call.source, call.target, tgt_mask=call.added_future())
    return states


def _annotated(call: ForwardCall) -> Tensor:
    states: Tensor = call.module(call.source, call.target, *_keep_masks(call))
    return states


def _annotated_steps(call: ForwardCall) -> Tensor:
    source_mask, target_mask = _keep_masks(call)
    memory = call.module.encode(call.source, source_mask)
    states: Tensor = call.module.decode(memory, source_mask, call.target, target_mask)
    return states


def _keep_masks(call: ForwardCall) -> tuple[Tensor, Tensor]:
    """(B, 1, S) and (B, T, T), True = kept."""
    future = call.future()
    source = ~call.no_mask(call.rows, 1, call.lengths[0])
    return source, ~future.expand(call.rows, *future.shape)


def _rmsnorm(call: ForwardCall) -> Tensor:
    probabilities: Tensor = call.module(call.source, call.target, call.future())
    return probabilities


_OF_TRANSFORMERS = ("input_ids", "attention_mask", "decoder_input_ids")
_STOCK, _REBUILT = "nn-transformer", "nn-transformer-rebuilt"
_PADDING = ("src_key_padding_mask", "tgt_key_padding_mask", "memory_key_padding_mask")
_TORCH = ("src", "tgt", "src_mask", "tgt_mask", "memory_mask", *_PADDING)
_CAUSAL = ("src_is_causal", "tgt_is_causal", "memory_is_causal")
_OF_TUTORIAL = ("src_padding_mask", "tgt_padding_mask", "memory_key_padding_mask")
KNOWN = (
    Known(
        (_STOCK,),
        {"forward": ("src", "trg", "src_mask", "tgt_mask", *_OF_TUTORIAL)},
        _tutorial,
        batch_first=None,
        may_give_states=False,
    ),
    Known((_STOCK, _REBUILT), {"forward": _TORCH}, _nn_transformer, batch_first=None),
    Known((_STOCK,), {"forward": (*_TORCH, *_CAUSAL)}, _nn_transformer, batch_first=None),
    Known(("annotated",), {"forward": ("src", "tgt", "src_mask", "tgt_mask")}, _annotated),
    Known(
        ("rmsnorm",),
        {"forward": ("input_seq", "output_seq", "mask_mat")},
        _rmsnorm,
        may_give_states=False,
    ),
    Known(
        (_STOCK,),
        {"encode": ("src", "src_mask"), "decode": ("tgt", "memory", "tgt_mask")},
        _tutorial_steps,
        batch_first=None,
    ),
    Known(
        ("annotated",),
        {"encode": ("src", "src_mask"), "decode": ("memory", "src_mask", "tgt", "tgt_mask")},
        _annotated_steps,
    ),
)


class LiveModule:
    """A module whose ``forward``, or ``encode`` and ``decode``, has a known signature.

    Attributes:
        title: the module and its methods, for reports.
    """

    def __init__(self, module: nn.Module, checkpoint: Checkpoint) -> None:
        """Find the module's signature.

        Args:
            module: the module.
            checkpoint: the checkpoint that was read from the module.

        Raises:
            ConfigError: the signature is not known; the message is a phrase without a full stop.
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
            found = self._known.run(ForwardCall(self._module, own_source, own_target, len(source)))
            if self._known.may_give_states:
                found = self._projected(found)
        return found if self._batch_first else found.transpose(0, 1)

    def _projected(self, found: Tensor) -> Tensor:
        width, vocabulary = self._config.d_model, self._config.target_vocab_size
        if vocabulary is None or found.size(-1) != width:
            return found
        if width == vocabulary:
            raise ConfigError(
                f"an output of width {width} is ambiguous: d_model is the vocabulary size too"
            )
        generator = getattr(self._module, "generator", None)
        return generator(found) if isinstance(generator, nn.Module) else found


class PlainModule:
    """A module that is called as ``module(source, target)``."""

    def __init__(self, module: nn.Module) -> None:
        self._module = in_single_precision(module)

    def __call__(self, source: Tensor, target: Tensor) -> Tensor:
        """Source (B, S) and target (B, T) to the module's output."""
        with evaluated(self._module):
            found: Tensor = self._module(*like_parameters(self._module, source, target))
        return found


@contextlib.contextmanager
def evaluated(module: nn.Module) -> Iterator[None]:
    """Run a module in eval mode without gradients, then restore the mode of every part."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        module.eval()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about masks and its fast path
            yield
    finally:
        for part, training in modes:
            part.training = training


def in_single_precision(module: nn.Module) -> nn.Module:
    """The module, or a float32 copy if it has half-precision tensors: exports are in float32."""
    tensors = [*module.parameters(), *module.buffers()]
    if any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in tensors):
        return copy.deepcopy(module).float()
    return module


def like_parameters(module: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """Move inputs to the device of a module's parameters, and vectors to their dtype."""
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
        raise ConfigError(f"{type(module).__name__} does not have one common value of batch_first")
    return found.pop()
