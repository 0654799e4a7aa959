"""Comparison of a custom module's graphs with the module, which runs one row at a time.

Axes: B batch, K beams, T target, V vocabulary.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

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
from tfexport.export.parity.compare import compare_tokens, compare_values
from tfexport.export.parity.eager_run import Eager, EagerRun, Floats, Ids, compare_batches
from tfexport.export.parity.plan import QUICK, ComparisonPlan
from tfexport.export.report import DRAWN, STEP_AND_DECODE, Comparison, ParityReport
from tfexport.export.rounding import MOST_VALUES, NO_NOISE, Noise, Rounding, log_probs
from tfexport.module_rows import Array, shape_key, stack_rows

BATCHES = (1, 3)
MOST_TOKENS = 256  # that one row decodes, up to ``max_length``
MOST_EXAMPLES = 32  # of the caller's rows
Rows = list[dict[str, Array]]


class EagerUserModule(Eager):
    """A custom module in eager PyTorch, row by row.

    Attributes:
        probe: the module, and what was learnt by running it.
    """

    title = "comparing with your module"
    runs_own_code = True
    compares_log_probs = False

    def __init__(
        self,
        probe: ModuleProbe,
        special_ids: SpecialIds,
        max_length: int,
        rules: GreedyRules = NO_RULES,
    ) -> None:
        """Take a module, its special ids, the most tokens of a row, and the rules of its search."""
        super().__init__(probe.module, Rounding(probe.module), rules, max_length)
        self.probe, self._special_ids = probe, special_ids
        self.most_steps = min(MOST_TOKENS, max_length)

    @property
    def special_ids(self) -> SpecialIds:
        """See ``Eager``."""
        return self._special_ids

    def batches(self, plan: ComparisonPlan) -> Iterator[EagerRun]:
        """See ``Eager``: drawn sizes, and real rows, those that can be one batch together."""
        drawn = _few_drawn if plan.level == QUICK else _drawn
        for rows in drawn(self.probe):
            yield self.batch(rows)
        named = [row if isinstance(row, Mapping) else self.row_of(row) for row in plan.rows]
        for rows in _grouped(self.probe, named):
            yield self.batch(rows, plan.inputs)

    def batch(self, rows: Rows, inputs: str = DRAWN) -> EagerRun:
        """Rows as a batch, not decoded."""
        return EagerRun(self, rows, (len(rows), max(self._length(row) for row in rows)), inputs)

    def feeds(self, rows: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
        """See ``Eager``."""
        return stack_rows(rows, self.special_ids.pad)

    def row_of(self, ids: Sequence[int]) -> dict[str, Array]:
        """A row of a module that takes ids."""
        row: dict[str, Array] = {}
        for each in self.probe.inputs:
            values = np.ones(len(ids)) if each.name == graph_io.ATTENTION_MASK else np.array(ids)
            row[each.name] = values.astype(each.dtype)
        return row

    def follow(self, ids: Sequence[int], prefix: Sequence[int]) -> Floats:
        """See ``Eager``."""
        row, tokens = self.row_of(ids), torch.tensor(prefix)
        by_forward = self.module.own is not None
        logits = self._own_logits(row, tokens) if by_forward else self._follow(row, tokens)[1]
        values: Floats = logits.numpy()
        return values

    @property
    def module(self) -> UserModule:
        """The user's module."""
        return self.probe.module

    def decode(
        self, batch: EagerRun, steps: int | None = None, rules: GreedyRules = NO_RULES
    ) -> EagerRun:
        """See ``Eager``: each row alone; noise that was measured before is taken over."""
        runs = [self._decode_row(row, steps or self.steps, rules) for row in batch.rows]
        alike = len({shape_key(row, padded=False) for row in batch.rows}) == 1
        logits = torch.stack([logits for _, _, logits in runs])
        memory = [memory for memory, _, _ in runs]
        run = replace(
            batch,
            tokens=np.stack([tokens for _, tokens, _ in runs]),
            logits=logits.numpy(),
            memory=memory if alike else None,
        )
        if run.noise is not NO_NOISE:
            return run
        return replace(run, noise=self._noise(run, memory, logits))

    def _noise(self, run: EagerRun, memory: Sequence[tuple[Tensor, ...]], logits: Tensor) -> Noise:
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
        self, run: EagerRun, heads: Sequence[Sequence[int]], bundle: Sequence[Floats]
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

    def _attention(self, run: EagerRun) -> list[Sequence[Tensor]]:
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

    def score(self, run: EagerRun, beams: int, prefixes: Sequence[Tensor]) -> Iterator[Tensor]:
        """See ``Eager``."""
        by_forward = self.module.own is not None
        score = self._score_by_forward if by_forward else self._score_by_steps
        yield from score(run.rows, beams, prefixes)

    def compare_programs(self, run: EagerRun) -> Iterator[Comparison]:
        """Compare ``step`` with ``decode`` over the full prefix, if the module has both."""
        if self.module.recomputes or not callable(getattr(self.module.model, "decode", None)):
            return
        wholes = np.stack([
            self.full_prefix(row, prefix) for row, prefix in zip(run.rows, run.prefix, strict=True)
        ])  # fmt: skip
        yield compare_values(STEP_AND_DECODE, run.shape, run.logits, wholes, run.noise.logits)

    def report(self, comparisons: list[Comparison]) -> ParityReport:
        """See ``Eager``."""
        name = f"the code of {self.module.name}"
        return ParityReport(name, comparisons, measured_by=self.rounding.by)

    def _score_by_forward(
        self, rows: Sequence[Mapping[str, Array]], beams: int, prefixes: Sequence[Tensor]
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
        self, rows: Sequence[Mapping[str, Array]], beams: int, prefixes: Sequence[Tensor]
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


def compare_module_script(
    eager: EagerUserModule, script: nn.Module, plan: ComparisonPlan
) -> ParityReport:
    """Compare the module's own methods, scripted, with the module."""
    module = UserModule(script, len(eager.probe.inputs))
    module.memory_axes = eager.module.memory_axes
    module.state_axes = eager.module.state_axes
    scripted = EagerUserModule(replace(eager.probe, module=module), eager.special_ids, eager.steps)

    def compare(run: EagerRun) -> Iterator[Comparison]:
        yield from eager.compare_programs(run)
        ours = scripted.decode(run, run.steps)
        yield compare_values("cached steps", run.shape, ours.logits, run.logits, run.noise.logits)
        yield compare_tokens(run, ours.tokens.tolist())

    return compare_batches(eager, plan, compare)


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
