"""Export of a module that is recognised as one of this project's own Transformers.

It becomes a checkpoint with the user's forward as its reference, and so an ordinary bundle.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tfexport.bundle import WEIGHTS, Manifest
from tfexport.errors import BundleError
from tfexport.export.artifacts.keywords import (
    ExportKeywords,
    check_expect,
    language_pair_of,
    reads_texts,
)
from tfexport.export.artifacts.module_source import (
    ModuleCall,
    choose_module_tokenizers,
    framing_of,
)
from tfexport.export.artifacts.option_rules import RECOGNISED
from tfexport.export.checkpoint_subject import CheckpointSubject
from tfexport.export.incremental.find import beyond_rounding, draw_ids, draw_target
from tfexport.export.incremental.forward import OwnForward
from tfexport.export.incremental.forward_capture import takes_branch
from tfexport.export.modules.inputs import as_tensors
from tfexport.export.named_code import one_line
from tfexport.export.recognition.dataflow import NotRecognisedError
from tfexport.export.recognition.model import recognise_model
from tfexport.export.recognition.parameters import report_parameters
from tfexport.export.reference.own_code import OwnCode
from tfexport.export.rounding import log_probs
from tfexport.export.subject import Reason
from tfexport.graph_io import INPUT_IDS
from tfexport.model_src import build_transformer
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.keymap import compact_report
from tfexport.model_src.config import TransformerConfig, config_keys
from tfexport.model_src.transformer import Transformer
from tfexport.module_rows import stack_rows
from tfexport.weight_table import read_weight_table

_ORIGIN = "recognised in your forward"
_LONGEST_SOURCE = 1024  # that is compared, of a model without a limit
_MOST_EXAMPLES, _EXAMPLE_TOKENS = 32, 32
_LENGTHS = ((1, 1), (9, 5), (4, 17))  # source and target ids of the first comparison


def recognised_checkpoint(call: ModuleCall, options: ExportKeywords) -> Checkpoint:
    """A module as a checkpoint, with its forward as the reference.

    Raises:
        NotRecognisedError: it is no such model, or computes something else; the message says what.
    """
    own, facts = call.own, call.facts
    assert own is not None
    if call.inputs[0].name != INPUT_IDS:
        raise NotRecognisedError(f"its first input is {call.inputs[0].name}, not {INPUT_IDS}")
    call.progress("recognising your model", 0, 1)
    try:
        found = recognise_model(call.program, facts.special, facts.max_length)
        config = TransformerConfig(**{**vars(found.config), **framing_of(options)})
        model = build_transformer(config).eval()
        model.load_state_dict(found.state_dict)
        if not all(bool(each.isfinite().all()) for each in found.state_dict.values()):
            raise NotRecognisedError("its weights are not all finite")
    except NotRecognisedError:
        raise
    except Exception as error:  # a program may be of any form, and its steps are found all the same
        raise NotRecognisedError(f"its program could not be read: {one_line(error)}") from error
    _prove(call, own, model)

    def causal(source: Tensor, target: Tensor) -> bool:
        return takes_branch(call.program.exported, (*_own_inputs(own, source), target))

    return _as_checkpoint(call, config, found.state_dict, causal)


def stored_checkpoint(call: ModuleCall, folder: Path, manifest: Manifest) -> Checkpoint:
    """Read the config and the weights of a recognised module's bundle, to judge by its forward.

    Raises:
        BundleError: its weights cannot be read, or it was not exported from such a module.
    """
    if call.own is None or call.inputs[0].name != INPUT_IDS:
        raise BundleError(
            f"{folder}: was exported from a module whose forward takes {INPUT_IDS}; this one takes "
            f"{', '.join(each.name for each in call.inputs)}. Pass the module that it was exported "
            "from, or export this one."
        )
    file = np.memmap(folder / WEIGHTS, np.uint8, "r")
    table = read_weight_table(folder, file.size)
    weights = {name: torch.tensor(weight.values(file)) for name, weight in table.items()}
    config = TransformerConfig.from_dict(manifest.config)
    return _as_checkpoint(call, config, weights)


def _as_checkpoint(
    call: ModuleCall,
    config: TransformerConfig,
    weights: dict[str, Tensor],
    causal: Callable[[Tensor, Tensor], bool] | None = None,
) -> Checkpoint:
    own, name = call.own, type(call.model).__name__
    assert own is not None
    logits = functools.partial(_own_logits, own)
    reference = OwnCode(f"your {name}.forward", logits, "reference", causal)
    origins = dict.fromkeys(config_keys(), _ORIGIN)
    return Checkpoint(
        name, None, RECOGNISED, config, origins, weights, dict(weights), {}, reference=reference,
        generation=call.facts.generation,
    )  # fmt: skip


def read_recognised(
    call: ModuleCall, level: str, options: ExportKeywords
) -> CheckpointSubject | Reason:
    """A recognised module as a subject, whose original is its own forward.

    Raises:
        ConfigError: options that contradict each other.
        TokenizerError: the tokenizers do not fit.
    """
    try:
        checkpoint = recognised_checkpoint(call, options)
    except NotRecognisedError as error:
        return Reason(f"not recognised as a known architecture: {error}")
    report = report_parameters(call.model, checkpoint.state_dict)
    check_expect(options, bool(level))
    tokenizers = choose_module_tokenizers(call.inputs, checkpoint.config, call.facts, options)
    return CheckpointSubject.of(
        checkpoint, options=call.graphs, tokenizers=tokenizers, level=level,
        samples=options.get("samples"), expect=options.get("expect"),
        language_pair=language_pair_of(options, "export"),
        reads=reads_texts(options, False), max_target_length=call.facts.max_length,
        parameters=compact_report(report),
    )  # fmt: skip


def is_recognised(manifest: Manifest) -> bool:
    """Whether a bundle was exported from a recognised module."""
    return _ORIGIN in manifest.origins.values()


def _own_inputs(own: OwnForward, source: Tensor) -> list[Tensor]:
    """The inputs of a forward for source ids (B, S) without padding."""
    masks = [torch.ones_like(source) for _ in own.inputs[1:]]
    return [each.to(getattr(torch, declared.dtype)) for each, declared in zip(
        (source, *masks), own.inputs, strict=True)]  # fmt: skip


def _own_logits(own: OwnForward, source: Tensor, target: Tensor) -> Tensor:
    return own(_own_inputs(own, source), target)


@torch.no_grad()
def _prove(call: ModuleCall, own: OwnForward, model: Transformer) -> None:
    """Compare the recognised model with the forward, on drawn ids and on rows of real inputs.

    Raises:
        NotRecognisedError: they differ by more than rounding explains.
    """
    config, ids, most = model.config, call.facts.special, call.facts.max_length
    assert config.source_vocab_size is not None
    assert config.target_vocab_size is not None
    longest = config.longest or _LONGEST_SOURCE
    cases = []
    sizes = (*_LENGTHS, (longest, most))
    for seed, (source, target) in enumerate(sizes):
        rows, tokens = (1 if source == longest else 2), min(target, most)
        length = min(source, longest)
        drawn = draw_ids(config.source_vocab_size, (rows, length), ids.pad, seed)
        cases.append((drawn, draw_target(config.target_vocab_size, (rows, tokens), ids, seed)))
    for row in call.examples[:_MOST_EXAMPLES]:
        (given, *masks) = as_tensors(call.inputs, stack_rows([row]))
        kept = given[:, masks[0][0] != 0] if masks else given[:, : int((given != ids.pad).sum())]
        if kept.shape[1] > longest:
            raise NotRecognisedError(f"an example has {kept.shape[1]} ids, of {longest} at most")
        if kept.shape[1] and not bool((kept == ids.pad).any()):
            tokens = min(most, _EXAMPLE_TOKENS)
            cases.append((kept.long(), draw_target(config.target_vocab_size, (1, tokens), ids)))
    for source_ids, target_ids in cases:

        def compute(source: Tensor = source_ids, target: Tensor = target_ids) -> Tensor:
            return log_probs(_own_logits(own, source, target))

        ones = torch.ones_like(source_ids)
        made = log_probs(model(source_ids, ones, target_ids, torch.ones_like(target_ids)))
        if wrong := beyond_rounding(own, compute, compute(), made):
            raise NotRecognisedError(f"what was recognised {wrong}")
