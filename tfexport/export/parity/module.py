"""Comparison of a custom module's graphs with the module, which runs one row at a time.

Axes: B batch, K beams, T target, V vocabulary.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tfexport import graph_io
from tfexport.bundle import SpecialIds
from tfexport.export.graphs.step_model import NO_RULES, GreedyRules
from tfexport.export.modules.contract import UserModule
from tfexport.export.modules.examine import ModuleProbe
from tfexport.export.modules.inputs import Sizes, as_tensors, axes_of, draw_rows, sizes_of
from tfexport.export.modules.softmaxes import nearest_weights, softmaxes
from tfexport.export.parity.compare import (
    compare_sequences,
    compare_tokens,
    compare_values,
    is_near_tie,
)
from tfexport.export.parity.eager_run import (
    NEW_TOKENS,
    THREADS,
    Floats,
    Ids,
    Remembers,
    Shape,
)
from tfexport.export.parity.plan import FULL, QUICK
from tfexport.export.parity.search import Scorer
from tfexport.export.report import (
    DRAWN,
    EXAMPLES,
    Comparison,
    ParityReport,
)
from tfexport.export.rounding import MOST_VALUES, NO_NOISE, Noise, Rounding, log_probs
from tfexport.module_rows import Array, shape_key, stack_rows
from tfexport.runtime.model.session import named_failures, open_session
from tfexport.typing import Progress

BATCHES = (1, 3)
MOST_TOKENS = 256  # that one row decodes, up to ``max_length``
MOST_EXAMPLES = 32  # of the caller's rows
Rows = list[dict[str, Array]]


@dataclass(frozen=True)
class ModuleRun(Remembers):
    """Greedy decoding of a batch by the module itself, each row alone.

    Attributes:
        rows: the inputs.
        memory: the memory of each row; None for padded rows, whose memory is longer in a batch.
        tokens: (B, T); decoding continues after the end token.
        logits: (B, T, V).
        special_ids: the special ids of the vocabularies.
        shape: the batch, and the longest named axis of any input.
        noise: the float32 noise of the module on these rows.
    """

    rows: Rows
    memory: list[tuple[Tensor, ...]] | None
    tokens: Ids
    logits: Floats
    special_ids: SpecialIds
    shape: Shape
    noise: Noise = NO_NOISE

    @property
    def steps(self) -> int:
        """The number of steps, T."""
        return int(self.tokens.shape[1])

    @property
    def prefix(self) -> Ids:
        """The tokens that the steps take: the start token, and all but the last."""
        start = np.full((len(self.tokens), 1), self.special_ids.decoder_start)
        return np.concatenate([start, self.tokens[:, :-1]], axis=1)


class EagerModule:
    """Runs a custom module in eager PyTorch, row by row."""

    def __init__(
        self,
        probe: ModuleProbe,
        special_ids: SpecialIds,
        max_length: int,
        level: str = FULL,
        rules: GreedyRules = NO_RULES,
    ) -> None:
        self.probe, self.special_ids, self.rules = probe, special_ids, rules
        self.steps = min(NEW_TOKENS, max_length)
        self.most_steps = min(MOST_TOKENS, max_length)
        self.rounding, self.level = Rounding(probe.module), level

    def row_of(self, ids: Sequence[int]) -> dict[str, Array]:
        """A row of a module that takes ids."""
        row: dict[str, Array] = {}
        for each in self.probe.inputs:
            values = np.ones(len(ids)) if each.name == graph_io.ATTENTION_MASK else np.array(ids)
            row[each.name] = values.astype(each.dtype)
        return row

    def near_tie(self, report: ParityReport) -> Callable[[Sequence[int], Sequence[int]], bool]:
        """Whether tokens that were decoded from ids come from a near tie of the module."""
        noise = Noise(logits=max((c.noise for c in report.comparisons), default=0.0))

        @torch.no_grad()
        def found(ids: Sequence[int], prefix: Sequence[int]) -> bool:
            row, tokens = self.row_of(ids), torch.tensor(prefix)
            by_forward = self.module.own is not None
            logits = self._own_logits(row, tokens) if by_forward else self._follow(row, tokens)[1]
            return any(is_near_tie(of_token, noise) for of_token in logits.numpy())

        return found

    @property
    def module(self) -> UserModule:
        """The user's module."""
        return self.probe.module

    def decode_by_rules(self, run: ModuleRun) -> ModuleRun:
        """The same rows by the model's own rules; its logits are those of allowed tokens."""
        if self.rules == NO_RULES:
            return run

        def ruled() -> ModuleRun:
            found = self.decode(run.rows, run.steps, measured=False, rules=self.rules)
            return replace(found, noise=run.noise)

        return run.once("by rules", run.tokens, ruled)

    def decode(
        self,
        rows: Rows,
        steps: int | None = None,
        measured: bool = True,
        rules: GreedyRules = NO_RULES,
    ) -> ModuleRun:
        """Decode rows greedily, each alone.

        Args:
            rows: the inputs.
            steps: the number of tokens; by default a few.
            measured: whether to measure the module's rounding on these rows.
            rules: of the search; the logits are then those of allowed tokens.
        """
        runs = [self._decode_row(row, steps or self.steps, rules) for row in rows]
        alike = len({shape_key(row, padded=False) for row in rows}) == 1
        tokens = np.stack([tokens for _, tokens, _ in runs])
        logits = torch.stack([logits for _, _, logits in runs])
        memory = [memory for memory, _, _ in runs]
        run = ModuleRun(
            rows,
            memory if alike else None,
            tokens,
            logits.numpy(),
            self.special_ids,
            (len(rows), max(self._length(row) for row in rows)),
        )
        return replace(run, noise=self._noise(run, memory, logits)) if measured else run

    def _noise(self, run: ModuleRun, memory: Sequence[tuple[Tensor, ...]], logits: Tensor) -> Noise:
        """The noise of the memory's tensors and of the logits (B, T, V), over the rows that fit."""
        fit = max(1, MOST_VALUES // max(1, logits[0].numel()))
        rows, memory, logits = run.rows[:fit], memory[:fit], logits[:fit]
        prefix = torch.from_numpy(run.prefix[:fit])

        def compute() -> list[Tensor]:
            made = [self._follow(row, tokens) for row, tokens in zip(rows, prefix, strict=True)]
            found = torch.stack([logits for _, logits in made])
            return [found, log_probs(found), *_joined([memory for memory, _ in made])]

        by_forward = self.module.own is not None
        known = compute() if by_forward else [logits, log_probs(logits), *_joined(memory)]
        found = [each.numpy() for each in known]
        of_logits, of_log_probs, *of_memory = self.rounding.measure(compute, found, ())
        return Noise(tuple(of_memory), of_logits, of_log_probs)

    def _follow(
        self, row: Mapping[str, Array], tokens: Tensor
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Memory of a row, and logits (T, V) after each of its tokens (T,)."""
        if self.module.own is not None:
            return self.module.encode(self._tensors([row])), self._forward_of(row)(tokens)
        memory, state = self._encode([row])
        if self.probe.io.many_tokens:
            logits, _ = self.module.advance(tokens[None], state, memory)
            return memory, _wide(logits[0])
        found = []
        for position, token in enumerate(tokens):
            logits, state = self.module.step(
                token.reshape(1, 1), torch.tensor(position), state, memory
            )
            found.append(_wide(logits[0]))
        return memory, torch.stack(found)

    def _own_logits(self, row: Mapping[str, Array], tokens: Tensor) -> Tensor:
        """The logits (T, V) of the user's forward after each of a row's tokens (T,)."""
        forward = self._forward_of(row)
        # The first token alone too: code may take another branch for it.
        first = forward(tokens[:1])
        return first if len(tokens) == 1 else torch.cat([first, forward(tokens)[1:]])

    def _forward_of(self, row: Mapping[str, Array]) -> Callable[[Tensor], Tensor]:
        """Gives the logits (T, V) of one call of the user's forward with tokens (T,)."""
        assert self.module.own is not None
        forward = self.module.own.of_source(self._tensors([row]))

        def logits(tokens: Tensor) -> Tensor:
            if self.probe.causal:
                return _wide(forward(tokens[None])[0])
            prefixes = (tokens[None, :length] for length in range(1, len(tokens) + 1))
            return torch.stack([_wide(forward(prefix)[0, -1]) for prefix in prefixes])

        return logits

    def _length(self, row: Mapping[str, Array]) -> int:
        """The longest named axis of a row; 1 if all sizes are fixed."""
        return max(sizes_of(self.probe.inputs, row).values(), default=1)

    def _decode_row(
        self, row: Mapping[str, Array], steps: int, rules: GreedyRules
    ) -> tuple[tuple[Tensor, ...], Ids, Tensor]:
        memory, state = self._encode([row])
        token = torch.full((1, 1), self.special_ids.decoder_start)
        tokens, logits = [], []
        for position in range(steps):
            found, state = self.module.step(token, torch.tensor(position), state, memory)
            found = _allowed(_wide(found), rules, position, steps)
            token = found.argmax(-1, keepdim=True)
            tokens.append(int(token))
            logits.append(found[0])
        if self.module.own is not None:
            return memory, *self._decode_by_forward(row, tokens, rules)
        return memory, np.array(tokens), torch.stack(logits)

    def _decode_by_forward(
        self, row: Mapping[str, Array], proposed: Sequence[int], rules: GreedyRules
    ) -> tuple[Ids, Tensor]:
        """Tokens and logits of the user's forward over complete prefixes.

        The forward is causal: where it agrees with the proposed tokens, one call gives what a loop
        of calls would give.
        """
        prefix = [self.special_ids.decoder_start]
        while True:
            whole = torch.tensor([*prefix, *proposed[len(prefix) - 1 : -1]])
            free = self._own_logits(row, whole)
            logits = torch.cat([
                _allowed(each[None], rules, step, len(proposed)) for step, each in enumerate(free)
            ])  # fmt: skip
            best = logits.argmax(-1).tolist()
            agreed = next(
                (i for i in range(len(proposed) - 1) if best[i] != whole[i + 1]), len(proposed) - 1
            )
            if agreed == len(proposed) - 1:
                return np.array(best), logits
            prefix = [self.special_ids.decoder_start, *best[: agreed + 1]]

    def full_prefix(self, row: Mapping[str, Array], prefix: Ids) -> Floats:
        """The logits of the user's ``decode`` over a prefix (T,): (T, V)."""
        memory, _ = self._encode([row])
        logits: Floats = self.module.decode(torch.from_numpy(prefix)[None], memory)[0].numpy()
        return logits

    def alignment(
        self, run: ModuleRun, heads: Sequence[Sequence[int]], bundle: Sequence[Floats]
    ) -> list[Floats]:
        """Cross-attention of the user's forward, (K, T, S) for each row.

        Args:
            run: whose rows and prefixes it is of.
            heads: layer and number of each.
            bundle: the same of the graphs. A forward that does not return its weights is searched
                for the softmax that is nearest to those of each layer.
        """
        own = self.module.own
        assert own is not None
        of_rows = run.once("attention", run.prefix, lambda: self._attention(run))
        if own.gives_attention:
            return [
                np.stack([weights[layer][0, head].numpy() for layer, head in heads])
                for weights in of_rows
            ]
        of_layer = sum(layer == heads[0][0] for layer, _ in heads)
        return [
            nearest_weights(results, torch.from_numpy(weights), of_layer).numpy()
            for results, weights in zip(of_rows, bundle, strict=True)
        ]

    def _attention(self, run: ModuleRun) -> list[Sequence[Tensor]]:
        """Of each row the weights of all layers, or else every softmax of the user's forward."""
        own, found = self.module.own, list[Sequence[Tensor]]()
        assert own is not None
        for row, tokens in zip(run.rows, run.prefix, strict=True):
            given = self._tensors([row]), torch.from_numpy(tokens)[None]
            if own.gives_attention:
                found.append(own.cross_attentions(*given))
            else:
                found.append(softmaxes(functools.partial(own, *given)))
        return found

    def _encode(self, rows: Sequence[Mapping[str, Array]]) -> tuple[tuple[Tensor, ...], ...]:
        memory = self.module.encode(self._tensors(rows))
        return memory, self.module.start(memory)

    def _tensors(self, rows: Sequence[Mapping[str, Array]]) -> tuple[Tensor, ...]:
        return as_tensors(self.probe.inputs, stack_rows(rows))

    def scorer(self, rows: Rows, beams: int) -> Scorer:
        """Scores prefixes of ``beams`` (K) for each row."""
        return functools.partial(
            self._score_by_forward if self.module.own is not None else self._score_by_steps,
            rows,
            beams,
        )

    def _score_by_forward(
        self, rows: Rows, beams: int, prefixes: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """By whole prefixes: the forward is causal, so the longest have the logits of shorter."""
        known: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        for i, row in enumerate(rows):
            forward = self._forward_of(row)
            of_row = {
                tuple(prefix)
                for each in prefixes
                for prefix in each[i * beams : (i + 1) * beams].tolist()
            }
            for prefix in sorted(of_row, key=len, reverse=True):
                # The first token, which comes last, is run alone too; see _own_logits.
                if len(prefix) > 1 and (i, prefix) in known:
                    continue
                for length, logits in enumerate(forward(torch.tensor(prefix)), 1):
                    known[i, prefix[:length]] = logits
        for each in prefixes:
            yield torch.stack([
                known[k // beams, tuple(prefix)] for k, prefix in enumerate(each.tolist())
            ])  # fmt: skip

    def _score_by_steps(
        self, rows: Rows, beams: int, prefixes: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """By the state after every prefix of a row: a longer one takes one more step."""
        encoded = [self._encode([row]) for row in rows]
        states = {(i, ()): state for i, (_, state) in enumerate(encoded)}
        for each in prefixes:
            found = []
            for k, tokens in enumerate(each.tolist()):
                row, before = k // beams, tuple(tokens[:-1])
                logits, states[row, tuple(tokens)] = self.module.step(
                    torch.tensor([tokens[-1:]]),
                    torch.tensor(len(before)),
                    states[row, before],
                    encoded[row][0],
                )
                found.append(_wide(logits[0]))
            yield torch.stack(found)


def compare_own_decode(eager: EagerModule, run: ModuleRun) -> Iterator[Comparison]:
    """Compare ``step`` with ``decode`` over the full prefix, if a module has both."""
    model = eager.module.model
    if eager.module.recomputes or not callable(getattr(model, "decode", None)):
        return
    wholes = [
        eager.full_prefix(row, prefix) for row, prefix in zip(run.rows, run.prefix, strict=True)
    ]
    noise = run.noise.logits
    yield compare_values("step and decode", run.shape, run.logits, np.stack(wholes), noise)


def compare_module(
    eager: EagerModule,
    compare: Callable[[ModuleRun], Iterable[Comparison]],
    examples: Sequence[Mapping[str, Array]],
    progress: Progress,
) -> ParityReport:
    """Compare an artifact with the module's own code, over drawn sizes and rows of real data.

    Args:
        eager: the module.
        compare: returns the comparisons of one batch; called under ``torch.no_grad``.
        examples: rows of real data.
        progress: called after every batch.
    """
    found: list[Comparison] = []
    drawn = _few_drawn if eager.level == QUICK else _drawn
    batches = [(rows, DRAWN) for rows in drawn(eager.probe)]
    batches += [(rows, EXAMPLES) for rows in _grouped(eager.probe, examples)]
    for done, (rows, inputs) in enumerate(batches):
        progress("comparing with your module", done, len(batches))
        with torch.no_grad():
            # The first row goes as far as it may, which shows what happens late only.
            run = eager.decode(rows, eager.most_steps if done == 0 else None)
            made = [*compare_own_decode(eager, run), *compare(run)]
            found.extend(replace(each, inputs=inputs) for each in made)
    progress("comparing with your module", len(batches), len(batches))
    name = f"the code of {eager.module.name}"
    return ParityReport(name, found, measured_by=eager.rounding.by, level=eager.level)


def compare_module_file(
    eager: EagerModule, path: Path, examples: Sequence[Mapping[str, Array]], progress: Progress
) -> ParityReport:
    """``compare_module`` of a self-contained file that decodes greedily."""
    session = open_session(path, THREADS)

    def compare(run: ModuleRun) -> Iterator[Comparison]:
        feeds = stack_rows(run.rows, run.special_ids.pad)
        feeds[graph_io.MAX_LENGTH] = np.array(run.steps)
        with named_failures(path) as options:
            made = session.run([graph_io.SEQUENCES, graph_io.SCORES], feeds, options)
        sequences, scores = made
        yield from compare_sequences(eager.decode_by_rules(run), sequences, scores)

    return compare_module(eager, compare, examples, progress)


def compare_module_script(
    eager: EagerModule,
    script: nn.Module,
    examples: Sequence[Mapping[str, Array]],
    progress: Progress,
) -> ParityReport:
    """``compare_module`` of the module's own methods, scripted."""
    module = UserModule(script, len(eager.probe.inputs))
    module.memory_axes = eager.module.memory_axes
    module.state_axes = eager.module.state_axes
    scripted = EagerModule(replace(eager.probe, module=module), eager.special_ids, eager.steps)

    def compare(run: ModuleRun) -> Iterator[Comparison]:
        own = scripted.decode(run.rows, run.steps, measured=False)
        yield compare_values("cached steps", run.shape, own.logits, run.logits, run.noise.logits)
        yield compare_tokens(run, own.tokens.tolist())

    return compare_module(eager, compare, examples, progress)


def _allowed(logits: Tensor, rules: GreedyRules, step: int, steps: int) -> Tensor:
    """The logits (B, V) of the tokens that rules allow at a step."""
    return logits if rules == NO_RULES else rules.apply(logits, step, steps)


def _wide(values: Tensor) -> Tensor:
    """Convert floats to torch's default dtype."""
    return values.to(torch.get_default_dtype())


def _joined(memory: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """Each tensor of the memory of all rows, flat; numbers as floats."""
    return [
        torch.cat([_wide(each.flatten()) for each in of_rows])
        for of_rows in zip(*memory, strict=True)
    ]


def _drawn(probe: ModuleProbe) -> Iterator[Rows]:
    """Drawn rows of one shape, and drawn rows that are padded."""
    settings = _distinct(probe)
    for seed, sizes in enumerate(settings, 10):
        for batch in BATCHES:
            yield draw_rows(probe.inputs, probe.below, sizes, batch, seed)
    if probe.io.padded:
        yield _padded(probe, settings)


def _few_drawn(probe: ModuleProbe) -> Iterator[Rows]:
    """A long row, for code that acts by windows or blocks, short ones, and both padded."""
    settings = _distinct(probe)
    longest = max(settings, key=lambda sizes: sum(sizes.values()))
    others = [sizes for sizes in settings if sizes != longest]
    if others:
        yield draw_rows(probe.inputs, probe.below, longest, 1, seed=10)
    few = others[:2][-1] if others else longest  # the first is shorter than the blocks of much code
    yield draw_rows(probe.inputs, probe.below, few, max(BATCHES), seed=11)
    if probe.io.padded and others:
        yield _padded(probe, [few, longest])


def _distinct(probe: ModuleProbe) -> list[Sizes]:
    return [sizes for i, sizes in enumerate(probe.settings) if sizes not in probe.settings[:i]]


def _padded(probe: ModuleProbe, settings: Sequence[Sizes]) -> Rows:
    """A row of each length."""
    (axis,) = axes_of(probe.inputs)
    return [
        draw_rows(probe.inputs, probe.below, {axis: length}, 1, seed=20)[0]
        for length in sorted({sizes[axis] for sizes in settings})
    ]


def _grouped(probe: ModuleProbe, examples: Sequence[Mapping[str, Array]]) -> Iterator[Rows]:
    """Real rows, those that can be one batch together."""
    groups: dict[object, Rows] = {}
    for row in examples[:MOST_EXAMPLES]:
        groups.setdefault(shape_key(row, probe.io.padded), []).append(dict(row))
    yield from groups.values()
