"""Detection of the language of a text.

The library takes 120 MB and most of a second to load, and many servers never need it, so the first
detection loads it.
"""

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tfexport.runtime.text.language_codes import Code

LIBRARY = "py3langid"
LOOKED_AT = 2000  # characters of a text that are used; more do not change the result
# Languages for which the library has another code than models have.
_OTHER_NAMES = {"wuu": "zh", "no": "nb"}


def is_loaded() -> bool:
    """Whether the library was loaded, or found missing: a detection does not wait for it."""
    return _load.cache_info().currsize > 0


def can_detect() -> bool:
    """Whether the library that finds languages is installed; loads it."""
    return _identifier() is not None


def detect(text: str, candidates: Sequence[str]) -> dict[str, float]:
    """The confidence in each candidate that the library knows, likeliest first.

    It is from 0 to 1, relative to the other candidates and the likeliest other language. A text
    without evidence has none.
    """
    ranked = _ranks(text[:LOOKED_AT])
    if not ranked or max(ranked.values()) <= 2 / len(ranked):  # no evidence of any language
        return {}
    likely = {code: ranked[name] for code in candidates if (name := _name(code)) in ranked}
    names = {_name(code) for code in candidates}
    other = max((value for name, value in ranked.items() if name not in names), default=0.0)
    total = sum({_name(code): value for code, value in likely.items()}.values()) + other
    confidences = {code: value / total for code, value in likely.items()}
    return dict(sorted(confidences.items(), key=lambda item: -item[1]))


def _name(code: str) -> str:
    return Code.of(code).language


@lru_cache(256)
def _ranks(text: str) -> Mapping[str, float]:
    """The likelihood of every language that the library knows; none without it."""
    identifier = _identifier()
    if identifier is None or not text.strip():
        return {}
    found: dict[str, float] = {}
    for name, value in identifier.rank(text):
        name = _OTHER_NAMES.get(name, name)
        found[name] = found.get(name, 0.0) + float(value)
    return found


_loading = threading.Lock()


def _identifier() -> Any:
    with _loading:
        return _load()


@lru_cache(1)
def _load() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        return None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
