"""Sounds over HTTP: the times of words, and models that are not decoded as Whisper is."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.servers import Server, serving
from tests.serve.test_transcriptions import PROGRAM, refused, send, sound
from tests.support.spoken_bundle import use_table, write_spoken_bundle, write_words
from tfexport.runtime import Translator
from tfexport.serve.protocols.response_models import ANSWERS

PATH = "/v1/audio/transcriptions"
soundfile = pytest.importorskip("soundfile", reason="the extra audio installs it")


@pytest.fixture(scope="module", name="bundle")
def _bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    heads = [[0, 1], [1, 0]]
    folder = tmp_path_factory.mktemp("worded") / "worded.bundle"
    return write_spoken_bundle(folder, alignment_heads=heads)


@pytest.fixture(scope="module", name="server")
def _server(bundle: Path) -> Iterator[Server]:
    with serving(bundle.parent, bundle, program=PROGRAM) as running:
        yield running


def test_words_have_the_times_of_the_translator(server: Server, bundle: Path) -> None:
    file = sound(1.7)
    with pytest.MonkeyPatch.context() as patch:
        use_table(patch)
        (found,) = Translator(bundle, threads=1).transcribe([file], word_times=True)
    ends = [word.end for word in found.words]
    assert len({*ends}) > 5
    assert ends == sorted(ends)
    wanted = [{"word": it.text.strip(), "start": it.start, "end": it.end} for it in found.words]

    def ask(*granularities: str) -> Any:
        fields = [("timestamp_granularities[]", each) for each in granularities]
        answer = send(server, ("file", file), ("response_format", "verbose_json"), *fields).json
        ANSWERS["post", PATH].model_validate(answer, strict=True)
        return answer

    whole = ask("word")
    assert (whole["words"], "segments" in whole) == (wanted, False)
    whole = ask("segment", "word")
    assert whole["words"] == wanted
    assert [each["text"] for each in whole["segments"]] == [each.text for each in found.segments]
    assert not any("words" in each for each in whole["segments"])
    assert "words" not in ask("segment")


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["moonshine", "speech_to_text"])
def test_texts_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    pytest.importorskip("transformers", reason="make optional installs it")
    from tests.export.transformers_folders import test_sounds as folders
    from tests.export.transformers_folders.families import VOCABULARY
    from tests.export.transformers_folders.test_folders import generate

    folder, file = tmp_path / name, sound(0.7)
    folder.mkdir()
    write_words(folder, VOCABULARY)
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))
    result, model, extractor = folders.made(folder, name)
    path = tmp_path / "sound.wav"
    path.write_bytes(file)
    library: Any = folders.transformers
    samples = library.audio_utils.load_audio(str(path), extractor.sampling_rate, "soundfile")
    given = extractor(samples, sampling_rate=extractor.sampling_rate, return_tensors="np")
    assert result.manifest.module_io is not None
    row = {it.name: given[it.name][0] for it in result.manifest.module_io.inputs}
    tokens = generate(model, row, max_length=result.manifest.generation["max_length"] + 1)
    hidden = {*result.manifest.hidden_ids}
    text = " ".join(f"w{token}" for token in tokens if token not in hidden)
    assert text
    with serving(tmp_path, result.path) as server:
        assert send(server, ("file", file)).json == {"text": text}
        answer = send(server, ("file", file), ("response_format", "text"))
        assert answer.body.decode() == f"{text}\n"
        for field, value, message in (
            ("response_format", "srt", "gives text without times: json or text"),
            ("language", "de", "language: not for"), ("stream", "true", "stream: not for"),
        ):  # fmt: skip
            assert message in refused(send(server, ("file", file), (field, value)))["message"]
        translated = send(server, ("file", file), path="/v1/audio/translations")
        assert "transcribes, and does not translate" in refused(translated)["message"]
        cut = refused(send(server, ("file", b"This is no sound.")))
        assert (cut["param"], "holds text, not sound" in cut["message"]) == ("file", True)
