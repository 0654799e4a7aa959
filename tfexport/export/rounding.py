"""The noise of float32 in one model on one input, from which comparisons derive their tolerance.

The reference's own code is run again on the same ids in float64, which gives the distance of its
float32 values from exact ones. Code that does not run in float64 is run with its weights changed by
one unit in the last place and with other orders of its sums, and the largest change is taken. Only
the reference is measured, never the exported side.

Its weights are found by searching the objects that the code refers to (modules, containers,
closures and globals of functions), and by recording the arguments of torch's functions. Afterwards
all values are restored, including caches that the code filled.
"""

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Floats = NDArray[Any]
Compute = Callable[[], Sequence[Tensor]]
LEAST_LOG_PROB = -80.0  # e^-87 is the least that float32 holds as a probability
FLOAT64 = "float64"
CHANGED = "weights changed by one unit in the last place, and other orders of the sums"
ORDERS = "other orders of the sums"
MOST_VALUES = 2**24  # that are held in float64 at once
_COMPARED = 2**20  # values, at a time
_SEEDS = [1, 2, 3, 4]  # of changes: on some ids the noise of one draw is a third of another's
_PATTERN = 8191  # a prime, so that no two rows of a matrix are changed alike
MOST_VISITED = 200_000  # objects; the search for weights stops there
MOST_DOUBLED = 2**31  # bytes of weights in float32; larger ones get no copy in float64
# Bytes of weights. Code with fewer computes a token in less than a millisecond, and torch's threads
# wait for each other longer than that where cores are shared: docs/modules.md has measurements.
LEAST_SHARED = 2**24
_LIBRARIES = ("torch", "numpy", "builtins", "tfexport.model_src.checkpoint", "tfexport.runtime")
Convert = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Noise:
    """How far the float32 values of a reference are from exact ones, on one input.

    All are relative to max(1, |value|).

    Attributes:
        hidden: the noise of encoder states, or of each tensor of a module's memory.
        logits: the noise of logits, in the form that is compared.
        log_probs: the noise of the log-probabilities of the complete vocabulary.
    """

    hidden: tuple[float, ...] = (0.0,)
    logits: float = 0.0
    log_probs: float = 0.0


NO_NOISE = Noise()


class Rounding:
    """Measures the rounding of one piece of eager code.

    Attributes:
        by: how it was measured: ``FLOAT64``, ``CHANGED``, ``ORDERS``, or None before the first
            measurement.
    """

    def __init__(self, code: Any) -> None:
        """Take a module, a function or another object that computes."""
        self.by: str | None = None
        self._weights = Weights(code)

    def measure(
        self, compute: Compute, found: Sequence[Floats], others: Sequence[Compute] | None = None
    ) -> list[float]:
        """The noise of each result of a computation.

        Args:
            compute: runs the code and returns its results.
            found: the results in float32, in the form that is compared.
            others: compute the same in float32 with the sums in other orders. None for a
                computation that costs so much that its weights are changed only once.
        """
        if self.by is None:  # other objects of the code may have weights too
            self._weights.watch(compute)
        exact = self.exact(compute)
        wanted = list(found) if exact is None else exact
        noise = [0.0] * len(wanted)
        # A draw may have as many values as a table of words has for each of many tokens.
        for draw in self._draws(compute, found, others, exact is not None):
            gaps = map(difference, draw, wanted)
            noise = [max(each) for each in zip(noise, gaps, strict=True)]
        return noise

    def _draws(
        self,
        compute: Compute,
        found: Sequence[Floats],
        others: Sequence[Compute] | None,
        in_float64: bool,
    ) -> Iterator[Sequence[Floats]]:
        """Results in float32, which differ by rounding; sets ``by``."""
        yield from (_arrays(other()) for other in others or ())
        if in_float64:
            yield found
        elif others is not None:
            with _threads(1 if torch.get_num_threads() > 1 else 2):
                draw = _arrays(compute())
            yield draw
        self.by = FLOAT64 if in_float64 else ORDERS
        for seed in (_SEEDS[:1] if others is None else _SEEDS) if self._weights.found else ():
            draw = self._changed(compute, seed)
            yield draw
            if self.by != FLOAT64 and not all(map(np.array_equal, draw, found)):
                self.by = CHANGED

    def _changed(self, compute: Compute, seed: int) -> list[Floats]:
        """The results in float32 with weights changed by one unit in the last place."""
        with self._weights.changed(seed):
            return _arrays(compute())

    def exact(self, compute: Compute) -> list[Floats] | None:
        """The results in float64; None if the code does not run in it, or they are not finite."""
        if self.by not in (None, FLOAT64) or not self._weights.found:
            return None
        if self._weights.size > MOST_DOUBLED:
            return None
        try:
            with self._weights.in_float64():
                found = list(compute())
        except Exception:  # code that was written for float32 may raise anything
            return None
        if any(each.dtype != torch.float64 for each in found if each.is_floating_point()):
            return None
        return [each.numpy() for each in found] if all(map(_finite, found)) else None


