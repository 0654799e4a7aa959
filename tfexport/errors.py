"""The tree of errors that tfexport raises.

TfexportError
├── ConfigError              (ValueError)       an invalid option, or invalid combination of options
├── CheckpointError          (ValueError)       a file that is not a usable checkpoint
├── ExportError              (RuntimeError)     a graph that could not be made
├── ParityError              (RuntimeError)     exported files and eager PyTorch differ
├── QualityError             (RuntimeError)     quantised weights change too much
├── OutputExistsError        (FileExistsError)  an output path that exists or is being written
├── BundleError              (ValueError)       a bundle that is damaged, foreign or too new
├── TokenizerError           (ValueError)       a tokenizer that is unreadable or does not fit
├── InputError               (ValueError)       one input that cannot be decoded
│   └── TooLongError                            an input of more tokens than the model takes
├── ForkError                (RuntimeError)     a translator used in a fork of its process
├── ClusterError             (RuntimeError)     a cluster that failed under a run
├── QueueFullError           (RuntimeError)     a scheduler that takes no more work for now
├── DeadlineError            (TimeoutError)     a row whose time was over
├── ClosedSchedulerError     (RuntimeError)     a scheduler that was closed before it was done
└── MissingDependencyError   (ImportError)      an optional library that is not installed

Every message names what was found, what was expected and what to do. Options in it are ``Option``
objects, which each front end writes in its own form: ``force=True`` in Python, ``--force`` on the
command line. Only the command line turns errors into one-line messages. An exception outside this
tree is a bug and keeps its traceback. What is likely a mistake, but may be intended, is a
``TfexportWarning``.
"""

import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


@dataclass(frozen=True)
class Option:
    """A reference to an option inside a message.

    Attributes:
        name: the keyword in Python.
        value: the value that is recommended or was given; None to write only the name.
    """

    name: str
    value: object = None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value!r}"


class Message:
    """Text with references to options.

    Args:
        parts: in order; messages and problems among them are flattened into their parts.
    """

    def __init__(self, *parts: "str | Option | Message | Problem") -> None:
        self.parts: tuple[str | Option, ...] = tuple(
            piece
            for part in parts
            for piece in (part.parts if isinstance(part, Message | Problem) else (part,))
        )

    def spelled(self, spell: Callable[[Option], str] = str) -> str:
        """The text, with every option as ``spell`` writes it."""
        return "".join(
            spell(part) if isinstance(part, Option) else str(part) for part in self.parts
        )

    def __str__(self) -> str:
        return self.spelled()


@dataclass(frozen=True)
class Problem:
    """One invalid option or input.

    Attributes:
        option: name of the invalid option; None if the problem concerns several options.
        text: the problem, without the option's name.
    """

    option: str | None
    text: str | Message

    @property
    def parts(self) -> tuple[str | Option, ...]:
        """The parts of its message: the option, a colon, the text."""
        named = () if self.option is None else (Option(self.option), ": ")
        return Message(*named, self.text).parts

    def __str__(self) -> str:
        return str(Message(self))


class TfexportError(Exception):
    """Base of every error that tfexport raises on purpose.

    Attributes:
        message: the text; ``str`` writes its options as in Python.
    """

    def __init__(self, message: str | Message = "") -> None:
        super().__init__(str(message))
        self.message = Message(message)


class TfexportWarning(UserWarning):
    """Something that may be intended, but more likely is a mistake.

    Attributes:
        message: the message with its options, as in ``TfexportError``.
    """

    def __init__(self, message: str | Message) -> None:
        super().__init__(str(message))
        self.message = Message(message)


class ConfigError(TfexportError, ValueError):
    """An invalid option, or an invalid combination of options."""


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
    """One input cannot be decoded: bad ids, too long, not text."""


class TooLongError(InputError):
    """An input of more tokens than the model takes.

    Attributes:
        found: how many tokens it has.
        most: how many the model takes.
    """

    def __init__(self, found: int, most: int) -> None:
        self.found, self.most = found, most
        super().__init__(Message(
            f"{found} tokens exceed the model's limit of {most}; "
            "shorten the input, or truncate it with ", Option("truncate", True),
        ))  # fmt: skip

    def __reduce__(self) -> tuple[type["TooLongError"], tuple[int, int]]:
        """Pickle the error by its two numbers."""
        return TooLongError, (self.found, self.most)


