"""What can go wrong, as one tree.

TfexportError
├── ConfigError              (ValueError)       a model or decoding option that cannot be
├── CheckpointError          (ValueError)       a file that is no usable checkpoint
├── ExportError              (RuntimeError)     a graph that could not be made
├── ParityError              (RuntimeError)     exported files and eager PyTorch differ
├── QualityError             (RuntimeError)     quantised weights change too much
├── OutputExistsError        (FileExistsError)  an output that stands in the way
├── BundleError              (ValueError)       a bundle that is damaged, foreign or too new
├── TokenizerError           (ValueError)       a tokenizer that is unreadable or does not fit
├── InputError               (ValueError)       one input that cannot be decoded
├── ForkError                (RuntimeError)     a translator used in a fork of its process
└── MissingDependencyError   (ImportError)      an optional library that is needed and not installed

Every message says what was found, what was expected and what to do. Only the command line turns
them into one-line messages; anything outside this tree is a bug and keeps its traceback.
"""

import reprlib
from collections.abc import Sequence

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


class TfexportError(Exception):
    """Base of every error that tfexport raises on purpose."""


class ConfigError(TfexportError, ValueError):
    """An option, or a combination of options, that cannot be."""


class CheckpointError(TfexportError, ValueError):
    """A file that is not a checkpoint, or one whose weights do not make a model."""


class ExportError(TfexportError, RuntimeError):
    """A graph could not be made from a model."""


class ParityError(TfexportError, RuntimeError):
    """Exported files and eager PyTorch differ by more than the tolerance."""


class QualityError(TfexportError, RuntimeError):
    """Quantised weights change tokens or text by more than is allowed."""


class OutputExistsError(TfexportError, FileExistsError):
    """The output path is taken."""


class BundleError(TfexportError, ValueError):
    """A bundle that is damaged, is not one, or is newer than this version reads."""


class TokenizerError(TfexportError, ValueError):
    """A tokenizer that cannot be read or does not belong to the model."""


class InputError(TfexportError, ValueError):
    """One input that cannot be decoded: bad ids, too long, not text."""


class ForkError(TfexportError, RuntimeError):
    """A translator with threads was opened before its process was forked."""


class MissingDependencyError(TfexportError, ImportError):
    """An optional library is needed for what was asked, and is not installed."""


def shown(value: object, most: int = 60) -> str:
    """A value as a message quotes it: no longer than ``most`` characters, whatever it is."""
    if isinstance(value, int) and abs(value) >= 10**most:
        return f"a number of more than {most} digits"  # which Python may refuse to write out
    try:
        text = _SHORT.repr(value)
    except Exception:  # endless nesting, a faulty __repr__
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= most else f"{text[:most]}…"


def join_some(names: Sequence[str], limit: int = 8) -> str:
    """The first few names, and how many more there are."""
    listed = ", ".join(names[:limit])
    return listed if len(names) <= limit else f"{listed}, … and {len(names) - limit} more"


def missing_dependency(need: str, extra: str) -> MissingDependencyError:
    """Say which library is missing, and the command that installs it.

    Args:
        need: what needs which library, without a full stop.
        extra: of this package, which brings the library.
    """
    return MissingDependencyError(f"{need}. Install it with: {_install_command(extra)}")


def _install_command(extra: str) -> str:
    # By the names of the extra's libraries: they are on package indexes, this package need not be.
    from importlib import metadata  # slow to import, and seldom needed

    try:
        requirements = metadata.requires("tfexport") or []
    except metadata.PackageNotFoundError:  # a source tree on the path, not installed
        return f"pip install '.[{extra}]' in the folder of tfexport's pyproject.toml"
    split = [requirement.partition(";") for requirement in requirements]
    found = [name.strip() for name, _, marker in split if marker.strip() == f'extra == "{extra}"']
    return "pip install " + " ".join(f"'{name}'" for name in found)


def join_problems(subject: str, problems: Sequence[str], remedy: str = "") -> str:
    """Put all problems of one subject into one message.

    One problem stays on the subject's line; several get a line each.
    """
    if len(problems) == 1:
        text = f"{subject}: {problems[0]}"
    else:
        text = f"{subject}: {len(problems)} problems:" + "".join(f"\n  - {p}" for p in problems)
    if not remedy:
        return text
    if len(problems) > 1:
        return f"{text}\n{remedy}"
    return f"{text} {remedy}" if text.endswith(".") else f"{text}. {remedy}"
