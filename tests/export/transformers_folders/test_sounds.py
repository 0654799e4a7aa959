"""Folders of transformers with a feature extractor: from a file of sound to tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.export.transformers_folders.families import make_model
from tests.export.transformers_folders.test_folders import generate, tokens_of
from tests.support.combinations import few_of
from tests.support.manifests import rewrite
from tfexport.errors import BundleError, InputError
from tfexport.export import ExportResult, export
from tfexport.runtime import MediaLimits, Translator

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


@pytest.mark.parametrize("name", few_of(FOLDERS, "moonshine"))
def test_files_give_the_tokens_that_transformers_generates(tmp_path: Path, name: str) -> None:
    result, model, extractor = made(tmp_path / "model", name)
    assert result.manifest.preprocessing is not None
    assert any("sounds became the same" in note for note in result.notes)
    rate, draw, rows, wanted = extractor.sampling_rate, np.random.default_rng(1), [], []
    for number, own in enumerate((rate, 22050, 48000)):
        path = tmp_path / f"{own}.wav"
        time = np.arange(int((0.4 + 0.13 * number) * own)) / own
        sound = np.stack([np.sin(2000 * time * (1 + time)), draw.standard_normal(len(time))], 1)
        soundfile.write(path, 0.3 * sound[:, : 1 + number % 2], own)
        rows.append({"audio": path if number else path.read_bytes()})
        mono = transformers.audio_utils.load_audio(str(path), rate, backend="soundfile")
        given = extractor(mono, sampling_rate=rate, return_tensors="np")
        names = [each.name for each in result.manifest.module_io.inputs]
        wanted.append(generate(model, {key: given[key][0] for key in names}, max_length=TOKENS + 1))
    translator = Translator(result.path)
    assert tokens_of(translator, rows, max_length=TOKENS) == wanted
    assert len({tuple(each) for each in wanted}) > 1
    samples, own = soundfile.read(path)
    assert tokens_of(translator, [{"audio": (samples, own)}], max_length=TOKENS) == wanted[-1:]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("whisper", {"dither": 0.1}, "dither is 0.1: it adds noise"),
        ("whisper", {"chunk_length": 2}, "does not fit the model: 'input_features' has shape"),
        ("moonshine", {"padding_side": "left"}, "padding_side is 'left'"),
    ],
)
def test_what_is_not_supported_is_left_out_and_said(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    result, _, _ = made(tmp_path / "model", name, **changes)
    assert result.manifest.preprocessing is None
    (note,) = [note for note in result.notes if "not sound" in note]
    assert message in note
    with pytest.raises(InputError, match=r"row 0: .*reads no files"):
        Translator(result.path).generate_from([{"audio": "a.wav"}])


def test_wrong_sounds_are_named_and_a_manifest_is_checked(tmp_path: Path) -> None:
    result, _, _ = made(tmp_path / "model", "moonshine")
    translator = Translator(result.path, media_limits=MediaLimits(seconds=1.5))
    rate = 16000
    rows = [
        {"audio": (np.zeros(2 * rate, np.float32), rate)},
        {"image": "a.png"},
        {"audio": tmp_path / "missing.wav"},
        {"audio": (np.ones(9, np.float32), rate), "input_values": np.ones(9, np.float32)},
    ]
    with pytest.raises(InputError) as raised:
        translator.generate_from(rows)
    for part in ("2.0 s or longer; at most 1.5 s", "'image': the bundle reads files as 'audio'",
                 "missing.wav", "gives 'input_values', which the row has too"):  # fmt: skip
        assert part in str(raised.value)
    rewrite(result.path, lambda values: values["preprocessing"].update(input="other"))
    with pytest.raises(BundleError, match="'other' is not an input of the model"):
        Translator(result.path)
