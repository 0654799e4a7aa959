"""Parity reports: differences by stage and shape, and the allowed differences.

A value counts as equal within a tolerance that is derived from what the reference's own code does
in float32 on the same input; see ``allow``. Tokens must be equal, except where the two highest
logits of eager PyTorch are closer than twice the tolerance of logits: such a near tie is counted
and reported, and the rest of that row is not compared.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import onnxruntime

from tfexport.errors import Message, Option, ParityError

LEAST_ALLOWED = 1e-4
MULTIPLE = 5  # of the noise; docs/parity.md has the measurements
MOST_ALLOWED = 1e-2  # whatever the noise

NATIVE, NATIVE_TOKENS = "native", "native tokens"  # stages of the native engine
DECODER_OF_STATES = "decoder of states"  # that of a module, if it is recognised
ALIGNMENT = "alignment"  # attention of a module
EXPECTED = "expected texts"
EAGER_MODULES, STEP_AND_DECODE = "eager modules", "step and decode"
# In the order of computation, so that the first that fails is the one to look at.
STAGES = (
    EAGER_MODULES,
    "encoder states",
    "memory",
    STEP_AND_DECODE,
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
    DECODER_OF_STATES,
    ALIGNMENT,
    NATIVE,
    NATIVE_TOKENS,
    EXPECTED,
)

TOKEN_STAGES = (
    "greedy tokens",
    "generate",
    "text",
    NATIVE_TOKENS,
    EXPECTED,
)  # their difference is a number of rows

# For comparisons of two programs, not of a program and its export: equal ones differ by their
# rounding. A larger difference than this that rounding does not explain is reported.
_TWO_PROGRAMS = (EAGER_MODULES, STEP_AND_DECODE)
_DOUBTED = LEAST_ALLOWED / 10

DRAWN, SAMPLES, SENTENCES, EXAMPLES = "drawn", "samples", "sentences", "examples"  # kinds of inputs


def allow(noise: float) -> float:
    """The largest difference that passes where float32 itself has this much noise.

    It is ``MULTIPLE`` times the noise, at least ``LEAST_ALLOWED`` and at most ``MOST_ALLOWED``, so
    that no model widens it without bound.
    """
    if not np.isfinite(noise):
        return min(LEAST_ALLOWED, MOST_ALLOWED)
    return float(min(MOST_ALLOWED, max(LEAST_ALLOWED, MULTIPLE * noise)))


@dataclass(frozen=True)
class Comparison:
    """One stage at one shape.

    Attributes:
        stage: one of ``STAGES``, or the stage of a graph form.
        batch: B.
        source_length: S.
        difference: the largest, relative to max(1, |eager's value|); for ``TOKEN_STAGES`` the
            number of rows that differ without a near tie.
        compared: number of values or tokens that were compared.
        near_ties: number of rows whose comparison ended at a near tie.
        noise: how far the reference's own float32 values are from exact ones, measured alike.
        inputs: what was compared: ``DRAWN`` ids, or real ones.
    """

    stage: str
    batch: int
    source_length: int
    difference: float
    compared: int
    near_ties: int = 0
    noise: float = 0.0
    inputs: str = DRAWN

    @property
    def allowed(self) -> float:
        """The largest difference that passes; of ``TOKEN_STAGES``, none."""
        return 0.0 if self.stage in TOKEN_STAGES else allow(self.noise)

    @property
    def passed(self) -> bool:
        """Whether the difference is allowed; NaN is not."""
        return self.difference <= self.allowed

    @property
    def used(self) -> float:
        """The part of the tolerance that the difference takes: 1 is all of it."""
        if self.allowed == 0:
            return 0.0 if self.passed else float("inf")
        return self.difference / self.allowed


@dataclass(frozen=True)
class ParityReport:
    """All comparisons of one artifact with eager PyTorch.

    Attributes:
        reference: title of the eager model that was run.
        comparisons: each stage at each shape.
        no_original: why the project's own modules were run instead of an original; None if an
            original was run.
        not_run: why the user's own code was not run, as a phrase, or ""; None if it was.
        measured_by: how the noise of the reference was measured; None if it was not.
        settings: settings that the weights do not show: key to value and origin, as JSON values.
        level: how much was compared: "full" or "quick".
        unexpected: the first lines whose text is not the one that was expected.
    """

    reference: str
    comparisons: list[Comparison] = field(default_factory=list)
    no_original: str | None = None
    not_run: str | None = None
    measured_by: str | None = None
    settings: dict[str, tuple[Any, str]] = field(default_factory=dict)
    level: str = "full"
    unexpected: tuple[str, ...] = ()

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
        """A sentence if the user's own code was not run, with what to pass; None if it was."""
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
        return sorted(found, key=_order)

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
        return min(failures, key=lambda c: _order(c.stage), default=None)

    def worst(self) -> dict[str, Comparison]:
        """Stage to its worst comparison: one that failed, else the largest difference."""
        found: dict[str, Comparison] = {}
        for c in self.comparisons:
            before = found.get(c.stage)
            if before is None or (not c.passed, c.difference) > (
                not before.passed,
                before.difference,
            ):
                found[c.stage] = c
        return found

    @property
    def ill_conditioned(self) -> str | None:
        """A sentence if the reference's own rounding is so large that the tolerance is cut."""
        worst = max((c.noise for c in self.comparisons), default=0.0)
        if np.isfinite(worst) and MULTIPLE * worst <= MOST_ALLOWED:
            return None
        far = f"{worst:.2g} from exact ones" if np.isfinite(worst) else "not finite in places"
        return (
            f"The float32 values of {self.reference} itself are {far}, so that equal models differ "
            f"by more than the {MOST_ALLOWED:g} that is allowed at most: these weights are too "
            "large for float32."
        )

    @property
    def doubt(self) -> str | None:
        """A sentence if a difference passes that rounding does not explain, because it is small."""
        doubted = [
            c
            for c in self.comparisons
            if c.stage in _TWO_PROGRAMS
            and c.passed
            and c.difference > max(_DOUBTED, MULTIPLE * c.noise)
            and c.noise > 0
        ]
        if not doubted:
            return None
        worst = max(doubted, key=lambda c: c.difference)
        times = f"{worst.difference / worst.noise:.2g} times"
        where = f"batch {worst.batch}, source length {worst.source_length}, {worst.inputs}"
        return (
            f"{worst.stage}: differs by {worst.difference:.2g}, {times} what {self.reference} "
            f"itself rounds by there ({where}). It passes only because {LEAST_ALLOWED:g} always "
            "does: check what changes little, such as the epsilon of the norms."
        )

    def summary(self) -> dict[str, Any]:
        """The part that a manifest records."""
        from importlib import metadata  # slow to import, and seldom needed

        tokens = [c for c in self.comparisons if c.stage in TOKEN_STAGES]
        worst = self.worst()
        return {
            "passed": self.passed,
            "reference": self.reference,
            **({"no_original": self.no_original} if self.no_original is not None else {}),
            **({"own_code": str(self.own_code)} if self.own_code is not None else {}),
            **({"doubt": self.doubt} if self.doubt is not None else {}),
            "level": self.level,
            "inputs": [*dict.fromkeys(c.inputs for c in self.comparisons)],
            "shapes": len({(c.inputs, c.batch, c.source_length) for c in self.comparisons}),
            "tokens": sum(c.compared for c in tokens if c.stage != EXPECTED),
            **self._expected(),
            "near_ties": sum(c.near_ties for c in tokens),
            "largest_difference": {stage: c.difference for stage, c in worst.items()},
            "allowed": {stage: c.allowed for stage, c in worst.items() if c.allowed},
            "rounding": {
                "measured_by": self.measured_by,
                "multiple": MULTIPLE,
                "least_allowed": LEAST_ALLOWED,
                "most_allowed": MOST_ALLOWED,
                "noise": max((c.noise for c in self.comparisons), default=0.0),
            },
            "torch": metadata.version("torch").partition("+")[0],
            "onnxruntime": onnxruntime.__version__,
        }

    def _expected(self) -> dict[str, dict[str, int]]:
        """Lines of expected texts, and how many are equal; nothing if there were none."""
        found = [c for c in self.comparisons if c.stage == EXPECTED]
        lines, wrong = sum(c.compared for c in found), sum(int(c.difference) for c in found)
        equal = lines - wrong - sum(c.near_ties for c in found)
        return {"expected": {"lines": lines, "equal": equal}} if found else {}

    def to_dict(self) -> dict[str, Any]:
        """The summary and every comparison, as JSON values."""
        rows = [{**asdict(c), "allowed": c.allowed, "passed": c.passed} for c in self.comparisons]
        settings = {key: {"value": v, "origin": o} for key, (v, o) in self.settings.items()}
        return {**self.summary(), "settings": settings, "comparisons": rows}

    def require(self, name: str) -> None:
        """Raise if anything differs.

        Raises:
            ParityError: a stage differs; the message names the first one.
        """
        text = self.failure()
        if text is not None:
            raise ParityError(Message(f"{name}: not equal to {self.reference}: ", text))

    def failure(self) -> Message | None:
        """The first difference, its size and its possible causes; None if there is none."""
        failure = self.first_failure()
        if failure is None:
            return None
        where = f"batch {failure.batch}, source length {failure.source_length}, {failure.inputs}"
        wrong = sum(c.difference for c in self.comparisons if c.stage in TOKEN_STAGES)
        if failure.stage == EXPECTED:
            lines = "".join(f"\n  {line}" for line in self.unexpected)
            amount = f"{failure.difference:.0f} of {failure.compared} lines differ:{lines}\n"
        elif failure.stage in TOKEN_STAGES:
            amount = f"{failure.difference:.0f} rows differ ({where})."
        else:
            ours, allowed = distinct_figures(failure.difference, failure.allowed)
            tokens = f"the tokens of {wrong:.0f} rows differ" if wrong else "no token differs"
            amount = (
                f"differs by {ours}, {failure.used:.3g} times the {allowed} that is allowed "
                f"({where}); {tokens}. {self._tolerance(failure)}"
            )
        return Message(f"{failure.stage}: {amount} Possible causes: ", *self._causes(failure))

    def _tolerance(self, failure: Comparison) -> str:
        if self.measured_by is None:
            return f"{LEAST_ALLOWED:g} is the least tolerance."
        rounding = (
            f"{self.reference} itself rounds by {failure.noise:.2g} here (by {self.measured_by})"
        )
        if failure.allowed >= MOST_ALLOWED:
            return self.ill_conditioned or rounding + "."
        if failure.allowed > LEAST_ALLOWED:
            return f"{rounding}, and {MULTIPLE} times that is allowed."
        return f"{rounding}; {LEAST_ALLOWED:g} is the least tolerance."

    def _causes(self, failure: Comparison) -> list[Message | str | Option]:
        causes: list[Message | str | Option] = []
        if failure.stage == EAGER_MODULES:
            if self.not_run is None:
                causes.append(
                    "your code computes something else than its layout does, then export the code "
                    "itself (docs/training-script.md); or a setting that weights do not show "
                    "(heads, places of norms, activation, scale of the embeddings, epsilon) is "
                    "another"
                )
            else:
                causes.append(
                    "a setting that weights do not show (heads, places of norms, activation, scale "
                    "of the embeddings, epsilon) is one that this layout's original cannot have"
                )
        elif failure.stage == STEP_AND_DECODE:
            causes.append("the module's step computes something else than its decode")
        elif failure.stage == EXPECTED:
            causes.append(
                "a setting that the weights do not show (heads, special tokens, places of norms, "
                "activation, epsilon, scale of the embeddings); the tokenizer or its splitting; "
                "or your loop decodes differently (length limit, beams, lower case)"
            )
        else:
            causes.append(
                "the artifact was made from other weights or another config; or its export is "
                "wrong, which is a fault of tfexport"
            )
        if failure.stage not in TOKEN_STAGES and failure.used < 10:
            causes.append("; or rounding beyond what was measured")
        return [*causes, "."]


def distinct_figures(one: float, other: float) -> tuple[str, str]:
    """Two figures with enough digits to show that they differ, two at least."""
    for digits in range(2, 17):
        texts = f"{one:.{digits}g}", f"{other:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts


def _order(stage: str) -> int:
    return STAGES.index(stage) if stage in STAGES else len(STAGES)
