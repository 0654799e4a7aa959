"""Optional libraries of tokenizers: their exceptions, and the error if one is missing."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from tfexport.errors import (
    MissingDependencyError,
    TfexportError,
    TokenizerError,
    missing_dependency,
)
from tfexport.file_access import describe_substitute, open_file

_MOST_BYTES = 2**28


def library_error(error: BaseException, kind: type[TfexportError], text: str) -> BaseException:
    """The error of this project for any exception of a tokenizer's library; others are unchanged.

    Hugging Face tokenizers raise plain ``Exception``, or on a Rust panic a PanicException, which is
    a BaseException and cannot be imported.
    """
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        return kind(f"{text}: {error}")
    return error


@contextlib.contextmanager
def failures_as(kind: type[TfexportError], describe: Callable[[], str]) -> Iterator[None]:
    """Raise exceptions of a tokenizer's library, while it reads files, as ``library_error``."""
    try:
        yield
    except BaseException as error:
        raise library_error(error, kind, describe()) from None


def missing_library(path: Path, library: str) -> MissingDependencyError:
    """The error for a tokenizer's file that needs a missing library."""
    return missing_dependency(f"{path.name} needs the {library} library", extra=library)


def read_file(path: Path) -> bytes:
    """Read a tokenizer's file; libraries get the content instead of the path.

    Raises:
        TokenizerError: the file is missing, is larger than any tokenizer, or is something else.
    """
    try:
        with open_file(path) as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read: {error.strerror}") from None
    if (other := describe_substitute(path)) is not None:
        raise TokenizerError(f"{path}: {other}")
    if not content:
        raise TokenizerError(f"{path}: the file is empty.")
    if len(content) > _MOST_BYTES:
        raise TokenizerError(f"{path}: larger than {_MOST_BYTES} bytes.")
    return content
