"""Transcriptions beside transformers' ``generate`` of the same folder and settings."""

import dataclasses
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.combinations import few_of
from tests.support.whisper_folders import (
    BINS,
    EOS,
    FRAMES,
    NO_TIMESTAMPS,
    PREVIOUS,
    VOCABULARY,
    EagerModel,
    write_whisper,
    write_without_graphs,
)
from tfexport.bundle import read_manifest, write_manifest
from tfexport.export import export
from tfexport.export.artifacts.transformers_source import read_transformers
from tfexport.model_src.checkpoint.overrides import read_json
from tfexport.runtime import Translator, engine
from tfexport.runtime.engine import Engine
from tfexport.runtime.model.engine_name import EngineName
from tfexport.runtime.search import stepwise
from tfexport.runtime.speech import transcriber
from tfexport.runtime.speech.rules import WindowRule, compression_ratio, split_window
from tfexport.runtime.speech.transcriber import Transcriber
from tfexport.runtime.speech.transcription import Word
from tfexport.runtime.text.codec import TextCodec
from tfexport.speech import Speech

transformers = pytest.importorskip("transformers", reason="make optional installs it")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

Parts = list[tuple[float, float, list[int]]]


def opened(folder: Path, bundle: Path | None, **values: Any) -> tuple[Any, Translator]:
    """A folder's model and its bundle: the graphs of ``bundle``, which has the same weights."""
    model = write_whisper(folder, **values)
    found, made = read_transformers(folder, read_json(folder / "config.json"), {}), folder / "made"
    if bundle is None:
        write_without_graphs(made, found)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "open_model", lambda *_: EagerModel(model))
            return model, Translator(made, engine="onnxruntime")
    shutil.copytree(bundle, made)
    defaults, speech = {**found.generation.defaults}, found.generation.speech
    manifest = dataclasses.replace(read_manifest(made), generation=defaults, speech=speech)
    write_manifest(made, manifest)
    return model, Translator(made)


KINDS = [(languages, graphs) for languages in (True, False) for graphs in (False, True)]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: Any) -> Callable[[], Path]:
    """The bundle of the weights of all folders here, exported if a test asks for it."""

    @cache
    def make() -> Path:
        folder = tmp_path_factory.mktemp("whisper") / "model"
        write_whisper(folder)
        return Path(export(folder, folder.with_suffix(".bundle"), verify="quick").path)

    return make


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(each, marks=() if each == KINDS[0] else pytest.mark.exhaustive)
        for each in KINDS
    ],
)
def both(request: Any, graphs: Callable[[], Path], tmp_path_factory: Any) -> tuple[Any, Translator]:
    languages, of_graphs = request.param
    folder = tmp_path_factory.mktemp("whisper") / "model"
    return opened(folder, graphs() if of_graphs else None, multilingual=languages)


def theirs(model: Any, features: Any, **options: Any) -> list[Any]:
    with torch.no_grad():
        made = model.generate(torch.from_numpy(features)[None], return_segments=True, **options)
    return list(made["segments"][0])


def parts(segments: list[Any]) -> Parts:
    return [(float(s["start"]), float(s["end"]), s["tokens"].tolist()) for s in segments]


def draw_features(seed: int, frames: int) -> Any:
    return (np.random.default_rng(seed).standard_normal((BINS, frames)) * 2).astype(np.float32)


