"""The decoder of a module, recognised as that of an ordinary Transformer.

The module is exported by its found steps. Its bundle gets the decoder's weights and the graph of
what the decoder attends to besides, with which the native engine decodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tfexport.export.artifacts.module_source import ModuleCall
from tfexport.export.incremental.find import beyond_rounding, draw_target
from tfexport.export.module_subject import ModuleSubject
from tfexport.export.modules.contract import ModuleError
from tfexport.export.modules.examine import ModuleProbe
from tfexport.export.modules.inputs import Input, as_tensors, axes_of, draw_rows
from tfexport.export.named_code import one_line
from tfexport.export.recognition.dataflow import NotRecognisedError
from tfexport.export.recognition.decoder import RecognisedDecoder, recognise_decoder
from tfexport.export.recognition.parameters import report_parameters
from tfexport.export.rounding import log_probs
from tfexport.export.subject import Reason
from tfexport.graph_io import ATTENTION_MASK
from tfexport.model_src.checkpoint.keymap import compact_report
from tfexport.module_rows import Row, stack_rows

_MOST_EXAMPLES = 32
_LONGER = 6  # times the largest row with which the module was run: a mask may act on long ones only
_LENGTHS = (5, 1, 17)  # target ids


def with_decoder(call: ModuleCall, subject: ModuleSubject) -> ModuleSubject | Reason:
    """A module of found steps with its decoder, if that is recognised.

    Raises:
        ModuleError: the forward fails.
    """
    try:
        decoder = recognised_decoder(call, subject.probe)
    except NotRecognisedError as error:
        return Reason(f"nor is its decoder: {error}")
    why = decoder.why_no_layers
    notes = (f"its encoder stays in onnxruntime: {why}",) if why else ()
    return replace(subject, decoder=decoder, notes=(*subject.notes, *notes))


def recognised_decoder(call: ModuleCall, probe: ModuleProbe) -> RecognisedDecoder:
    """The decoder of a module, compared with the whole forward.

    Args:
        call: how the module is called.
        probe: its steps, examined.

    Raises:
        NotRecognisedError: it is no such decoder, or computes something else; the message says
            what.
    """
    facts = call.facts
    if probe.module.recomputes:
        raise NotRecognisedError("no step of it was found")
    call.progress("recognising your decoder", 0, 1)
    try:
        decoder = recognise_decoder(
            call.program, facts.special, facts.max_length, fused=not call.graphs.portable
        )
        if not all(bool(each.isfinite().all()) for each in decoder.weights.values()):
            raise NotRecognisedError("its weights are not all finite")
        decoder = _proven(call, probe, decoder)
    except (NotRecognisedError, ModuleError):
        raise
    except Exception as error:  # a program may be of any form, and its steps are found all the same
        raise NotRecognisedError(f"its program could not be read: {one_line(error)}") from error
    of_layers = {} if decoder.layers is None else decoder.layers.state_dict
    report = report_parameters(call.model, {**decoder.state_dict, **of_layers})
    used = {name: weights for name, weights in report.items() if weights}  # others: the encoder's
    return replace(decoder, parameters=compact_report(used))


def _proven(call: ModuleCall, probe: ModuleProbe, decoder: RecognisedDecoder) -> RecognisedDecoder:
    """A recognised decoder that computes what the forward does, if it can be with its encoder.

    Raises:
        NotRecognisedError: it does not, with the forward's own encoder either.
    """
    if decoder.layers is not None:
        try:
            _prove(call, probe, decoder)
        except ModuleError:
            raise
        except NotRecognisedError as error:
            decoder = replace(decoder, layers=None, why_no_layers=str(error))
        except Exception as error:  # the embeddings may be of any form
            why = f"its program could not be run: {one_line(error)}"
            decoder = replace(decoder, layers=None, why_no_layers=why)
        else:
            return decoder
    _prove(call, probe, decoder)
    return decoder


@torch.no_grad()
def _prove(call: ModuleCall, probe: ModuleProbe, decoder: RecognisedDecoder) -> None:
    """Compare the recognised decoder with the forward, on drawn and on real inputs.

    Raises:
        NotRecognisedError: they differ by more than rounding explains.
    """
    own, ids, most = call.own, call.facts.special, call.facts.max_length
    assert own is not None
    model, hides = decoder.model, False
    for number, (rows, needed) in enumerate(_cases(call, probe)):
        given = as_tensors(probe.inputs, stack_rows(rows))
        tokens = most if number == 0 else min(most, _LENGTHS[number % len(_LENGTHS)])
        target = draw_target(probe.vocab_size, (len(rows), tokens), ids, number)

        def compute(given: tuple[Tensor, ...] = given, target: Tensor = target) -> Tensor:
            return log_probs(own(given, target))

        try:
            wanted = compute()
        except ModuleError:
            if needed:
                raise
            continue  # the module takes no such rows
        states, kept = decoder.encode(given)
        hides |= not bool(kept.all())
        made = log_probs(model(states, kept, target, torch.ones_like(target)))
        if wrong := beyond_rounding(own, compute, wanted, made):
            raise NotRecognisedError(f"what was recognised {wrong}")
    if len(decoder.outputs) > 1 and not hides:
        raise NotRecognisedError("its mask of the source hid nothing of what was drawn")


def _cases(call: ModuleCall, probe: ModuleProbe) -> Iterator[tuple[list[Row], bool]]:
    """Rows that may share a batch, and whether the module has to take them."""
    varies = bool(axes_of(probe.inputs))
    # Those of fixed sizes are all the same, and two draws show what the others would.
    for seed, sizes in enumerate(probe.settings if varies else probe.settings[:2]):
        rows: list[Row] = [*draw_rows(probe.inputs, probe.below, sizes, 2, seed)]
        yield rows, True
        padded = _padded(probe.inputs, rows[0], call.facts.special.pad)
        yield [padded, rows[1]], False
    if varies:
        largest = max(probe.settings, key=lambda sizes: sum(sizes.values()))
        longer = {
            axis: math.ceil(_LONGER ** (1 / _num_axes(probe.inputs, axis)) * size)
            for axis, size in largest.items()
        }
        yield [*draw_rows(probe.inputs, probe.below, longer, 1)], False
    for row in call.examples[:_MOST_EXAMPLES]:
        yield [row], True


def _num_axes(inputs: Sequence[Input], axis: str) -> int:
    """How many axes of an input vary together with a named one: two of a picture of any size."""
    return max(
        sum(isinstance(name, str) for name in each.axes[1:])
        for each in inputs
        if axis in each.axes[1:]
    )


def _padded(inputs: Sequence[Input], row: Row, pad_id: int) -> Row:
    """A row, the last third of which is padding: of what varies in length, and of masks."""
    made = {}
    varies = next((axis for axis in axes_of(inputs)), None)
    for each in inputs:
        array = row[each.name].copy()
        for axis, size in enumerate(each.axes[1:]):
            if size == varies or each.name == ATTENTION_MASK:
                length = array.shape[axis]
                place = (slice(None),) * axis + (slice(length - length // 3, None),)
                ids = not each.dtype.startswith("float") and each.name != ATTENTION_MASK
                array[place] = pad_id if ids else 0
                break
        made[each.name] = array
    return made
