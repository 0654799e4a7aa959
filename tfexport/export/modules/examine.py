"""Examination of a module: its axes are found by running it at different sizes.

Everything that the graphs rely on is checked: shapes that depend only on the sizes of the inputs, a
state that stays or grows by the same amount at every step, rows that do not depend on each other,
results that repeat, and a decoder that continues to ``max_length``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from tfexport.bundle import SpecialIds
from tfexport.errors import ExportError
from tfexport.export.modules.contract import ModuleError, UserModule
from tfexport.export.modules.inputs import LARGEST_ID, Input, Sizes, as_tensors, axes_of, draw_rows
from tfexport.export.modules.probes import (
    AxisNames,
    Examples,
    ProbeRun,
    Runner,
    batch_axes,
    example_sizes,
    memory_specs,
    state_specs,
)
from tfexport.export.report import LEAST_ALLOWED, allow
from tfexport.export.rounding import Rounding, difference, log_probs
from tfexport.graph_io import BATCH, ModuleIO
from tfexport.module_rows import Array, stack_rows

STEPS = 5
LONGEST_TRIED = 1024  # ids of a row
_TWO_WAYS = "omit steps='methods' to export forward, or return in the methods what forward returns"
Row = Mapping[str, Array]
Pair = Sequence[torch.Tensor]


@dataclass(frozen=True)
class ModuleProbe:
    """A module, and what was found by running it at several sizes: what the graphs need to know.

    Attributes:
        module: the custom module.
        inputs: the declared inputs.
        io: tensors of the graphs.
        below: the exclusive upper bound of each integer input, by name.
        sizes: sizes of all named axes, for examples in the middle of decoding.
        settings: sizes of the inputs' axes at which the module was run.
        vocab_size: V.
        longest_source: ids that ``encode`` takes at most; None if there is no limit that was found.
        causal: one call of the module's forward gives the logits that a call with each prefix
            would give.
    """

    module: UserModule
    inputs: tuple[Input, ...]
    io: ModuleIO
    below: Mapping[str, float]
    sizes: tuple[Sizes, ...]
    settings: tuple[Sizes, ...]
    vocab_size: int
    longest_source: int | None
    causal: bool = True


def examine(
    module: UserModule,
    inputs: tuple[Input, ...],
    examples: Examples,
    ids: SpecialIds,
    max_length: int,
    longest: Mapping[str, int] | None = None,
) -> ModuleProbe:
    """Run a module at several sizes, and find its axes.

    Args:
        module: the custom module, in eval mode.
        inputs: the inputs, which were checked.
        examples: rows of real data.
        ids: the ids of the start token and of the padding token.
        max_length: the number of tokens that the module must be able to decode.
        longest: see ``ModuleIO``.

    Raises:
        ExportError: it cannot be a graph; the message names the method and the line.
    """
    steps = min(STEPS, max_length)
    runner = Runner(module, inputs, ids.decoder_start, steps)
    settings = runner.settings(examples)
    probes = runner.probes(settings)
    _check_counts(module, probes)
    module.memory_axes = batch_axes(module, "encode", probes, [each.memory for each in probes])
    of_start = [each.states[0] for each in probes]
    module.state_axes = batch_axes(module, "start", probes, of_start)
    if any((*module.memory_axes, *module.state_axes)):
        probes = runner.probes(settings)
    _check_repeats(runner, probes[0], settings[0])
    _check_rows_alone(runner, probes[0], settings[0])
    if module.judge is not None and not _judges(runner, settings[0]):
        module.judge = None
    causal = module.judge is None or _check_by_forward(runner, settings[0], ids)
    names = AxisNames(probes)
    memory = memory_specs(probes, names)
    state, growth = state_specs(module, probes, names)
    specs = tuple(each.spec for each in inputs)
    io = ModuleIO(
        specs,
        memory,
        state,
        growth,
        many_tokens=module.recomputes and _is_causal(runner, settings[0], probes[0].vocab_size),
        padded=False,
        recomputes=module.recomputes,
        below=_bounds(inputs, runner.below),
        longest=longest or {},
    )
    most = max(settings, key=lambda sizes: sum(sizes.values()))
    io = io._replace(padded=_may_be_padded(runner, io, most, ids.pad))
    _check_length(runner, io, settings[0], max_length)
    return ModuleProbe(
        module,
        inputs,
        io,
        runner.below,
        tuple(example_sizes(names, growth, i) for i in _example_settings(names, len(settings))),
        tuple(settings),
        probes[0].vocab_size,
        _longest_source(runner, io, settings),
        causal,
    )


def _bounds(inputs: Sequence[Input], below: Mapping[str, float]) -> dict[str, int]:
    """For integer inputs with a bound, the smallest number that is too large."""
    return {
        each.name: int(below[each.name])
        for each in inputs
        if not each.dtype.startswith("float") and below.get(each.name, LARGEST_ID) < LARGEST_ID
    }


def _example_settings(names: AxisNames, count: int) -> list[int]:
    """All settings; the first has no axis of size 1, which torch would make a constant."""
    return sorted(range(count), key=lambda i: min(names.sizes(i).values()) == 1)


def _check_counts(module: UserModule, probes: Sequence[ProbeRun]) -> None:
    """Refuse a number of tensors, or a vocabulary, that varies with the sizes of the inputs."""
    last = "decode" if module.recomputes else "step"
    for method, name, counts in (
        ("encode", "tensors", [len(each.memory) for each in probes]),
        ("start", "tensors", [len(each.states[0]) for each in probes]),
        (last, "logits", [each.vocab_size for each in probes]),
    ):
        if len(set(counts)) > 1:
            found = ", ".join(map(str, counts))
            raise module.wrong(method, f"returns {found} {name} for inputs of different sizes")


def _check_repeats(runner: Runner, first: ProbeRun, sizes: Sizes) -> None:
    """Refuse a module whose results or shapes differ between equal or like runs."""
    again = runner.run(sizes, first.sizes[BATCH], runner.steps)
    method = runner.module.first_difference(
        (first.encoded, again.encoded), (first.started, again.started), (first.logits, again.logits)
    )
    if method is not None:
        raise runner.module.wrong(
            method,
            "returns different results for the same inputs when it is called again: it uses random "
            "numbers, or stores values between calls; make these part of the state",
        )
    other = runner.run(sizes, first.sizes[BATCH], runner.steps, seed=1)
    if (other.memory, other.states) != (first.memory, first.states):
        raise runner.module.wrong(
            "encode", "the shapes of its results depend on the data, not only on input sizes"
        )


def _check_rows_alone(runner: Runner, first: ProbeRun, sizes: Sizes) -> None:
    """Refuse a module in which the rows of a batch depend on each other."""
    rows = draw_rows(runner.inputs, runner.below, sizes, 2)

    def together_and_alone() -> list[torch.Tensor]:
        alone = [runner.run_rows([row], sizes, 1).logits for row in rows]
        return [runner.run_rows(rows, sizes, 1).logits, torch.cat(alone)]

    if _differ(runner, together_and_alone):
        raise runner.module.wrong(
            "encode",
            "a row has different logits alone and in a batch, so its results depend on the other "
            "rows of the batch",
        )


@torch.no_grad()
def _judges(runner: Runner, sizes: Sizes) -> bool:
    """Whether a forward gives logits; one that does not is noted in the module."""
    module = runner.module
    rows = draw_rows(runner.inputs, runner.below, sizes, 2)
    target = torch.full((2, 3), runner.start_id)
    try:
        module.judge(as_tensors(runner.inputs, stack_rows(rows)), target)
    except ModuleError as error:
        module.why_no_judge = error.reason
        return False
    return True


@torch.no_grad()
def _check_by_forward(runner: Runner, sizes: Sizes, ids: SpecialIds) -> bool:
    """Refuse methods that compute something else than the module's forward.

    Returns:
        Whether the forward is causal, see ``ModuleProbe``.

    Raises:
        ModuleError: the logits have another size, or other values.
    """
    module, own = runner.module, runner.module.judge
    rows = draw_rows(runner.inputs, runner.below, sizes, 2)

    def inputs() -> tuple[torch.Tensor, ...]:
        return as_tensors(runner.inputs, stack_rows(rows))  # in the type of the moment

    last = "decode" if module.recomputes else "step"
    width = own(inputs(), torch.full((2, 1), runner.start_id)).size(-1)
    size = runner.vocab_size(sizes)
    if size != width:
        raise module.wrong(
            last,
            f"returns logits of {size} tokens, and forward of {width}: forward computes more than "
            f"encode and decode do, such as its last layer; {_TWO_WAYS}",
        )
    tokens = torch.randint(width, (2, runner.steps), generator=torch.Generator().manual_seed(0))
    tokens = tokens.masked_fill(tokens == ids.pad, (ids.pad + 1) % width)
    tokens[:, 0] = runner.start_id

    def of_prefixes() -> torch.Tensor:
        lengths = range(1, runner.steps + 1)
        return torch.stack([own(inputs(), tokens[:, :n])[:, -1] for n in lengths], dim=1)

    def of_methods() -> torch.Tensor:
        memory = module.encode(inputs())
        state, logits = module.start(memory), []
        for position in range(runner.steps):
            token = tokens[:, position : position + 1]
            of_step, state = module.step(token, torch.tensor(position), state, memory)
            logits.append(of_step.to(torch.get_default_dtype()))
        return torch.stack(logits, dim=1)

    if _differ(runner, lambda: [of_methods(), of_prefixes()]):
        normalised = _differ(runner, lambda: [log_probs(of_methods()), log_probs(of_prefixes())])
        reason = "other logits than forward" if normalised else (
            "logits that are normalised otherwise than those of forward"
        )  # fmt: skip
        raise module.wrong(
            last, f"gives {reason} for the same tokens; {_TWO_WAYS}; forward= says how forward is "
            "called if it takes labels that are shifted, or another argument in evaluation"
        )  # fmt: skip
    return not _differ(runner, lambda: [own(inputs(), tokens), of_prefixes()])


def _is_causal(runner: Runner, sizes: Sizes, vocab_size: int) -> bool:
    """Whether ``decode`` gives an earlier token the same logits when later ones are added."""
    rows = draw_rows(runner.inputs, runner.below, sizes, 1)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab_size, (1, runner.steps), generator=generator)

    @torch.no_grad()
    def full_and_parts() -> list[torch.Tensor]:
        memory = runner.module.encode(as_tensors(runner.inputs, stack_rows(rows)))
        lengths = range(1, runner.steps + 1)
        parts = [runner.module.decode(tokens[:, :length], memory)[:, -1] for length in lengths]
        return [runner.module.decode(tokens, memory), torch.stack(parts, dim=1)]

    return not _differ(runner, full_and_parts)


def _may_be_padded(runner: Runner, io: ModuleIO, sizes: Sizes, pad_id: int) -> bool:
    """Whether rows of ids may be padded: padding changes no result, at any index of the batch.

    A module without an ``attention_mask`` may mask ``pad_id`` itself.
    """
    if not io.takes_ids:
        return False
    (axis,) = axes_of(runner.inputs)
    # Short ones are shorter than the steps: a step may read the column of its number.
    lengths = {1, 3, sizes[axis] // 4, sizes[axis] // 2, sizes[axis] - 1} - {0}
    tried = [_padding_acts(runner, length, sizes, pad_id) for length in sorted(lengths)]
    return any(acts is not None for acts in tried) and not any(tried)


def _padding_acts(runner: Runner, length: int, sizes: Sizes, pad_id: int) -> bool | None:
    """Whether padding changes the results of a row; None for a length that is refused alone."""
    (axis,) = axes_of(runner.inputs)
    (short,) = draw_rows(runner.inputs, runner.below, {axis: length}, 1, seed=2)
    (whole,) = draw_rows(runner.inputs, runner.below, sizes, 1)

    def alone() -> torch.Tensor:
        # A batch of two each time, so that the same tokens are drawn.
        return runner.run_rows([short, short], {axis: length}, runner.steps).logits

    def alone_and_padded() -> Pair:
        first = runner.run_rows([short, whole], sizes, runner.steps, pad_id).logits
        last = runner.run_rows([whole, short], sizes, runner.steps, pad_id).logits
        return [alone(), torch.stack([first[0], last[1]])]

    try:
        alone()
    except ModuleError:
        return None
    try:
        return _differ(runner, alone_and_padded)
    except ModuleError:
        return True


def _longest_source(runner: Runner, io: ModuleIO, settings: Sequence[Sizes]) -> int | None:
    """The longest row of ids that ``encode`` takes; None from ``LONGEST_TRIED`` on."""
    if not io.takes_ids:
        return None
    (axis,) = axes_of(runner.inputs)
    limit = io.longest.get(axis)

    def accepts(length: int) -> bool:
        try:
            runner.run({axis: length}, 1, steps=1)
        except ModuleError:
            return False
        return True

    low = max(sizes[axis] for sizes in settings)
    high = 2 * low
    while accepts(high):
        low, high = high, 2 * high
        if low >= LONGEST_TRIED:
            return limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepts(middle) else (low, middle)
    return low


def _differ(runner: Runner, compute: Callable[[], Pair]) -> bool:
    """Whether two computations of the same logits differ by more than float32 rounding."""
    one, two = (each.numpy() for each in compute())
    found = difference(one, two)
    if found <= LEAST_ALLOWED:
        return False
    noise = Rounding(runner.module).measure(compute, [one, two], ())
    return not found <= allow(max(noise))


def _check_length(runner: Runner, io: ModuleIO, sizes: Sizes, max_length: int) -> None:
    """Refuse a module that cannot decode ``max_length`` tokens, or whose state grows otherwise."""
    module = runner.module
    given = as_tensors(runner.inputs, stack_rows(draw_rows(runner.inputs, runner.below, sizes, 1)))
    done = 0
    try:
        with torch.no_grad():
            memory = module.encode(given)
            if module.recomputes:
                whole = torch.full((1, max_length), runner.start_id)
                module.advance(whole, module.start(memory), memory)
                return
            state, token = module.start(memory), torch.full((1, 1), runner.start_id)
            for done in range(max_length):
                before = state
                _, state = module.step(token, torch.tensor(done), before, memory)
                _check_growth(module, io, before, state, done)
    except ModuleError as error:
        reached = "" if module.recomputes else f" after {done} tokens"
        raise ExportError(
            f"max_length {max_length} exceeds what the module can decode{reached}: {error}"
        ) from error


def _check_growth(
    module: UserModule,
    io: ModuleIO,
    before: Sequence[torch.Tensor],
    after: Sequence[torch.Tensor],
    step: int,
) -> None:
    """Refuse a state that does not grow as it did in the first steps."""
    for number, (spec, old, new) in enumerate(zip(io.state, before, after, strict=True)):
        grown = [
            size + (io.growth[axis].step if isinstance(axis, str) and axis in io.growth else 0)
            for axis, size in zip(spec.axes, old.shape, strict=True)
        ]
        if list(new.shape) != grown:
            raise module.wrong(
                "step",
                f"returns tensor {number} of the state with shape {tuple(new.shape)} after step "
                f"{step}, not {tuple(grown)}; each axis must stay the same, or grow by the same "
                "amount at every step (use a mask for a window over the past)",
            )


def check_sizes(probe: ModuleProbe, largest: Mapping[str, int], max_length: int) -> None:
    """Refuse code that takes another branch for sizes that are larger than the example's.

    torch captures the branch of the example, with the largest size for which it is taken. That is
    right where the code itself ends there, as with a table of positions.

    Args:
        probe: the module.
        largest: axis to that size; without axes that may have any size.
        max_length: the maximum number of decoded tokens.

    Raises:
        ModuleError: there is such code; the message names axis and size.
    """
    module = probe.module
    last = "decode" if module.recomputes else "step"
    for axis, growth in probe.io.growth.items():
        if axis in largest and isinstance(growth.start, int):
            needed = growth.start + growth.step * (max_length - 1)
            if largest[axis] < needed:
                raise module.wrong(last, other_branch(axis, largest[axis], f"{needed} are needed"))
    runner = Runner(module, probe.inputs, 0, 1)
    runner.below.update(probe.below)
    declared = {axis for each in probe.inputs for axis in each.axes if isinstance(axis, str)}
    for axis in declared & largest.keys() - probe.io.longest.keys():
        refuse_branch(
            axis,
            largest[axis],
            lambda axis, size: runner.run({**probe.settings[0], axis: size}, 2, steps=1),
            lambda text: module.wrong("encode", text),
        )


def refuse_branch(
    axis: str,
    largest: int,
    run: Callable[[str, int], object],
    wrong: Callable[[str], ModuleError],
) -> None:
    """Refuse code that accepts larger sizes of an axis than torch captured its branch for.

    Args:
        axis: its name.
        largest: that size.
        run: runs the code with a size of the axis.
        wrong: makes the error of a text.

    Raises:
        ModuleError: the code accepts more, in another branch.
    """
    try:
        run(axis, largest + 2)
    except ModuleError:
        return  # a limit of the code itself
    raise wrong(other_branch(axis, largest, "the code accepts more"))


def other_branch(axis: str, size: int, needed: str) -> str:
    """A problem: code that takes another branch above a size."""
    return (
        f"takes another branch, or truncates, if {axis} exceeds {size}, but {needed}; a graph "
        "has only one branch, so use code that works for all sizes, such as a mask"
    )
