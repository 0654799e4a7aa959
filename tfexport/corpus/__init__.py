"""Corpora: translation of more than one machine's worth of rows, on Ray."""

from tfexport.errors import missing_dependency

try:
    import pyarrow  # noqa: F401
    import ray.data  # noqa: F401
except ImportError:
    raise missing_dependency("a corpus needs Ray Data and pyarrow", "corpus") from None

from tfexport.corpus.dataset import translate_dataset
from tfexport.corpus.report import Advance, CorpusReport
from tfexport.corpus.run import translate_corpus

__all__ = ["Advance", "CorpusReport", "translate_corpus", "translate_dataset"]
