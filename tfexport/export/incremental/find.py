"""Encoder, memory, cache and step of a module that has a ``forward`` alone."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from tfexport.bundle import SpecialIds
from tfexport.export.incremental.forward import OwnForward
from tfexport.export.incremental.program import (
    BATCHES,
    LENGTHS,
    MORE_SOURCE,
    OTHER_TOKENS,
    RUNS,
    SAME,
    Example,
    Program,
)
from tfexport.export.incremental.steps import Found, FoundSteps, WholeForward
from tfexport.export.modules.contract import ModuleError, UserModule
from tfexport.export.modules.inputs import Sizes, as_tensors, draw_rows
from tfexport.export.modules.probes import Runner
from tfexport.export.modules.source_locations import export_failure
from tfexport.export.report import LEAST_ALLOWED, allow
from tfexport.export.rounding import Rounding, difference
from tfexport.module_rows import Array, stack_rows

_CHECKED = 7  # tokens of a row, by which found steps are compared with the forward at once


def find_steps(
    own: OwnForward, examples: Sequence[Mapping[str, Array]], ids: SpecialIds
) -> FoundSteps:
    """Find the encoder and the step of a module by its forward.

    Args:
        own: the module, in eval mode.
        examples: rows of real inputs.
        ids: of the vocabularies.

    Raises:
        ModuleError: the forward fails, cannot be exported, or is not causal; the message names the
            line.
    """
    inputs = own.batch_first
    whole = UserModule(WholeForward(own, ids.decoder_start), len(inputs))
    runner = Runner(whole, inputs, ids.decoder_start, max(LENGTHS))
    settings = runner.settings(examples)
    runs = _examples(runner, settings, ids)
    try:
        program = Program(own, runs)
    except Exception as error:
        reason = export_failure(own.model, ("forward",), error)
        raise ModuleError(f"forward cannot be exported: {reason}") from error
    steps = Found.of(program).module()
    _check(steps, own, runs[MORE_SOURCE].inputs, runner.vocab_size(settings[0]), ids)
    return steps


def _examples(runner: Runner, settings: Sequence[Sizes], ids: SpecialIds) -> list[Example]:
    """The inputs and target ids of all runs."""
    vocab_size = runner.vocab_size(settings[0])
    found = []
    for run in range(RUNS):
        sizes = settings[1] if run == MORE_SOURCE else settings[0]
        rows = draw_rows(runner.inputs, runner.below, sizes, BATCHES[run], seed=1)
        target = draw_ids(vocab_size, BATCHES[run], max(LENGTHS), ids)
        if run == OTHER_TOKENS:
            others = draw_ids(vocab_size, BATCHES[run], max(LENGTHS), ids, seed=1)
            target[:, LENGTHS[SAME] :] = others[:, LENGTHS[SAME] :]
        given = as_tensors(runner.inputs, stack_rows(rows))
        found.append(Example(given, target[:, : LENGTHS[run]].contiguous()))
    return found


def draw_ids(
    vocab_size: int, batch: int, length: int, ids: SpecialIds, seed: int = 0
) -> Tensor:
    """Target ids (B, T): the start token, then others than that of padding."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(vocab_size, (batch, length), generator=generator)
    drawn[drawn == ids.pad] = (ids.pad + 1) % vocab_size
    drawn[:, 0] = ids.decoder_start
    return drawn


def _check(
    steps: FoundSteps,
    own: OwnForward,
    inputs: Sequence[Tensor],
    vocab_size: int,
    ids: SpecialIds,
) -> None:
    """Compare the steps with the forward over the whole prefix, at once.

    Raises:
        ModuleError: they differ.
    """
    tokens = draw_ids(vocab_size, inputs[0].size(0), _CHECKED, ids, seed=2)
    with torch.no_grad():
        wanted = own(inputs, tokens)
        memory = steps.encode(*inputs)
        state, found = steps.start(*memory), []
        for position in range(_CHECKED):
            logits, state = steps.step(
                tokens[:, position : position + 1], torch.tensor(position), state, memory
            )
            found.append(logits)
        made = torch.stack(found, dim=1)
        gap = difference(made.numpy(), wanted.numpy())
        if gap <= LEAST_ALLOWED:
            return
        (noise,) = Rounding(own.model).measure(
            lambda: [own(inputs, tokens)], [wanted.numpy()], []
        )
    if not gap <= allow(noise):
        raise own.wrong(
            f"the steps that were found differ from it by {gap:.1e}, of {allow(noise):.1e} allowed"
        )


def uses_forward(model: nn.Module, num_inputs: int) -> bool:
    """Whether a module is taken by its forward: it has not the methods of the contract."""
    try:
        UserModule(model, num_inputs)
    except Exception:  # noqa: BLE001
        return type(model).forward is not nn.Module.forward
    return False
