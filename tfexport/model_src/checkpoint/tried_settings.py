"""Settings that names do not show, found by trying them against the user's own forward.

Letters: B batch, S source length, T target length, V vocabulary.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tfexport.errors import ConfigError, Message, Option, join_problems
from tfexport.model_src.build import build_transformer
from tfexport.model_src.checkpoint.checkpoint import OUTPUT_TABLE, QUERY, Examination, size_of
from tfexport.model_src.checkpoint.overrides import SETTINGS
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.embedding import halves_table, sinusoidal_table, t2t_table

TRIED = "found by trying, against your forward"
_AGREES = 1e-4  # the largest difference of log-probabilities
_EQUAL = 2e-5  # of outputs that differ by rounding alone
_NEAR = 4  # how many coarse candidates are tried with every fine setting
# Values that change much, and values that change little.
_COARSE: Mapping[str, Sequence[Any]] = {
    "norm_placement": ("post", "pre", "res_post"),
    "scale_embeddings": (False, True),
    "activation": ("relu", "gelu", "silu"),
    "relative_positions": ("none", "rotary"),
    "positions": ("sinusoidal", "sinusoidal_halves", "sinusoidal_t2t", "none"),
    "norm": ("layer", "rms"),
    "norm_eps": (1e-6,),
}
_FINE: Mapping[str, Sequence[Any]] = {
    "activation": ("relu", "gelu", "gelu_tanh", "quick_gelu", "silu"),
    "norm": ("layer", "annotated", "rms"),
    "norm_eps": (1e-5, 1e-6, 1e-8, 1e-12, 1e-3),
}
_FINAL_NORMS = ("encoder_final_norm", "decoder_final_norm")
TRIABLE = (*_COARSE, "num_heads", *_FINAL_NORMS)
_COMPUTED: Mapping[str, Callable[[int, int], Tensor]] = {
    "sinusoidal": sinusoidal_table, "sinusoidal_halves": halves_table, "sinusoidal_t2t": t2t_table,
}  # fmt: skip
_MOST_HEADS = 64
_QUERY = "_attn.q_proj."


@dataclass(frozen=True)
class _Drawn:
    """Drawn ids, (B, S) and (B, T), and the log-probabilities (B, T, V) of the user's forward."""

    source: Tensor
    target: Tensor
    wanted: Tensor


