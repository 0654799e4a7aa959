"""What a comparison found: differences by stage and shape, and what they may be.

Logits count as equal within ``TOLERANCE`` relative to max(1, |logit|). Tokens are equal except
where eager's two best logits lie closer than twice that tolerance: there either order is right,
and the row is not followed further. Such near ties are counted and reported.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from tfexport.errors import ParityError
from tfexport.export.parity.eager_run import Case, Floats
from tfexport.runtime.search import truncate_at_eos

TOLERANCE = 1e-4
# In the order of the data's way through the model: the first that fails is where to look.
STAGES = (
    "eager modules",
    "encoder states",
    "full prefix",
    "shortlist",
    "cached steps",
    "greedy tokens",
    "generate",
    "scores",
    "beam",
    "text",
    "attention",
    "forward",
    "attention biases",
)

TOKEN_STAGES = ("greedy tokens", "generate", "text")  # whose differences count rows


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


def compare_values(stage: str, shape: tuple[int, int], ours: Floats, eager: Floats) -> Comparison:
    """Compare values at one shape (B, S); values of other axes differ by as much as can be."""
    if ours.shape != eager.shape:
        return Comparison(stage, *shape, float(np.finfo(np.float32).max), int(eager.size))
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
                near = _is_near_tie(scores)
                near_ties += int(near)
                wrong += int(not near)
            if token != expected or expected == eos_id:
                break
    batch, length = case.shape
    return Comparison(stage, batch, length, float(wrong), compared, near_ties)


def compare_texts(
    case: Case, differ: list[bool], tokens: NDArray[np.int64], eager: Floats, eos_id: int
) -> Comparison:
    """Rows whose text differs from that of eager's tokens (B, T), excused by a near tie in them."""
    wrong = near_ties = compared = 0
    for row, logits, different in zip(tokens.tolist(), eager, differ, strict=True):
        length = min(len(truncate_at_eos(row, eos_id)) + 1, len(row))
        compared += length
        near = different and any(_is_near_tie(scores) for scores in logits[:length])
        near_ties += near
        wrong += different and not near
    return Comparison("text", *case.shape, float(wrong), compared, near_ties)


def _is_near_tie(logits: Floats) -> bool:
    """Whether the two best of (V,) logits lie so close that either order is right."""
    second, first = np.partition(logits, -2)[-2:]
    return bool(first - second < 2 * TOLERANCE * max(1.0, abs(float(first))))


def compare_sequences(
    case: Case,
    sequences: NDArray[np.int64],
    scores: Floats,
    tokens: NDArray[np.int64],
    eager: Floats,
    eos_id: int,
) -> Iterator[Comparison]:
    """Compare what a generate graph gave, (B, T) and (B,), with eager's tokens and logits."""
    rows = [truncate_at_eos(row, eos_id) for row in sequences.tolist()]
    yield compare_tokens(case, rows, tokens, eager, eos_id, stage="generate")
    expected = _scores(tokens, eager, eos_id)
    # A row that went another way at a near tie has a score of its own.
    same = [
        ours == truncate_at_eos(theirs, eos_id)
        for ours, theirs in zip(rows, tokens.tolist(), strict=True)
    ]
    if any(same):
        yield compare_values("scores", case.shape, scores[same], expected[same])


def _scores(tokens: NDArray[np.int64], logits: Floats, eos_id: int) -> Floats:
    """(B, T) and (B, T, V) to (B,): mean log-probability, the end token included."""
    shifted = logits - logits.max(-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_probs, tokens[:, :, None], -1)[:, :, 0]
    counts = [len(truncate_at_eos(row, eos_id)) + (eos_id in row) for row in tokens.tolist()]
    means = [row[:count].mean() for row, count in zip(chosen, counts, strict=True)]
    return np.array(means, np.float32)
