"""The OpenAPI document: what paths take and answer, and who may call them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.servers import FORM, Server, serving
from tfexport.serve.protocols.response_models import ANSWERS

TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["w4"]}
EVERYTHING = {"beam_size": 2, "num_hypotheses": 2, "return_attention": True,
              "return_token_scores": True}  # fmt: skip
PAIR = {"source_lang": "de", "target_lang": "en"}
DICTIONARY = {**PAIR, "entries": "w4\tw9"}
CALLS: dict[tuple[str, str], list[Any]] = {
    ("post", "/v1/translate"): [{"texts": ["w4 w5\nw6", ""]}, {"texts": ["w4 w5\nw6", "w4"],
                                                             "options": EVERYTHING}],
    ("post", "/v1/score"): [{"sources": ["w4"], "targets": ["w5 w6"]}],
    ("post", "/v1/pieces"): [{"text": "w4", "tokens": [[5]]}],
    ("get", "/v1/models"): [None],
    ("get", "/v1/models/{name}"): [None],
    ("post", "/translate"): [
        {"q": "w4", "source": "de", "target": "en"},
        {"q": ["w4"], "source": "auto", "target": "en", "alternatives": 2},
    ],
    ("post", "/detect"): [{"q": "Das ist gut."}],
    ("get", "/languages"): [None],
    ("post", "/v2/translate"): [{"text": ["w4"], "target_lang": "EN-GB"}],
    ("get", "/v2/languages"): [None],
    ("get", "/v2/usage"): [None],
    ("get", "/v2/glossary-language-pairs"): [None],
    ("post", "/v2/glossaries"): [{"name": "n", **DICTIONARY}],
    ("get", "/v2/glossaries"): [None],
    ("get", "/v2/glossaries/{glossary}"): [None],
    ("post", "/v3/glossaries"): [{"name": "n", "dictionaries": [DICTIONARY]}],
    ("get", "/v3/glossaries"): [None],
    ("get", "/v3/glossaries/{glossary}"): [None],
    ("patch", "/v3/glossaries/{glossary}"): [{"name": "m"}],
    ("get", "/v3/glossaries/{glossary}/entries"): [None],
    ("put", "/v3/glossaries/{glossary}/dictionaries"): [DICTIONARY],
    ("post", "/v2/models/{name}/infer"): [{"inputs": [TENSOR], "id": "5"}],
}  # fmt: skip


@pytest.fixture(scope="module", name="keeping")
def _keeping(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("keeping")
    options = ("--languages", "tiny=de-en", "--glossaries", folder / "stored")
    with serving(folder, tiny_bundle, *options) as running:
        yield running


# Those of sound are compared by test_transcriptions.py.
@pytest.mark.parametrize("call", [it for it in ANSWERS if "/audio/" not in it[1]], ids=" ".join)
def test_answers_are_as_described(keeping: Server, call: tuple[str, str]) -> None:
    made = ""
    if "{glossary}" in call[1]:
        made = keeping.post("/v2/glossaries", {"name": "n", **DICTIONARY}).json["glossary_id"]
    path = call[1].replace("{name}", "tiny").replace("{glossary}", made)
    if path.endswith("/entries"):
        path += "?source_lang=de&target_lang=EN-GB"
    for body in CALLS[call]:
        answer = keeping.ask(call[0].upper(), path, body)
        assert answer.status == (201 if call[0] == "post" and "glossaries" in path else 200)
        ANSWERS[call].model_validate(answer.json, strict=True)


def test_references_lead_somewhere(keeping: Server) -> None:
    document = keeping.ask("GET", "/openapi.json").json
    names = re.findall(r'"\$ref": "(.*?)"', json.dumps(document))
    assert names
    for name in names:
        part = document
        for step in name.removeprefix("#/").split("/"):
            part = part[step]


def test_every_path_says_what_it_answers_and_how_it_fails(keeping: Server) -> None:
    document = keeping.ask("GET", "/openapi.json").json
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            if path.startswith(("/health", "/metrics", "/v2/health")):
                continue
            assert {"500", "503", "504"} <= set(described["responses"]), path
            assert "security" not in described
            if method == "post":
                assert (method, path) in ANSWERS


def test_keys_are_described_where_they_are_needed(tiny_bundle: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("key\n")
    with serving(tmp_path, tiny_bundle, "--api-key-file", keys) as running:
        document = running.ask("GET", "/openapi.json").json
        wrong = running.ask("POST", "/v2/translate", "text=w4&target_lang=EN", FORM)
    paths, schemes = document["paths"], document["components"]["securitySchemes"]
    assert str(wrong.status) in paths["/v2/translate"]["post"]["responses"]
    for path in ("/v1/translate", "/v2/translate", "/translate", "/v2/models/{name}/infer"):
        assert "security" in paths[path]["post"]
    needed = [one["security"] for methods in paths.values() for one in methods.values()
              if "security" in one]  # fmt: skip
    assert {name for (form,) in needed for name in form} == {*schemes}
    assert "security" not in paths["/health/live"]["get"]
