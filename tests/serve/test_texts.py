"""What the server makes of texts: units, marks, joining, unknown words, cut translations."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.serve.servers import Server, serving
from tests.support.manifests import rewrite
from tfexport.languages import Languages
from tfexport.markup.document import has_words
from tfexport.runtime import Translator
from tfexport.runtime.text.codec import NO_LANGUAGES
from tfexport.runtime.text.sentences import split_text
from tfexport.serve import rows
from tfexport.serve.models import ModelChoice
from tfexport.serve.protocols.libretranslate import _others
from tfexport.serve.rows import _divided, _marked

TEXT = "w4 w5\nw6 w4\nw7"
MARKS = Languages({"fr": 10, "de": 11}, None, "source", None, None)


def changed(bundle: Path, folder: Path, **values: Any) -> Path:
    """A copy of a bundle whose manifest says something else."""
    made = Path(shutil.copytree(bundle, folder))
    rewrite(made, lambda manifest: manifest.update(values))
    return made


@pytest.fixture(scope="module", name="folder")
def _folder(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    changed(tiny_bundle, folder / "texts.bundle", reads="texts")
    changed(tiny_bundle, folder / "short.bundle", generation={"max_length": 2})
    marked = {"generation": {"max_length": 30}, "origins": {"max_length": "transformers"}}
    changed(tiny_bundle, folder / "marked.bundle", languages=asdict(MARKS), **marked)
    shutil.copytree(tiny_bundle, folder / "zh-en.bundle")
    return folder


@pytest.fixture(scope="module", name="units")
def _units(folder: Path) -> Iterator[Server]:
    """Models that differ in what they read; "short" and "texts" by languages of their own."""
    with serving(
        folder, *(folder / f"{name}.bundle" for name in ("texts", "short", "marked", "zh-en")),
        "--languages", "texts=de-it", "--languages", "short=de-pt",
    ) as running:  # fmt: skip
        yield running


def whole(folder: Path, text: str, **options: Any) -> str:
    return str(Translator(folder / "texts.bundle", threads=1).translate([text], **options)[0].text)


def apart(folder: Path) -> str:
    return "\n".join(whole(folder, line) for line in TEXT.split("\n"))


def streamed(server: Server, body: dict[str, Any]) -> str:
    """The text of all events."""
    found = server.post("/v1/translate", {**body, "stream": True}).body.decode()
    events = [json.loads(line[6:]) for line in found.split("\n\n") if line]
    return "".join(event.get("text", "") for event in events)


def in_every_protocol(
    server: Server, text: str, model: str, target: str, **split: Any
) -> list[str]:
    """One text by all protocols."""
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
    own = server.post("/v1/translate", {"texts": [text], "model": model, **split})
    libre = server.post("/translate", {"q": text, "source": "de", "target": target, **split})
    for_deepl = {"none": "0", "lines": "1", None: None}[split.get("split_sentences")]
    body = {"text": [text], "target_lang": target, "split_sentences": for_deepl}
    deepl = server.post("/v2/translate", body)
    kserve = server.post(f"/v2/models/{model}/infer", {"inputs": [tensor], "parameters": split})
    return [
        own.json["translations"][0]["text"],
        streamed(server, {"texts": [text], "model": model, **split}),
        libre.json["translatedText"],
        deepl.json["translations"][0]["text"],
        kserve.json["outputs"][0]["data"][0],
    ]


def test_a_model_that_reads_texts_gets_whole_texts(units: Server, folder: Path) -> None:
    wanted = whole(folder, TEXT)
    assert wanted != apart(folder)
    assert in_every_protocol(units, TEXT, "texts", "it") == [wanted] * 5
    listed = {one["name"]: one for one in units.ask("GET", "/v1/models").json["models"]}
    assert listed["texts"]["split_sentences"] == "none"
    assert listed["zh-en"]["split_sentences"] == "lines"


def test_every_protocol_can_say_otherwise(units: Server, folder: Path) -> None:
    lines = {"split_sentences": "lines"}
    assert in_every_protocol(units, TEXT, "texts", "it", **lines) == [apart(folder)] * 5
    body: dict[str, Any] = {"texts": [TEXT], "model": "zh-en", "split_sentences": "none"}
    assert units.post("/v1/translate", body).json["translations"][0]["text"] == whole(folder, TEXT)
    pieces = {"text": TEXT, "model": "texts", "tokens": [[4], [5], [6]], **lines}
    assert len(units.post("/v1/pieces", pieces).json["sentences"]) == 3


def test_the_operator_can_say_otherwise(folder: Path, tmp_path: Path) -> None:
    with serving(tmp_path, folder / "texts.bundle", "--split-sentences", "texts=lines") as running:
        found = running.post("/v1/translate", {"texts": [TEXT]}).json["translations"][0]["text"]
    assert found == apart(folder)


def test_sentences_are_marked_where_a_model_reads_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_requests", lambda *_: ([], []))
    for languages, second in ((MARKS, ">>fra<< Oui!"), (None, "Oui!")):
        model: Any = SimpleNamespace(
            split="lines", join=lambda target: "spaces", max_tokens=8,
            resolver=SimpleNamespace(resolve=lambda *_: (None, [()])),
            within_limits=lambda options, given: options, check_lengths=lambda requests: None,
            observer=SimpleNamespace(unknown=lambda tokens: None),
            engine=SimpleNamespace(manifest=SimpleNamespace(languages=languages)),
        )  # fmt: skip
        choice = ModelChoice(model, "fr", "en", NO_LANGUAGES)
        (parts,) = rows.prepare(choice, rows.TextRequest([">>fra<< Bon. Oui!"])).split_texts
        assert parts.sentences == [">>fra<< Bon.", second]


def test_a_mark_in_front_of_a_text_goes_before_each_sentence() -> None:
    parts = _marked(split_text(">>fra<< Bon. Oui!", "fr", "lines"))
    assert parts.sentences == [">>fra<< Bon.", ">>fra<< Oui!"]
    assert parts.joined(["A.", "B!"]) == "A. B!"


def test_sentences_without_spaces_are_joined_with_one(units: Server, folder: Path) -> None:
    text = "w4 天。天 w5 w6 x。"
    body: dict[str, Any] = {"texts": [text], "model": "zh-en"}
    (made,) = units.post("/v1/translate", body).json["translations"]
    assert made["text"] == f"{whole(folder, 'w4 天。')} {whole(folder, '天 w5 w6 x。')}"
    assert streamed(units, body) == made["text"]


NOTHING = ["😀", "…", "!?", "→ ★", "日本", "qqq"]  # and two of words that it does not know


@pytest.mark.parametrize("text", NOTHING)
def test_what_cannot_be_translated_is_given_back(units: Server, text: str) -> None:
    body: dict[str, Any] = {"texts": [text], "model": "zh-en"}
    (made,) = units.post("/v1/translate", body).json["translations"]
    assert (made["text"], made["tokens"]) == (text, [])
    libre = units.post("/translate", {"q": text, "source": "zh", "target": "en"})
    assert libre.json["translatedText"] == text
    stream = units.post("/v1/translate", {**body, "stream": True}).body.decode()
    assert json.loads(stream.split("\n\n")[0][6:]) == {"text": text}


def test_signs_that_a_model_knows_say_nothing_either() -> None:
    known: Any = SimpleNamespace(source=SimpleNamespace(piece=lambda token: "…"))
    assert not has_words("…!", [7], {3}, known)
    assert not has_words("2 / 3", [7], {3}, known)
    assert has_words("w…", [7], {3}, known)


def test_unknown_tokens_are_counted(units: Server) -> None:
    before = units.figure("tfexport_unknown_tokens_total", model="zh-en")
    body = {"texts": ["w4 qqq w5 zzz.", "w6"], "model": "zh-en"}
    found = units.post("/v1/translate", body).json["translations"]
    assert found[0]["unknown_tokens"] >= 2
    assert found[1]["unknown_tokens"] == 0
    after = units.figure("tfexport_unknown_tokens_total", model="zh-en")
    assert after == before + found[0]["unknown_tokens"]


def test_cut_translations_are_told_and_counted(units: Server, folder: Path) -> None:
    before = units.figure("tfexport_cut_rows_total", model="short")
    options: dict[str, Any] = {"min_length": 2}
    body = {"texts": ["w4 w5", "w6"], "model": "short", "options": options}
    found = units.post("/v1/translate", body).json["translations"]
    assert [one["finished"] for one in found] == [False, False]
    options = {"beam_size": 3, "num_hypotheses": 3, "max_length": 60}
    wanted = Translator(folder / "zh-en.bundle", threads=1).translate(["w4 w5", "w6"], **options)
    several = {"texts": ["w4 w5", "w6"], "model": "zh-en", "options": options}
    for one, made in zip(
        units.post("/v1/translate", several).json["translations"], wanted, strict=True
    ):
        finished = [hypothesis["finished"] for hypothesis in one["hypotheses"]]
        assert finished == [hypothesis.finished for hypothesis in made.hypotheses]
    assert units.figure("tfexport_cut_rows_total", model="short") >= before + 2
    libre = {"q": ["w4 w5", "w6"], "source": "de", "target": "pt"}
    assert int(units.post("/translate", libre).headers["x-unfinished-texts"]) >= 1
    deepl = {"text": ["w4 w5", "w6"], "target_lang": "PT-BR"}
    assert int(units.post("/v2/translate", deepl).headers["x-unfinished-texts"]) >= 1
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["w4 w5 w6"]}
    answer = units.post("/v2/models/short/infer", {"inputs": [tensor]})
    assert answer.headers["x-unfinished-texts"] == "1"
    before = units.figure("tfexport_cut_rows_total", model="short")
    ids = {"name": "input_ids", "shape": [1, 3], "datatype": "INT64", "data": [4, 5, 2]}
    of_ids = {"inputs": [ids], "parameters": {"min_length": 2}}
    assert units.post("/v2/models/short/infer", of_ids).status == 200
    assert units.figure("tfexport_cut_rows_total", model="short") == before + 1


def test_a_short_length_of_a_bundle_is_told_at_the_start(units: Server) -> None:
    log = units.log.read_text()
    assert "short: translations end after 2 tokens, the limit of its bundle; --max-length" in log
    unnamed = "transformers' default, since the model's files name no length; --max-length"
    assert f"marked: translations end after 30 tokens, {unnamed}" in log


def test_long_sentences_are_divided_for_who_cannot_have_them_cut(
    units: Server, folder: Path
) -> None:
    long = "w4 " * 999
    libre = units.post("/translate", {"q": [long, "w5"], "source": "zh", "target": "en"})
    assert libre.status == 200
    assert libre.json["translatedText"][1] == whole(folder, "w5")
    deepl = {"text": ["x" * 3000, "w5"], "source_lang": "ZH", "target_lang": "EN-GB"}
    assert units.post("/v2/translate", deepl).status == 200
    answer = units.post("/v1/translate", {"texts": [long], "model": "zh-en"})
    assert answer.status == 422
    assert '"truncate": true' in answer.json["error"]
    whole_text = {"q": long, "source": "de", "target": "it"}  # which the model reads as one
    answer = units.post("/translate", whole_text)
    assert answer.status == 400
    assert "truncate" not in answer.json["error"]
    assert "text 0: 1000 tokens exceed the model's limit" in answer.json["error"]


def test_only_what_may_fit_is_tokenized() -> None:
    """A sentence of a whole request would be tokenized again for each of its halves."""
    seen = list[int]()

    def encode(sentence: str, *_: Any) -> list[str]:
        seen.append(len(sentence))
        return sentence.split()

    limits = SimpleNamespace(max_source_length=8)
    engine = SimpleNamespace(
        texts=SimpleNamespace(encode=encode), manifest=SimpleNamespace(limits=limits)
    )
    model: Any = SimpleNamespace(engine=engine, max_tokens=8)
    options: Any = SimpleNamespace(truncate=False, max_input_length=None, framing=None)
    parts = _divided(model, split_text("w4 " * 30_000, "de", "lines"), options, {})
    assert sum(len(one.split()) for one in parts.sentences) == 30_000
    assert max(seen) <= 8 * 32


def test_alternatives_differ_from_the_translation(units: Server) -> None:
    assert _others(["a", "b", "a", "b", "c"]) == ["b", "c"]
    body = {"q": "w4 w5. w6", "source": "zh", "target": "en", "alternatives": 4}
    found = units.post("/translate", body).json
    others = found["alternatives"]
    assert found["translatedText"] not in others
    assert len(set(others)) == len(others)
