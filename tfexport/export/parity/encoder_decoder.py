"""The comparisons of a bundle's encoder, decoder and shortlist with eager PyTorch."""

from collections.abc import Iterator

import numpy as np

from tfexport.export.parity.bundle import OpenBundle
from tfexport.export.parity.compare import compare_logits, compare_tokens, compare_values
from tfexport.export.parity.eager_run import Eager, EagerRun
from tfexport.export.parity.generate import eager_attention
from tfexport.export.parity.report import Comparison
from tfexport.runtime.search import greedy


def compare_encoder(_eager: Eager, run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare the encoder's states, without padding."""
    keep = run.case.mask.numpy().astype(bool)
    states = bundle.model.hidden_states(run.case.rows)
    expected = run.hidden.numpy()[keep]
    yield compare_values("encoder states", run.shape, states[keep], expected, run.noise.hidden[0])


def compare_decoder(eager: Eager, run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare logits of a full prefix, logits of cached steps, and the tokens of greedy search."""
    model, rows, prefix = bundle.model, run.case.rows, run.prefix
    full, weights = model.attend(prefix, model.encode(rows))
    yield compare_values("attention", run.shape, weights, *eager_attention(eager, run))
    noise = run.noise.logits
    yield compare_logits(eager, "full prefix", run.shape, full, run.logits, noise)
    state = model.encode(rows)
    steps = [model.step(prefix[:, t : t + 1], state).copy() for t in range(prefix.shape[1])]
    cached = np.concatenate(steps, axis=1)
    yield compare_logits(eager, "cached steps", run.shape, cached, run.logits, noise)
    ids = run.special_ids
    found = greedy(model, rows, prefix.shape[1], ids.decoder_start, ids.eos)
    yield compare_tokens(run, [hypothesis.tokens for hypothesis in found])


def compare_shortlist(eager: Eager, run: EagerRun, bundle: OpenBundle) -> Iterator[Comparison]:
    """Compare the logits of every third token."""
    some = np.arange(0, run.logits.shape[-1], 3)
    short = bundle.model.step(run.prefix, bundle.model.encode(run.case.rows), some)
    expected = run.logits[:, :, some]
    found, noise = short[:, :, some], run.noise.logits
    yield compare_logits(eager, "shortlist", run.shape, found, expected, noise)