class ForkError(TfexportError, RuntimeError):
    """A translator with threads was opened before its process was forked."""


class ClusterError(TfexportError, RuntimeError):
    """A cluster, or a worker on it, failed while a corpus was translated."""


class QueueFullError(TfexportError, RuntimeError):
    """A scheduler takes no more work for now.

    Attributes:
        retry_after: seconds after which there may be room, as an estimate.
    """

    def __init__(self, message: "str | Message", retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineError(TfexportError, TimeoutError):
    """A row's deadline passed before it was decoded."""


class ClosedSchedulerError(TfexportError, RuntimeError):
    """A scheduler was closed before all work was done."""


class MissingDependencyError(TfexportError, ImportError):
    """An optional library that is needed is not installed."""


def shown(value: object, most: int = 60) -> str:
    """The repr of any value for a message, cut to ``most`` characters."""
    if isinstance(value, int) and abs(value) >= 10**most:
        return f"a number of more than {most} digits"  # which Python may refuse to write out
    try:
        text = _SHORT.repr(value)
    except Exception:  # endless nesting, a faulty __repr__
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= most else f"{text[:most]}…"


def system_reason(error: OSError) -> str:
    """An error of the system for users: the file and the reason, without its number."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def join_some(names: Sequence[str], limit: int = 8) -> str:
    """The first few names, and how many more there are."""
    listed = ", ".join(names[:limit])
    return listed if len(names) <= limit else f"{listed}, … and {len(names) - limit} more"


def missing_dependency(need: str, extra: str) -> MissingDependencyError:
    """Name the missing library, and the command that installs it.

    Args:
        need: what needs which library, without a full stop.
        extra: the extra of this package that installs the library.
    """
    return MissingDependencyError(f"{need}. Install it with: {_install_command(extra)}")


# Where PyTorch has wheels without CUDA, whose version is the newer one of the same release.
_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def _install_command(extra: str) -> str:
    # The extra's libraries are named: package indexes have them, but may not have this package.
    import re  # noqa: PLC0415 - seldom needed
    from importlib import metadata  # slow to import, and seldom needed

    try:
        requirements = metadata.requires("tfexport") or []
    except metadata.PackageNotFoundError:  # a source tree on the path, not installed
        requirements = []
    of_extra = re.compile(rf"(?:(?P<kept>.+) and )?extra == ['\"]{extra}['\"]")
    found = []
    for requirement in requirements:
        name, _, marker = requirement.partition(";")
        if match := of_extra.fullmatch(marker.strip()):
            kept = match["kept"]  # such as an operating system; the line has single quotes
            found.append(name.strip() + ("; " + kept.replace("'", '"') if kept else ""))
    # On Linux the package index has torch with gigabytes of CUDA, which nothing here uses.
    index = f" --extra-index-url {_CPU_INDEX}" if extra == "export" else ""
    if not found:  # or an older version is installed than the source tree's
        return f"pip install '.[{extra}]'{index} in the folder of tfexport's pyproject.toml"
    return "pip install " + " ".join(f"'{name}'" for name in found) + index


def join_problems(
    subject: str | Option, problems: Sequence[str | Message | Problem], remedy: str | Message = ""
) -> Message:
    """Put all problems of one subject into one message.

    One problem follows the subject on its line; several get a line each.
    """
    if len(problems) == 1:
        text = Message(subject, ": ", problems[0])
    else:
        lines = [Message("\n  - ", problem) for problem in problems]
        text = Message(subject, f": {len(problems)} problems:", *lines)
    if not str(remedy):
        return text
    if len(problems) > 1:
        return Message(text, "\n", remedy)
    return Message(text, " " if str(text).endswith(".") else ". ", remedy)


# Suggestions for misspelt names.


LONGEST = 80  # characters that are compared, since the given name may be of any length


def nearest_name(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most similar to a misspelt one; None if none is similar enough.

    Args:
        name: as given.
        known: the valid names.
        cutoff: the least similarity, from 0 to 1 (equal).
    """
    from difflib import get_close_matches  # noqa: PLC0415  (slow to import, and seldom needed)

    return next(iter(get_close_matches(name[:LONGEST], list(known), n=1, cutoff=cutoff)), None)
