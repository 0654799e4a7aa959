"""Folders of transformers with a feature extractor: from a file of sound to tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.export.transformers_folders.families import make_model
from tests.export.transformers_folders.test_folders import generate, tokens_of
from tfexport.bundle import SpecialIds
from tfexport.export import ExportResult, export
from tfexport.export.artifacts.preprocessing import Preprocessing, find_preprocessing
from tfexport.export.artifacts.transformers_call import Inputs, TransformersModel
from tfexport.model_src.checkpoint.generation_config import Generation
from tfexport.runtime import Translator
from tfexport.runtime.media import sound_features

transformers = pytest.importorskip("transformers", reason="make optional installs it")
soundfile = pytest.importorskip("soundfile", reason="the extra audio installs it")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

TOKENS = 10
# Model and extractor with odd settings.
FOLDERS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "whisper": (
        "whisper", {"max_source_positions": 25}, "WhisperFeatureExtractor",
        {"feature_size": 6, "chunk_length": 1, "hop_length": 320, "padding_value": 0.01},
    ),
    "moonshine": (
        "moonshine", {}, "Wav2Vec2FeatureExtractor",
        {"do_normalize": True, "return_attention_mask": True},
    ),
    "speech_to_text": (
        "speech_to_text", {}, "Speech2TextFeatureExtractor",
        {"num_mel_bins": 5, "feature_size": 5, "normalize_vars": False},
    ),
    "speech-encoder-decoder": (
        "speech-encoder-decoder", {}, "Wav2Vec2FeatureExtractor",
        {"do_normalize": False, "sampling_rate": 8000},
    ),
}  # fmt: skip


def made(folder: Path, name: str, **changes: Any) -> tuple[ExportResult, Any, Any]:
    """An export, its model, and its extractor."""
    family, config, kind, settings = FOLDERS[name]
    model = make_model(family, seed=2, **config)
    extractor = getattr(transformers, kind)(**{**settings, **changes})
    model.save_pretrained(folder)
    extractor.save_pretrained(folder)
    result = export(folder, folder.with_suffix(".bundle"), verify="quick", recognise=False)
    return result, type(model).from_pretrained(folder, attn_implementation="eager"), extractor


def described(folder: Path, family: str, config: dict[str, Any]) -> TransformersModel:
    model = make_model(family, **config)
    inputs = Inputs(family, model).find()
    return TransformersModel(family, folder, model, inputs, SpecialIds(0, 1, 2), 9, Generation())


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FOLDERS)
def test_files_give_the_tokens_that_transformers_generates(tmp_path: Path, name: str) -> None:
    result, model, extractor = made(tmp_path / "model", name)
    assert result.manifest.preprocessing is not None
    assert any("sounds became the same" in note for note in result.notes)
    rate, draw = extractor.sampling_rate, np.random.default_rng(1)
    rows, wanted = list[Any](), list[list[int]]()
    for number, own in enumerate((rate, 22050, 48000)):
        path = tmp_path / f"{own}.wav"
        time = np.arange(int((0.4 + 0.13 * number) * own)) / own
        sound = np.stack([np.sin(2000 * time * (1 + time)), draw.standard_normal(len(time))], 1)
        soundfile.write(path, 0.3 * sound[:, : 1 + number % 2], own)
        rows.append({"audio": path if number else path.read_bytes()})
        mono = transformers.audio_utils.load_audio(str(path), rate, backend="soundfile")
        given = extractor(mono, sampling_rate=rate, return_tensors="np")
        assert result.manifest.module_io is not None
        names = [each.name for each in result.manifest.module_io.inputs]
        wanted.append(generate(model, {key: given[key][0] for key in names}, max_length=TOKENS + 1))
    translator = Translator(result.path)
    assert tokens_of(translator, rows, max_length=TOKENS) == wanted
    if name != "speech-encoder-decoder":  # whose drawn decoder hardly listens
        assert len({tuple(each) for each in wanted}) > 1
    samples, own = soundfile.read(path)
    rows = [{"audio": (samples, own)}]
    assert tokens_of(translator, rows, max_length=TOKENS) == wanted[-1:]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("whisper", {"dither": 0.1}, "dither is 0.1: it adds noise"),
        ("whisper", {"chunk_length": 2}, "does not fit the model: 'input_features' has shape"),
        ("moonshine", {"padding_side": "left"}, "padding_side is 'left'"),
        ("moonshine", {"feature_size": 2}, "feature_size is 2, not 1"),
        ("speech_to_text", {"sampling_rate": 8000}, "sampling_rate is 8000, not 16000"),
    ],
)
def test_what_is_not_supported_is_left_out_and_said(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    family, config, kind, settings = FOLDERS[name]
    found = find_preprocessing(described(tmp_path, family, config))
    assert found == Preprocessing()  # there is no file yet
    getattr(transformers, kind)(**{**settings, **changes}).save_pretrained(tmp_path)
    found = find_preprocessing(described(tmp_path, family, config))
    assert found.part is None
    (note,) = found.notes
    assert "not sound: " in note
    assert message in note


def test_an_unknown_extractor_and_wrong_numbers_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = described(tmp_path, "moonshine", {})
    transformers.EncodecFeatureExtractor().save_pretrained(tmp_path)
    (note,) = find_preprocessing(model).notes
    assert "EncodecFeatureExtractor of transformers is not known; known are Whisper" in note
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(tmp_path)
    assert find_preprocessing(model).part is not None
    usual = sound_features._normalized
    monkeypatch.setattr(sound_features, "_normalized", lambda samples: usual(samples) * 1.001)
    (note,) = find_preprocessing(model).notes
    assert "differs from transformers by" in note
