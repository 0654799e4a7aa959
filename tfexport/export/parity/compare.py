"""Comparisons with eager PyTorch: of values, of decoded tokens, of text."""

from collections.abc import Iterator, Mapping

import numpy as np

from tfexport.export.parity.eager_run import EagerRun, Floats, Ids, Shape
from tfexport.export.report import Comparison, allow
from tfexport.export.rounding import LEAST_LOG_PROB, Noise, difference
from tfexport.runtime.search import truncate_at_eos


def compare_values(
    stage: str, shape: Shape, ours: Floats, eager: Floats, noise: float = 0.0
) -> Comparison:
    """Compare values at one shape (B, S).

    Arrays of unequal shape count as differing by the largest float32.

    Args:
        stage: the name of the stage.
        shape: (B, S).
        ours: the values of the artifact.
        eager: the values of eager PyTorch.
        noise: the float32 noise of eager PyTorch on this input.
    """
    gap = float(np.finfo(np.float32).max)
    if ours.shape == eager.shape:
        gap = difference(ours, eager)
    return Comparison(stage, *shape, gap, int(eager.size), noise=noise)


def compare_logits(
    run: EagerRun, stage: str, ours: Floats, theirs: Floats, noise: float = 0.0
) -> Comparison:
    """Compare logits (…, V) of a batch, or log-probabilities: see ``Eager.compares_log_probs``.

    Those below ``LEAST_LOG_PROB`` count as equal.
    """
    if run.eager.compares_log_probs:
        ours, theirs = _log_probs(ours), _log_probs(theirs)
    return compare_values(stage, run.shape, ours, theirs, noise)


def compare_tokens(
    run: EagerRun, found: list[list[int]], stage: str = "greedy tokens"
) -> Comparison:
    """Compare decoded tokens, without start and end token, with those of eager PyTorch.

    A row is compared up to its end token, or to its first difference.
    """
    eos_id = run.special_ids.eos
    wrong = near_ties = compared = 0
    for ours, theirs, logits in zip(found, run.tokens.tolist(), run.logits, strict=True):
        ended = [*ours, eos_id][: len(theirs)]
        for token, expected, scores in zip(ended, theirs, logits, strict=False):
            compared += 1
            if token != expected:
                tie = is_near_tie(scores, run.noise)
                near_ties += int(tie)
                wrong += int(not tie)
            if token != expected or expected == eos_id:
                break
    return Comparison(stage, *run.shape, float(wrong), compared, near_ties)


def compare_texts(run: EagerRun, differ: Mapping[int, bool]) -> Comparison:
    """Count the rows whose text differs from the decoded tokens of eager PyTorch.

    Args:
        run: the run of eager PyTorch.
        differ: row number to whether its text differs. A difference in a row with a near tie is
            counted as a near tie, not as wrong.
    """
    wrong = near_ties = compared = 0
    for row, different in differ.items():
        tokens, logits = run.tokens[row].tolist(), run.logits[row]
        length = min(len(truncate_at_eos(tokens, run.special_ids.eos)) + 1, len(tokens))
        compared += length
        tie = different and any(is_near_tie(it, run.noise) for it in logits[:length])
        near_ties += tie
        wrong += different and not tie
    return Comparison("text", *run.shape, float(wrong), compared, near_ties)


def compare_sequences(run: EagerRun, sequences: Ids, scores: Floats) -> Iterator[Comparison]:
    """Compare sequences (B, T) and scores (B,) of a generate graph with eager PyTorch."""
    eos_id = run.special_ids.eos
    rows = [truncate_at_eos(row, eos_id) for row in sequences.tolist()]
    yield compare_tokens(run, rows, stage="generate")
    # After a near tie the tokens of a row differ, and so does its score.
    same = [
        ours == truncate_at_eos(theirs, eos_id)
        for ours, theirs in zip(rows, run.tokens.tolist(), strict=True)
    ]
    if any(same):
        theirs = _scores(run)[same]
        yield compare_values("scores", run.shape, scores[same], theirs, run.noise.log_probs)


def is_near_tie(logits: Floats, noise: Noise) -> bool:
    """Whether the two highest of (V,) logits are closer than the allowed difference."""
    second, first = np.partition(logits, -2)[-2:]
    return bool(first - second < 2 * allow(noise.logits) * max(1.0, abs(float(first))))


def _scores(run: EagerRun) -> Floats:
    """Eager PyTorch's mean log-probability of each row (B,), the end token included."""
    eos_id = run.special_ids.eos
    chosen = np.take_along_axis(_log_softmax(run.logits), run.tokens[:, :, None], -1)[:, :, 0]
    counts = [len(truncate_at_eos(row, eos_id)) + (eos_id in row) for row in run.tokens.tolist()]
    means = [row[:count].mean() for row, count in zip(chosen, counts, strict=True)]
    return np.array(means, np.float32)


def _log_probs(logits: Floats) -> Floats:
    return np.maximum(_log_softmax(logits), np.float32(LEAST_LOG_PROB))


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(-1, keepdims=True)
    log_probs: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return log_probs
