"""A checkpoint in eager PyTorch, over a grid of shapes and on real rows.

Axes: B batch, S source, T target, V vocabulary, E model width.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from tfexport import graph_io
from tfexport.bundle import SpecialIds
from tfexport.export.graphs.step_model import NO_RULES, GreedyRules
from tfexport.export.parity.compare import compare_logits
from tfexport.export.parity.eager_run import Eager, EagerRun, Floats, Shape
from tfexport.export.parity.plan import FULL, QUICK, ComparisonPlan
from tfexport.export.reference import ModuleReference, OwnCodeReference, find_reference
from tfexport.export.report import DRAWN, EAGER_MODULES, Comparison, ParityReport
from tfexport.export.rounding import MOST_VALUES, Compute, Noise, Rounding, log_probs
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.config import TransformerConfig
from tfexport.module_rows import Array
from tfexport.runtime.model.onnxruntime_model import pad

BATCHES = (1, 2, 8)
SOURCE_LENGTHS = (1, 7, 33)
LONGEST_SOURCE = 512


class EagerCheckpoint(Eager):
    """A checkpoint in eager PyTorch, which runs a padded batch at once.

    Attributes:
        config: the config of the checkpoint.
        model: the project's modules with the checkpoint's weights.
        reference: the user's own code or the original mathematics; see ``find_reference``.
        not_run: why the reference is not the user's own code; None if it is.
        runs_own_code: whether it is. The user's code returns log-probabilities, so these are
            compared instead of logits. It returns no encoder states, so those of the project's
            modules are compared; the stage "eager modules" compares the modules with the user's
            code.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Build the modules and the reference."""
        self.config, self.model = checkpoint.config, checkpoint.model()
        choice = find_reference(checkpoint, self.model)
        self.reference, self.not_run = choice.reference, choice.not_run
        self.runs_own_code = isinstance(self.reference, OwnCodeReference)
        self.compares_log_probs = self.runs_own_code and self.config.has_embeddings
        self._unseen = checkpoint.unseen
        rules = GreedyRules.of(checkpoint.read_generation().defaults)
        rounding = Rounding(self.reference)
        super().__init__((self.reference, self.model), rounding, rules, self.config.longest)

    @cached_property
    def module_rounding(self) -> Rounding:
        """Measures the project's modules, where these are the reference: see ``runs_own_code``."""
        return Rounding(self.model)

    @property
    def special_ids(self) -> SpecialIds:
        """See ``Eager``."""
        return self.config.special_ids

    def batches(self, plan: ComparisonPlan) -> Iterator[EagerRun]:
        """See ``Eager``: every shape of the grid, and real rows as long as they may be."""
        for shape in grid(self.config, plan.level):
            yield EagerRun(self, (), shape)
        longest = self.config.longest
        rows = [list(row) for row in plan.rows if longest is None or len(row) <= longest]
        for start in range(0, len(rows), max(BATCHES)):
            yield self.batch(rows[start : start + max(BATCHES)], plan.inputs)

    def batch(self, rows: Sequence[Sequence[int]], inputs: str = DRAWN) -> EagerRun:
        """Rows of ids as a batch, not decoded."""
        return EagerRun(self, rows, (len(rows), max(map(len, rows))), inputs)

    def padded(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Rows of source ids, padded to a batch: ids (B, S) and their mask (B, S)."""
        ids, mask = pad(rows, self.special_ids.pad)
        return torch.from_numpy(ids), torch.from_numpy(mask)

    def feeds(self, rows: Sequence[Sequence[int]]) -> dict[str, Array]:
        """See ``Eager``."""
        ids, mask = pad(rows, self.special_ids.pad)
        return {graph_io.INPUT_IDS: ids, graph_io.ATTENTION_MASK: mask}

    def decode(
        self, batch: EagerRun, steps: int | None = None, rules: GreedyRules = NO_RULES
    ) -> EagerRun:
        """See ``Eager``: all of the prefix is computed again for every token.

        Of causal code, one call over what the project's modules decode gives the logits of each
        prefix, as far as the code chooses the same tokens.
        """
        rows = batch.rows or random_rows(self.config, *batch.shape)
        ids, mask = self.padded(rows)
        memory = self.reference.encode(ids, mask)
        hidden = self.model.encode(ids, mask)[0] if self.runs_own_code else memory
        count = steps or self.steps
        prefix = torch.full((len(rows), 1), self.special_ids.decoder_start)
        free, logits = [], []
        draft = self._draft(ids, mask, rules, count) if self.is_causal else prefix
        # The first token is run alone too: code may take another branch for it.
        expected = [draft[:, :length] for length in range(2, draft.size(1) + 1)]
        with self.knowing(memory, mask, expected):
            for step in range(count):
                last = self.reference.decode(memory, mask, prefix, last_only=True)[:, -1]
                free.append(last)
                last = last if rules == NO_RULES else rules.apply(last, step, count)
                logits.append(last)
                prefix = torch.cat([prefix, last.argmax(-1, keepdim=True)], dim=1)
        noise = self._noise((ids, mask), hidden, prefix[:, :-1], torch.stack(free, dim=1))
        return replace(
            batch,
            rows=rows,
            tokens=prefix[:, 1:].numpy(),
            logits=torch.stack(logits, dim=1).numpy(),
            memory=[(states[keep],) for states, keep in zip(hidden, mask.bool(), strict=True)],
            noise=noise,
        )

    @property
    def is_causal(self) -> bool:
        """Whether one call of the user's code gives the logits of every prefix."""
        return isinstance(self.reference, OwnCodeReference) and self.reference.causal

    def knowing(
        self, memory: Tensor, mask: Tensor, prefixes: Sequence[Tensor]
    ) -> contextlib.AbstractContextManager[None]:
        """See ``OwnCodeReference.knowing``; other references are run for every prefix."""
        if isinstance(self.reference, OwnCodeReference):
            return self.reference.knowing(memory, mask, prefixes)
        return contextlib.nullcontext()

    def _draft(self, ids: Tensor, mask: Tensor, rules: GreedyRules, count: int) -> Tensor:
        """Decoder ids (B, T) as the project's modules decode greedily, with a cache."""
        hidden, cross = self.model.encode(ids, mask)
        past = self.model.decoder.empty_cache(hidden)
        prefix = torch.full((len(ids), 1), self.special_ids.decoder_start)
        for step in range(count - 1):
            logits, past = self.model.step(prefix[:, -1:], past, cross, mask)
            last = logits[:, -1]
            last = last if rules == NO_RULES else rules.apply(last, step, count)
            prefix = torch.cat([prefix, last.argmax(-1, keepdim=True)], dim=1)
        return prefix

    def _noise(
        self, source: tuple[Tensor, Tensor], hidden: Tensor, prefix: Tensor, logits: Tensor
    ) -> Noise:
        """The noise of encoder states and of logits (B, T, V), over as many rows as fit."""
        rows = max(1, MOST_VALUES // logits[0].numel())
        ids, mask, prefix, logits = (it[:rows] for it in (*source, prefix, logits))
        keep, own = mask.bool(), self.runs_own_code

        def states() -> Tensor:
            return self.model.encode(ids, mask)[0][keep]

        def compute() -> list[Tensor]:
            memory = self.reference.encode(ids, mask)
            results = self.compared(self.reference.decode(memory, mask, prefix))
            return [*results, *([] if own else [memory[keep]])]

        def alone() -> list[Tensor]:
            parts = [self._alone(ids[i, k], prefix[i], own) for i, k in enumerate(keep)]
            return [torch.cat(each) for each in zip(*parts, strict=True)]

        results = [*self.compared(logits), *([] if own else [hidden[:rows][keep]])]
        # Rows of causal code are computed in one call, and those of other lengths alone already.
        others: list[Compute] = [] if self.is_causal else [compute]
        if not own or len(mask.sum(1).unique()) < len(mask):
            others.append(alone)
        of_logits, of_log_probs, *of_states = self.rounding.measure(
            compute, [each.numpy() for each in results], others
        )
        if own:
            known = [hidden[:rows][keep].numpy()]
            of_states = self.module_rounding.measure(lambda: [states()], known, ())
        return Noise(tuple(of_states), of_logits, of_log_probs)

    def _alone(self, ids: Tensor, prefix: Tensor, own: bool) -> list[Tensor]:
        """Run one row without padding: its compared logits, and its encoder states."""
        mask = torch.ones_like(ids)[None]
        memory = self.reference.encode(ids[None], mask)
        results = self.compared(self.reference.decode(memory, mask, prefix[None]))
        return [*results, *([] if own else [memory[0]])]

    def compared(self, logits: Tensor) -> list[Tensor]:
        """Logits in the form that is compared, and their log-probabilities."""
        values = log_probs(logits) if self.config.has_embeddings else logits
        return [values if self.runs_own_code else logits, values]

    def follow(self, ids: Sequence[int], prefix: Sequence[int]) -> Floats:
        """See ``Eager``."""
        source, mask = self.padded([ids])
        memory = self.reference.encode(source, mask)
        logits: Floats = self.reference.decode(memory, mask, torch.tensor([prefix]))[0].numpy()
        return logits

    def score(self, run: EagerRun, beams: int, prefixes: Sequence[Tensor]) -> Iterator[Tensor]:
        """See ``Eager``."""
        ids, mask = self.padded(run.rows)
        memory = self.reference.encode(ids, mask).repeat_interleave(beams, dim=0)
        mask = mask.repeat_interleave(beams, dim=0)
        with self.knowing(memory, mask, prefixes):
            for each in prefixes:
                yield self.reference.decode(memory, mask, each, last_only=True)[:, -1]

    def compare_programs(self, run: EagerRun) -> Iterator[Comparison]:
        """Compare the project's own modules with the original, if there is one."""
        if isinstance(self.reference, ModuleReference):
            return
        prefix = torch.from_numpy(run.prefix)
        ours = self.model(*self.padded(run.rows), prefix, torch.ones(prefix.shape)).numpy()
        yield compare_logits(run, EAGER_MODULES, ours, run.logits, run.noise.logits)

    def report(self, comparisons: list[Comparison]) -> ParityReport:
        """See ``Eager``."""
        values = self.config.to_dict()
        return ParityReport(
            self.reference.title,
            comparisons,
            self.reference.no_original,
            self.not_run,
            self.rounding.by,
            {key: (values[key], origin) for key, origin in self._unseen.items()},
        )


def grid(config: TransformerConfig, level: str = FULL) -> Iterator[Shape]:
    """The shapes to compare at, (B, S); of a quick comparison one."""
    limit = LONGEST_SOURCE if config.longest is None else min(LONGEST_SOURCE, config.longest)
    lengths = sorted({min(length, limit) for length in SOURCE_LENGTHS})
    if level == QUICK:
        yield sorted(BATCHES)[len(BATCHES) // 2], lengths[len(lengths) // 2]
        return
    yield from ((batch, length) for length in lengths for batch in BATCHES)
    if limit not in lengths:
        yield 1, limit


def random_rows(config: TransformerConfig, batch: int, length: int) -> list[list[int]]:
    """Random rows of different lengths; the first has the full length."""
    generator = np.random.default_rng([batch, length])
    special_ids = config.special_ids
    special = {special_ids.pad, special_ids.bos, special_ids.eos, special_ids.start}
    assert config.source_vocab_size is not None
    ordinary = [i for i in range(config.source_vocab_size) if i not in special] or [0]
    lengths = [length, *generator.integers(1, length + 1, size=batch - 1)]
    return [generator.choice(ordinary, size=size).tolist() for size in lengths]
