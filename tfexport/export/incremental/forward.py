"""A module's own ``forward``, called with its inputs and target ids, as logits (B, T, V).

Axes: B batch, T target, V vocabulary.
"""

import functools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tfexport.errors import ConfigError, Message, Option, join_problems, shown
from tfexport.export.modules.contract import ModuleError, call_users, result_kind
from tfexport.export.modules.inputs import Input
from tfexport.export.modules.source_locations import code_of, where
from tfexport.graph_io import BATCH

TARGET = Input("target", "int64", (BATCH, "target_length"))
Forward = Callable[..., Any]
_REMEDY = "docs/training-script.md says what a forward may give."
_OTHER_ORDER = "another order of axes is declared by target=Input('target', 'int64', {axes})"
_OTHER_SIZE = re.compile("invalid for input of size|must match the size of tensor")
_METHODS = "Its methods, if they are those of docs/modules.md, are taken with steps='methods'."


@dataclass(frozen=True)
class OwnForward:
    """How the forward of a user's module is called.

    Attributes:
        model: the user's.
        inputs: as declared; their batch axis may stand anywhere.
        target: the ids that the decoder sees, start token first.
        call: ``call(model, *inputs, target)``; None for ``model(*inputs, target)``.
    """

    model: nn.Module
    inputs: tuple[Input, ...]
    target: Input = TARGET
    call: Forward | None = None

    @property
    def batch_first(self) -> tuple[Input, ...]:
        """The inputs as the graphs take them."""
        return tuple(
            replace(each, axes=(BATCH, *(axis for axis in each.axes if axis != BATCH)))
            for each in self.inputs
        )

    def __call__(self, inputs: Sequence[Tensor], target: Tensor) -> Tensor:
        """Inputs, batch first, and ids (B, T) to logits (B, T, V).

        Raises:
            ModuleError: the forward raises an error, or gives no logits; the line is named.
        """
        result = self._result(inputs, target)
        remedy = functools.partial(self._remedy, inputs, target)
        batch, length = target.shape
        return self._logits(result, batch, length, remedy)

    def on_fast_path(self, inputs: Sequence[Tensor], target: Tensor) -> Tensor:
        """As a call, by torch's own choice of how attention is computed."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that tensors of unequal rows are new
            result = self._result(inputs, target, plain=False)
        return self._logits(result, *target.shape)

    def _result(self, inputs: Sequence[Tensor], target: Tensor, plain: bool = True) -> Any:
        """The forward's own result, of any type.

        Args:
            inputs: batch first.
            target: ids (B, T).
            plain: without torch's fast path of attention.
        """
        called = self.model if self.call is None else functools.partial(self.call, self.model)
        *given, ids = self._moved(*inputs, target)
        return call_users(lambda: called(*given, ids), self.wrong, plain)

    def of_source(self, inputs: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
        """The forward of one source: ids (B, T) to logits (B, T, V).

        A call with a method ``of_source`` computes once what does not depend on the ids.
        """
        once = getattr(self.call, "of_source", None)
        if once is None:
            return functools.partial(self, inputs)
        called = call_users(lambda: once(self.model, *self._moved(*inputs)), self.wrong)

        def forward(target: Tensor) -> Tensor:
            (*_, ids) = self._moved(*inputs, target)
            return self._logits(call_users(lambda: called(ids), self.wrong), *target.shape)

        return forward

    @property
    def gives_attention(self) -> bool:
        """Whether ``cross_attentions`` can be called."""
        return hasattr(self.call, "cross_attentions")

    def cross_attentions(self, inputs: Sequence[Tensor], target: Tensor) -> Sequence[Tensor]:
        """Weights of cross-attention, (B, H, T, S) for each layer, by a call that gives them.

        Raises:
            ModuleError: the model gives none.
        """
        call: Any = self.call
        tensors = self._moved(*inputs, target)
        weights: Sequence[Tensor] = call_users(
            lambda: call.cross_attentions(self.model, *tensors), self.wrong
        )
        return weights

    def _moved(self, *tensors: Tensor) -> list[Tensor]:
        """Inputs, and target ids if given, with their batch where the user's code has it."""
        return [
            tensor.movedim(0, each.axes.index(BATCH)) if each.axes[0] != BATCH else tensor
            for each, tensor in zip((*self.inputs, self.target), tensors, strict=False)
        ]

    def _say_which(self, result: Any) -> str:
        """How to say which part of a result the logits are."""
        parts: dict[str, Any] = {}
        if isinstance(result, Mapping):
            parts = {f"[{key!r}]": value for key, value in result.items()}
        elif isinstance(result, tuple | list):
            parts = {f"[{number}]": value for number, value in enumerate(result)}
        elif hasattr(result, "__dict__"):
            parts = {f".{name}": value for name, value in vars(result).items()}
        logits = [
            part
            for part, value in parts.items()
            if isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 2
        ]
        part = logits[0] if logits else " …"
        return f"say which part they are: {self.call_text(part)}"

    def call_text(self, after: str, ids: str | None = None) -> str:
        """Python text that declares another call: ``forward=lambda model, image, target: …``.

        Args:
            after: what is done with the result of the model, such as ``[0]``.
            ids: of the target, as the model takes them; None for those of the parameter.
        """
        target = self.target.name
        inputs = ", ".join(each.name for each in self.inputs)
        return f"forward=lambda model, {inputs}, {target}: model({inputs}, {ids or target}){after}"

    def _padded(self, length: int | str) -> str:
        """Python text of the call of a forward that takes one number of target ids only."""
        ids = self.target.name
        padded = f"torch.nn.functional.pad({ids}, (0, {length} - {ids}.size(1)))"
        return self.call_text(f"[:, :{ids}.size(1)]", padded)

    def _remedy(self, inputs: Sequence[Tensor], target: Tensor, logits: Tensor) -> str:
        """Advice on logits of another shape, proven by calls with more target ids."""
        if self.call is None and self.target.axes[0] == BATCH and logits.dim() == 3:
            rows, last = logits.shape[1:]
            if last == target.size(1) != rows:
                return f"their axes are (B, V, T): {self.call_text('.transpose(1, 2)')}"
            if self._num_rows(inputs, target, 1) == rows + 1 > target.size(1) + 1:
                call = self.call_text(f"[:, -{self.target.name}.size(1):]")
                return f"those before the target ids are left out by {call}"
            if self._num_rows(inputs, target, rows - target.size(1)) == rows:
                text = f"a forward that takes {rows} target ids only is called with padded ones: "
                return text + self._padded(rows)
        return self._other_order

    def _num_rows(self, inputs: Sequence[Tensor], target: Tensor, more: int) -> int | None:
        """Rows of logits that so many more target ids give; None if the forward takes no such."""
        if more <= 0:
            return None
        ids = torch.cat([target, target[:, -1:].expand(-1, more)], dim=1)
        try:
            return int(_part_of_logits(self._result(inputs, ids)).size(1))
        except (ModuleError, AttributeError, IndexError):
            return None

    @property
    def _other_order(self) -> str:
        return _OTHER_ORDER.format(axes=tuple(reversed(self.target.axes)))

    def wrong(self, text: str, error: BaseException | None = None) -> ModuleError:
        """An error that names the forward, and the line of the user's file."""
        code = "" if error is None else code_of(error)
        place = where(self.model, "forward", error, self.call) + (f", {code}" if code else "")
        has_methods = callable(getattr(self.model, "encode", None)) and any(
            callable(getattr(self.model, name, None)) for name in ("decode", "step")
        )
        remedy = f"{_REMEDY} {_METHODS}" if has_methods else _REMEDY
        if self.call is None and self.target.axes[0] == BATCH and _OTHER_SIZE.search(text):
            remedy = (
                "An input of one size only is declared by its number in place of a name, and a "
                "forward that takes N target ids only is called with padded ones: "
                f"{self._padded('N')}. {remedy}"
            )
        error_of_forward = ModuleError(f"{place}: {text}. {remedy}")
        error_of_forward.reason = f"{place}: {text}"
        return error_of_forward

    def _logits(
        self, result: Any, batch: int, length: int, remedy: Callable[[Tensor], str] | None = None
    ) -> Tensor:
        """The logits among the results of a call, as (B, T, V).

        Args:
            result: of the forward.
            batch: B.
            length: T.
            remedy: gives advice on logits of another shape.
        """
        logits = _part_of_logits(result)
        if not isinstance(logits, Tensor):
            raise self.wrong(f"gives {result_kind(result)}, not logits; {self._say_which(result)}")
        if not logits.is_floating_point():
            raise self.wrong(f"gives logits of {logits.dtype}, not of floats")
        batch_first = self.target.axes[0] == BATCH
        sizes = (batch, length) if batch_first else (length, batch)
        if logits.dim() == 2:
            logits = logits.unflatten(0, sizes)
        if not torch.compiler.is_exporting() and tuple(logits.shape[:-1]) != sizes:
            expected = "(B, T, V)" if batch_first else "(T, B, V)"
            raise self.wrong(
                f"gives logits of shape {tuple(logits.shape)}, not ({sizes[0]}, {sizes[1]}, V) = "
                f"{expected} or these flattened; {remedy(logits) if remedy else self._other_order}"
            )
        of_rows: Tensor = logits if batch_first else logits.transpose(0, 1)
        # Not converted where it need not be: a conversion would be an operator without a line.
        return of_rows if of_rows.dtype == torch.float32 else of_rows.float()


def _part_of_logits(result: Any) -> Any:
    """The logits in the result of a forward: of that name, the first of several, or all of it."""
    logits = result.get("logits", result) if isinstance(result, Mapping) else result
    logits = getattr(logits, "logits", logits)
    return logits[0] if isinstance(logits, tuple | list) and logits else logits


def check_target(target: Any, forward: Any) -> None:
    """Refuse a declaration of the target ids, or a call, that cannot be one.

    Raises:
        ConfigError: naming every problem.
    """
    problems: list[str | Message] = []
    if not isinstance(target, Input):
        problems.append(Message(Option("target"), f": {shown(target)} is not an Input"))
    else:
        if target.dtype not in ("int64", "int32"):
            problems.append(Message(Option("target"), f": {shown(target.dtype)} is not int64"))
        axes = tuple(target.axes)
        if len(axes) != 2 or BATCH not in axes or not all(isinstance(a, str) for a in axes):
            text = f": axes {shown(axes)} are not {BATCH!r} and a name for the length"
            problems.append(Message(Option("target"), text))
    if forward is not None and not callable(forward):
        problems.append(Message(Option("forward"), f": {shown(forward)} cannot be called"))
    if problems:
        raise ConfigError(join_problems("export", problems))
