"""The user's own code as the reference.

Axes: B rows, S source, T target, V vocabulary, E model width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tfexport.errors import ConfigError, Message, Option, Problem
from tfexport.export.named_code import one_line
from tfexport.export.reference.original import ModuleReference
from tfexport.export.report import LEAST_ALLOWED
from tfexport.export.rounding import Rounding, difference
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer

# Source ids without padding, and decoder ids.
Prefix = tuple[tuple[int, ...], tuple[int, ...]]
# All sizes differ, so that axes in another order are noticed.
PROBE_ROWS, PROBE_SOURCE, PROBE_TARGET = 2, 3, 4


@dataclass(frozen=True)
class OwnCode:
    """The user's own code.

    Attributes:
        title: the name in reports, such as "your Seq2SeqTransformer.forward".
        call: source ids (B, S) and decoder ids (B, T), int64, to logits, log-probabilities or
            probabilities (B, T, V). For a model without embeddings: float32 vectors (B, S, E) and
            (B, T, E) to decoder states (B, T, E).
        option: the option that it was passed with; None if it is the method of a module.
        causal: whether a call with source ids and decoder ids of these shapes computes what was
            compared with a causal model, so that a longer call gives its logits too; None if
            nothing was.
    """

    title: str
    call: Callable[[Tensor, Tensor], Any]
    option: str | None = None
    causal: Callable[[Tensor, Tensor], bool] | None = None

    def __call__(self, source: Tensor, target: Tensor) -> Any:
        """See ``call``."""
        return self.call(source, target)


class OwnCodeReference:
    """The user's code on unpadded rows; it returns log-probabilities, but no encoder states.

    ``encode`` returns the ids unchanged, as input of ``decode``. Rows whose decoder ids contain
    ``pad_id`` after the start token are not passed to the code, which may treat it as padding.
    They are run in the project's modules, which another stage compares with the code.
    """

    no_original: str | None = None

    def __init__(self, code: OwnCode, model: Transformer) -> None:
        """Check the code by calling it twice on a few ids.

        Raises:
            ConfigError: the code raises, returns an unexpected result, or different ones each time.
        """
        self.title = code.title
        self._code, self._config = code, model.config
        self._known: dict[Prefix, Tensor] = {}
        self._modules = ModuleReference(model, "")
        self._width = model.config.target_vocab_size or model.config.d_model
        self._gives_probabilities = False
        self._advice = Message("")
        inputs = probe_inputs(model.config)
        first, second = self._run(*inputs), self._run(*inputs)
        if self._varies(first, second, inputs):
            raise self._problem("returns different values each time; is dropout active in eval?")
        self._gives_probabilities = model.config.has_embeddings and _are_probabilities(first)
        limit = Option("settings", ["max_positions=…"])
        self._advice = Message(" If these are too long for it, set its limit with ", limit, ".")

    def _varies(self, first: Tensor, second: Tensor, inputs: tuple[Tensor, Tensor]) -> bool:
        """Whether two calls on the same ids differ by more than float32 explains."""
        found = difference(first.numpy(), second.numpy())
        if found <= LEAST_ALLOWED:
            return False
        exact = Rounding(self._code.call).exact(lambda: [self._run(*inputs), self._run(*inputs)])
        return exact is None or difference(*exact) > LEAST_ALLOWED

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the ids (B, S) unchanged."""
        return input_ids

    @property
    def causal(self) -> bool:
        """Whether a call gives the logits of prefixes too; see ``OwnCode``."""
        return self._code.causal is not None

    @contextlib.contextmanager
    def knowing(
        self, hidden: Tensor, attention_mask: Tensor, prefixes: Sequence[Tensor]
    ) -> Iterator[None]:
        """Inside the block, ``decode`` knows the last values after these prefixes, (B, T) each.

        Causal code is called with the longest of them alone, once for each length of the source.
        Prefixes of a length at which it takes another branch are not known.
        """
        if self.causal:
            self._known.update(self._values_after(hidden, attention_mask, prefixes))
        try:
            yield
        finally:
            self._known.clear()

    @torch.no_grad()
    def _values_after(
        self, hidden: Tensor, attention_mask: Tensor, prefixes: Sequence[Tensor]
    ) -> Iterator[tuple[Prefix, Tensor]]:
        """The last values (V,) after each prefix of each row."""
        of_sources: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
        causal = self._code.causal
        assert causal is not None
        for each in prefixes:
            own = ~self._hold_pad(each)
            for source, prefix in _pairs(hidden[own], attention_mask[own], each[own]):
                if causal(torch.tensor([source]), torch.tensor([prefix])):
                    of_sources.setdefault(source, set()).add(prefix)
        for length in {len(source) for source in of_sources}:
            rows = [
                (source, prefix)
                for source, wanted in of_sources.items() if len(source) == length
                for prefix in _longest(wanted)
            ]  # fmt: skip
            most = max(len(prefix) for _, prefix in rows)
            # What follows a prefix does not act on it.
            filled = [[*prefix, *prefix[-1:] * (most - len(prefix))] for _, prefix in rows]
            made = self._run(torch.tensor([source for source, _ in rows]), torch.tensor(filled))
            for (source, prefix), values in zip(rows, self._log_probs(made), strict=True):
                for end in range(1, len(prefix) + 1):
                    if prefix[:end] in of_sources[source]:
                        yield (source, prefix[:end]), values[end - 1]

    @torch.no_grad()
    def decode(
        self,
        hidden: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor,
        last_only: bool = False,
    ) -> Tensor:
        """Log-probabilities (B, T, V), or (B, 1, V); states without embeddings.

        All rows of one call of the code have the same source length.
        """
        lengths, holds_pad = attention_mask.sum(1), self._hold_pad(decoder_input_ids)
        values, left = torch.zeros(*decoder_input_ids.shape[:2], self._width), ~holds_pad
        if last_only and self._known:
            rows = _pairs(hidden, attention_mask, decoder_input_ids)
            for row, pair in enumerate(rows):
                if pair in self._known:
                    values[row, -1], left[row] = self._known[pair], False
        for length in lengths[left].unique().tolist():
            alike = (lengths == length) & left
            found = self._run(hidden[alike, :length], decoder_input_ids[alike])
            values[alike] = self._log_probs(found)
        if holds_pad.any():
            source, mask = hidden[holds_pad], attention_mask[holds_pad]
            memory = self._modules.encode(source, mask)
            values[holds_pad] = self._modules.decode(memory, mask, decoder_input_ids[holds_pad])
        if self._config.has_embeddings:
            values = values.log_softmax(-1)
        return values[:, -1:] if last_only else values

    def _hold_pad(self, decoder_input_ids: Tensor) -> Tensor:
        """(B,) whether ``pad_id`` follows the start token."""
        if not self._config.has_embeddings or self._config.pad_id is None:
            return torch.zeros(len(decoder_input_ids), dtype=torch.bool)
        return (decoder_input_ids[:, 1:] == self._config.pad_id).any(1)

    def _log_probs(self, found: Tensor) -> Tensor:
        if not self._gives_probabilities:
            return found
        return found.clamp(min=torch.finfo(torch.float32).tiny).log()

    def _run(self, source: Tensor, target: Tensor) -> Tensor:
        try:
            with torch.no_grad():
                found = self._code.call(source, target)
        except Exception as error:  # the user's code may raise anything
            shapes = f"{_shape(source)} and {_shape(target)}"
            text = Message(f"raised {one_line(error)} on inputs {shapes}.", self._advice)
            raise self._problem(text) from error
        if not isinstance(found, Tensor):
            raise self._problem(f"returned {_kind(found)}; expected a tensor of logits.")
        expected = (*target.shape[:2], self._width)
        if found.shape != expected:
            names = "(B, T, V)" if self._config.has_embeddings else "(B, T, E)"
            hint = _hint(tuple(found.shape), expected, self._config)
            raise self._problem(f"returned {_shape(found)}; expected {names} = {expected}{hint}.")
        if not found.is_floating_point():
            raise self._problem(f"returned {str(found.dtype)[6:]} values; expected floats.")
        if not found.isfinite().all():
            raise self._problem("returned values that are not finite (NaN or infinite).")
        return found.detach().to(torch.get_default_dtype()).cpu()

    def _problem(self, text: str | Message) -> ConfigError:
        return ConfigError(Message(Problem(self._code.option, Message(f"{self.title} ", text))))


