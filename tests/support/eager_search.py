"""Greedy and beam search over a module of the contract, as docs/decoding.md defines them.

Written for tests from the definitions, one row and one hypothesis at a time, in eager PyTorch.
Nothing of the package takes part.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

Row = dict[str, Any]


@dataclass(frozen=True)
class Rules:
    """Options of a search, under the names of the library."""

    max_length: int
    min_length: int = 0
    suppress_tokens: tuple[int, ...] = ()
    length_penalty: float = 1.0
    beam_size: int = 1
    num_hypotheses: int = 1
    early_stopping: bool = True
    target_prefix: tuple[int, ...] = ()
    bos: int = 1
    eos: int = 2


@dataclass(frozen=True)
class Found:
    """A hypothesis: its tokens without the end token, and log-probabilities with it."""

    tokens: list[int]
    token_scores: list[float]
    finished: bool
    length_penalty: float = 1.0

    @property
    def score(self) -> float:
        count = len(self.token_scores)
        return math.fsum(self.token_scores) / count**self.length_penalty if count else 0.0


@dataclass(frozen=True)
class Node:
    """A hypothesis that is followed: its tokens, their log-probabilities, the next logits (V,)."""

    tokens: tuple[int, ...]
    token_scores: tuple[float, ...]
    logits: Tensor
    state: tuple[Tensor, ...] = ()

    @property
    def total(self) -> float:
        return math.fsum(self.token_scores)


@dataclass
class Closest:
    """The least distance between two candidates of which one was preferred."""

    gap: float = field(default=math.inf)

    def note(self, better: float, worse: float) -> None:
        if math.isfinite(better) and math.isfinite(worse):
            self.gap = min(self.gap, better - worse)


class EagerRow:
    """A module's own code over one row of inputs."""

    def __init__(self, module: Any, row: Row, bos: int) -> None:
        self._module = module
        self._bos = bos
        memory = self._module.encode(*(torch.from_numpy(array)[None] for array in row.values()))
        self._memory = _as_tuple(memory)

    def begin(self) -> Node:
        if hasattr(self._module, "decode"):
            return Node((), (), self._decode(()))
        state = _as_tuple(self._module.start(*self._memory))
        return Node((), (), *self._step(self._bos, 0, state))

    def follow(self, node: Node, token: int, log_prob: float) -> Node:
        tokens, scores = (*node.tokens, token), (*node.token_scores, log_prob)
        if hasattr(self._module, "decode"):
            return Node(tokens, scores, self._decode(tokens))
        return Node(tokens, scores, *self._step(token, len(tokens), node.state))

    def _decode(self, tokens: Sequence[int]) -> Tensor:
        logits: Tensor = self._module.decode(torch.tensor([[self._bos, *tokens]]), *self._memory)
        return logits[0, -1]

    def _step(
        self, token: int, position: int, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        logits, state = self._module.step(
            torch.tensor([[token]]), torch.tensor(position), state, self._memory
        )
        return logits[0], _as_tuple(state)


def _as_tuple(value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else value


def _log_probs(node: Node, rules: Rules) -> list[float]:
    """Of every token after penalties and bans; -inf if it is banned."""
    logits = node.logits.double()
    banned = list(rules.suppress_tokens)
    if len(node.tokens) < rules.min_length:
        banned.append(rules.eos)
    logits[banned] = -math.inf
    values: list[float] = logits.log_softmax(-1).tolist()
    return values


def _prefixed(eager: EagerRow, rules: Rules) -> Node:
    """The prefix, each token with the model's own probability."""
    node = eager.begin()
    for token in rules.target_prefix:
        own = node.logits.double().log_softmax(-1)[token].item()
        node = eager.follow(node, token, own)
    return node


@torch.no_grad()
def greedy(module: nn.Module, row: Row, rules: Rules, closest: Closest | None = None) -> Found:
    """The token with the largest logit, the lowest id on a tie, until the end."""
    eager = EagerRow(module, row, rules.bos)
    node = _prefixed(eager, rules)
    while len(node.tokens) < rules.max_length:
        values = _log_probs(node, rules)
        token = int(np.argmax(values))
        if closest is not None:
            best, second = sorted(values, reverse=True)[:2]
            closest.note(best, second)
        if token == rules.eos or len(node.tokens) + 1 == rules.max_length:
            return _found(node, rules, token, values[token])
        node = eager.follow(node, token, values[token])
    return _found(node, rules)


@torch.no_grad()
def beam(module: nn.Module, row: Row, rules: Rules, closest: Closest | None = None) -> list[Found]:
    """The ``num_hypotheses`` best that a beam of ``beam_size`` puts aside, best first."""
    eager = EagerRow(module, row, rules.bos)
    closest = closest or Closest()
    width = rules.beam_size
    followed, aside = [_prefixed(eager, rules)], list[Found]()
    if len(followed[0].tokens) == rules.max_length:
        return [_found(followed[0], rules)]
    while followed:
        ranked = _rank(followed, rules)
        going_on = [candidate for candidate in ranked if candidate.token != rules.eos]
        for candidates in (ranked, going_on):
            if len(candidates) > width:
                closest.note(candidates[width - 1].total, candidates[width].total)
        last = len(followed[0].tokens) + 1 == rules.max_length
        aside += [
            _found(candidate.parent, rules, candidate.token, candidate.log_prob)
            for candidate in ranked[:width]
            if last or candidate.token == rules.eos
        ]
        going_on = going_on[:width]
        if last or not going_on or _is_done(aside, going_on[0], rules):
            break
        followed = [eager.follow(*candidate) for candidate in going_on]
    best = sorted(aside, key=lambda found: -found.score)
    for better, worse in itertools.pairwise(best):
        closest.note(better.score, worse.score)
    return best[: rules.num_hypotheses]


class Candidate(NamedTuple):
    """A hypothesis with one more token."""

    parent: Node
    token: int
    log_prob: float

    @property
    def total(self) -> float:
        return self.parent.total + self.log_prob


def _rank(followed: list[Node], rules: Rules) -> list[Candidate]:
    """All candidates by sum; on a tie the better hypothesis first, then the lower id."""
    candidates = [
        Candidate(node, token, log_prob)
        for node in followed
        for token, log_prob in enumerate(_log_probs(node, rules))
        if math.isfinite(log_prob)
    ]
    return sorted(candidates, key=lambda candidate: -candidate.total)


def _is_done(aside: list[Found], best: Candidate, rules: Rules) -> bool:
    if rules.early_stopping:
        return len(aside) >= max(rules.beam_size, rules.num_hypotheses)
    if len(aside) < rules.num_hypotheses:
        return False
    worst = sorted((found.score for found in aside), reverse=True)[rules.num_hypotheses - 1]
    length = len(best.parent.tokens) + 1
    at_best = rules.max_length if rules.length_penalty > 0 else length + 1
    reachable: float = best.total / at_best**rules.length_penalty
    return worst >= reachable


def _found(node: Node, rules: Rules, token: int | None = None, log_prob: float = math.nan) -> Found:
    """A hypothesis that is complete, with its last token if there is one."""
    tokens, scores = list(node.tokens), list(node.token_scores)
    ended = token == rules.eos
    if token is not None:
        scores.append(log_prob)
        if not ended:
            tokens.append(token)
    return Found(tokens, scores, ended, rules.length_penalty)
