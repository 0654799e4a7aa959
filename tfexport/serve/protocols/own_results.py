"""Results in the server's own JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pydantic_core

from tfexport.runtime.results import Hypothesis
from tfexport.serve.call import Call
from tfexport.serve.detection import Answered
from tfexport.serve.texts import Made, Translated

UNFINISHED = "X-Unfinished-Texts"
_MORE = ("token_scores", "source_tokens", "attention", "alignment")  # if they are asked for


def answer(model: str, found: Sequence[Translated], call: Call) -> bytes:
    """The JSON of translations. One after another, so that others have their turn between two.

    Raises:
        RequestError: the call's time is over, or its client has left.
    """
    made = list[bytes]()
    for one in found:
        call.check()
        made.append(to_json(translation(one, call)))
    return b'{"model":%b,"translations":[%b]}' % (to_json(model), b",".join(made))


def to_json(value: Any) -> bytes:
    """JSON, in a tenth of the time of Python's own."""
    return pydantic_core.to_json(value)


def translation(found: Translated, call: Call) -> dict[str, Any]:
    """A text's translation, with all hypotheses if there are several.

    Attention stands beside the tokens of a single sentence. Of several sentences it is listed with
    each, under ``sentences``.

    Raises:
        RequestError: the call's time is over, or its client has left.
    """
    made = list[dict[str, Any]]()
    for place in range(len(found.made)):
        call.check()
        made.append(_made(found, place))
    values = {**made[0], "unknown_tokens": found.unknown}
    if len(made) > 1:
        values["hypotheses"] = made
    attends = any(one.hypotheses[0].attention is not None for one in found.sentences)
    if len(found.sentences) > 1 and attends:
        values["sentences"] = [
            _kept(sentence.to_dict(hypotheses=False)) for sentence in found.sentences
        ]
    return values


def cut_headers(found: Sequence[Answered | Translated]) -> dict[str, str]:
    """The header that counts texts whose translation was cut; for protocols that cannot say it."""
    made = [one.found if isinstance(one, Answered) else one for one in found]
    cut = sum(not one.made[0].finished for one in made)
    return {UNFINISHED: str(cut)} if cut else {}


def scored(found: Hypothesis) -> dict[str, Any]:
    """The score of a target."""
    values = found.to_dict()
    del values["finished"]
    return values


def _made(found: Translated, place: int) -> dict[str, Any]:
    made = found.made[place]
    if len(found.sentences) == 1:
        (sentence,) = found.sentences
        one = replace(  # of this hypothesis alone
            sentence, text=sentence.texts[place], texts=sentence.texts[place : place + 1],
            hypotheses=sentence.hypotheses[place : place + 1],
        )  # fmt: skip
        described = one.to_dict()
        return {**_kept(described), "text": made.text}
    return _basic(made)


def _basic(made: Made) -> dict[str, Any]:
    score = None if math.isnan(made.score) else made.score
    values: dict[str, Any] = {
        "text": made.text, "score": score, "tokens": made.tokens, "finished": made.finished,
    }  # fmt: skip
    if made.token_scores is not None:
        values["token_scores"] = made.token_scores
    return values


def _kept(values: Mapping[str, Any]) -> dict[str, Any]:
    names = ("text", "score", "tokens", "finished", *_MORE)
    return {name: values[name] for name in names if name in values}
