"""The decoder of a module, recognised as that of an ordinary Transformer.

The module is exported by its found steps. Its bundle gets the decoder's weights and the graph of
what the decoder attends to besides, with which the native engine decodes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tfexport.export.artifacts.module_source import ModuleCall
from tfexport.export.incremental.find import beyond_rounding, draw_target
from tfexport.export.modules.contract import ModuleError
from tfexport.export.modules.examine import Examination
from tfexport.export.modules.inputs import as_tensors, draw_rows
from tfexport.export.named_code import one_line
from tfexport.export.recognition.dataflow import NotRecognisedError
from tfexport.export.recognition.decoder import RecognisedDecoder, recognise_decoder
from tfexport.export.rounding import log_probs
from tfexport.module_rows import Row, stack_rows

_MOST_EXAMPLES = 32
_LONGER = 6  # times the largest size at which the module was run: a mask may act on long ones only
_LENGTHS = (5, 1, 17)  # target ids


def recognised_decoder(call: ModuleCall, found: Examination) -> RecognisedDecoder:
    """The decoder of a module, compared with the whole forward.

    Args:
        call: how the module is called.
        found: its steps, examined.

    Raises:
        NotRecognisedError: it is no such decoder, or computes something else; the message says
            what.
    """
    facts = call.facts
    if found.module.recomputes:
        raise NotRecognisedError("no step of it was found")
    call.progress("recognising your decoder", 0, 1)
    try:
        decoder = recognise_decoder(
            call.program, facts.special, facts.max_length, fused=not call.graphs.portable
        )
        if not all(bool(each.isfinite().all()) for each in decoder.state_dict.values()):
            raise NotRecognisedError("its weights are not all finite")
        _prove(call, found, decoder)
    except (NotRecognisedError, ModuleError):
        raise
    except Exception as error:  # a program may be of any form, and its steps are found all the same
        raise NotRecognisedError(f"its program could not be read: {one_line(error)}") from error
    return decoder


@torch.no_grad()
def _prove(call: ModuleCall, found: Examination, decoder: RecognisedDecoder) -> None:
    """Compare the recognised decoder with the forward, on drawn and on real inputs.

    Raises:
        NotRecognisedError: they differ by more than rounding explains.
    """
    own, most = call.own, call.facts.max_length
    assert own is not None
    model = decoder.build()
    rows: list[list[Row]] = []
    for seed, sizes in enumerate(found.settings):
        rows.append([*draw_rows(found.inputs, found.below, sizes, 2, seed)])
    largest = max(found.settings, key=lambda sizes: sum(sizes.values()))
    longer = {axis: _LONGER * size for axis, size in largest.items()}
    rows.append([*draw_rows(found.inputs, found.below, longer, 1)])
    rows += [[row] for row in call.examples[:_MOST_EXAMPLES]]
    for number, batch in enumerate(rows):
        given = as_tensors(found.inputs, stack_rows(batch))
        tokens = most if number == 0 else min(most, _LENGTHS[number % len(_LENGTHS)])
        ids = draw_target(found.vocab_size, (len(batch), tokens), call.facts.special, number)

        def compute(given: tuple[Tensor, ...] = given, ids: Tensor = ids) -> Tensor:
            return log_probs(own(given, ids))

        try:
            wanted = compute()
        except ModuleError:
            if len(batch) == 1 and number == len(found.settings):
                continue  # the module takes no such sizes
            raise
        states = decoder.encoder(*given)
        kept = torch.ones(states.shape[:2], dtype=torch.int64)
        made = log_probs(model(states, kept, ids, torch.ones_like(ids)))
        if wrong := beyond_rounding(own, compute, wanted, made):
            raise NotRecognisedError(f"what was recognised {wrong}")
