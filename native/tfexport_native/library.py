"""The shared library, loaded with ctypes; see ``engine/abi.h`` for what its functions do."""

import ctypes
import os
from pathlib import Path

_VERSION = 10  # of the interface
_ERROR_SIZE = 4096

Int = ctypes.c_int32
Ints = ctypes.POINTER(Int)
Floats = ctypes.POINTER(ctypes.c_float)


class NativeError(RuntimeError):
    """The engine cannot do what it was asked for; the message says why."""


class PackedFileError(NativeError):
    """A file of packed weights is stale, damaged or none, or cannot be written."""


class CancelledError(NativeError):
    """The caller ended the call."""


class NoTokenError(NativeError):
    """A search allows a row no token: it has to be done step by step."""


_FAILURES = {
    2: PackedFileError,
    3: CancelledError,
    4: NoTokenError,
}  # others are NativeError itself


class CTensor(ctypes.Structure):
    """See ``tfn_tensor``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("column_stride", ctypes.c_int64),
        ("mapped", ctypes.c_int32),
    )


class CError(ctypes.Structure):
    """See ``tfn_error``."""

    _fields_ = (("text", ctypes.c_void_p), ("size", ctypes.c_size_t))


class CSources(ctypes.Structure):
    """See ``tfn_sources``."""

    _fields_ = (
        ("ids", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("count", Int),
    )


class CWanted(ctypes.Structure):
    """See ``tfn_wanted``."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("columns", ctypes.c_void_p),
        ("count", Int),
        ("best", ctypes.c_void_p),
        ("attention", ctypes.c_void_p),
        ("source_width", Int),
    )


class CIds(ctypes.Structure):
    """See ``tfn_ids``."""

    _fields_ = (("ids", ctypes.c_void_p), ("count", Int))


class CBeamRules(ctypes.Structure):
    """See ``tfn_beam_rules``."""

    _fields_ = (
        ("beams", Int),
        ("enough", Int),
        ("most", Int),
        ("stop", Int),
        ("on_log_probs", Int),
        ("renormalize", Int),
        ("start", Int),
        ("first_token", Int),
        ("last_token", Int),
        ("min_length", Int),
        ("ngram", Int),
        ("source_ngram", Int),
        ("length_penalty", ctypes.c_double),
        ("repetition_penalty", ctypes.c_double),
        ("ends", CIds),
        ("suppressed", CIds),
        ("suppressed_first", CIds),
        ("sequences", CIds),
        ("lengths", CIds),
    )


