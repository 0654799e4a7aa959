"""Mistakes that are planted in the exporter, to prove that the drawn modules find them.

The exporter's own comparisons are off, so that the judge has to find each mistake: a bundle that
differs from the forward, or a refusal of what is exported without the mistake. A module of which
the whole prefix is computed again hides a mistake in found steps, and does not count.
"""

import contextlib
import operator
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tests.drawn_modules.attention_source import mask_form
from tests.drawn_modules.case import BADLY_REFUSED, DIFFERENCE, EXPORTED, REFUSED, run_design
from tests.drawn_modules.productions import SCORES, Condition, Design, draw_design
from tfexport.export.artifacts import recognised, recognised_decoder
from tfexport.export.incremental import find, rules, step_graphs
from tfexport.export.incremental.attention import attention
from tfexport.export.incremental.rules import OperatorCall
from tfexport.export.incremental.states import NextState

aten: Any = torch.ops.aten
MOST_DRAWS = 40
Patches = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class Mistake:
    """A mistake in the exporter.

    Attributes:
        name: what it does.
        patches: plants it.
        needs: whether a module has what the mistake acts on.
    """

    name: str
    patches: Patches
    needs: Condition


def _rule(target: Any, changed: Callable[[Any, Any, Any, Any], Any]) -> Patches:
    """Replaces the rule of an operator: ``changed`` gets what it gives, and its arguments."""

    def plant() -> contextlib.AbstractContextManager[Any]:
        right = rules.RULES.get(target, rules._pointwise)  # what most operators have

        def wrong(program: Any, node: Any, rows: Any) -> Any:
            expression = right(program, node, rows)
            return None if expression is None else changed(expression, program, node, rows)

        return mock.patch.dict(rules.RULES, {target: wrong})

    return plant


def _emitted(changed: Callable[[Any, Any, Any], Any]) -> Patches:
    """Replaces how a step is written: ``changed`` gets writer, plan, and what was written."""

    def plant() -> contextlib.AbstractContextManager[Any]:
        right = step_graphs._Emitter._emit

        def wrong(writer: Any, plan: Any) -> Any:
            return changed(writer, plan, right(writer, plan))

        return mock.patch.object(step_graphs._Emitter, "_emit", wrong)

    return plant


# ---- the mistakes -------------------------------------------------------------------------------


def _without_mask(expression: Any, program: Any, node: Any, rows: Any) -> Any:
    if isinstance(expression, OperatorCall) and expression.target is attention:
        return replace(expression, args=(*expression.args[:3], None, expression.args[4]))
    return expression


def _without_scale(expression: Any, program: Any, node: Any, rows: Any) -> Any:
    return replace(expression, args=(*expression.args[:4], 1.0))


def _one_further(expression: Any, program: Any, node: Any, rows: Any) -> Any:
    """Positions of ``arange`` that begin at 1."""
    return OperatorCall(aten.add.Tensor, (expression, 1))


def _slice_further(expression: Any, program: Any, node: Any, rows: Any) -> Any:
    """The row of a table of positions after the right one."""
    if not isinstance(expression, OperatorCall) or not isinstance(
        expression.args[-1], OperatorCall
    ):
        return expression
    source, axis, begin, stop = expression.args
    if axis not in rows:
        return expression
    more = (OperatorCall(operator.add, (each, 1)) for each in (begin, stop))
    return replace(expression, args=(source, axis, *more))


def _all_real(expression: Any, program: Any, node: Any, rows: Any) -> Any:
    """No token of the target is padding; what compares others is as it is."""
    if node.args[0] is not program.target:
        return expression
    ids = expression.args[0]
    never = aten.ge.Scalar if node.target is aten.ne.Scalar else aten.lt.Scalar
    return OperatorCall(never, (ids, 0))


def _row_of_another(writer: Any, plan: Any, written: Any) -> Any:
    """The cache of a row goes on in the next row of its batch."""
    if isinstance(plan, NextState) and writer.analysis.states[plan.number].axis is not None:
        written = writer.graph.call_function(aten.roll.default, (written, [1], [0]))
        writer.after[plan.number] = written
    return written


def _restarted_sum(writer: Any, plan: Any, written: Any) -> Any:
    if isinstance(plan, NextState) and writer.analysis.states[plan.number].axis is None:
        written = writer.made[plan.row.node, plan.row.rows]
        writer.after[plan.number] = writer.graph.call_function(aten.clone.default, (written,))
    return written


def _always_five(writer: Any, plan: Any, written: Any) -> Any:
    """The number of tokens is that of the example."""
    return 5 if plan is rules.TOTAL else written


