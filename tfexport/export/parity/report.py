"""A parity report: differences by stage and shape, and the tolerance.

Logits count as equal within ``TOLERANCE`` relative to max(1, |logit|). Tokens have to be equal,
except where the two highest logits of eager PyTorch are closer than twice that tolerance: such a
near tie is counted and reported, and the rest of that row is not compared.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import onnxruntime
import torch

from tfexport.errors import Message, Option, ParityError

TOLERANCE = 1e-4
NATIVE, NATIVE_TOKENS = "native", "native tokens"  # stages of the native engine
# In the order of computation, so that the first that fails is the one to look at.
STAGES = (
    "eager modules",
    "encoder states",
    "memory",
    "step and decode",
    "full prefix",
    "shortlist",
    "cached steps",
    "greedy tokens",
    "generate",
    "scores",
    "beam",
    "slots",
    "text",
    "attention",
    "forward",
    "attention biases",
    NATIVE,
    NATIVE_TOKENS,
)

TOKEN_STAGES = (
    "greedy tokens",
    "generate",
    "text",
    NATIVE_TOKENS,
)  # their difference is a number of rows


@dataclass(frozen=True)
class Comparison:
    """One stage at one shape.

    Attributes:
        stage: one of ``STAGES``, or of a graph form that has a stage of its own.
        batch: B.
        source_length: S.
        difference: the largest, relative to max(1, |eager's value|); for ``TOKEN_STAGES`` the
            number of rows that differ without a near tie.
        compared: number of values or tokens that were compared.
        near_ties: number of rows whose comparison ended at a near tie.
    """

    stage: str
    batch: int
    source_length: int
    difference: float
    compared: int
    near_ties: int = 0

    @property
    def passed(self) -> bool:
        """Whether the difference is within the tolerance; NaN is not."""
        return self.difference <= (0 if self.stage in TOKEN_STAGES else TOLERANCE)


@dataclass(frozen=True)
class ParityReport:
    """All comparisons of one artifact with eager PyTorch.

    Attributes:
        reference: title of the eager model that was run.
        comparisons: each stage at each shape.
        no_original: why the project's own modules were run instead of an original; None if an
            original was run.
        not_run: why no code of the user's own was run, as a phrase, or ""; None if it was.
    """

    reference: str
    comparisons: list[Comparison] = field(default_factory=list)
    no_original: str | None = None
    not_run: str | None = None

    @property
    def note(self) -> str | None:
        """A sentence about ``no_original``; None if an original was run."""
        if self.no_original is None:
            return None
        return (
            f"No original was run, only tfexport's own modules without a cache: {self.no_original}."
        )

    @property
    def own_code(self) -> Message | None:
        """A sentence if no code of the user's own was run, with what to pass; None if it was."""
        if self.not_run is None:
            return None
        why = f" ({self.not_run})" if self.not_run else ""
        built = f"{self.reference}{',' if ',' in self.reference else ''} built from the checkpoint"
        return Message(
            f"Your own forward was not run{why}: compared with {built}. Pass ",
            Option("reference"),
            " to compare with your code.",
        )

    def stages(self) -> list[str]:
        """The stages that were compared, in the order of ``STAGES``; others come last."""
        found = dict.fromkeys(c.stage for c in self.comparisons)
        return sorted(found, key=_place)

    @property
    def compared_native(self) -> bool:
        """Whether the native engine took part."""
        return any(comparison.stage == NATIVE for comparison in self.comparisons)

    @property
    def passed(self) -> bool:
        """Whether every comparison passed."""
        return bool(self.comparisons) and all(c.passed for c in self.comparisons)

    def first_failure(self) -> Comparison | None:
        """The first failure in the order of ``STAGES``, at the smallest shape."""
        failures = [c for c in self.comparisons if not c.passed]
        return min(failures, key=lambda c: _place(c.stage), default=None)

    def largest_differences(self) -> dict[str, float]:
        """Stage to its largest difference."""
        found: dict[str, float] = {}
        for c in self.comparisons:
            found[c.stage] = float(np.maximum(found.get(c.stage, 0.0), c.difference))
        return found

    def summary(self) -> dict[str, Any]:
        """The part that a manifest records."""
        tokens = [c for c in self.comparisons if c.stage in TOKEN_STAGES]
        return {
            "passed": self.passed,
            "reference": self.reference,
            **({"no_original": self.no_original} if self.no_original is not None else {}),
            **({"own_code": str(self.own_code)} if self.own_code is not None else {}),
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
            advice = "The stages before it agree; check the config of what comes with this one."
            if self.not_run is None and failure.stage == STAGES[0]:
                advice = (
                    "Your code computes something else than its layout and this config say: check "
                    "the config, or export the code itself (docs/modules.md)."
                )
            raise ParityError(
                f"{name}: not equal to {self.reference}: {failure.stage}: {amount} "
                f"(batch {failure.batch}, source length {failure.source_length}). {advice}"
            )


def _place(stage: str) -> int:
    return STAGES.index(stage) if stage in STAGES else len(STAGES)
