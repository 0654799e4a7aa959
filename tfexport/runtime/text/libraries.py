"""Optional libraries of tokenizers: what they raise, and what is said where one is missing."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from tfexport.errors import MissingDependencyError, TfexportError, missing_dependency


@contextlib.contextmanager
def failures_as(kind: type[TfexportError], describe: Callable[[], str]) -> Iterator[None]:
    """Turn any exception of a tokenizer's library into an error of this project.

    Hugging Face tokenizers raise plain ``Exception``, or on a Rust panic a PanicException, which is
    a BaseException and cannot be imported.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise kind(f"{describe()}: {error}") from None
        raise


def missing_library(path: Path, library: str) -> MissingDependencyError:
    """The error that a tokenizer's file needs a library that is not installed."""
    return missing_dependency(f"{path.name} needs the {library} library", extra=library)