def difference(ours: Floats, wanted: Floats) -> float:
    """The largest difference relative to max(1, |value|); equal infinities do not differ."""
    one, two = (each.reshape(-1) for each in np.broadcast_arrays(ours, wanted))
    parts = (slice(at, at + _COMPARED) for at in range(0, one.size, _COMPARED))
    return float(np.max([_difference(one[part], two[part]) for part in parts], initial=0.0))


def _difference(ours: Floats, wanted: Floats) -> Any:
    with np.errstate(invalid="ignore"):
        gap = np.abs(ours - wanted) / np.maximum(1.0, np.abs(wanted))
    return np.where(ours == wanted, 0.0, gap).max()


def log_probs(logits: Tensor) -> Tensor:
    """Log-probabilities (…, V); those below ``LEAST_LOG_PROB`` are that."""
    return logits.log_softmax(-1).clamp_(min=LEAST_LOG_PROB)


@contextlib.contextmanager
def suited_threads(code: Any) -> Iterator[None]:
    """Run torch in one thread inside the block, if a module or other object has few weights."""
    threads = torch.get_num_threads()
    with _threads(threads if Weights(code).size >= LEAST_SHARED else 1):
        yield


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _arrays(tensors: Sequence[Tensor]) -> list[Floats]:
    return [each.numpy() for each in tensors]


def _finite(tensor: Tensor) -> bool:
    return not bool(tensor.isnan().any())


