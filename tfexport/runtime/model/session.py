"""Opening onnxruntime sessions, and running them."""

import atexit
import contextlib
import ctypes
import functools
import os
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime import InferenceSession

from tfexport.bundle import WEIGHTS, without_links
from tfexport.errors import BundleError, join_problems
from tfexport.file_access import refuse_name
from tfexport.graph_io import CROSS_ATTENTIONS, DTYPES, GENERATE, GraphSpec, TensorSpec
from tfexport.runtime.model.abandoned import NEVER, AbandonedError, Going, watched
from tfexport.runtime.model.mapped_memory import release_mapped_pages

_TYPES = {
    dtype: f"tensor({ {'float32': 'float', 'float64': 'double'}.get(dtype, dtype) })"
    for dtype in DTYPES
}
_REMEDY = "It is not a graph of this bundle's model. Export the bundle again."


def check_graph(path: Path, session: InferenceSession, spec: GraphSpec) -> None:
    """Refuse a graph whose inputs or outputs are not those of its role.

    Args:
        path: the graph, for the message.
        session: the session of the graph.
        spec: what its role takes and gives.

    Raises:
        BundleError: naming every difference.
    """
    # generate.onnx gives attention only if it was exported so.
    optional = {CROSS_ATTENTIONS} if spec.name == GENERATE else set[str]()
    problems = [
        *_differences("input", spec.inputs, session.get_inputs()),
        *_differences("input", spec.optional_inputs, session.get_overridable_initializers()),
        *_differences("output", spec.outputs, session.get_outputs(), optional),
    ]
    if problems:
        raise BundleError(join_problems(str(path), problems, _REMEDY))


def _differences(
    kind: str,
    wanted: Sequence[TensorSpec],
    found: Sequence[Any],
    optional: Collection[str] = (),
) -> Iterator[str]:
    """Differences between onnxruntime's ``NodeArg``s and the expected tensors."""
    by_name = {value.name: value for value in found}
    known = {tensor.name for tensor in wanted}
    for name in by_name:
        if name not in known:
            yield f"{kind} {name!r} is not one that it should have"
    for tensor in wanted:
        value = by_name.get(tensor.name)
        if value is not None:
            yield from _tensor_differences(kind, tensor, value)
        elif tensor.name not in optional:
            yield f"{kind} {tensor.name!r} is missing"
    # Outputs are identified by their position.
    order = [tensor.name for tensor in wanted if tensor.name in by_name]
    if kind == "output" and order != [name for name in by_name if name in known]:
        yield f"outputs are not in the order {', '.join(order)}"


def _tensor_differences(kind: str, wanted: TensorSpec, found: Any) -> Iterator[str]:
    where = f"{kind} {wanted.name!r}"
    if found.type != _TYPES[wanted.dtype]:
        yield f"{where} is a {found.type} instead of a {_TYPES[wanted.dtype]}"
    if len(found.shape) != len(wanted.axes):
        yield f"{where} has {len(found.shape)} axes instead of {len(wanted.axes)}"
        return
    for place, (axis, size) in enumerate(zip(wanted.axes, found.shape, strict=True)):
        if isinstance(axis, int) and size != axis:
            yield f"{where} has {size!r} on axis {place} instead of {axis}"
        if isinstance(axis, str) and isinstance(size, int):
            yield f"{where} is fixed at {size} on axis {place}, which is the {axis}"


def check_shapes(
    path: Path,
    spec: GraphSpec,
    feeds: Mapping[str, Sequence[int]],
    found: Mapping[str, Sequence[int]],
) -> None:
    """Refuse outputs whose shapes differ from those of the graph's role.

    onnxruntime only warns of them. Axes of one name have one size.

    Args:
        path: the graph, for the message.
        spec: what its role takes and gives.
        feeds: shapes of inputs, by name.
        found: shapes of outputs, by name.

    Raises:
        BundleError: naming the first output that differs.
    """
    sizes: dict[int | str, int] = {}
    for tensor in (*spec.inputs, *spec.outputs):
        shape = feeds.get(tensor.name, found.get(tensor.name))
        if shape is None:
            continue
        wanted = [axis if isinstance(axis, int) else sizes.get(axis) for axis in tensor.axes]
        if len(shape) != len(wanted) or any(
            size is not None and size != given for size, given in zip(wanted, shape, strict=True)
        ):
            raise BundleError(
                f"{path}: output {tensor.name!r} came as {tuple(shape)}, not as "
                f"{tuple(sizes.get(axis, axis) for axis in tensor.axes)}. {_REMEDY}"
            )
        sizes.update(zip(tensor.axes, shape, strict=True))


