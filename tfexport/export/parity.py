"""Eager PyTorch against a bundle, stage by stage, over a grid of shapes.

Logits count as equal within ``TOLERANCE`` relative to max(1, |logit|). Tokens are equal except
where eager's two best logits lie closer than twice that tolerance: there either order is right,
and the row is not followed further. Such near ties are counted and reported.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from tfexport.bundle import Manifest
from tfexport.errors import ParityError
from tfexport.export.reference import ModuleReference, Reference, build_reference
from tfexport.model_src.checkpoint.read import Checkpoint
from tfexport.model_src.config import TransformerConfig
from tfexport.model_src.transformer import Transformer
from tfexport.runtime.model import Model, pad
from tfexport.runtime.search import greedy

TOLERANCE = 1e-4
BATCHES = (1, 2, 8)
SOURCE_LENGTHS = (1, 7, 33)
LONGEST_SOURCE = 512
NEW_TOKENS = 32
# In the order of the data's way through the model: the first that fails is where to look.
STAGES = (
    "eager modules",
    "encoder states",
    "full prefix",
    "cached steps",
    "greedy tokens",
    "generate graph",
    "scores",
    "forward graph",
    "attention biases",
)

TOKEN_STAGES = ("greedy tokens", "generate graph")  # whose differences count rows

Floats = NDArray[np.float32]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Comparison:
    """One stage at one shape.

    Attributes:
        stage: one of ``STAGES``.
        batch: B.
        source_length: S.
        difference: the largest, relative to max(1, |eager's value|); of tokens, how many rows
            went another way without a near tie.
        compared: how many values or tokens were compared.
        near_ties: rows that were left at a near tie.
    """

    stage: str
    batch: int
    source_length: int
    difference: float
    compared: int
    near_ties: int = 0

    @property
    def passed(self) -> bool:
        """Whether the difference is tolerable; NaN is not."""
        return self.difference <= (0 if self.stage in TOKEN_STAGES else TOLERANCE)


@dataclass(frozen=True)
class ParityReport:
    """All comparisons of one bundle with one reference."""

    reference: str
    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every comparison passed."""
        return bool(self.comparisons) and all(c.passed for c in self.comparisons)

    def first_failure(self) -> Comparison | None:
        """The failure nearest to the model's input, at the smallest shape."""
        failures = [c for c in self.comparisons if not c.passed]
        return min(failures, key=lambda c: STAGES.index(c.stage), default=None)

    def largest_differences(self) -> dict[str, float]:
        """Stage to its largest difference."""
        found: dict[str, float] = {}
        for c in self.comparisons:
            found[c.stage] = float(np.maximum(found.get(c.stage, 0.0), c.difference))
        return found

    def summary(self) -> dict[str, Any]:
        """What a manifest records."""
        tokens = [c for c in self.comparisons if c.stage in TOKEN_STAGES]
        return {
            "passed": self.passed,
            "reference": self.reference,
            "tolerance": TOLERANCE,
            "shapes": len({(c.batch, c.source_length) for c in self.comparisons}),
            "tokens": sum(c.compared for c in tokens),
            "near_ties": sum(c.near_ties for c in tokens),
            "largest_difference": self.largest_differences(),
            "torch": torch.__version__.partition("+")[0],
            "onnxruntime": onnxruntime.__version__,
        }

    def to_dict(self) -> dict[str, Any]:
        """The summary and every comparison, as JSON values."""
        rows = [{**asdict(c), "passed": c.passed} for c in self.comparisons]
        return {**self.summary(), "comparisons": rows}

    def require(self, name: str) -> None:
        """Raise if anything differs.

        Raises:
            ParityError: naming the first stage that differs.
        """
        failure = self.first_failure()
        if failure is not None:
            amount = (
                f"{failure.difference:.0f} rows differ"
                if failure.stage in TOKEN_STAGES
                else f"differs by {failure.difference:.2g}, allowed {TOLERANCE:g}"
            )
            raise ParityError(
                f"{name}: not equal to {self.reference}: {failure.stage}: {amount} "
                f"(batch {failure.batch}, source length {failure.source_length}). "
                "The stages before it agree; check the config of what comes with this one."
            )


@dataclass(frozen=True)
class Case:
    """One batch: its rows, and the same padded, ids (B, S) and mask (B, S)."""

    rows: list[list[int]]
    ids: torch.Tensor
    mask: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(B, S)."""
        return self.ids.shape[0], self.ids.shape[1]


def compare(
    folder: Path, manifest: Manifest, checkpoint: Checkpoint, progress: Progress | None = None
) -> ParityReport:
    """Run eager PyTorch beside a bundle.

    Args:
        folder: the bundle's files, already checked.
        manifest: of the bundle.
        checkpoint: what the bundle was exported from.
        progress: told after every shape.
    """
    config = checkpoint.config
    model = checkpoint.build()
    reference = build_reference(checkpoint, model)
    runtime = Model(folder, manifest)
    report = ParityReport(reference.title)
    for shape in walk(grid(config), progress):
        case = random_case(config, *shape)
        report.comparisons.extend(_compare_case(case, config, model, reference, runtime))
    return report


def walk(shapes: Iterable[tuple[int, int]], progress: Progress | None) -> Iterator[tuple[int, int]]:
    """The shapes one by one, with word of each to ``progress``."""
    todo = list(shapes)
    for done, shape in enumerate(todo):
        if progress is not None:
            progress("comparing with eager PyTorch", done, len(todo))
        yield shape
    if progress is not None:
        progress("comparing with eager PyTorch", len(todo), len(todo))


def grid(config: TransformerConfig) -> Iterator[tuple[int, int]]:
    """The shapes to compare at: (B, S)."""
    limit = LONGEST_SOURCE
    if config.positions != "none":
        limit = min(limit, config.max_positions)
    lengths = sorted({min(length, limit) for length in SOURCE_LENGTHS})
    yield from ((batch, length) for length in lengths for batch in BATCHES)
    if limit not in lengths:
        yield 1, limit


def random_case(config: TransformerConfig, batch: int, length: int) -> Case:
    """Random rows of different lengths, the first of them full."""
    generator = np.random.default_rng([batch, length])
    special = {config.pad_id, config.bos_id, config.eos_id}
    assert config.source_vocab_size is not None
    ordinary = [i for i in range(config.source_vocab_size) if i not in special] or [0]
    lengths = [length, *generator.integers(1, length + 1, size=batch - 1)]
    rows = [generator.choice(ordinary, size=size).tolist() for size in lengths]
    ids, mask = pad(rows, config.pad_id or 0)
    return Case(rows, torch.from_numpy(ids), torch.from_numpy(mask))


def _compare_case(
    case: Case,
    config: TransformerConfig,
    model: Transformer,
    reference: Reference,
    runtime: Model,
) -> Iterator[Comparison]:
    assert config.bos_id is not None
    assert config.eos_id is not None
    hidden = reference.encode(case.ids, case.mask)
    tokens, eager = eager_greedy(case, config, reference, hidden)
    prefix = np.concatenate([np.full((len(case.rows), 1), config.bos_id), tokens[:, :-1]], axis=1)

    if not isinstance(reference, ModuleReference):
        with torch.no_grad():
            ours = model(case.ids, case.mask, torch.from_numpy(prefix), torch.ones(prefix.shape))
        yield compare_values("eager modules", case.shape, ours.numpy(), eager)
    keep = case.mask.numpy().astype(bool)
    states = runtime.hidden_states(case.rows)
    yield compare_values("encoder states", case.shape, states[keep], hidden.numpy()[keep])
    full = runtime.step(prefix, runtime.encode(case.rows))
    yield compare_values("full prefix", case.shape, full, eager)
    state = runtime.encode(case.rows)
    steps = [runtime.step(prefix[:, t : t + 1], state).copy() for t in range(prefix.shape[1])]
    yield compare_values("cached steps", case.shape, np.concatenate(steps, axis=1), eager)

    found = greedy(runtime, case.rows, prefix.shape[1], config.bos_id, config.eos_id)
    yield compare_tokens(case, [h.tokens for h in found], tokens, eager, config.eos_id)


def eager_greedy(
    case: Case, config: TransformerConfig, reference: Reference, hidden: torch.Tensor
) -> tuple[NDArray[np.int64], Floats]:
    """The tutorial's uncached loop: the whole prefix again for every token, past the end token.

    Returns:
        tokens: (B, T).
        logits: (B, T, V), each from its own run over its own prefix.
    """
    assert config.bos_id is not None
    count = NEW_TOKENS if config.positions == "none" else min(NEW_TOKENS, config.max_positions)
    prefix = torch.full((len(case.rows), 1), config.bos_id)
    logits = []
    for _ in range(count):
        last = reference.decode(hidden, case.mask, prefix)[:, -1]
        logits.append(last)
        prefix = torch.cat([prefix, last.argmax(-1, keepdim=True)], dim=1)
    return prefix[:, 1:].numpy(), torch.stack(logits, dim=1).numpy()


def compare_values(stage: str, shape: tuple[int, int], ours: Floats, eager: Floats) -> Comparison:
    """Compare values at one shape (B, S)."""
    difference = np.abs(ours - eager) / np.maximum(1.0, np.abs(eager))
    return Comparison(stage, *shape, float(difference.max()), int(difference.size))


def compare_tokens(
    case: Case,
    found: list[list[int]],
    tokens: NDArray[np.int64],
    eager: Floats,
    eos_id: int,
    stage: str = "greedy tokens",
) -> Comparison:
    """Compare decoded rows (no start, no end token) with eager's, up to each row's end."""
    wrong = near_ties = compared = 0
    for ours, theirs, logits in zip(found, tokens.tolist(), eager, strict=True):
        ended = [*ours, eos_id][: len(theirs)]
        for token, expected, scores in zip(ended, theirs, logits, strict=False):
            compared += 1
            if token != expected:
                second, first = np.partition(scores, -2)[-2:]
                near = first - second < 2 * TOLERANCE * max(1.0, abs(float(first)))
                near_ties += int(near)
                wrong += int(not near)
            if token != expected or expected == eos_id:
                break
    batch, length = case.shape
    return Comparison(stage, batch, length, float(wrong), compared, near_ties)