@dataclass(frozen=True)
class Tried:
    """Settings that were tried.

    Attributes:
        values: config key to the value.
        query_scale: a factor of all queries.
        logit_scale: a factor of the logits.
        difference: the largest difference of log-probabilities.
        output: log-probabilities, (B, T, V).
    """

    values: Mapping[str, Any]
    query_scale: float
    logit_scale: float
    difference: float
    output: Tensor

    def scale(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights whose queries and logits have the factors; the output table is then not tied."""
        scaled = _scaled_queries(weights, self.query_scale)
        for name in (OUTPUT_TABLE, OUTPUT_TABLE.replace("weight", "bias")):
            if name in scaled and self.logit_scale != 1.0:
                scaled[name] = scaled[name] * self.logit_scale
        return scaled


def try_settings(
    name: str,
    read: Callable[[Mapping[str, Any]], Examination],
    reference: Callable[..., Any],
) -> Tried:
    """Find the missing settings of a checkpoint whose names were matched.

    Args:
        name: the checkpoint, for messages.
        read: reads it with more settings.
        reference: the user's own code: ids (B, S) and (B, T) to logits (B, T, V).

    Raises:
        ConfigError: no settings agree with the reference, or several that differ.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a few tokens, many times: threads would wait for each other
    try:
        with torch.no_grad():
            return _find(name, read, reference)
    finally:
        torch.set_num_threads(threads)


def _find(
    name: str,
    read: Callable[[Mapping[str, Any]], Examination],
    reference: Callable[..., Any],
) -> Tried:
    plain = read({})
    config = plain.checkpoint.config
    missing = [key for key in plain.missing if key in TRIABLE]
    drawn = _draw(name, config, reference)
    finals = [key for key in missing if key in _FINAL_NORMS]
    values = [dict.fromkeys(finals, it) for it in ((True, False) if finals else (True,))]
    readings = [(each, read(each)) for each in values]
    found = _search(readings, drawn, missing, 1.0)
    if not found or found[0].difference > _AGREES:
        # Scores that are divided by something else than the root of the head size.
        without = [({**each, "scale_scores": False}, reading) for each, reading in readings]
        for query_scale in (1 / math.sqrt(config.d_model), 1.0):
            found += _search(without, drawn, missing, query_scale)
    return choose(name, sorted(found, key=lambda it: it.difference), missing)


_Readings = Sequence[tuple[Mapping[str, Any], Examination]]


def _search(
    readings: _Readings, drawn: _Drawn, missing: Sequence[str], query_scale: float
) -> list[Tried]:
    """The nearest settings first: coarse ones, then fine ones near the best of these."""
    coarse = [
        (found, reading)
        for values, reading in readings
        for found in _run(
            reading, drawn, values, _candidates(reading, missing, _COARSE), query_scale
        )
    ]
    nearest = sorted(coarse, key=lambda it: it[0].difference)[:_NEAR]
    fine = [
        found
        for near, reading in nearest
        for found in _run(
            reading, drawn, near.values, _candidates(reading, missing, _FINE), query_scale
        )
    ]
    return sorted([*(near for near, _ in nearest), *fine], key=lambda it: it.difference)


def _draw(name: str, config: TransformerConfig, reference: Callable[..., Any]) -> _Drawn:
    random = torch.Generator().manual_seed(0)

    def ids(size: int | None, length: int) -> Tensor:
        drawn = torch.randint(0, size or 1, (3, length), generator=random)
        special = [it for it in (config.pad_id, config.eos_id) if it is not None]
        other = next(it for it in range(size or 1) if it not in special)
        for each in special:
            drawn[drawn == each] = other
        return drawn

    source, target = ids(config.source_vocab_size, 7), ids(config.target_vocab_size, 6)
    if config.bos_id is not None:
        target[:, 0] = config.bos_id
    try:
        wanted = reference(source, target)
    except Exception as error:
        raise ConfigError(
            Message(f"{name}: ", Option("reference"), f" raised {type(error).__name__}: {error}")
        ) from error
    expected = (3, 6, config.target_vocab_size)
    if not isinstance(wanted, Tensor) or tuple(wanted.shape) != expected:
        shape = tuple(wanted.shape) if isinstance(wanted, Tensor) else type(wanted).__name__
        raise ConfigError(
            Message(f"{name}: ", Option("reference"), f" returned {shape}, expected {expected}.")
        )
    return _Drawn(source, target, wanted.float().log_softmax(-1))


def _candidates(
    reading: Examination, missing: Iterable[str], values: Mapping[str, Sequence[Any]]
) -> dict[str, Sequence[Any]]:
    """The values to try, by missing key."""
    lists = {key: values[key] for key in missing if key in values}
    if "num_heads" in missing and values is _COARSE:
        rows = size_of(reading.checkpoint.weights, QUERY, 0) or 1
        lists["num_heads"] = [it for it in range(1, _MOST_HEADS + 1) if rows % it == 0]
    if not reading.checkpoint.config.norm_bias:
        return lists
    return {key: [it for it in its if it != "rms"] for key, its in lists.items()}


def _run(
    reading: Examination,
    drawn: _Drawn,
    fixed: Mapping[str, Any],
    lists: Mapping[str, Sequence[Any]],
    query_scale: float,
) -> Iterator[Tried]:
    """Run a model with each combination of values."""
    width = reading.checkpoint.config.d_model
    weights = _scaled_queries(reading.checkpoint.weights, query_scale)
    for chosen in itertools.product(*lists.values()):
        values = {**fixed, **dict(zip(lists, chosen, strict=True))}
        try:
            logits = _logits(reading, drawn, values, weights)
        except (ConfigError, RuntimeError):  # a combination that cannot be built
            continue
        for factor in (1.0, 1 / math.sqrt(width)):
            output = (logits * factor).log_softmax(-1)
            difference = float((output - drawn.wanted).abs().max())
            if math.isfinite(difference):
                yield Tried(values, query_scale, factor, difference, output)


def _logits(
    reading: Examination, drawn: _Drawn, values: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> Tensor:
    found = reading.checkpoint
    given = {**found.config.to_dict(), **values}
    if "num_heads" in values:
        given["head_dim"] = (size_of(found.weights, QUERY, 0) or 1) // values["num_heads"]
    config = TransformerConfig.from_dict(given)
    with torch.device("meta"):  # no weights are drawn
        model = build_transformer(config)
    computed = {
        name: _COMPUTED[config.positions](config.max_positions, config.d_model)
        for name in model.state_dict()
        if name.endswith("positions.table") and name not in weights
    }
    model.load_state_dict({**weights, **computed}, assign=True)
    ones = torch.ones_like(drawn.source), torch.ones_like(drawn.target)
    logits: Tensor = model.eval()(drawn.source, ones[0], drawn.target, ones[1])
    return logits


def choose(name: str, tried: Sequence[Tried], missing: Sequence[str]) -> Tried:
    """The settings that agree, if all that agree give one output.

    Args:
        name: the checkpoint, for messages.
        tried: the nearest first.
        missing: the keys that were tried.

    Raises:
        ConfigError: none agree, or several that differ.
    """
    words = Option(SETTINGS, [f"{key}=…" for key in missing])
    if not tried or tried[0].difference > _AGREES:
        best = ""
        if tried:
            shown = ", ".join(f"{key}={value}" for key, value in tried[0].values.items())
            best = f"; the nearest differ by {tried[0].difference:.2g} ({shown})"
        problem = f"no values of {', '.join(missing)} agree with your forward{best}"
        remedy = Message("The model computes something else, or its names were matched wrongly. If "
                         "you know some of them, set ", words)  # fmt: skip
        raise ConfigError(join_problems(name, [problem], remedy))
    best_one = tried[0]
    for other in tried[1:]:
        if other.difference > max(_AGREES, 4 * best_one.difference):
            break
        apart = float((other.output - best_one.output).abs().max())
        if other.difference <= 4 * best_one.difference and apart > _EQUAL:
            unlike = [key for key in missing if other.values.get(key) != best_one.values.get(key)]
            problem = f"several values of {', '.join(unlike)} agree with your forward, but differ"
            raise ConfigError(join_problems(name, [problem], Message("Set ", words)))
    return best_one


def _scaled_queries(weights: Mapping[str, Tensor], factor: float) -> dict[str, Tensor]:
    scaled = {} if factor == 1.0 else {k: it * factor for k, it in weights.items() if _QUERY in k}
    return {**weights, **scaled}
