"""What eager PyTorch says, one source at a time."""

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tfexport.model_src import Transformer

Floats = NDArray[np.float32]


class Row:
    """A source that eager code decodes.

    Attributes:
        states: of the encoder, (S, E).
    """

    def __init__(self, model: Transformer, source: list[int]) -> None:
        self._model = model
        self._mask = torch.ones(1, len(source), dtype=torch.int64)
        with torch.no_grad():
            hidden, self._cross = model.encode(torch.tensor([source]), self._mask)
        self.states = hidden[0].numpy()

    def empty(self) -> list[Tensor]:
        """The cache of no token."""
        decoder = self._model.decoder
        return decoder.empty_cache(torch.zeros(1, 1, 1))

    def step(self, past: list[Tensor], tokens: list[int]) -> tuple[Floats, list[Tensor], Floats]:
        """Logits (T, V), the next cache, attention (L, H, T, S) of tokens behind a cache."""
        with torch.no_grad():
            logits, present, weights = self._model.step_attended(
                torch.tensor([tokens]), past, self._cross, self._mask
            )
        return logits[0].numpy(), present, torch.cat(weights).numpy()


def log_probs(logits: Floats) -> NDArray[np.float64]:
    """Over the last axis, in float64."""
    return torch.from_numpy(np.array(logits, np.float64)).log_softmax(-1).numpy()


class Found(NamedTuple):
    """A greedy search: tokens, their mean log-probability, and how close a choice was at least."""

    tokens: list[int]
    score: float
    gap: float


def greedy(
    model: Transformer, source: list[int], most: int, rules: dict[str, Any], least: int = 0
) -> Found:
    """The largest logit of each step, by the rules of the engine's config and a least length."""
    config, row = model.config, Row(model, source)
    steps = min(most, config.longest or most)
    past, token = row.empty(), config.special_ids.decoder_start
    tokens: list[int] = []
    total, gap = 0.0, math.inf
    for step in range(steps):
        logits, past, _ = row.step(past, [token])
        values = np.array(logits[-1], np.float64)
        values[rules.get("suppress_tokens", [])] = -math.inf
        if step < least:
            values[config.eos_id] = -math.inf
        forced = rules.get("first_token", -1) if step == 0 else -1
        if step + 1 == steps and rules.get("last_token", -1) >= 0:
            forced = rules["last_token"]
        if forced >= 0:
            token = forced
        else:
            token = int(values.argmax())
            order = np.sort(values)
            gap = min(gap, order[-1] - order[-2])
            total += float(log_probs(values)[token])
        tokens.append(token)
        if token == config.eos_id:
            break
    return Found(tokens, total / len(tokens), gap)


class Record(NamedTuple):
    """A sentence's beam search: tokens, parents, log-probabilities (T, 2 K), and the least gap."""

    tokens: list[list[int]]
    parents: list[list[int]]
    log_probs: list[list[float]]
    gap: float


def beam(model: Transformer, source: list[int], beams: int, enough: int, most: int) -> Record:
    """The best candidates of every step until ``enough`` hypotheses have ended."""
    config, row, many = model.config, Row(model, source), 2 * beams
    start = config.special_ids.decoder_start
    held = [(0.0, start, row.empty())]
    record = Record([], [], [], math.inf)
    finished, gap = 0, math.inf
    for _ in range(min(most, config.longest or most)):
        candidates, caches = [], []
        for parent, (total, last, past) in enumerate(held):
            logits, present, _ = row.step(past, [last])
            caches.append(present)
            values = log_probs(logits[-1])
            order = np.argsort(-values, kind="stable")[: many + 1]
            candidates += [(total + values[i], parent, int(i), values[i]) for i in order]
        candidates.sort(key=lambda candidate: -candidate[0])
        totals = [candidate[0] for candidate in candidates[: many + 1]]
        gap = min(gap, *(a - b for a, b in itertools.pairwise(totals)))
        best = candidates[:many]
        record.tokens.append([token for _, _, token, _ in best])
        record.parents.append([parent for _, parent, _, _ in best])
        record.log_probs.append([value for *_, value in best])
        finished += sum(token == config.eos_id for _, _, token, _ in best[:beams])
        if finished >= enough:
            break
        going_on = [candidate for candidate in best if candidate[2] != config.eos_id][:beams]
        held = [(total, token, caches[parent]) for total, parent, token, _ in going_on]
    return record._replace(gap=gap)