def _pairs(source: Tensor, mask: Tensor, target: Tensor) -> Iterator[Prefix]:
    """The source ids and the decoder ids of each row."""
    lengths = mask.sum(1).tolist()
    for ids, length, prefix in zip(source.tolist(), lengths, target.tolist(), strict=True):
        yield tuple(ids[:length]), tuple(prefix)


def _longest(prefixes: Set[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Those that no other one continues."""
    continued = {each[:end] for each in prefixes for end in range(1, len(each))}
    return sorted(prefixes - continued)


def probe_inputs(config: TransformerConfig) -> tuple[Tensor, Tensor]:
    """A few source and decoder ids, or vectors, without special tokens except the start token."""
    longest = config.longest or max(PROBE_SOURCE, PROBE_TARGET)
    source, target = min(PROBE_SOURCE, longest), min(PROBE_TARGET, longest)
    if not config.has_embeddings:
        generator = torch.Generator().manual_seed(0)
        width = config.d_model
        return (
            torch.randn(PROBE_ROWS, source, width, generator=generator),
            torch.randn(PROBE_ROWS, target, width, generator=generator),
        )
    ids = [_ordinary(config, size) for size in (config.source_vocab_size, config.target_vocab_size)]
    rows = [
        each[torch.arange(PROBE_ROWS * length).reshape(PROBE_ROWS, length) % len(each)]
        for each, length in zip(ids, (source, target), strict=True)
    ]
    if config.decoder_start_id is not None:
        rows[1][:, 0] = config.decoder_start_id
    return rows[0], rows[1]


def _ordinary(config: TransformerConfig, size: int | None) -> Tensor:
    special = {config.pad_id, config.bos_id, config.eos_id, config.start_id}
    return torch.tensor([each for each in range(size or 1) if each not in special] or [0])


def _are_probabilities(values: Tensor) -> bool:
    inside = values.min() >= 0 and values.max() <= 1 + LEAST_ALLOWED
    return bool(inside and (values.sum(-1) - 1).abs().max() < 1e-3)


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def _kind(found: Any) -> str:
    if isinstance(found, tuple | list):
        return f"a {type(found).__name__} of {len(found)}"
    return f"a {type(found).__module__}.{type(found).__name__}".replace(" builtins.", " ")


def _hint(found: tuple[int, ...], expected: tuple[int, int, int], config: TransformerConfig) -> str:
    """The likely reason for a wrong shape; empty if unknown."""
    rows, length, width = expected
    hints = {
        (length, rows, width): "it looks sequence first, so transpose(0, 1)",
        (rows, width, length): "its last two axes look swapped",
        (rows, width): "it looks like the last position only; return all of them",
        (rows * length, width): "it looks flattened; keep the axes apart",
        (rows, length, config.d_model): "it looks like decoder states; apply the generator",
        (length, rows, config.d_model): "it looks like decoder states, sequence first",
    }
    return f": {hints[found]}" if found in hints else ""
