"""Translation of folders of files, by threads of one machine or on a Ray cluster."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tfexport.errors import missing_dependency

if TYPE_CHECKING:
    from tfexport.corpus.dataset import translate_dataset
    from tfexport.corpus.report import Advance, CorpusReport
    from tfexport.corpus.run import translate_corpus

__all__ = ["Advance", "CorpusReport", "translate_corpus", "translate_dataset"]
_HOMES = {
    "Advance": "report", "CorpusReport": "report", "translate_corpus": "run",
    "translate_dataset": "dataset",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    # Imported when used: Ray's processes do not need all of it.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pyarrow  # noqa: F401, PLC0415 - to name the extra if it is missing
    except ImportError:
        raise missing_dependency("a corpus needs pyarrow", "corpus-local") from None
    return getattr(import_module(f"tfexport.corpus.{_HOMES[name]}"), name)
