"""Which classes of transformers are exported by their forward, and why the others are refused.

An export reads one source: ids, sound or a picture. A class that reads more would lose a part of
what it is, and its logits would still be equal to those of its forward without that part. So what
a forward takes has to be known here, parameter by parameter; anything else is refused by its name.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from tfexport.errors import CheckpointError, join_some

# Parameters that carry no source: what comes with it, what belongs to the target, what a forward
# gives back, and what only training takes.
_BESIDE_THE_SOURCE = frozenset((
    "self", "attention_mask", "position_ids", "inputs_embeds", "head_mask",
    # Of pairs of texts; the classes take zeros, as their tokenizers give for one text.
    "token_type_ids",
    "decoder_input_ids", "decoder_attention_mask", "decoder_inputs_embeds", "decoder_position_ids",
    "decoder_head_mask", "cross_attn_head_mask", "encoder_outputs", "mm_encoder_outputs",
    "encoder_hidden_states",
    "encoder_attention_mask", "past_key_values", "cache_position", "use_cache",
    "output_attentions", "output_hidden_states", "output_router_logits", "return_dict",
    "logits_to_keep", "interpolate_pos_encoding",
    "labels", "bool_masked_pos", "mask_time_indices",
))  # fmt: skip
_GLOBAL = "global_attention_mask"
# Parameters of single classes that carry no source, by the class.
_OF_CLASSES = {
    # The target without its start, of which training makes decoder_input_ids.
    "PPFormulaNetForConditionalGeneration": ("input_ids",),
}
# What transformers calls the source of a class whose encoder may be of several kinds.
_ANY_SOURCE = "inputs"
_SOUNDS = ("input_values", "input_features")
# The mappings of its auto classes, of models that write text.
_WRITE_TEXT = ("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "IMAGE_TEXT_TO_TEXT")
_NOT_YET = {
    "canary": "its encoder of Parakeet's form (FastConformer) is not exported yet",
    "cohere_asr": "its encoder of Parakeet's form (FastConformer) is not exported yet",
    "moonshine_streaming": "its encoder, which reads frames of a fixed number of samples, is not "
    "exported yet",
}  # fmt: skip
_ONE_STACK = (
    "has no encoder and decoder. tfexport exports nothing else; docs/not-supported.md says where "
    "to go."
)
_SPEECH_MODELS = (
    "Speech models that are exported: Whisper, Moonshine, Speech2Text, speech encoder-decoders."
)


def check_class(subject: str, kind: Any, config: Any) -> None:
    """Refuse a class of which an export would be less than it is, by the class and its config.

    Args:
        subject: the folder or the name of the model, for messages.
        kind: a class of transformers, or derived from one.
        config: of the model.

    Raises:
        CheckpointError: it has no encoder and decoder with logits, reads more than one source, or
            writes something else than text; or its form is not known.
    """
    takes = inspect.signature(kind.forward).parameters
    name, holds = kind.__name__, f"{subject}: holds a {kind.__name__}, which"
    if "decoder_input_ids" not in takes:
        raise CheckpointError(f"{holds} {_ONE_STACK}")
    if not getattr(kind, "can_generate", lambda: False)():
        raise CheckpointError(
            f"{holds} gives no logits of a next token. Pass the folder of a model that generates."
        )
    if more := further_inputs(kind):
        raise CheckpointError(_reads_more(f"{subject}: holds a {name}, whose", kind, more))
    if not getattr(config, "is_encoder_decoder", False):
        raise CheckpointError(f"{holds} {_ONE_STACK}")
    writes = [*_words(getattr(kind, "output_modalities", ("text",)))]
    if writes != ["text"]:
        raise CheckpointError(
            f"{holds} writes {' and '.join(writes)}. tfexport exports models that write text "
            "alone: pass a folder of one of these."
        )
    if (listed := _unlisted(kind)) is not None:
        raise CheckpointError(
            f"{holds} is not known: transformers does not list {listed} among the classes that "
            "write text (AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq, "
            "AutoModelForImageTextToText). Export it by code of your own (docs/modules.md)."
        )
    if (reason := _NOT_YET.get(str(getattr(config, "model_type", "")))) is not None:
        raise CheckpointError(f"{subject}: holds a {name}: {reason}. {_SPEECH_MODELS}")


def check_encoder(subject: str, model: Any) -> tuple[str, ...]:
    """Refuse a model whose encoder reads more than the model's own forward names.

    Args:
        subject: the folder or the name of the model, for messages.
        model: of a class that ``check_class`` lets pass.

    Returns:
        Remarks on what an export leaves out.

    Raises:
        CheckpointError: the encoder reads a further source.
    """
    name, encoder = type(model).__name__, model.get_encoder()
    source = model.main_input_name
    if source not in inspect.signature(encoder.forward).parameters:
        source = getattr(encoder, "main_input_name", source)  # its own name of the same input
    more = [*_unknown(encoder.forward, {source})]
    if more:
        whose = f"{subject}: holds a {name}, whose encoder's ({type(encoder).__name__})"
        raise CheckpointError(_reads_more(whose, model, more))
    forwards = (type(model).forward, encoder.forward)
    if any(_GLOBAL in inspect.signature(each).parameters for each in forwards):
        return (
            f"{name} is exported without {_GLOBAL}: every token attends in its window alone, and "
            "none to all",
        )
    return ()


def further_inputs(kind: Any) -> list[str]:
    """The inputs of a class's forward beside its main one that carry a source, or that may."""
    main = kind.main_input_name
    known = {main, *_OF_CLASSES.get(kind.__name__, ())}
    if main == _ANY_SOURCE:
        known |= {*_SOUNDS}
    return [*_unknown(kind.forward, known)]


def _unknown(forward: Callable[..., Any], sources: set[Any]) -> Iterator[str]:
    """The parameters that are neither sources nor known to be none."""
    for name, each in inspect.signature(forward).parameters.items():
        several = each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if not several and name not in _BESIDE_THE_SOURCE | sources | {_GLOBAL}:
            yield name


def _reads_more(whose: str, model: Any, names: list[str]) -> str:
    main = model.main_input_name
    return (
        f"{whose} forward takes {join_some(names, 8)} beside {main}. A folder is exported with one "
        f"source, {main}, and the model would be less than it is. Export it by code of your own "
        "that takes every input that it needs (docs/modules.md)."
    )


def _words(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [*value]


def _unlisted(kind: Any) -> str | None:
    """The class of transformers that is not listed as one that writes text.

    Returns:
        None for a listed one, and for a class that has a forward of its own instead.
    """
    from transformers.models.auto import modeling_auto  # noqa: PLC0415 - it is optional

    names = set[str]()
    for task in _WRITE_TEXT:
        for value in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {}).values():
            names |= {*_words(value)}
    for each in kind.__mro__:
        forward = vars(each).get("forward")
        if forward is not None and "decoder_input_ids" in inspect.signature(forward).parameters:
            theirs = each.__module__.partition(".")[0] == "transformers"
            return each.__name__ if theirs and each.__name__ not in names else None
    return None