def _first_row(right: Callable[..., Any]) -> Callable[..., Any]:
    def encode(steps: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(each[:1].expand_as(each).clone() for each in right(steps, *inputs))

    return encode


def _other_second(right: Callable[..., Any]) -> Callable[..., Any]:
    """The step after two tokens gets another one than was chosen."""

    def step(steps: Any, token: Tensor, position: Tensor, state: Any, memory: Any) -> Any:
        return right(
            steps, torch.where(position == 2, token * 0 + 3, token), position, state, memory
        )

    return step


def _without_bias(right: Callable[..., Any]) -> Callable[..., Any]:
    """The bias of the head, which all logits get, is zero."""

    def holder(program: Any) -> Any:
        root = right(program)
        for node in program.graph.nodes:
            if node.target is aten.linear.default and len(node.args) > 2:
                head = node
        name = program.names[head.args[2]].replace(".", "_")
        bias = getattr(root.tensors, name)
        delattr(root.tensors, name)
        root.tensors.register_parameter(name, torch.nn.Parameter(torch.zeros_like(bias)))
        return root

    return holder


def _old_state(right: Callable[..., Any]) -> Callable[..., Any]:
    """The state of a recurrent layer stays as it was before the first token."""

    def emit_stepped(writer: Any, plan: Any) -> Any:
        written = right(writer, plan)
        for number in plan.states:
            writer.after[number] = writer.graph.call_function(
                aten.clone.default, (writer.past[number],)
            )
        return written

    return emit_stepped


def _method(holder: Any, name: str, changed: Callable[[Any], Any], *others: str) -> Patches:
    """Replaces methods of a class, or functions of a module."""

    @contextlib.contextmanager
    def plant() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for each in (name, *others):
                right = getattr(holder, each)
                stack.enter_context(mock.patch.object(holder, each, changed(right)))
            yield

    return plant


def _is(group: str, *names: str) -> Condition:
    return lambda design: design.has(group, *names)


def _has_lengths(design: Design) -> bool:
    attends = design.has("attention", *SCORES) and design.has("decoder", "transformer")
    return attends and design.has("source_mask", "lengths", "relative_lengths")


def _by_hand(design: Design) -> bool:
    return design.has("decoder", "transformer") and design.has("attention", "by_hand", "gated")


def _has_head_bias(design: Design) -> bool:
    return design.has("embedding", "separate", "shared", "factorised") and design.has(
        "wrapper", "none"
    )


def _pads_target(design: Design) -> bool:
    return design.has("target_padding", "own") and bool(mask_form(design))


MISTAKES = (
    Mistake("a mask of lengths is dropped", _rule(attention, _without_mask), _has_lengths),
    Mistake(
        "a position of arange is one too far",
        _rule(aten.arange.default, _one_further),
        _is("positions", "learned_arange"),
    ),
    Mistake(
        "a row of a table of positions is one too far",
        _rule(aten.slice.Tensor, _slice_further),
        _is("positions", "sinusoid_buffer", "sinusoid_sequence_first", "learned_parameter"),
    ),
    Mistake(
        "a cache is that of another row",
        _emitted(_row_of_another),
        _is("decoder", "transformer"),
    ),
    Mistake(
        "padding in the target is not hidden",
        _rule(aten.ne.Scalar, _all_real),
        lambda design: _pads_target(design) and mask_form(design) == "visible",
    ),
    Mistake(
        "the number of tokens is a constant",
        _emitted(_always_five),
        _is("positions", "learned_arange", "learned_parameter", "sinusoid_buffer"),
    ),
    Mistake(
        "a running sum begins again",
        _emitted(_restarted_sum),
        _is("decoder", "running_mean"),
    ),
    Mistake(
        "the memory of the first row is that of all rows",
        _method(step_graphs.FoundSteps, "encode", _first_row),
        lambda design: True,
    ),
    Mistake("the scale of attention is left out", _rule(attention, _without_scale), _by_hand),
    Mistake(
        "the bias of the head is dropped",
        _method(step_graphs, "_holder", _without_bias),
        _has_head_bias,
    ),
    Mistake(
        "another token is fed after two",
        _method(step_graphs.FoundSteps, "step", _other_second, "step_states"),
        lambda design: True,
    ),
    Mistake(
        "a recurrent state stays as it was",
        _method(step_graphs._Emitter, "_emit_stepped", _old_state),
        _is("decoder", "gru", "lstm"),
    ),
)


@contextlib.contextmanager
def without_comparisons() -> Iterator[None]:
    """The exporter without what it compares with the forward while it looks for steps."""
    with contextlib.ExitStack() as stack:
        for holder, name in (
            (find, "_check"), (recognised, "_prove"), (recognised_decoder, "_prove"),
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(holder, name, return_value=None))
        yield


def draws_until_found(mistake: Mistake, first: int, folder: Path) -> tuple[int, str]:
    """How many modules were drawn until one showed a mistake, and how; 0 if none did.

    Args:
        mistake: to plant.
        first: seed from which on modules are drawn.
        folder: for their sources.
    """
    draws, seed = 0, first
    while draws < MOST_DRAWS:
        design, seed = draw_design(seed), seed + 1
        if not mistake.needs(design) or design.refused_because:
            continue
        draws += 1
        options: dict[str, Any] = {"verify": False, "recognise": False}
        with without_comparisons(), mistake.patches():
            result = run_design(design, folder, **options)
        if result.outcome == DIFFERENCE:
            return draws, f"seed {design.seed}: {result.message}"
        if result.outcome in (REFUSED, BADLY_REFUSED):
            with without_comparisons():
                clean = run_design(design, folder, **options)
            if clean.outcome in EXPORTED:
                return draws, f"seed {design.seed}, refused: {result.message}"
    return 0, ""


def find_planted(first: int) -> int:
    """Look for every mistake and print after how many draws it was found; 1 if one was not."""
    torch.set_num_threads(1)
    missed = 0
    with tempfile.TemporaryDirectory(prefix="drawn-modules-") as folder:
        for mistake in MISTAKES:
            draws, how = draws_until_found(mistake, first, Path(folder))
            said = f"after {draws} draws" if draws else f"not found in {MOST_DRAWS} draws"
            print(f"{mistake.name}: {said}  {how[:200]}", flush=True)
            missed += not draws
    print(f"{len(MISTAKES) - missed} of {len(MISTAKES)} found", file=sys.stderr)
    return 1 if missed else 0
