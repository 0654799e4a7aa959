"""Calling a custom module as the contract specifies, and checking its results.

A module that only has ``decode`` recomputes its prefix. Here it gets a state with the tokens so
far, so that other code only handles ``encode``, ``start`` and ``step``. See docs/modules.md.

Axes: B batch, T tokens, V vocabulary.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tfexport.errors import ExportError, Message, Option, join_problems, shown
from tfexport.export.modules.source_locations import one_line, where

Tensors = tuple[Tensor, ...]
Value = TypeVar("Value")
Pair = tuple[Value, Value]
_REMEDY = "docs/modules.md has the contract."
_SAY_HOW = Message(
    "say how it is called with ", Option("forward"), ", a function of the module, the inputs and "
    "the target ids",
)  # fmt: skip


class ModuleError(ExportError):
    """A method of the module raised an error, or its result violates the contract.

    Attributes:
        reason: the message without what to do about it.
    """

    reason = ""


@dataclass(frozen=True)
class Head:
    """The last layer of a step, from which greedy search needs the best token alone.

    Attributes:
        weight: (V, E).
        bias: (V,) or None.
        name: of the weight in the step.
    """

    weight: Tensor
    bias: Tensor | None
    name: str


class ByForward(nn.Module):
    """A module with the methods of the contract that was made of a user's forward.

    Attributes:
        own: the forward, ``own(inputs, target)`` to logits (B, T, V); ``own.model`` is the user's.
        head: the last layer of its step; with it there is a method ``step_states``.
    """

    own: Any
    head: Head | None = None


class UserModule(nn.Module):
    """A custom module with the interface ``encode``, ``start`` and ``step``.

    Attributes:
        model: the custom module.
        judge: see ``__init__``; None too where its forward gives no logits.
        why_no_judge: what it gave.
        recomputes: it has no ``step``: the state is the tokens so far, (B, T).
        memory_axes: the batch axis of each tensor of the memory; they are moved to the front.
        state_axes: the same for the state.
    """

    def __init__(self, model: nn.Module, num_inputs: int, judge: Any = None) -> None:
        """Wrap a module.

        Args:
            model: the custom module.
            num_inputs: the number of its inputs.
            judge: its forward as an ``OwnForward``, where it has one besides its methods.

        Raises:
            ExportError: a method of the contract is missing.
        """
        super().__init__()
        _check_methods(model, num_inputs)
        self.model = model
        self.judge = judge
        self.why_no_judge = ""
        self.recomputes = not _has(model, "step")
        self.memory_axes: tuple[int, ...] = ()
        self.state_axes: tuple[int, ...] = ()

    def encode(self, inputs: Sequence[Tensor]) -> Tensors:
        """Encode inputs; returns the memory."""
        found = self._call("encode", *inputs)
        return _moved(self._tensors("encode", found), self.memory_axes, to_front=True)

    def start(self, memory: Sequence[Tensor], batch: int | None = None) -> Tensors:
        """The memory to the state before the first token; ``batch`` while no axes are known."""
        if self.recomputes:
            rows = memory[0].size(0) if batch is None else batch
            return (torch.zeros((rows, 0), dtype=torch.int64),)
        found = self._call("start", *self._own_memory(memory))
        state = self._tensors("start", found, least=0)
        return _moved(state, self.state_axes, to_front=True)

    def step(
        self, token: Tensor, position: Tensor, state: Sequence[Tensor], memory: Sequence[Tensor]
    ) -> tuple[Tensor, Tensors]:
        """One token (B, 1) at ``position`` () to logits (B, V) and the next state."""
        if self.recomputes:
            logits, state = self.advance(token, state, memory)
            return logits[:, -1], state
        given = _moved(state, self.state_axes, to_front=False)
        found = self._call("step", token, position, given, self._own_memory(memory))
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise self.wrong("step", f"returns {result_kind(found)}, not a tuple (logits, state)")
        logits, after = found
        self._check_logits("step", logits, (token.size(0), "V"))
        return logits, _moved(self._tensors("step", after, least=0), self.state_axes, to_front=True)

    def step_states(
        self, token: Tensor, position: Tensor, state: Sequence[Tensor], memory: Sequence[Tensor]
    ) -> tuple[Tensor, Tensors]:
        """``step`` of a module that was found by its forward, with states before its head."""
        given = _moved(state, self.state_axes, to_front=False)
        x, after = self._call("step_states", token, position, given, self._own_memory(memory))
        return x, _moved(self._tensors("step", after, least=0), self.state_axes, to_front=True)

    def advance(
        self, tokens: Tensor, state: Sequence[Tensor], memory: Sequence[Tensor]
    ) -> tuple[Tensor, Tensors]:
        """Tokens (B, T) after those of the state to logits (B, T, V), if it ``recomputes``."""
        whole = torch.cat([state[0], tokens], dim=1)
        return self.decode(whole, memory)[:, -tokens.size(1) :], (whole,)

    def decode(self, tokens: Tensor, memory: Sequence[Tensor]) -> Tensor:
        """A complete prefix (B, T), start token first, to logits (B, T, V)."""
        logits: Tensor = self._call("decode", tokens, *self._own_memory(memory))
        self._check_logits("decode", logits, (tokens.size(0), tokens.size(1), "V"))
        return logits

    @property
    def own(self) -> Any:
        """The user's forward, ``own(inputs, target)``, with which results are compared.

        None for a module that has methods alone.
        """
        return self.model.own if isinstance(self.model, ByForward) else self.judge

    @property
    def head(self) -> Head | None:
        """The last layer of steps that were found in the user's forward."""
        return self.model.head if isinstance(self.model, ByForward) else None

    @property
    def code(self) -> nn.Module:
        """The module that the user wrote."""
        return self.model.own.model if isinstance(self.model, ByForward) else self.model

    def method(self, name: str) -> str:
        """The method that the user wrote for one of the contract."""
        return "forward" if isinstance(self.model, ByForward) else name

    @property
    def name(self) -> str:
        """The class of the user's module."""
        return type(self.code).__name__

    def wrong(self, method: str, text: str, error: BaseException | None = None) -> ModuleError:
        """An error that names a method, and the line of the user's file."""
        subject = where(self.code, self.method(method), error)
        return ModuleError(f"{subject}: {text}. {_REMEDY}")

    def first_difference(
        self, memory: Pair[Tensors], state: Pair[Tensors], logits: Pair[Tensor]
    ) -> str | None:
        """The method in which two equal runs first differ; None if they do not."""
        last = "decode" if self.recomputes else "step"
        for method, (one, two) in (("encode", memory), ("start", state)):
            if not all(_equal(a, b) for a, b in zip(one, two, strict=True)):
                return method
        return None if _equal(*logits) else last

    def _own_memory(self, memory: Sequence[Tensor]) -> Tensors:
        return _moved(memory, self.memory_axes, to_front=False)

    def _versions(self) -> dict[tuple[int, str], tuple[int, int]]:
        """The tensors of each part by name, and how often each was written to.

        Without ``named_parameters``, whose paths take longer to make than a small model to run.
        """
        found, seen = dict[tuple[int, str], tuple[int, int]](), set[int]()
        waiting: list[nn.Module | None] = [self.model]
        while waiting:
            part = waiting.pop()
            if part is None or id(part) in seen:
                continue
            seen.add(id(part))
            for tensors in (part._parameters, part._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        found[id(part), name] = id(tensor), tensor._version
            waiting += reversed(part._modules.values())
        return found

    def _path(self, part: int, name: str) -> str:
        """A tensor of the part with an id, as ``named_parameters`` calls it."""
        paths = (path for path, each in self.model.named_modules() if id(each) == part)
        return ".".join(filter(None, (next(paths), name)))

    def _call(self, method: str, *given: Any) -> Any:
        before = {} if torch.compiler.is_exporting() else self._versions()
        found = call_users(
            lambda: getattr(self.model, method)(*given),
            lambda reason, error: self.wrong(method, reason, error),
        )
        if torch.compiler.is_exporting():
            return found
        changed = [key for key, of_key in self._versions().items() if before.get(key) != of_key]
        if changed:
            named = self._path(*changed[0])
            raise self.wrong(
                method, f"modifies {named!r} of the module, which persists between calls; make it "
                "part of the state"
            )  # fmt: skip
        return found

    def _tensors(self, method: str, found: Any, least: int = 1) -> Tensors:
        """The result of a method, as a tuple of tensors."""
        given = (found,) if isinstance(found, Tensor) else found
        if not isinstance(given, tuple | list) or not all(isinstance(t, Tensor) for t in given):
            raise self.wrong(
                method, f"returns {result_kind(found)}, not a tensor or a tuple of tensors"
            )
        if len(given) < least:
            raise self.wrong(method, "returns no tensor")
        for number, tensor in enumerate(given):
            if tensor.dtype in (torch.float16, torch.bfloat16):
                raise self.wrong(
                    method, f"returns {_name(tensor)} (tensor {number}); convert the module: "
                    "model.float()"
                )  # fmt: skip
        return tuple(given)

    def _check_logits(self, method: str, logits: Any, wanted: tuple[int | str, ...]) -> None:
        if not isinstance(logits, Tensor):
            raise self.wrong(method, f"returns {result_kind(logits)} as logits, not a tensor")
        shape = tuple(logits.shape)
        if torch.compiler.is_exporting():  # a comparison of sizes would fix them
            return
        if len(shape) != len(wanted) or shape[:-1] != wanted[:-1]:
            axes = "(B, V)" if len(wanted) == 2 else "(B, T, V)"
            expected = f"({', '.join(map(str, wanted))})"
            raise self.wrong(method, f"returns logits of shape {shape}, not {expected} = {axes}")
        if not logits.is_floating_point():
            raise self.wrong(method, f"returns logits of {_name(logits)}, not of float32")


def call_users(
    call: Callable[[], Any], wrong: Callable[[str, Exception], ModuleError], plain: bool = True
) -> Any:
    """Call a user's code.

    Args:
        call: calls it.
        wrong: makes an error of the reason and of the code's own error.
        plain: without torch's fast path of attention.

    Raises:
        ModuleError: the code raised an error; while torch exports, which names the line itself,
            that error.
    """
    with plain_attention() if plain else contextlib.nullcontext():
        try:
            return call()
        except ModuleError:
            raise
        except Exception as error:
            if torch.compiler.is_exporting():
                raise
            raise wrong(one_line(error), error) from error


@contextlib.contextmanager
def in_eval(model: nn.Module) -> Iterator[None]:
    """Within the block, put a module into eval mode; afterwards restore the mode of every part.

    What ``torch.compile`` compiled is run as it is written.
    """
    modes = {part: part.training for part in model.modules()}
    model.eval()
    for part in modes:  # a module's own ``eval`` may leave parts as they are
        part.training = False
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for part, mode in modes.items():
            part.training = mode


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Turn torch's fast path of attention off."""
    # It gives other values at padded positions, and NaN for masks of floats (pytorch issue 118628).
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _check_methods(model: nn.Module, num_inputs: int) -> None:
    problems: list[str | Message] = []
    if not _has(model, "encode"):
        problems.append(_without_encode(model, num_inputs))
    steps, start, decode = (_has(model, name) for name in ("step", "start", "decode"))
    if steps != start:
        there, missing = ("step", "start") if steps else ("start", "step")
        problems.append(f"has {there} but no {missing}; both are required")
    elif not steps and not decode:
        problems.append("has neither decode(tokens, *memory) nor start(*memory) and step")
    for method, count in (("encode", num_inputs), ("step", 4)):
        if _has(model, method) and not _takes(getattr(model, method), count):
            of_step = "(token, position, state, memory)"
            expected = "one for each input" if method == "encode" else of_step
            problems.append(f"{where(model, method)} does not take {count} arguments, {expected}")
    if problems and _has(model, "encode") and (reason := forward_problem(model, num_inputs)):
        # Most people mean the forward, and its helpers have these names by chance.
        problems.insert(0, Message(reason, "; ", _SAY_HOW))
    if problems:
        raise ExportError(join_problems(type(model).__name__, problems, _REMEDY))


def _without_encode(model: nn.Module, num_inputs: int) -> Message:
    reason = forward_problem(model, num_inputs)
    if reason is None:
        return Message("has no method encode(*inputs)")
    if not reason:
        return Message("has neither a forward nor a method encode(*inputs); ", _SAY_HOW)
    return Message(reason, ", and there is no method encode(*inputs); ", _SAY_HOW)


def forward_problem(model: nn.Module, num_inputs: int) -> str | None:
    """Why a forward does not take the inputs and the target ids; None if it takes them.

    Empty if the module has no forward.
    """
    if type(model).forward is nn.Module.forward:
        return ""
    if _takes(model.forward, num_inputs + 1):
        return None
    count = f"does not take {num_inputs + 1} arguments, the inputs and the target ids"
    return f"{where(model, 'forward')} {count}"


def _has(model: nn.Module, method: str) -> bool:
    return callable(getattr(model, method, None))


def require_forward(model: nn.Module, num_inputs: int) -> None:
    """Refuse a module without a forward that takes its inputs and the target ids.

    Raises:
        ExportError: it has none.
    """
    reason = forward_problem(model, num_inputs)
    if reason is not None:
        problem = Message(reason or "has no forward", "; ", _SAY_HOW)
        raise ExportError(join_problems(type(model).__name__, [problem], _REMEDY))


def _takes(method: Any, count: int) -> bool:
    try:
        inspect.signature(method).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a function without a signature, such as one written in C
        return True
    return True


def _moved(tensors: Sequence[Tensor], axes: Sequence[int], to_front: bool) -> Tensors:
    """Move the batch axis of each tensor to the front, or back to where it was."""
    if not any(axes):
        return tuple(tensors)
    return tuple(
        tensor.movedim(axis, 0) if to_front else tensor.movedim(0, axis)
        for tensor, axis in zip(tensors, axes, strict=True)
    )


def _equal(one: Tensor, two: Tensor) -> bool:
    """Whether tensors are equal, but for rounding."""
    if one.shape != two.shape:
        return False
    return torch.allclose(one.double(), two.double(), rtol=1e-5, atol=1e-5, equal_nan=True)


def result_kind(result: Any) -> str:
    """The kind of a result, for messages: ``a dict of 'output', 'loss'``."""
    if isinstance(result, Mapping):
        parts = ", ".join(map(repr, result)) or "nothing"
    elif isinstance(result, tuple | list):
        parts = ", ".join(type(each).__name__ for each in result) or "nothing"
    else:
        return shown(result) if result is None else f"a {type(result).__name__}"
    return f"a {type(result).__name__} of {parts}"


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
