"""Decoding of rows of ids, for callers that tokenize themselves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfexport.runtime.engine import acts_on_text, requests_of
from tfexport.runtime.language_tokens import Spoken
from tfexport.serve.call import Call
from tfexport.serve.models import Model
from tfexport.serve.row_limits import check_lengths, within_limits
from tfexport.serve.settings import Settings
from tfexport.serve.texts import Rows, submit
from tfexport.serve.translating import check_size, outcome


async def generate(
    settings: Settings,
    model: Model,
    rows: Sequence[Sequence[int]],
    given: Mapping[str, Any],
    call: Call,
) -> NDArray[np.int64]:
    """Decode rows of ids.

    Args:
        settings: of the server; an id counts as a character.
        model: that decodes, and is in use.
        rows: as the encoder sees them.
        given: decoding options by name, and ``target_language``.
        call: whose rows they are.

    Returns:
        The best hypotheses, a row each: no start token, the end token included, then padding.
    """
    check_size(settings, call, rows)
    options = {"return_end_token": True, **given}
    spoken = Spoken(target=options.pop("target_language", None), as_ids=True)
    engine = model.engine
    extra = acts_on_text(options, "generate")
    resolved, prefixes = model.resolver.resolve(options, [None] * len(rows), extra, spoken)
    resolved = within_limits(model, resolved, given)
    requests = requests_of(engine, rows, prefixes, resolved, as_ids=True)
    check_lengths(model, requests)
    submission = submit(model, Rows(resolved, requests, []), call.deadline)
    call.exits.callback(submission.cancel)
    best = [hypotheses[0] for hypotheses in await outcome(submission, call)]
    model.observer.cut(sum(not one.finished for one in best))
    found = [one.tokens for one in best]
    longest = max(map(len, found), default=0)
    pad = engine.manifest.special_ids.pad
    padded = [[*tokens, *[pad] * (longest - len(tokens))] for tokens in found]
    return np.array(padded, np.int64).reshape(len(found), longest)
