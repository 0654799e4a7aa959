"""Which classes of transformers are exported, and that none is exported with a part of its source.

The decision is taken from the class alone: nothing is exported, and no weights are made.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.export.transformers_folders.families import _joined, make_model
from tests.support.hf_models import change_json
from tfexport.errors import CheckpointError
from tfexport.export import export
from tfexport.export.artifacts.transformers_classes import (
    check_class,
    check_encoder,
    further_inputs,
)
from tfexport.export.artifacts.transformers_source import find_transformers, read_transformers
from tfexport.model_src.checkpoint.layouts import layouts_of

transformers = pytest.importorskip("transformers", reason="make optional installs it")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

# Auto classes whose models may have an encoder and a decoder that writes text.
TASKS = (
    "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM",
    "VISUAL_QUESTION_ANSWERING", "DOCUMENT_QUESTION_ANSWERING", "TEXT_TO_SPECTROGRAM",
    "TEXT_TO_WAVEFORM", "RNNT", "TDT",
)  # fmt: skip
# By their forward. Whoever adds one has exported a tiny folder of it, and knows its source.
EXPORTED = {
    "BigBirdPegasusForConditionalGeneration", "EncoderDecoderModel", "LEDForConditionalGeneration",
    "LongT5ForConditionalGeneration", "MoonshineForConditionalGeneration",
    "MvpForConditionalGeneration", "NllbMoeForConditionalGeneration",
    "PPFormulaNetForConditionalGeneration", "PegasusXForConditionalGeneration",
    "Pix2StructForConditionalGeneration", "SeamlessM4Tv2ForSpeechToText",
    "Speech2TextForConditionalGeneration", "SpeechEncoderDecoderModel",
    "SwitchTransformersForConditionalGeneration", "T5GemmaForConditionalGeneration",
    "VisionEncoderDecoderModel", "WhisperForConditionalGeneration",
}  # fmt: skip
# Refused when their forward is run, with a reason of its own.
REFUSED_BY_RUNNING = {
    "ProphetNetForConditionalGeneration", "SpeechT5ForSpeechToText", "SeamlessM4TForSpeechToText",
    "SeamlessM4TForTextToText", "SeamlessM4Tv2ForTextToText",
}  # fmt: skip


def listed() -> Iterator[tuple[str, str]]:
    """The ``model_type`` and the name of each class of the mappings, but what is one stack.

    Importing hundreds of files takes long; those that never say "decoder_input_ids" have no class
    with a target beside a source.
    """
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    models = Path(transformers.__file__).parent / "models"

    def may_be_two(kind: str) -> bool:
        files = (models / model_type_to_module_name(kind)).glob("modeling_*.py")
        return any("decoder_input_ids" in file.read_text("utf-8") for file in files)

    for task in TASKS:
        for kind, names in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").items():
            for name in (names,) if isinstance(names, str) else names:
                if may_be_two(kind):
                    yield kind, name


def refusal(name: str, model_type: str = "") -> str | None:
    """Why a class is refused, as if its config said that it has an encoder and a decoder."""
    config = SimpleNamespace(is_encoder_decoder=True, model_type=model_type)
    try:
        check_class("folder", getattr(transformers, name), config)
    except CheckpointError as error:
        return str(error)
    return None


def test_every_listed_class_is_known_or_refused_by_its_name() -> None:
    passed, of_layouts = set(), set()
    for model_type, name in listed():
        if layouts_of({"model_type": model_type}):
            of_layouts.add(name)
            continue
        message = refusal(name, model_type)
        if message is None:
            passed.add(name)
            continue
        assert name in message
        assert len(message.split(". ")) > 1, f"{message} says nothing to do"
    assert passed == (EXPORTED | REFUSED_BY_RUNNING) - of_layouts


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("Florence2ForConditionalGeneration", "takes pixel_values beside input_ids"),
        ("Pop2PianoForConditionalGeneration", "takes input_features beside input_ids"),
        ("UdopForConditionalGeneration", "takes bbox, pixel_values, visual_bbox beside input_ids"),
        ("T5Gemma2ForConditionalGeneration", "takes pixel_values beside input_ids"),
        ("Blip2ForConditionalGeneration", "takes input_ids beside pixel_values"),
        ("InstructBlipForConditionalGeneration", "takes qformer_input_ids, "),
        ("MusicgenForConditionalGeneration", "takes input_values, padding_mask beside input_ids"),
        ("SeamlessM4TModel", "takes input_features beside input_ids"),
        ("RagTokenForGeneration", "context_input_ids"),
        ("DiaForConditionalGeneration", "writes audio"),
        ("SeamlessM4TForTextToSpeech", "writes audio"),
        ("SeamlessM4Tv2ForSpeechToSpeech", "writes audio"),
        ("SeamlessM4TTextToUnitForConditionalGeneration", "does not list SeamlessM4TTextToUnitFor"),
        ("ParakeetForRNNT", "ParakeetForRNNT"),
        ("BartModel", "gives no logits of a next token"),
        ("BertLMHeadModel", "has no encoder and decoder"),
    ],
)
def test_class_that_would_be_less_is_refused_with_what_it_takes(name: str, inputs: str) -> None:
    message = refusal(name)
    assert message is not None
    assert message.startswith(f"folder: holds a {name}, wh")
    assert inputs in message


@pytest.mark.parametrize("name", ["canary", "cohere_asr", "moonshine_streaming"])
def test_recogniser_that_is_not_exported_yet_is_named(name: str) -> None:
    kind = next(each for model_type, each in listed() if model_type == name)
    message = refusal(kind, name)
    assert message is not None
    assert "is not exported yet. Speech models that are exported: Whisper" in message


def test_new_parameter_of_a_class_is_refused_until_it_is_known() -> None:
    own = transformers.T5ForConditionalGeneration

    def forward(self: Any, input_ids: Any, decoder_input_ids: Any, layout_boxes: Any) -> Any: ...

    later = type("Later", (own,), {"forward": forward})
    assert further_inputs(own) == []
    assert further_inputs(later) == ["layout_boxes"]
    assert "layout_boxes" not in inspect.signature(own.forward).parameters
    with pytest.raises(CheckpointError, match="Later, whose forward takes layout_boxes beside"):
        check_class("folder", later, SimpleNamespace(is_encoder_decoder=True))


def test_class_of_the_user_with_a_forward_of_its_own_needs_no_list() -> None:
    def forward(self: Any, input_ids: Any = None, decoder_input_ids: Any = None) -> Any: ...

    bases = (transformers.PreTrainedModel, transformers.GenerationMixin)
    kind = type("Own", bases, {"forward": forward})
    check_class("Own", kind, SimpleNamespace(is_encoder_decoder=True))


def test_inputs_of_an_encoder_behind_keywords_are_refused() -> None:
    from transformers import BertConfig, LayoutLMConfig

    sizes: dict[str, Any] = {
        "vocab_size": 48, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 20, "max_position_embeddings": 40,
    }  # fmt: skip
    decoder = BertConfig(**sizes, is_decoder=True, add_cross_attention=True)
    model = _joined("EncoderDecoder", LayoutLMConfig(**sizes), decoder)
    check_class("folder", type(model), model.config)
    said = r"EncoderDecoderModel, whose encoder's \(LayoutLMModel\) forward takes bbox beside"
    with pytest.raises(CheckpointError, match=said):
        check_encoder("folder", model)
    values = find_transformers(model, None)
    assert values is not None
    with pytest.raises(CheckpointError, match=said):
        read_transformers(model, values, {})


def test_text_of_an_encoder_of_pictures_is_refused() -> None:
    class Both(torch.nn.Module):
        main_input_name = "input_ids"

        def forward(self, input_ids: Any = None, pixel_values: Any = None) -> Any: ...

    model = make_model("trocr")
    model.encoder = Both()
    with pytest.raises(CheckpointError, match=r"\(Both\) forward takes input_ids beside pixel_val"):
        check_encoder("folder", model)


def test_global_attention_that_is_left_out_is_told() -> None:
    (note,) = check_encoder("folder", make_model("led"))
    assert "without global_attention_mask" in note
    assert check_encoder("folder", make_model("whisper")) == ()


def test_folder_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    transformers.Florence2Config().save_pretrained(tmp_path / "model")
    change_json(
        tmp_path / "model" / "config.json", architectures=["Florence2ForConditionalGeneration"]
    )
    torch.save({}, tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"takes pixel_values beside input_ids\. A folder is"):
        export(tmp_path / "model", tmp_path / "out.bundle")
    assert not (tmp_path / "out.bundle").exists()
