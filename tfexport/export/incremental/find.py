"""Encoder, memory, cache and step of a module that has a ``forward`` alone."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from tfexport.bundle import SpecialIds
from tfexport.export.graphs.exporter import with_axis_names
from tfexport.export.incremental.forward import OwnForward
from tfexport.export.incremental.forward_capture import TARGET, ForwardCaptureError
from tfexport.export.incremental.program import (
    AGAIN,
    BATCHES,
    FIRST,
    LENGTHS,
    MORE_SOURCE,
    OTHER_ROW,
    OTHER_TOKENS,
    RUNS,
    THIRD_SOURCE,
    Example,
    Program,
)
from tfexport.export.incremental.states import NoStepsError, StateAnalysis
from tfexport.export.incremental.step_graphs import FoundSteps, WholeForward, build_steps
from tfexport.export.modules.contract import ModuleError, UserModule
from tfexport.export.modules.examine import LONGEST_TRIED, other_branch, refuse_branch
from tfexport.export.modules.inputs import Sizes, as_tensors, axes_of, draw_rows, is_lone
from tfexport.export.modules.probes import Runner
from tfexport.export.modules.source_locations import export_failure
from tfexport.export.modules.wrappers import refuse_closed_parts
from tfexport.export.report import LEAST_ALLOWED, allow
from tfexport.export.rounding import Rounding, difference
from tfexport.graph_io import BATCH
from tfexport.module_rows import Array, stack_rows

_OTHER_WAY = (
    "Methods encode, start and step of your own may have loops (docs/modules.md); steps='methods' "
    "takes them."
)
_CHECKED = 7  # tokens of a row, by which found steps are compared with the forward at once


def find_program(
    own: OwnForward,
    examples: Sequence[Mapping[str, Array]],
    ids: SpecialIds,
    max_length: int,
) -> Program:
    """Export a module's forward as a program, and run it at several sizes.

    Args:
        own: the module, in eval mode.
        examples: rows of real inputs.
        ids: of the vocabularies.
        max_length: tokens that it has to decode.

    Raises:
        ModuleError: the forward fails, cannot be exported, or takes another branch for other
            sizes; the message names the line.
    """
    inputs = own.batch_first
    runner = Runner(
        UserModule(WholeForward(own), len(inputs)), inputs, ids.decoder_start, max(LENGTHS)
    )
    settings = runner.settings(examples)
    vocab_size = runner.vocab_size(settings[0])
    runs = _examples(runner, settings, ids, vocab_size)
    logits = _fill_tables(runner, own, runs[0], settings, max_length)
    _refuse_probabilities(own, logits)
    _refuse_shift(own, runs[0], logits, ids)
    _check_fast_path(runner, own, settings[0], ids, vocab_size)
    try:
        program = Program(own, runs)
    except ForwardCaptureError as capture:
        refuse_closed_parts(own.model)
        error = capture.__cause__
        assert error is not None
        taken = [each.spec for each in (*inputs, replace(own.target, axes=(BATCH, TARGET)))]
        reason = with_axis_names(export_failure(own.model, ("forward",), error), taken)
        raise ModuleError(f"forward cannot be exported: {reason} {_OTHER_WAY}") from error
    _check_small(runner, program, settings[0], ids, vocab_size)
    program.longest = _bounds(runner, own, program.largest_sizes(), settings[0], max_length)
    return program


def find_steps(
    program: Program, ids: SpecialIds, max_length: int, fused: bool = True
) -> FoundSteps | WholeForward:
    """Find the encoder and the step of a module by its forward.

    Args:
        program: of the forward.
        ids: of the vocabularies.
        max_length: tokens that it has to decode.
        fused: compute attention by an operator of onnxruntime.

    Returns:
        The module of what was found; if no step was found, one that calls the forward over the
        complete prefix for every token, with the reason as ``why``.

    Raises:
        ModuleError: it cannot be decoded step by step; the message names the line.
    """
    own = program.own
    try:
        steps = build_steps(StateAnalysis.of(program), max_length, fused)
        vocab_size = program.sizes(program.logits)[-1][FIRST]
        _check(steps, own, program.examples[MORE_SOURCE].inputs, vocab_size, ids)
    except NoStepsError as error:
        whole = WholeForward(own)
        whole.why = str(error)
        return whole
    return steps


@torch.no_grad()
def _fill_tables(
    runner: Runner, own: OwnForward, example: Example, settings: Sequence[Sizes], max_length: int
) -> Tensor:
    """Call a forward with the longest rows, for which some code makes its tables anew.

    A program has the table that is there when it is exported.

    Returns:
        The logits of the example, (B, T, V).
    """
    logits_of = functools.partial(own, example.inputs, example.target)
    before = logits_of()
    repeats = torch.equal(before, logits_of())  # random numbers are told later, with their line
    axes = axes_of(runner.inputs)
    calls = [(settings[0], max_length)]
    if len(axes) == 1:  # of several, such as those of a picture, the rows would be large
        calls.append(({axes[0]: LONGEST_TRIED}, 1))
    for sizes, length in calls:
        with contextlib.suppress(ModuleError):  # where a table ends, say
            own(_tensors(runner, sizes, 1), torch.full((1, length), runner.start_id))
    after = logits_of()
    if repeats and beyond_rounding(own, logits_of, before, after):
        raise own.wrong(
            "gives other logits for the same inputs after a call with longer ones: it keeps "
            "something between calls. What depends on a length is to be computed in every call"
        )
    return after


def _tensors(runner: Runner, sizes: Sizes, batch: int) -> tuple[Tensor, ...]:
    """Drawn inputs of a batch."""
    return as_tensors(
        runner.inputs, stack_rows(draw_rows(runner.inputs, runner.below, sizes, batch))
    )


@torch.no_grad()
def _refuse_shift(own: OwnForward, example: Example, logits: Tensor, ids: SpecialIds) -> None:
    """Refuse a forward whose last logits do not depend on the last target id.

    Args:
        own: the forward.
        example: one of its calls.
        logits: of the example, (B, T, V).
        ids: of the vocabularies.

    Raises:
        ModuleError: it makes the decoder's ids of labels itself, say.
    """
    inputs, target, first = example.inputs, example.target, logits[:, -1]
    size = logits.size(-1)
    last = [number for number in range(size) if number not in (ids.pad, int(target[0, -1]))][:8]
    if not last:
        return
    for number in last:
        other = target.clone()
        other[:, -1] = number
        if not torch.equal(own(inputs, other)[:, -1], first):
            return
    raise own.wrong(
        "its last logits do not depend on the last target id, as where labels are shifted in "
        "forward; say how the decoder is called without it, in place of "
        f"{own.call_text('')}"
    )


@torch.no_grad()
def _check_fast_path(
    runner: Runner, own: OwnForward, sizes: Sizes, ids: SpecialIds, vocab_size: int
) -> None:
    """Refuse a forward that reads states of padding, which torch's fast path replaces by zeros.

    Raises:
        ModuleError: it gives other logits in evaluation than in training.
    """
    stacks = [each for each in own.model.modules() if isinstance(each, nn.TransformerEncoder)]
    fast = torch.backends.mha.get_fastpath_enabled()
    if not fast or not any(each.use_nested_tensor for each in stacks):
        return
    rows = draw_rows(runner.inputs, runner.below, sizes, 2)
    for each in runner.inputs:
        if is_lone(each) or each.name not in runner.below or each.dtype.startswith("float"):
            continue
        for row in rows:
            row[each.name][row[each.name] == ids.pad] = (ids.pad + 1) % runner.below[each.name]
        size = each.axes[-1]
        if isinstance(size, int):  # rows of other lengths are decoded by themselves
            rows[0][each.name][..., size - size // 3 :] = ids.pad
    inputs = as_tensors(runner.inputs, stack_rows(rows))
    target = draw_target(vocab_size, (2, 3), ids)
    try:
        plain_logits, fast_logits = own(inputs, target), own.on_fast_path(inputs, target)
    except ModuleError:
        return  # the module takes no such rows
    if not (plain_logits.isfinite() & fast_logits.isfinite()).all():
        return  # as of a row that is masked whole
    if beyond_rounding(own, functools.partial(own, inputs, target), plain_logits, fast_logits):
        raise own.wrong(
            "reads the encoder's states of padding, which nn.TransformerEncoder replaces by zeros "
            "in evaluation, and not in training; use nn.TransformerEncoder(…, "
            "enable_nested_tensor=False), which leaves them, or make zeros of them in both: "
            "memory.masked_fill(padding[:, :, None], 0)"
        )


@torch.no_grad()
def _check_small(
    runner: Runner, program: Program, sizes: Sizes, ids: SpecialIds, vocab_size: int
) -> None:
    """Refuse a forward that takes another branch for smaller sizes of its inputs or target.

    Raises:
        ModuleError: naming the axis and the size.
    """
    if program.cause(AGAIN) is not None:
        return  # what differs each time is told with its own line
    forward = program.own
    for axis, least in program.smallest_sizes().items():
        if axis == BATCH:
            continue
        # One target id is compared with the steps, where these are found.
        first = 2 if axis == TARGET else 1
        smaller = {size for size in (least - 1, least // 2, first) if first <= size < least}
        for size in sorted(smaller, reverse=True):
            length = size if axis == TARGET else max(LENGTHS)
            target = draw_target(vocab_size, (2, length), ids)
            inputs = _tensors(runner, sizes if axis == TARGET else {**sizes, axis: size}, 2)
            try:
                logits = forward(inputs, target)
            except ModuleError:
                continue  # a limit of the code itself
            if logits.isnan().any():
                continue  # as of a row that is masked whole
            call = functools.partial(forward, inputs, target)
            of_program = program.logits_of(Example(inputs, target))
            if beyond_rounding(forward, call, logits, of_program):
                where = f"less than {least}" if size == least - 1 else str(size)
                raise forward.wrong(
                    f"takes another branch if {axis} is {where}; a graph has only one branch, so "
                    "use code that works for all sizes, such as a mask or padding by a fixed number"
                )


@torch.no_grad()
def _bounds(
    runner: Runner, own: OwnForward, largest: Mapping[str, int], sizes: Sizes, max_length: int
) -> dict[str, int]:
    """Sizes from which on a forward takes another branch, which may be as large as few inputs are.

    Raises:
        ModuleError: it takes another branch for smaller sizes, or ends before the length; the
            message names the axis and the size.
    """
    bounds: dict[str, int] = {}

    def run(axis: str, size: int) -> None:
        beyond = {BATCH: 2, TARGET: 1, **sizes, axis: size}
        of_inputs = {name: beyond[name] for name in axes_of(runner.inputs)}
        rows = draw_rows(runner.inputs, runner.below, of_inputs, beyond[BATCH])
        given = as_tensors(runner.inputs, stack_rows(rows))
        own(given, torch.full((beyond[BATCH], beyond[TARGET]), runner.start_id))

    for axis, most in largest.items():
        if axis != TARGET and most < LONGEST_TRIED:
            refuse_branch(axis, most, run, own.wrong)
        elif axis != TARGET:
            bounds[axis] = most
        elif most < max_length:
            try:
                run(axis, max_length)
            except ModuleError as error:
                text = f"max_length {max_length} is more than the module can decode: {error}"
                raise ModuleError(text) from error
            raise own.wrong(other_branch(axis, most, f"{max_length} are needed"))
    return bounds


def _refuse_probabilities(own: OwnForward, logits: Tensor) -> None:
    if bool((logits >= 0).all()) and torch.allclose(logits.sum(-1), torch.ones(1), atol=1e-3):
        raise own.wrong("gives probabilities; give logits, or the logarithms of probabilities")


def _examples(
    runner: Runner, settings: Sequence[Sizes], ids: SpecialIds, vocab_size: int
) -> list[Example]:
    """The inputs and target ids of all runs."""
    found = []
    first, other, third = _three_sizes(settings)
    of_runs = {MORE_SOURCE: other, THIRD_SOURCE: third}
    for run in range(RUNS):
        sizes = of_runs.get(run, first)
        rows = draw_rows(runner.inputs, runner.below, sizes, BATCHES[run], seed=1)
        target = draw_target(vocab_size, (BATCHES[run], max(LENGTHS)), ids)
        if run == OTHER_TOKENS:
            others = draw_target(vocab_size, (BATCHES[run], max(LENGTHS)), ids, seed=1)
            target[:, LENGTHS[FIRST] :] = others[:, LENGTHS[FIRST] :]
        if run == OTHER_ROW:
            rows[1:] = draw_rows(runner.inputs, runner.below, sizes, BATCHES[run], seed=2)[1:]
            target[1:] = draw_target(vocab_size, (BATCHES[run], max(LENGTHS)), ids, seed=2)[1:]
        given = as_tensors(runner.inputs, stack_rows(rows))
        found.append(Example(given, target[:, : LENGTHS[run]].contiguous()))
    return found


def _three_sizes(settings: Sequence[Sizes]) -> tuple[Sizes, Sizes, Sizes]:
    """The size that is exported, and two others, as unlike it as there are.

    Strides make one number of rows of two sizes that are near each other, and what they leave of
    even sizes shows less than what they leave of odd ones.
    """

    def total(sizes: Sizes) -> int:
        return sum(sizes.values())

    def odd(sizes: Sizes) -> int:
        return sum(size % 2 for size in sizes.values())

    first = settings[0]
    others = [sizes for sizes in settings if sizes != first]
    if not others:
        return first, first, first
    largest = max(others, key=total)
    other = largest if total(largest) > total(first) else min(others, key=total)
    left = [sizes for sizes in others if sizes != other]
    third = max(left, key=lambda sizes: (odd(sizes) != odd(other), total(sizes)), default=other)
    return first, other, third


def draw_ids(vocab_size: int, size: tuple[int, int], pad_id: int, seed: int = 0) -> Tensor:
    """Ids (B, L), others than that of padding."""
    drawn = torch.randint(vocab_size, size, generator=torch.Generator().manual_seed(seed))
    return drawn.masked_fill(drawn == pad_id, (pad_id + 1) % vocab_size)


def draw_target(vocab_size: int, size: tuple[int, int], ids: SpecialIds, seed: int = 0) -> Tensor:
    """Target ids (B, T): the start token, then others than that of padding."""
    drawn = draw_ids(vocab_size, size, ids.pad, seed)
    drawn[:, 0] = ids.decoder_start
    return drawn


def _check(
    steps: FoundSteps,
    own: OwnForward,
    inputs: Sequence[Tensor],
    vocab_size: int,
    ids: SpecialIds,
) -> None:
    """Compare the steps with the forward over the complete prefix, at once.

    Raises:
        NoStepsError: they differ.
    """
    tokens = draw_target(vocab_size, (inputs[0].size(0), _CHECKED), ids, seed=2)
    with torch.no_grad():
        # The first token alone too: code may take another branch for it.
        wanted = torch.cat([own(inputs, tokens[:, :1]), own(inputs, tokens)[:, 1:]], dim=1)
        memory = steps.encode(*inputs)
        state, found = steps.start(*memory), []
        for position in range(_CHECKED):
            logits, state = steps.step(
                tokens[:, position : position + 1], torch.tensor(position), state, memory
            )
            found.append(logits)
        made = torch.stack(found, dim=1)
        if wrong := beyond_rounding(own, lambda: own(inputs, tokens), wanted, made):
            raise NoStepsError(f"the step that was found {wrong}")


def beyond_rounding(
    own: OwnForward, compute: Callable[[], Tensor], wanted: Tensor, made: Tensor
) -> str:
    """How far a result is from that of forward; empty if rounding explains it.

    Args:
        own: the forward, whose rounding is measured if that is needed.
        compute: what to measure.
        wanted: the result of forward.
        made: the result to compare with it.
    """
    gap = difference(made.numpy(), wanted.float().numpy())
    if gap <= LEAST_ALLOWED:
        return ""
    (noise,) = Rounding(own.model).measure(lambda: [compute()], [wanted.numpy()], ())
    if gap <= allow(noise):
        return ""
    return f"differs from forward by {gap:.1e}, of {allow(noise):.1e} allowed"