def check_range(path: Path, name: str, values: NDArray[np.int64], size: int) -> None:
    """Refuse outputs with indices outside 0 to ``size`` - 1.

    Raises:
        BundleError: naming the first one outside.
    """
    wrong = values[(values < 0) | (values >= size)]
    if wrong.size:
        raise BundleError(
            f"{path}: output {name!r} holds {wrong[0]}, not only 0 to {size - 1}. {_REMEDY}"
        )


_LONGEST_REASON = 400  # characters of a message of onnxruntime

# Importing this package disables telemetry of a later import of onnxruntime; this call covers an
# earlier import.
ort.disable_telemetry_events()


def check_onnxruntime(path: Path, minimum: str) -> None:
    """Refuse graphs that need a newer onnxruntime than this one.

    Args:
        path: the bundle or file, for the message.
        minimum: the oldest version that runs them.

    Raises:
        BundleError: naming both versions.
    """
    if _release(ort.__version__) < _release(minimum):
        raise BundleError(
            f"{path}: needs onnxruntime {minimum} or newer; this is {ort.__version__}. "
            f"Upgrade it: pip install 'onnxruntime>={minimum}'"
        )


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def open_session(path: Path, threads: int = 0, spins: bool = True) -> ort.InferenceSession:
    """Open one graph on the CPU.

    Weights that are links, which onnxruntime refuses, are copied temporarily; see
    ``without_links``.

    Args:
        path: the .onnx file; its external weights are next to it.
        threads: threads inside an operator; 0 for all cores of the machine.
        spins: threads wait for the next call at full load for some time. It begins sooner then,
            but what else computes meanwhile has a core less.

    Raises:
        BundleError: onnxruntime cannot load the graph.
    """
    if (reason := refuse_name(path, "onnxruntime")) is not None:
        raise BundleError(f"{path}: {reason}")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Memory patterns are cached for each input shape, and shapes in a loop change at every step.
    options.enable_mem_pattern = False
    if not spins:
        options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3  # errors; its warnings are about its own optimisations
    try:
        session = _load(path, path, options)
    except BundleError:  # any error: if the copy fails too, it raises the same
        with without_links(path.parent, (path.name, WEIGHTS)) as folder:
            if folder == path.parent:
                raise
            session = _load(folder / path.name, path, options)
            release_mapped_pages(folder / WEIGHTS)
    if threads != 1:
        _threaded.add(session)
    return session


def _load(file: Path, path: Path, options: ort.SessionOptions) -> ort.InferenceSession:
    """Load ``path`` from a file that may be a copy of it."""
    try:
        with _CALLS.run():
            return ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base but Exception
        raise BundleError(
            f"{path}: onnxruntime {ort.__version__} cannot load it: {_reason_of(error)}"
        ) from error


def _reason_of(error: Exception) -> str:
    """The cause in onnxruntime's message.

    The message starts with the description of a node, which is kilobytes for a loop.
    """
    text = str(error)
    text = text.rpartition(" , Error ")[2].partition("\n==> Context")[0].strip()
    if len(text) <= _LONGEST_REASON:
        return text
    half = _LONGEST_REASON // 2
    return f"{text[:half]} ... {text[-half:]}"


_threaded: WeakSet[ort.InferenceSession] = WeakSet()


def _run_options() -> ort.RunOptions:
    options = ort.RunOptions()
    options.log_severity_level = 4  # not errors, which are raised
    # Its default: where it is not set, onnxruntime raises and catches an error in every run.
    options.add_run_config_entry("gpu_graph_id", "0")
    return options


class _Calls:
    """Waits for all calls of onnxruntime before the interpreter ends.

    Until Python 3.14 a daemon thread that returns later is unwound through C++, which aborts the
    process.
    """

    _PATIENCE = 30.0  # seconds; runs can be terminated, loading cannot

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running, self._ending = 0, False
        self._options = _run_options()
        self._own = set[ort.RunOptions]()  # of calls that can be ended one by one

    @contextlib.contextmanager
    def run(self, own: bool = False) -> Iterator[ort.RunOptions]:
        """Register a call for the block, with these options, which may be its own."""
        if self._ending:
            self._stay()
        options = _run_options() if own else self._options
        with self._changed:
            self._running += 1
            if own:
                self._own.add(options)
        try:
            yield options
        finally:
            with self._changed:
                self._running -= 1
                self._own.discard(options)
                self._changed.notify_all()
            if self._ending:
                self._stay()

    def end(self) -> None:
        """Stop new calls and wait for those that run; other threads cannot return from a call."""
        with self._changed:
            self._ending = True
            for options in (self._options, *self._own):
                options.terminate = True
            self._changed.wait_for(lambda: not self._running, self._PATIENCE)
            self._options = _run_options()  # for other functions at the end

    def _stay(self) -> None:
        # Only daemon threads are left next to the main one.
        if threading.current_thread() is not threading.main_thread():
            threading.Event().wait()