class CBeamRecord(ctypes.Structure):
    """See ``tfn_beam_record``."""

    _fields_ = (
        ("room", Int),
        ("tokens", ctypes.c_void_p),
        ("parents", ctypes.c_void_p),
        ("log_probs", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
    )


class CRun(ctypes.Structure):
    """See ``tfn_run``."""

    _fields_ = (
        ("left", ctypes.c_void_p),
        ("owed", ctypes.c_void_p),
        ("end", Int),
        ("first", Int),
        ("last", Int),
        ("steps", Int),
        ("enough", Int),
        ("seconds", ctypes.c_double),
        ("wake", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
    )


class CTrace(ctypes.Structure):
    """See ``tfn_trace``."""

    _fields_ = (
        ("states", ctypes.c_void_p),
        ("attention", ctypes.c_void_p),
        ("source_width", Int),
        ("batch", ctypes.c_void_p),
    )


class CReading(ctypes.Structure):
    """See ``tfn_reading``."""

    _fields_ = (
        ("targets", ctypes.c_void_p),
        ("log_probs", ctypes.c_void_p),
        ("gaps", ctypes.c_void_p),
        ("best", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
        ("attention", ctypes.c_void_p),
        ("source_width", Int),
    )


_HANDLE, _ARRAY = ctypes.c_void_p, ctypes.c_void_p
_FUNCTIONS = {
    "tfn_version": (Int, ()),
    "tfn_instruction_sets": (ctypes.c_char_p, ()),
    "tfn_model_new": (
        ctypes.c_int,
        (ctypes.c_char_p, ctypes.POINTER(CTensor), Int, Int, ctypes.c_char_p,
         ctypes.POINTER(_HANDLE), CError),
    ),
    "tfn_model_load": (
        ctypes.c_int,
        (ctypes.c_char_p, ctypes.POINTER(CTensor), Int, Int, ctypes.c_char_p, ctypes.c_char_p,
         ctypes.c_char_p, ctypes.POINTER(_HANDLE), CError),
    ),
    "tfn_model_save": (ctypes.c_int, (_HANDLE, ctypes.c_char_p, ctypes.c_char_p, CError)),
    "tfn_model_free": (None, (_HANDLE,)),
    "tfn_model_instruction_set": (ctypes.c_char_p, (_HANDLE,)),
    "tfn_encode": (ctypes.c_int, (_HANDLE, CSources, _ARRAY, CError)),
    "tfn_generate": (
        ctypes.c_int,
        (_HANDLE, CSources, Int, Int, _ARRAY, _ARRAY, _ARRAY, Ints, ctypes.POINTER(CTrace), _ARRAY,
         CError),
    ),
    "tfn_beam": (
        ctypes.c_int,
        (_HANDLE, CSources, ctypes.POINTER(CBeamRules), CBeamRecord, Ints, _ARRAY, CError),
    ),
    "tfn_log_probs": (ctypes.c_int, (_HANDLE, _ARRAY, _ARRAY, Int, _ARRAY, CError)),
    "tfn_log_sums": (ctypes.c_int, (_HANDLE, _ARRAY, Int, Int, _ARRAY, CError)),
    "tfn_batch_new": (ctypes.c_int, (_HANDLE, ctypes.POINTER(_HANDLE), CError)),
    "tfn_batch_free": (None, (_HANDLE,)),
    "tfn_batch_rows": (Int, (_HANDLE,)),
    "tfn_batch_longest_source": (Int, (_HANDLE,)),
    "tfn_batch_enter": (ctypes.c_int, (_HANDLE, CSources, CError)),
    "tfn_batch_step": (ctypes.c_int, (_HANDLE, _ARRAY, Int, CWanted, CError)),
    "tfn_batch_run": (
        ctypes.c_int, (_HANDLE, _ARRAY, ctypes.POINTER(CRun), _ARRAY, _ARRAY, CError)
    ),
    "tfn_batch_read": (
        ctypes.c_int, (_HANDLE, _ARRAY, _ARRAY, ctypes.POINTER(CReading), CError)
    ),
    "tfn_batch_branch": (
        ctypes.c_int, (_HANDLE, _ARRAY, _ARRAY, Int, ctypes.POINTER(_HANDLE), CError)
    ),
    "tfn_batch_select": (ctypes.c_int, (_HANDLE, _ARRAY, Int, CError)),
}  # fmt: skip

# They return at once: to give the GIL away, and to wait for it behind another thread, would take
# longer than the call.
_AT_ONCE = ("tfn_batch_rows", "tfn_batch_longest_source")


def _load() -> ctypes.CDLL:
    # A build of one's own, such as one with sanitizers, in place of the installed one.
    given = os.environ.get("TFEXPORT_NATIVE_LIBRARY")
    here = Path(__file__).parent
    paths = [Path(given)] if given else sorted(here.glob("*tfexport_native.*"))
    paths = [path for path in paths if path.suffix in (".so", ".dylib", ".dll")]
    if not paths:
        raise ImportError(f"{here}: the shared library is missing. Install tfexport-native again.")
    try:
        library, with_gil = ctypes.CDLL(str(paths[0])), ctypes.PyDLL(str(paths[0]))
        found = library.tfn_version()
    except (OSError, AttributeError) as error:
        raise ImportError(f"{paths[0]}: {error}") from None
    if found != _VERSION:
        raise ImportError(f"{paths[0]}: has interface {found}; this package needs {_VERSION}.")
    for name in _AT_ONCE:
        setattr(library, name, getattr(with_gil, name))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


LIBRARY = _load()


def call(name: str, *arguments: object) -> None:
    """Call a function that can fail.

    Raises:
        NativeError: it does.
    """
    text = ctypes.create_string_buffer(_ERROR_SIZE)
    error = CError(ctypes.addressof(text), _ERROR_SIZE)
    failure = getattr(LIBRARY, name)(*arguments, error)
    if failure:
        raise _FAILURES.get(failure, NativeError)(text.value.decode("utf-8", "replace"))


def instruction_sets() -> list[str]:
    """Names of the instruction sets that run here, fastest first.

    The environment variable TFEXPORT_NATIVE_INSTRUCTION_SET leaves out those before the one that it
    names; an empty one is as none.
    """
    names: bytes = LIBRARY.tfn_instruction_sets()
    found = names.decode().split(",")
    wanted = os.environ.get("TFEXPORT_NATIVE_INSTRUCTION_SET") or found[0]
    if wanted not in found:
        raise NativeError(
            f"TFEXPORT_NATIVE_INSTRUCTION_SET is {wanted!r}; these run here: {', '.join(found)}"
        )
    return found[found.index(wanted) :]
