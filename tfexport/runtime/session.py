"""Opening onnxruntime sessions."""

import ctypes
import os
import re
from pathlib import Path
from weakref import WeakSet

import onnxruntime as ort

from tfexport.errors import BundleError

# For programs that imported onnxruntime before this package, which switches it off for the others.
ort.disable_telemetry_events()


def check_onnxruntime(path: Path, minimum: str) -> None:
    """Refuse graphs that need a newer onnxruntime than this one.

    Args:
        path: what holds the graphs, for the message.
        minimum: the oldest version that runs them.

    Raises:
        BundleError: with both versions.
    """
    if _release(ort.__version__) < _release(minimum):
        raise BundleError(
            f"{path}: needs onnxruntime {minimum} or newer; this is {ort.__version__}. "
            f"Upgrade it: pip install 'onnxruntime>={minimum}'"
        )


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def open_session(path: Path, threads: int = 0) -> ort.InferenceSession:
    """Open one graph on the CPU.

    Args:
        path: the .onnx file; its external weights are beside it.
        threads: threads inside an operator; 0 lets onnxruntime take the machine's cores.

    Raises:
        BundleError: onnxruntime cannot load the graph.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Plans of where tensors go are kept for each shape, and a loop's shapes change at every turn.
    options.enable_mem_pattern = False
    options.log_severity_level = 3  # errors; its warnings are about its own optimisations
    try:
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base but Exception
        raise BundleError(
            f"{path}: onnxruntime {ort.__version__} cannot load it: {error}"
        ) from error
    if threads != 1:
        _threaded.add(session)
    return session


_threaded: WeakSet[ort.InferenceSession] = WeakSet()


def _keep_for_ever() -> None:
    # To end a session ends its threads, which a fork does not have: it would crash.
    for session in list(_threaded):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_for_ever)
