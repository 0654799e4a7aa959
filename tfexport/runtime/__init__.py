"""Decoding of bundles with numpy and onnxruntime, never torch.

Names are imported when they are first used, so that ``tfexport --help`` needs no onnxruntime.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfexport.runtime.engine import Hypotheses as Hypotheses
    from tfexport.runtime.files.resumable import FileSummary as FileSummary
    from tfexport.runtime.media.limits import MediaLimits
    from tfexport.runtime.options import DecodingOptions
    from tfexport.runtime.resolve import Prefix as Prefix
    from tfexport.runtime.results import Hypothesis, TranslationResult
    from tfexport.runtime.search.request import Request as Request
    from tfexport.runtime.search.request import ResolvedOptions as ResolvedOptions
    from tfexport.runtime.search.required import Required as Required
    from tfexport.runtime.speech.transcription import Segment, Transcription, TranscriptionOptions
    from tfexport.runtime.speech.transcription import TranscriptionKeywords as TranscriptionKeywords
    from tfexport.runtime.term_tokens import GivenRequired as GivenRequired
    from tfexport.runtime.terms import GivenTerms as GivenTerms
    from tfexport.runtime.terms import Terms as Terms
    from tfexport.runtime.translator import Translator

__all__ = [
    "DecodingOptions", "Hypothesis", "MediaLimits", "Segment", "Transcription",
    "TranscriptionOptions", "TranslationResult", "Translator",
]  # fmt: skip

_WHERE = {
    "DecodingOptions": "options",
    "FileSummary": "files.resumable",
    "GivenRequired": "term_tokens",
    "GivenTerms": "terms",
    "Hypotheses": "engine",
    "Hypothesis": "results",
    "MediaLimits": "media.limits",
    "Prefix": "resolve",
    "Request": "search.request",
    "Required": "search.required",
    "ResolvedOptions": "search.request",
    "Segment": "speech.transcription",
    "Terms": "terms",
    "Transcription": "speech.transcription",
    "TranscriptionKeywords": "speech.transcription",
    "TranscriptionOptions": "speech.transcription",
    "TranslationResult": "results",
    "Translator": "translator",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
