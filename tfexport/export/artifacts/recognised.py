"""Export of a module that is recognised as one of this project's own Transformers.

It becomes a checkpoint with the user's forward as its reference, and so an ordinary bundle.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from tfexport.bundle import Manifest
from tfexport.errors import ConfigError
from tfexport.export.artifacts.bundle import BundleContents, write_bundle
from tfexport.export.artifacts.keywords import ExportKeywords, check_expect, reads_texts
from tfexport.export.artifacts.module_source import (
    ModuleCall,
    choose_module_tokenizers,
    framing_of,
)
from tfexport.export.artifacts.option_rules import Output
from tfexport.export.artifacts.quantized import write_quantized
from tfexport.export.artifacts.results import ExportResult
from tfexport.export.incremental.find import draw_ids
from tfexport.export.incremental.forward import OwnForward
from tfexport.export.modules.inputs import as_tensors
from tfexport.export.recognition.dataflow import NotRecognisedError
from tfexport.export.recognition.model import recognise_model
from tfexport.export.report import LEAST_ALLOWED, allow
from tfexport.export.rounding import Rounding, difference, log_probs
from tfexport.graph_io import INPUT_IDS
from tfexport.model_src import build_transformer
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.config import TransformerConfig, config_keys
from tfexport.model_src.transformer import Transformer
from tfexport.module_rows import stack_rows

LAYOUT = "recognised"
_ORIGIN = "recognised in your forward"
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
    except (ConfigError, RuntimeError) as error:  # settings or shapes that do not fit together
        raise NotRecognisedError(str(error)) from error
    _prove(call, own, model)
    generation = facts.generation
    if "max_length" not in generation.defaults:
        defaults = {**generation.defaults, "max_length": facts.max_length}
        generation = dataclasses.replace(generation, defaults=defaults)

    def reference(input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        return _own_logits(own, input_ids, decoder_input_ids)

    name = type(call.model).__name__
    reference.__qualname__ = f"{name}.forward"
    return Checkpoint(
        name, None, LAYOUT, config, dict.fromkeys(config_keys(), _ORIGIN), found.state_dict,
        dict(found.state_dict), {}, reference=reference, generation=generation,
    )  # fmt: skip


def export_recognised(call: ModuleCall, output: Output, options: ExportKeywords) -> ExportResult:
    """Export a recognised module to a bundle, and compare it with its own forward.

    Raises:
        NotRecognisedError: see ``recognised_checkpoint``.
        ParityError: the bundle differs from the forward.
    """
    checkpoint = recognised_checkpoint(call, options)
    check_expect(options, bool(output.level))
    tokenizers = choose_module_tokenizers(call.inputs, checkpoint.config, call.facts, options)
    contents = BundleContents(
        checkpoint, call.graphs, tokenizers, output.level, options.get("samples"),
        options.get("expect"), reads_texts(options, False),
    )  # fmt: skip
    if output.weights is not None:
        return write_quantized(contents, output)
    return write_bundle(contents, output.path, output.force, output.progress)


def is_recognised(manifest: Manifest) -> bool:
    """Whether a bundle was exported from a recognised module."""
    return _ORIGIN in manifest.origins.values()


def _own_logits(own: OwnForward, source: Tensor, target: Tensor) -> Tensor:
    masks = [torch.ones_like(source) for _ in own.inputs[1:]]
    of = [each.to(getattr(torch, declared.dtype)) for each, declared in zip(
        (source, *masks), own.inputs, strict=True)]  # fmt: skip
    return own(of, target)


@torch.no_grad()
def _prove(call: ModuleCall, own: OwnForward, model: Transformer) -> None:
    """Compare the recognised model with the forward, on drawn ids and on rows of real inputs.

    Raises:
        NotRecognisedError: they differ by more than rounding explains.
    """
    config, ids = model.config, call.facts.special
    assert config.source_vocab_size is not None
    assert config.target_vocab_size is not None
    longest = min(config.max_positions, call.facts.max_length)
    cases = []
    for seed, (source, target) in enumerate((*_LENGTHS, (longest, longest))):
        lengths = min(source, longest), min(target, longest)
        drawn = draw_ids(config.source_vocab_size, 2, lengths[0], ids, seed)
        cases.append((drawn, draw_ids(config.target_vocab_size, 2, lengths[1], ids, seed + 9)))
    for row in call.examples:
        (given, *_) = as_tensors(call.inputs, stack_rows([row]))
        if not (given == ids.pad).any() and given.shape[1] <= longest:
            cases.append((given.long(), draw_ids(config.target_vocab_size, 1, longest, ids)))
    for source_ids, target_ids in cases:

        def compute(source: Tensor = source_ids, target: Tensor = target_ids) -> list[Tensor]:
            return [log_probs(_own_logits(own, source, target))]

        wanted = compute()[0]
        ones = torch.ones_like(source_ids)
        made = log_probs(model(source_ids, ones, target_ids, torch.ones_like(target_ids)))
        gap = difference(made.numpy(), wanted.float().numpy())
        if gap <= LEAST_ALLOWED:
            continue
        (noise,) = Rounding(own.model).measure(compute, [wanted.numpy()], ())
        if not gap <= allow(noise):
            raise NotRecognisedError(
                f"what was recognised differs from forward by {gap:.1e}, of {allow(noise):.1e} "
                "allowed"
            )
