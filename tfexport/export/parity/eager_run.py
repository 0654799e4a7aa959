"""Eager PyTorch over a grid of shapes, with which every artifact is compared.

Axes: B batch, S source, T target, V vocabulary, E model width.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from tfexport.bundle import SpecialIds
from tfexport.export.graphs.step_model import NO_RULES, GreedyRules
from tfexport.export.parity.plan import FULL, QUICK, ComparisonPlan
from tfexport.export.reference import OwnCodeReference, Reference, find_reference
from tfexport.export.report import DRAWN, Comparison, ParityReport
from tfexport.export.rounding import (
    MOST_VALUES,
    NO_NOISE,
    Compute,
    Noise,
    Rounding,
    log_probs,
    suited_threads,
)
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer
from tfexport.runtime.model.onnxruntime_model import pad
from tfexport.typing import Progress, silent

BATCHES = (1, 2, 8)
SOURCE_LENGTHS = (1, 7, 33)
LONGEST_SOURCE = 512
NEW_TOKENS = 32
# Of onnxruntime. Idle threads of a larger pool would busy-wait on the cores that PyTorch needs.
THREADS = 1

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
Shape = tuple[int, int]
Batch = TypeVar("Batch")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Case:
    """One batch of source ids: as rows, and padded to ids (B, S) with their mask (B, S)."""

    rows: list[list[int]]
    ids: torch.Tensor
    mask: torch.Tensor

    @property
    def shape(self) -> Shape:
        """The shape of the source, (B, S)."""
        return self.ids.shape[0], self.ids.shape[1]


class Remembers:
    """Caches results of eager PyTorch."""

    @cached_property
    def _known(self) -> dict[tuple[str, bytes], Any]:
        return {}

    def once(self, name: str, ids: Ids, compute: Callable[[], Value]) -> Value:
        """A result of eager PyTorch for these ids, computed once for all engines."""
        key = name, ids.tobytes()
        if key not in self._known:
            self._known[key] = compute()
        found: Value = self._known[key]
        return found


@dataclass(frozen=True)
class EagerRun(Remembers):
    """Eager PyTorch's greedy decoding of one batch, without a cache.

    Attributes:
        case: the inputs.
        hidden: encoder states (B, S, E); see ``Eager.runs_own_code``.
        tokens: (B, T); decoding continues after the end token, so every row has T tokens.
        logits: (B, T, V); each position from a run over the full prefix.
        special_ids: the special ids of the vocabularies.
        noise: the float32 noise of the eager code on this batch.
    """

    case: Case
    hidden: torch.Tensor
    tokens: Ids
    logits: Floats
    special_ids: SpecialIds
    noise: Noise = NO_NOISE

    @property
    def shape(self) -> Shape:
        """The shape of the source, (B, S)."""
        return self.case.shape

    @property
    def prefix(self) -> Ids:
        """The decoder inputs that give ``logits``: the start token and all tokens but the last."""
        return start_with(self.special_ids.decoder_start, self.tokens)


@dataclass(frozen=True)
class Eager:
    """One checkpoint in eager PyTorch.

    Attributes:
        config: the config of the checkpoint.
        model: the project's modules with the checkpoint's weights.
        reference: the user's own code or the original mathematics; see ``find_reference``.
        not_run: why the reference is not the user's own code; None if it is.
        rules: the rules of the model, for ``decode_by_rules``.
    """

    config: TransformerConfig
    model: Transformer
    reference: Reference
    not_run: str | None = None
    rules: GreedyRules = NO_RULES

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Eager":
        """Build both from a checkpoint."""
        model = checkpoint.model()
        found = find_reference(checkpoint, model)
        rules = GreedyRules.of(checkpoint.read_generation().defaults)
        return cls(checkpoint.config, model, found.reference, found.not_run, rules)

    @cached_property
    def rounding(self) -> Rounding:
        """Measures the reference."""
        return Rounding(self.reference)

    @cached_property
    def module_rounding(self) -> Rounding:
        """Measures the project's modules, where these are the reference: see ``runs_own_code``."""
        return Rounding(self.model)

    @property
    def runs_own_code(self) -> bool:
        """Whether the reference is the user's own code.

        The user's code returns log-probabilities, so these are compared instead of logits. It
        returns no encoder states, so those of the project's modules are compared; the stage
        "eager modules" compares the modules with the user's code.
        """
        return isinstance(self.reference, OwnCodeReference)

    @property
    def is_causal(self) -> bool:
        """Whether one call of the user's code gives the logits of every prefix."""
        return isinstance(self.reference, OwnCodeReference) and self.reference.causal

    def decode_by_rules(self, run: EagerRun) -> EagerRun:
        """The same batch by the model's own rules; its logits are those of allowed tokens."""
        if self.rules == NO_RULES:
            return run
        return run.once("by rules", run.tokens, lambda: self.decode(run.case, self.rules))

    def knowing(
        self, memory: torch.Tensor, mask: torch.Tensor, prefixes: Sequence[torch.Tensor]
    ) -> contextlib.AbstractContextManager[None]:
        """See ``OwnCodeReference.knowing``; other references are run for every prefix."""
        if isinstance(self.reference, OwnCodeReference):
            return self.reference.knowing(memory, mask, prefixes)
        return contextlib.nullcontext()

    def _draft(self, case: Case, rules: GreedyRules, count: int) -> torch.Tensor:
        """Decoder ids (B, T) as the project's modules decode greedily, with a cache."""
        hidden, cross = self.model.encode(case.ids, case.mask)
        past = self.model.decoder.empty_cache(hidden)
        ids = torch.full((len(case.rows), 1), self.config.special_ids.decoder_start)
        for step in range(count - 1):
            logits, past = self.model.step(ids[:, -1:], past, cross, case.mask)
            last = logits[:, -1]
            last = last if rules == NO_RULES else rules.apply(last, step, count)
            ids = torch.cat([ids, last.argmax(-1, keepdim=True)], dim=1)
        return ids

    def decode(self, case: Case, rules: GreedyRules = NO_RULES) -> EagerRun:
        """Decode greedily without a cache: all of the prefix is computed again for every token.

        Of causal code, one call over what the project's modules decode gives the logits of each
        prefix, as far as the code chooses the same tokens.
        """
        config, special_ids = self.config, self.config.special_ids
        memory = self.reference.encode(case.ids, case.mask)
        hidden = self.model.encode(case.ids, case.mask)[0] if self.runs_own_code else memory
        count = NEW_TOKENS if config.longest is None else min(NEW_TOKENS, config.longest)
        prefix = torch.full((len(case.rows), 1), special_ids.decoder_start)
        free, logits = [], []
        draft = self._draft(case, rules, count) if self.is_causal else prefix
        # The first token is run alone too: code may take another branch for it.
        expected = [draft[:, :length] for length in range(2, draft.size(1) + 1)]
        with self.knowing(memory, case.mask, expected):
            for step in range(count):
                last = self.reference.decode(memory, case.mask, prefix, last_only=True)[:, -1]
                free.append(last)
                last = last if rules == NO_RULES else rules.apply(last, step, count)
                logits.append(last)
                prefix = torch.cat([prefix, last.argmax(-1, keepdim=True)], dim=1)
        noise = self._noise(case, hidden, prefix[:, :-1], torch.stack(free, dim=1))
        found = torch.stack(logits, dim=1).numpy()
        return EagerRun(case, hidden, prefix[:, 1:].numpy(), found, special_ids, noise)

    def _noise(
        self, case: Case, hidden: torch.Tensor, prefix: torch.Tensor, logits: torch.Tensor
    ) -> Noise:
        """The noise of encoder states and of logits (B, T, V), over as many rows as fit."""
        rows = max(1, MOST_VALUES // logits[0].numel())
        ids, mask, prefix, logits = (it[:rows] for it in (case.ids, case.mask, prefix, logits))
        keep, own = mask.bool(), self.runs_own_code

        def states() -> torch.Tensor:
            return self.model.encode(ids, mask)[0][keep]

        def compute() -> list[torch.Tensor]:
            memory = self.reference.encode(ids, mask)
            found = self.compared(self.reference.decode(memory, mask, prefix))
            return [*found, *([] if own else [memory[keep]])]

        def alone() -> list[torch.Tensor]:
            parts = [self._alone(ids[i, k], prefix[i], own) for i, k in enumerate(keep)]
            return [torch.cat(each) for each in zip(*parts, strict=True)]

        found = [*self.compared(logits), *([] if own else [hidden[:rows][keep]])]
        # Rows of causal code are computed in one call, and those of other lengths alone already.
        others: list[Compute] = [] if self.is_causal else [compute]
        if not own or len(mask.sum(1).unique()) < len(mask):
            others.append(alone)
        of_logits, of_log_probs, *of_states = self.rounding.measure(
            compute, [each.numpy() for each in found], others
        )
        if own:
            known = [hidden[:rows][keep].numpy()]
            of_states = self.module_rounding.measure(lambda: [states()], known, ())
        return Noise(tuple(of_states), of_logits, of_log_probs)

    def _alone(self, ids: torch.Tensor, prefix: torch.Tensor, own: bool) -> list[torch.Tensor]:
        """Run one row without padding: its compared logits, and its encoder states."""
        mask = torch.ones_like(ids)[None]
        memory = self.reference.encode(ids[None], mask)
        found = self.compared(self.reference.decode(memory, mask, prefix[None]))
        return [*found, *([] if own else [memory[0]])]

    def compared(self, logits: torch.Tensor) -> list[torch.Tensor]:
        """Logits in the form that is compared, and their log-probabilities."""
        found = log_probs(logits) if self.config.has_embeddings else logits
        return [found if self.runs_own_code else logits, found]

    def run(self, batch: "Shape | Case") -> EagerRun:
        """``decode`` real rows, or random ones of a shape (B, S)."""
        return self.decode(batch) if isinstance(batch, Case) else self.decode_random(batch)

    def decode_random(self, shape: Shape) -> EagerRun:
        """``decode`` random rows of a shape (B, S)."""
        return self.decode(random_case(self.config, *shape))


def run_grid(
    checkpoint: Checkpoint,
    compare: Callable[[Eager, Shape | Case], Iterable[Comparison]],
    plan: ComparisonPlan | None = None,
) -> ParityReport:
    """Compare at every shape of the grid, and on real rows.

    Args:
        checkpoint: the checkpoint that eager PyTorch runs.
        compare: returns the comparisons of one batch, which ``Eager.run`` takes; called under
            ``torch.no_grad``.
        plan: what to compare.
    """
    plan = plan or ComparisonPlan()
    batches: list[Shape | Case] = [*grid(checkpoint.config, plan.level)]
    drawn, config = len(batches), checkpoint.config
    fit = [list(row) for row in plan.rows if config.longest is None or len(row) <= config.longest]
    for start in range(0, len(fit), max(BATCHES)):
        batches.append(make_case(fit[start : start + max(BATCHES)], config))
    done = iter(range(len(batches)))

    def labelled(eager: Eager, batch: Shape | Case) -> Iterator[Comparison]:
        inputs = DRAWN if next(done) < drawn else plan.inputs
        yield from (replace(found, inputs=inputs) for found in compare(eager, batch))

    report = run_batches(checkpoint, batches, labelled, plan.progress)
    return replace(report, level=plan.level)


def run_batches(
    checkpoint: Checkpoint,
    batches: Iterable[Batch],
    compare: Callable[[Eager, Batch], Iterable[Comparison]],
    progress: Progress | None = None,
    step: str = "comparing with eager PyTorch",
) -> ParityReport:
    """Compare batch by batch; ``run_grid`` for batches of any kind.

    Args:
        checkpoint: the checkpoint that eager PyTorch runs.
        batches: arguments of ``compare``.
        compare: returns the comparisons of one batch; called under ``torch.no_grad``.
        progress: called after every batch.
        step: name of this step for ``progress``.
    """
    eager = Eager.of(checkpoint)
    progress, every, found = progress or silent, list(batches), list[Comparison]()
    with torch.no_grad(), suited_threads((eager.reference, eager.model)):
        for done, batch in enumerate(every):
            progress(step, done, len(every))
            found.extend(compare(eager, batch))
    progress(step, len(every), len(every))
    reference, values = eager.reference, checkpoint.config.to_dict()
    return ParityReport(
        reference.title,
        found,
        reference.no_original,
        eager.not_run,
        eager.rounding.by,
        {key: (values[key], origin) for key, origin in checkpoint.unseen.items()},
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


def random_case(config: TransformerConfig, batch: int, length: int) -> Case:
    """Random rows of different lengths; the first has the full length."""
    generator = np.random.default_rng([batch, length])
    special_ids = config.special_ids
    special = {special_ids.pad, special_ids.bos, special_ids.eos, special_ids.start}
    assert config.source_vocab_size is not None
    ordinary = [i for i in range(config.source_vocab_size) if i not in special] or [0]
    lengths = [length, *generator.integers(1, length + 1, size=batch - 1)]
    return make_case([generator.choice(ordinary, size=size).tolist() for size in lengths], config)


def make_case(rows: list[list[int]], config: TransformerConfig) -> Case:
    """Rows of source ids, padded to a batch."""
    ids, mask = pad(rows, config.special_ids.pad)
    return Case(rows, torch.from_numpy(ids), torch.from_numpy(mask))


def start_with(start_id: int, tokens: Ids) -> Ids:
    """Decoded tokens (B, T) to the decoder inputs (B, T): shifted right after the start token."""
    start = np.full((len(tokens), 1), start_id)
    return np.concatenate([start, tokens[:, :-1]], axis=1)