_CALLS = _Calls()
atexit.register(lambda: _CALLS.end())


def _be_a_fork() -> None:
    global _CALLS
    _CALLS = _Calls()  # without the calls of threads of the parent process
    # Destroying a session joins its threads; a forked child has none of them and would crash.
    for session in list(_threaded):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_be_a_fork)


@contextlib.contextmanager
def named_failures(path: Path, going: Going | None = None) -> Iterator[ort.RunOptions]:
    """Yield options of a run; raise its failures as ``BundleError`` with the graph's file.

    The run ends with ``AbandonedError`` once ``going`` is false.
    """
    stopped = NEVER
    try:
        with _CALLS.run(own=going is not None) as options:
            stop = functools.partial(setattr, options, "terminate", True)
            with watched(going, stop) as stopped:
                yield options
    except Exception as error:  # as in ``open_session``
        if stopped.is_set():
            raise AbandonedError from None
        raise BundleError(
            f"{path}: failed in onnxruntime {ort.__version__}: {_reason_of(error)}"
        ) from error


class Binding(NamedTuple):
    """Inputs and outputs of a graph in the caller's memory.

    Attributes:
        io: onnxruntime's binding.
        arrays: the memory, which has to live as long as the binding.
    """

    io: ort.IOBinding
    arrays: Sequence[NDArray[Any]]


class Graph:
    """A session of one graph of a bundle; failures are raised as ``BundleError``."""

    def __init__(self, path: Path, spec: GraphSpec, threads: int = 0, spins: bool = True) -> None:
        """Load the graph and check its inputs and outputs; see ``check_graph``."""
        self._path, self._spec = path, spec
        self._checked = False  # shapes are checked in the first call only, for speed
        self._session = open_session(path, threads, spins)
        check_graph(path, self._session, spec)
        self.outputs = [value.name for value in self._session.get_outputs()]

    def run(
        self,
        outputs: list[str] | None,
        feeds: Mapping[str, NDArray[Any]],
        going: Going | None = None,
    ) -> list[Any]:
        """Run the graph; return the outputs of these names, or all, as arrays.

        Raises:
            AbandonedError: ``going`` was false.
            BundleError: onnxruntime fails, or outputs have other shapes than the graph's role.
        """
        with named_failures(self._path, going) as options:
            found: list[Any] = self._session.run(outputs, feeds, options)
        if not self._checked:
            given = {name: value.shape for name, value in feeds.items()}
            self._check_shapes(given, outputs or self.outputs, [value.shape for value in found])
        return found

    def run_with_ort_values(
        self, outputs: list[str], feeds: Mapping[str, ort.OrtValue]
    ) -> list[ort.OrtValue]:
        """The same with onnxruntime's own values, without copies."""
        with named_failures(self._path) as options:
            found: list[ort.OrtValue] = self._session.run_with_ort_values(outputs, feeds, options)
        if not self._checked:
            given = {name: value.shape() for name, value in feeds.items()}
            self._check_shapes(given, outputs, [value.shape() for value in found])
        return found

    def bind(
        self, inputs: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]
    ) -> Binding:
        """Bind arrays, which runs read from and write into; one may be both input and output."""
        io = self._session.io_binding()
        for name, array in inputs.items():
            io.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for name, array in outputs.items():
            io.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))
        return Binding(io, [*inputs.values(), *outputs.values()])

    def run_bound(self, binding: Binding) -> None:
        """Run on bound arrays.

        Raises:
            BundleError: onnxruntime fails.
        """
        with named_failures(self._path) as options:
            self._session.run_with_iobinding(binding.io, options)

    def _check_shapes(
        self,
        given: Mapping[str, Sequence[int]],
        outputs: Sequence[str],
        shapes: Sequence[Sequence[int]],
    ) -> None:
        check_shapes(self._path, self._spec, given, dict(zip(outputs, shapes, strict=True)))
        self._checked = True
