"""Bundles that differ: one that is told languages, one without a graph of steps."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.serve.servers import Server, serving
from tests.serve.test_texts import changed
from tests.support.manifests import rewrite
from tests.support.paths import VERSION_1
from tfexport.languages import Languages
from tfexport.runtime import Translator

TOLD = Languages({"de_DE": 10, "en_XX": 11, "fr_XX": 12}, "before", "first", "de_DE", None)


@pytest.fixture(scope="module", name="folder")
def _folder(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other")
    shutil.copytree(tiny_bundle, folder / "told.bundle")
    values = {"languages": asdict(TOLD)}
    rewrite(folder / "told.bundle", lambda manifest: manifest.update(values))
    changed(tiny_bundle, folder / "beam.bundle", generation={"beam_size": 4, "max_length": 9})
    shutil.copytree(VERSION_1, folder / "plain.bundle")
    rewrite(folder / "plain.bundle", lambda manifest: manifest["graphs"].pop("step"))
    return folder


@pytest.fixture(scope="module", name="other")
def _other(folder: Path) -> Iterator[Server]:
    bundles = [folder / f"{name}.bundle" for name in ("told", "plain", "beam")]
    with serving(folder, *bundles, "--engine", "onnxruntime") as running:  # needs graphs of steps
        yield running


def last_event(body: bytes) -> Any:
    return json.loads(body.decode().strip().rpartition("\n\n")[2].removeprefix("data: "))


def test_a_model_is_told_the_languages_of_each_protocol(other: Server, folder: Path) -> None:
    translator = Translator(folder / "told.bundle", threads=1)
    (wanted,) = translator.translate(["w4 w5"], target_language="fr_XX")
    codes = {"source_language": "de", "target_language": "FR"}
    found = other.post("/v1/translate", {"texts": ["w4 w5"], "options": codes, "model": "told"})
    assert found.json["translations"][0]["tokens"] == wanted.hypotheses[0].tokens
    libre = {"q": "w4 w5", "source": "de", "target": "fr"}
    assert other.post("/translate", libre).json["translatedText"] == wanted.text
    deepl = {"text": ["w4 w5"], "target_lang": "FR-CA", "source_lang": "DE"}
    assert other.post("/v2/translate", deepl).json["translations"][0]["text"] == wanted.text
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["w4 w5"]}
    body = {"inputs": [tensor], "parameters": codes}
    found = other.post("/v2/models/told/infer", body)
    assert found.json["outputs"][0]["data"] == [wanted.text]
    ids = {"name": "input_ids", "shape": [1, 4], "datatype": "INT64", "data": [10, 4, 5, 2]}
    body = {"inputs": [ids], "parameters": {"target_language": "fr_XX"}}
    found = other.post("/v2/models/told/infer", body)
    assert found.json["outputs"][0]["data"][: len(wanted.hypotheses[0].tokens)] == (
        wanted.hypotheses[0].tokens
    )


def test_its_streams_show_no_language(other: Server, folder: Path) -> None:
    translator = Translator(folder / "told.bundle", threads=1)
    (wanted,) = translator.translate(["w4 w5"], target_language="fr_XX")
    options = {"target_language": "fr"}
    body = {"texts": ["w4 w5"], "stream": True, "options": options, "model": "told"}
    answer = other.post("/v1/translate", body)
    pieces = [json.loads(line[6:]) for line in answer.body.decode().split("\n\n") if line]
    assert "".join(piece.get("text", "") for piece in pieces) == wanted.text
    assert last_event(answer.body)["translation"]["tokens"] == wanted.hypotheses[0].tokens


def test_a_stream_leaves_out_the_bundles_own_beam(other: Server) -> None:
    texts = [f"w{first} w{second}" for first in range(4, 9) for second in range(4, 9)]
    body = {"texts": texts, "model": "beam"}
    beams = other.post("/v1/translate", body).json["translations"]
    greedy = other.post("/v1/translate", {**body, "options": {"beam_size": 1}}).json["translations"]
    assert beams != greedy
    place = next(i for i, one in enumerate(beams) if one["text"] != greedy[i]["text"])
    answer = other.post("/v1/translate", {"texts": [texts[place]], "model": "beam", "stream": True})
    assert last_event(answer.body)["translation"] == greedy[place]


def test_a_language_that_is_not_said_is_asked_for(other: Server) -> None:
    answer = other.post("/v1/translate", {"texts": ["w4"], "model": "told"})
    assert answer.status == 422
    assert "target_language" in answer.json["error"]
    answer = other.post("/v1/translate", {"texts": ["w4"], "model": "told",
                                          "options": {"target_language": "ja"}})  # fmt: skip
    assert "'ja' is not a language of the model 'told'" in answer.json["error"]


def test_a_bundle_without_a_graph_of_steps_is_served_too(other: Server) -> None:
    listed = {one["name"]: one for one in other.ask("GET", "/v1/models").json["models"]}
    assert (listed["told"]["batching"], listed["plain"]["batching"]) == ("continuous", "dynamic")
    assert listed["plain"]["reason"]
    translator = Translator(VERSION_1, threads=1)
    text = "w12 w4\nw5"
    wanted = "\n".join(str(one.text) for one in translator.translate(text.split("\n")))
    body: dict[str, Any] = {"texts": [text], "model": "plain"}
    assert other.post("/v1/translate", body).json["translations"][0]["text"] == wanted
    answer = other.post("/v1/translate", {**body, "stream": True})
    assert last_event(answer.body)["translation"]["text"] == wanted