def draw_call(seed: int, multilingual: bool) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Features of a sound, and the same options for transformers and for the bundle."""
    draw = random.Random(seed)
    frames = draw.choice([FRAMES, FRAMES, 30, 57, 100, 131, 260])
    their: dict[str, Any] = {"return_timestamps": frames > FRAMES or draw.random() < 0.7}
    our: dict[str, Any] = {"timestamps": their["return_timestamps"]}
    if multilingual:
        language, task = (
            draw.choice([None, "de", "French"]),
            draw.choice(["transcribe", "translate"]),
        )
        their |= {"task": task} | ({"language": language.lower()} if language else {})
        our |= {"task": task, "language": language}
    if draw.random() < 0.5:
        their["condition_on_prev_tokens"] = our["condition_on_previous"] = True
    if draw.random() < 0.4:
        our["prompt"] = [draw.randrange(EOS) for _ in range(draw.randint(1, 6))]
        their["prompt_ids"] = torch.tensor([PREVIOUS, *our["prompt"]])
        if "condition_on_previous" in our and draw.random() < 0.5:
            their["prompt_condition_type"], our["prompt_every_window"] = "all-segments", True
    if draw.random() < 0.5:
        their["logprob_threshold"] = draw.choice([-1.5, -2.0, -2.5])
        their["no_speech_threshold"] = draw.choice([0.001, 0.01, 0.5])
        our |= {name: their[name] for name in ("logprob_threshold", "no_speech_threshold")}
    if draw.random() < 0.3:
        their["compression_ratio_threshold"] = our["compression_ratio_threshold"] = 1.0
    if {"logprob_threshold", "compression_ratio_threshold"} & {*our}:
        their["temperature"] = our["temperature"] = draw.choice([(0.0,), (0.0, 0.0)])
    if seed % 3 == 1:
        their["num_beams"] = our["beam_size"] = 2 + seed // 3 % 3
    return draw_features(seed, frames), their, our


@pytest.mark.parametrize("start", few_of(range(0, 240, 6), 0))
def test_segments_of_drawn_options(both: tuple[Any, Translator], start: int) -> None:
    model, translator = both
    speech = translator.manifest.speech
    assert speech is not None
    for seed in range(start, start + 6):
        features, their, our = draw_call(seed, speech.multilingual)
        (found,) = translator.transcribe([{"input_features": features}], **our)
        wanted = parts(theirs(model, features, **their))
        assert [(s.start, s.end, [*s.tokens]) for s in found.segments] == wanted, seed


def test_sounds_together_are_those_of_each_alone(both: tuple[Any, Translator]) -> None:
    translator = both[1]
    rows = [{"input_features": draw_features(i, n)} for i, n in enumerate((24, 131, 57, 24))]
    alone = [translator.transcribe([row])[0] for row in rows]
    for size in (2, 8):
        together = translator.transcribe(rows, batch_size=size)
        for one, other in zip(together, alone, strict=True):
            assert (one.tokens, one.language) == (other.tokens, other.language)
            for ours, theirs in zip(one.segments, other.segments, strict=True):
                assert (ours.start, ours.end) == (theirs.start, theirs.end)
                assert ours.avg_logprob == pytest.approx(theirs.avg_logprob, abs=1e-4)


@pytest.fixture
def best_is_drawn(monkeypatch: Any) -> None:
    """Both sample the most probable token: what is left is how temperatures are used."""
    monkeypatch.setattr(torch, "multinomial", lambda p, num_samples: p.argmax(-1, keepdim=True))
    monkeypatch.setattr(stepwise, "draw", lambda logits, *_: logits.argmax(-1))


@pytest.mark.usefixtures("best_is_drawn")
def test_figures_of_windows_and_temperatures_tried(both: tuple[Any, Translator]) -> None:
    model, translator = both
    tried = set()
    for seed in range(4):
        features = draw_features(seed + 50, 57)
        their: dict[str, Any] = {
            "temperature": (0.0, 0.4, 0.9), "logprob_threshold": (-2.0, -0.2)[seed % 2],
            "no_speech_threshold": 0.9, "compression_ratio_threshold": 1.2,
        }  # fmt: skip
        task = {"task": "transcribe"} if model.generation_config.is_multilingual else {}
        segments = theirs(
            model, features, return_timestamps=True, condition_on_prev_tokens=True,
            return_dict_in_generate=True, **task, **their,
        )  # fmt: skip
        (found,) = translator.transcribe(
            [{"input_features": features}], condition_on_previous=True, **their
        )
        assert [(s.start, s.end, [*s.tokens]) for s in found.segments] == parts(segments)
        for ours, other in zip(found.segments, segments, strict=True):
            tried.add(ours.temperature)
            # Their tokens of the window begin after those it was given.
            made = other["result"]["sequences"]
            scores = other["result"]["scores"]
            own = made[len(made) - len(scores) :]
            wanted = model._retrieve_avg_logprobs(scores, own, ours.temperature or 1.0)
            assert ours.avg_logprob == pytest.approx(float(wanted), abs=1e-4)
    assert len(tried) > 1


HEADS = [[0, 1], [1, 0], [1, 1]]


@pytest.mark.parametrize(
    "engine_name",
    [
        None,  # transformers' own decoder
        pytest.param("native", marks=pytest.mark.exhaustive),
        pytest.param("onnxruntime", marks=pytest.mark.exhaustive),
    ],
)
def test_times_of_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine_name: EngineName | None
) -> None:
    if engine_name == "native":
        pytest.importorskip("tfexport_native")
    settings: dict[str, Any] = {"alignment_heads": HEADS, "median_filter_width": 3}
    if engine_name is None:
        model, translator = opened(tmp_path / "model", None, **settings)
    else:
        model = write_whisper(tmp_path / "model", **settings)
        made = export(tmp_path / "model", tmp_path / "made", verify="quick")
        translator = Translator(made.path, engine=engine_name)
    monkeypatch.setattr(TextCodec, "decode", lambda self, tokens: " ".join(map(str, tokens)))
    monkeypatch.setattr(Engine, "gives_text", True)
    monkeypatch.setattr(
        transcriber,
        "group_words",
        lambda ids, spans, *_: [Word(start, end, "") for start, end in spans],
    )
    several = 0
    for seed, frames, beams in ((2, 13, 1), (3, 57, 1), (4, 50, 2)):
        features = draw_features(seed, frames)
        padded = np.pad(features, ((0, 0), (0, max(0, FRAMES - frames))))
        mask = torch.zeros((1, padded.shape[1]), dtype=torch.long)
        mask[:, :frames] = 1
        segments = theirs(
            model, padded, task="transcribe", return_timestamps=True, num_beams=beams,
            return_token_timestamps=True, attention_mask=mask, return_dict_in_generate=True,
        )  # fmt: skip
        monkeypatch.setattr(
            Transcriber, "features", lambda self, _, found=(padded, frames / 100): found
        )
        (found,) = translator.transcribe([0], word_times=True, beam_size=beams)
        for ours, other in zip(found.segments, segments, strict=True):
            assert [*ours.tokens] == other["tokens"].tolist()
            times = [round(time, 2) for time in other["token_timestamps"].tolist()]
            wanted = [
                (times[place - 1], times[place])
                for place, token in enumerate(ours.tokens)
                if token < EOS
            ]
            assert [(word.start, word.end) for word in ours.words or ()] == wanted
            several += len(set(wanted)) > 1
    assert several > 1


def test_probability_of_silence(both: tuple[Any, Translator]) -> None:
    check_silence(*both, PREVIOUS)


def test_the_mark_of_a_prompt_may_have_id_0(tmp_path: Path) -> None:
    check_silence(*opened(tmp_path / "model", None, prev_sot_token_id=0), 0)


def check_silence(model: Any, translator: Translator, previous: int) -> None:
    features = draw_features(9, FRAMES)
    (found,) = translator.transcribe([{"input_features": features}], prompt=[1, 2, 3])
    speech = translator.manifest.speech
    assert speech is not None
    start = translator.manifest.special_ids.decoder_start
    ids = torch.tensor([[previous, 1, 2, 3, start]])
    with torch.no_grad():
        logits = model(torch.from_numpy(features)[None], decoder_input_ids=ids).logits[0, -1]
    wanted = float(logits.softmax(-1)[speech.no_speech])
    assert found.segments[0].no_speech_prob == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("most", [None, 0, 5])
def test_rule_of_timestamps(most: int | None) -> None:
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

    settings = transformers.GenerationConfig(eos_token_id=EOS, bos_token_id=EOS)
    settings.no_timestamps_token_id, settings.max_initial_timestamp_index = NO_TIMESTAMPS, most
    draw = np.random.default_rng(0)
    speech = Speech(NO_TIMESTAMPS, 50, most_initial=most)
    for _ in range(100):
        given, length, rows = int(draw.integers(0, 4)), int(draw.integers(0, 7)), 3
        stamps = draw.random((rows, length)) < 0.5
        new = np.where(stamps, draw.integers(40, VOCABULARY, (rows, length)),
                       draw.integers(0, 40, (rows, length)))  # fmt: skip
        tokens = np.concatenate([draw.integers(0, VOCABULARY, (rows, given)), new], axis=1)
        logits = (draw.standard_normal((rows, VOCABULARY)) * 2).astype(np.float32)
        logits[:, draw.integers(0, VOCABULARY, 8)] = -np.inf
        judge = WhisperTimeStampLogitsProcessor(settings, begin_index=given + 1)
        ids = np.concatenate([np.full((rows, 1), 31), tokens], axis=1)
        wanted = judge(torch.from_numpy(ids), torch.from_numpy(logits.copy())).numpy()
        WindowRule(speech, EOS, given, True)(logits, tokens)
        np.testing.assert_array_equal(logits, wanted)


def test_windows_are_split_as_there() -> None:
    draw, judge = random.Random(1), transformers.WhisperForConditionalGeneration
    for number in range(1000):
        tokens = [
            draw.choice([draw.randrange(EOS), draw.randrange(40, VOCABULARY)])
            for _ in range(draw.randint(1, 9))
        ]
        frames, seek = (
            2 * number + 1 if number < 700 else draw.randint(1, 3000),
            draw.randrange(10**6),
        )
        offset = torch.tensor([seek]).to(torch.float64) * 0.02 / 2
        segments, wanted = judge._retrieve_segment(
            seek_sequence=torch.tensor(tokens), seek_outputs=[None], time_offset=offset,
            timestamp_begin=NO_TIMESTAMPS + 1, seek_num_frames=torch.tensor([frames]),
            time_precision=0.02, time_precision_features=0.01, input_stride=2, prev_idx=0, idx=0,
            return_token_timestamps=False, decoder_input_ids=torch.zeros(1, 3),
        )  # fmt: skip
        found, further = split_window(tokens, seek, frames, NO_TIMESTAMPS + 1)
        assert further == int(wanted)
        assert [(start, end, [*ids]) for start, end, ids in found] == parts(segments)
        ratio = judge._retrieve_compression_ratio(torch.tensor(tokens), 51865)
        assert compression_ratio(tokens, 51865) == ratio


ODD: list[dict[str, Any]] = [
    {"max_length": 12, "max_initial_timestamp_index": None},
    {"max_length": None, "max_new_tokens": 9, "begin_suppress_tokens": None},
    {"repetition_penalty": 1.4, "no_repeat_ngram_size": 3, "suppress_tokens": [0, 37, 38]},
    {"language": "french", "task": "translate", "return_timestamps": True},
    {"logprob_threshold": -2.0, "no_speech_threshold": 0.01, "condition_on_prev_tokens": True},
    {"prev_sot_token_id": None, "min_length": 6},
]


@pytest.mark.parametrize("settings", few_of(ODD, ODD[0]), ids=lambda each: "-".join(each))
def test_settings_of_the_folder(tmp_path: Path, settings: dict[str, Any]) -> None:
    model, translator = opened(tmp_path / "model", None, **settings)
    for seed, frames in ((1, FRAMES), (2, 131), (3, 260)):
        features = draw_features(seed, frames)
        their: dict[str, Any] = {"return_timestamps": True}
        if "task" not in settings:
            their["task"] = "transcribe"
        if "logprob_threshold" in settings:
            # transformers keeps no scores for a threshold that its caller does not repeat.
            their |= {name: settings[name] for name in ("logprob_threshold",)}
            their["temperature"] = (0.0,)
        (found,) = translator.transcribe([{"input_features": features}])
        wanted = parts(theirs(model, features, **their))
        assert [(s.start, s.end, [*s.tokens]) for s in found.segments] == wanted