class Weights:
    """All tensors of floats that a piece of code holds."""

    def __init__(self, code: Any) -> None:
        """Search a module, a function or another object."""
        self._parameters: dict[int, nn.Parameter] = {}
        # Dictionaries that hold tensors, and whether these are a module's own (buffers, caches).
        self._dicts: list[tuple[MutableMapping[Any, Any], bool]] = []
        self._kept: list[MutableMapping[Any, Any]] = []
        self._look_through(code)

    @property
    def found(self) -> bool:
        """Whether any were found."""
        return bool(self._parameters) or any(_tensors(each) for each, _ in self._dicts)

    def watch(self, compute: Compute) -> None:
        """Find the parameters that a computation uses, wherever its code keeps them."""
        with _Watcher() as watcher:
            compute()
        self._parameters |= watcher.parameters

    @property
    def size(self) -> int:
        """In bytes; a tensor that is held twice counts once."""
        held = {id(t): t for each, _ in self._dicts for t in _tensors(each).values()}
        tensors = (*self._parameters.values(), *held.values())
        return sum(t.numel() * t.element_size() for t in tensors)  # a sparse one has no nbytes

    @contextlib.contextmanager
    def in_float64(self) -> Iterator[None]:
        """Convert them to float64 inside the block; new tensors of floats are in float64 too."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with self._converted(torch.Tensor.double, buffers=True):
                yield
        finally:
            torch.set_default_dtype(before)

    @contextlib.contextmanager
    def changed(self, seed: int) -> Iterator[None]:
        """Change about half of the trained ones by one unit in the last place."""
        generator = torch.Generator().manual_seed(seed)
        # One pattern for all: drawing a bit for each weight takes longer than the model does.
        pattern = torch.randint(0, 2, (_PATTERN,), generator=generator, dtype=torch.int32)

        def change(tensor: Tensor) -> Tensor:
            if tensor.dtype != torch.float32:
                return tensor
            flips = pattern.repeat(tensor.numel() // _PATTERN + 1)[: tensor.numel()]
            bits = tensor.detach().cpu().contiguous().view(torch.int32) ^ flips.view(tensor.shape)
            kept = (tensor == 0) | ~tensor.isfinite()
            return torch.where(kept, tensor, bits.view(torch.float32).to(tensor.device))

        with self._converted(change, buffers=False):
            yield

    @contextlib.contextmanager
    def _converted(self, convert: Convert, buffers: bool) -> Iterator[None]:
        made: dict[int, Tensor] = {}
        data = [(each, each.data) for each in self._parameters.values()]
        kept = [(each, dict(each)) for each in self._kept]

        def once(tensor: Tensor) -> Tensor:
            if id(tensor) not in made:
                made[id(tensor)] = convert(tensor.detach())
            return made[id(tensor)]

        try:
            for parameter, tensor in data:
                parameter.data = convert(tensor)
            for each, of_module in self._dicts:
                if buffers or not of_module:
                    each.update({key: once(it) for key, it in _tensors(each).items()})
            yield
        finally:
            for parameter, tensor in data:
                parameter.data = tensor
            for each, values in kept:
                if len(each) != len(values) or any(each.get(k) is not v for k, v in values.items()):
                    each.clear()
                    each.update(values)

    def _look_through(self, code: Any) -> None:
        seen: set[int] = set()
        waiting: list[tuple[Any, bool]] = [(code, False)]
        while waiting and len(seen) < MOST_VISITED:
            item, of_module = waiting.pop()
            if id(item) in seen or isinstance(item, (str, bytes, int, float, type, Tensor)):
                continue
            seen.add(id(item))
            if isinstance(item, MutableMapping):
                self._take(item, of_module)
                waiting.extend((value, of_module) for value in item.values())
            elif isinstance(item, (list, tuple, set)):
                waiting.extend((value, of_module) for value in item)
            elif isinstance(item, types.FunctionType):
                waiting.extend((value, False) for value in _reached(item, item.__code__))
                waiting.extend((value, False) for value in item.__defaults__ or ())
            elif isinstance(item, types.MethodType):
                waiting.extend([(item.__self__, False), (item.__func__, False)])
            elif isinstance(item, functools.partial):
                waiting.append(((item.func, item.args, item.keywords), False))
            elif not isinstance(item, types.ModuleType) and hasattr(item, "__dict__"):
                waiting.append((vars(item), isinstance(item, nn.Module)))
                if callable(item) and not isinstance(item, nn.Module):
                    waiting.append((type(item).__call__, False))

    def _take(self, values: MutableMapping[Any, Any], of_module: bool) -> None:
        for value in values.values():
            if isinstance(value, nn.Parameter) and value.is_floating_point():
                self._parameters[id(value)] = value
        self._kept.append(values)
        if _tensors(values):
            self._dicts.append((values, of_module))


class _Watcher(TorchFunctionMode):
    """Collects the parameters of floats that torch's functions are called with."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters: dict[int, nn.Parameter] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for each in (*args, *kwargs.values()):
            for value in each if isinstance(each, (list, tuple)) else [each]:
                if isinstance(value, nn.Parameter) and value.is_floating_point():
                    self.parameters[id(value)] = value
        return func(*args, **kwargs)


def _tensors(values: MutableMapping[Any, Any]) -> dict[Any, Tensor]:
    """The tensors of floats in it that are no parameters."""
    return {
        key: value
        for key, value in values.items()
        if isinstance(value, Tensor)
        and not isinstance(value, nn.Parameter)
        and value.is_floating_point()
    }


def _reached(function: types.FunctionType, code: types.CodeType) -> Iterator[Any]:
    """The values that a function refers to: its closure, and its globals."""
    if (function.__module__ or "").startswith(_LIBRARIES):
        return
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not filled yet
            yield cell.cell_contents
    names = _names(code)
    for name in names:
        value = function.__globals__.get(name)
        if not isinstance(value, types.ModuleType):
            yield value
        elif not value.__name__.startswith(_LIBRARIES):
            yield [vars(value).get(each) for each in names]


def _names(code: types.CodeType) -> set[str]:
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))
