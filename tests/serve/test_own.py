"""The server's own protocol."""

import json
from importlib.util import find_spec
from typing import Any

import pytest

from tests.serve.servers import JSON, Server
from tfexport.runtime import Translator

TEXTS = ["w4 w5", "w6 w7 w8 w9", "w10"]


def translations(server: Server, texts: list[str], **options: Any) -> list[dict[str, Any]]:
    answer = server.post("/v1/translate", {"texts": texts, "options": options})
    assert answer.status == 200, answer.body
    assert answer.json["model"] == "tiny"
    found: list[dict[str, Any]] = answer.json["translations"]
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam_size": 3, "num_hypotheses": 2},
        {"max_length": 3},
        {"sampling": True, "seed": 5, "num_hypotheses": 3},
        {"return_token_scores": True},
        {"return_attention": True},
        {"beam_size": 2, "return_alternatives": True, "num_hypotheses": 2},
    ],
)
def test_results_are_those_of_the_translator(
    server: Server, translator: Translator, options: dict[str, Any]
) -> None:
    for found, wanted in zip(
        translations(server, TEXTS, **options),
        translator.translate(TEXTS, **options),
        strict=True,
    ):
        described = wanted.to_dict()
        assert found["text"] == wanted.text
        assert found["tokens"] == wanted.hypotheses[0].tokens
        assert found["score"] == pytest.approx(wanted.hypotheses[0].score, abs=1e-4)
        assert found.get("token_scores") == (
            None
            if "token_scores" not in described
            else pytest.approx(described["token_scores"], abs=1e-4)
        )
        assert found.get("alignment") == described.get("alignment")
        assert ("attention" in found) == ("attention" in described)
        others = [(one["text"], one["tokens"]) for one in found.get("hypotheses", [])]
        assert others == [(one["text"], one["tokens"]) for one in described.get("hypotheses", [])]


def test_sentences_are_rows_and_white_space_is_kept(server: Server, translator: Translator) -> None:
    text = "  w4 w5\n\nw6 w7 w8  \r\nw10 w9\r\n"
    (found,) = translations(server, [text])
    parts = [translator.translate([part])[0].text for part in ("w4 w5", "w6 w7 w8", "w10 w9")]
    assert all(parts)
    assert found["text"] == f"  {parts[0]}\n\n{parts[1]}  \r\n{parts[2]}\r\n"


@pytest.mark.parametrize("text", ["", " ", "\n", "\t\n "])
def test_blank_texts_stay_blank(server: Server, text: str) -> None:
    (found,) = translations(server, [text])
    assert found == {
        "text": text, "score": 0.0, "tokens": [], "finished": True, "unknown_tokens": 0,
    }  # fmt: skip


def test_several_sentences_join_tokens_scores_and_hypotheses(
    server: Server, translator: Translator
) -> None:
    (found,) = translations(server, ["w4 w5.\nw6"], beam_size=2, num_hypotheses=2)
    parts = translator.translate(["w4 w5.", "w6"], beam_size=2, num_hypotheses=2)
    for place, one in enumerate(found["hypotheses"]):
        chosen = [part.hypotheses[place] for part in parts]
        assert one["tokens"] == [*chosen[0].tokens, *chosen[1].tokens]
        assert one["text"] == "\n".join(part.texts[place] for part in parts)
        weights = [len(hypothesis.tokens) + 1 for hypothesis in chosen]
        mean = sum(
            hypothesis.score * weight for hypothesis, weight in zip(chosen, weights, strict=True)
        )
        assert one["score"] == pytest.approx(mean / sum(weights), abs=1e-4)


def test_attention_of_several_sentences_stands_with_each(server: Server) -> None:
    (found,) = translations(server, ["w4 w5.\nw6"], return_attention=True)
    assert "attention" not in found
    first, second = found["sentences"]
    assert len(first["attention"]) == len(first["tokens"])
    assert len(second["attention"][0]) == len(second["source_tokens"])


def test_prefixes_begin_translations(server: Server) -> None:
    for prefix in ("w7 w8", ["w7 w8", "w9"]):
        found = translations(server, ["w4 w5.\nw6", "w6"], target_prefix=prefix)
        wanted = [prefix, prefix] if isinstance(prefix, str) else prefix
        for one, begin in zip(found, wanted, strict=True):
            assert one["text"].startswith(begin)


def test_scores_are_those_of_the_translator(server: Server, translator: Translator) -> None:
    sources, targets = ["w4 w5", "w6"] * 40, ["w7", "w8 w9"] * 40
    body = {"sources": sources, "targets": targets, "options": {"return_token_scores": True}}
    found = server.post("/v1/score", body).json["scores"]
    wanted = translator.score(sources, targets, return_token_scores=True)
    for one, known in zip(found, wanted, strict=True):
        assert one["tokens"] == known.tokens
        assert one["score"] == pytest.approx(known.score, abs=1e-4)
        assert one["token_scores"] == pytest.approx(known.token_scores, abs=1e-4)


def events(body: bytes) -> list[dict[str, Any]]:
    lines = [line for line in body.decode().split("\n\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("text", ["w4 w5", " w4 w5.\n\nw6! w7\n", "", "\n"])
def test_streams_give_pieces_of_the_translation(server: Server, text: str) -> None:
    answer = server.post("/v1/translate", {"texts": [text], "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    *pieces, last = events(answer.body)
    assert last["done"] is True
    assert "".join(piece["text"] for piece in pieces) == last["translation"]["text"]
    assert last["translation"] == translations(server, [text])[0]


def test_streams_come_token_by_token(server: Server) -> None:
    *pieces, _ = events(server.post("/v1/translate", {"texts": ["w4 w5 w6"], "stream": True}).body)
    assert len(pieces) > 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"texts": ["w4", "w5"], "stream": True}, ["one text is streamed"]),
        ({"texts": ["w4"], "stream": True, "options": {"beam_size": 3}}, ["cannot be streamed"]),
        ({}, ["texts: is missing"]),
        ({"texts": "w4"}, ["texts: should be a valid"]),
        ({"texts": ["w4", 5]}, ["texts[1]"]),
        ({"texts": ["w4"], "text": 1}, ["text: is not a known field; did you mean 'texts'?"]),
        (
            {"texts": 1, "bogus": 2, "options": {"beam_size": 0, "beam_sise": 1}},
            ["texts: ", "bogus: ", "beam_size: 0 is less than 1", "'beam_sise'"],
        ),
        ({"texts": ["w4"], "options": {"beam_size": 33}}, ["beam_size: 33 is more than the 32"]),
        ({"texts": ["w4"], "options": {"callback": "x"}}, ["callback"]),
        ({"texts": ["w4"], "options": {"source_language": "fr"}}, ["'fr' is not a language"]),
        ({"texts": ["w4"], "options": {"source_language": 5}}, ["source_language: is not"]),
        ({"texts": ["w4"], "options": {"target_prefix": ["w5", "w6"]}}, ["2 prefixes for 1"]),
        ({"texts": ["w4"], "options": {"target_prefix": 5}}, ["target_prefix: is neither"]),
        ({"texts": ["w4 " * 999, "w5", "w4 " * 999]}, ["text 0: ", "text 2: ", '"truncate": true']),
    ],
)
def test_wrong_calls_name_every_problem(
    server: Server, body: dict[str, Any], said: list[str]
) -> None:
    answer = server.post("/v1/translate", body)
    assert answer.status == 422
    for text in said:
        assert text in answer.json["error"]
    assert answer.json["problems"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"sources": ["w4"], "targets": []}, "1 sources and 0 targets"),
        (
            {"sources": ["w4"], "targets": ["w5"], "options": {"beam_size": 2}},
            "does not choose any",
        ),
        ({"sources": [""], "targets": ["w5"]}, "pair 0: the source is empty"),
        ({"sources": ["w4"], "targets": ["w5"], "options": {"target_prefix": "w"}}, "target_pref"),
    ],
)
def test_wrong_scores_are_named(server: Server, body: dict[str, Any], said: str) -> None:
    answer = server.post("/v1/score", body)
    assert answer.status == 422
    assert said in answer.json["error"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"texts": ["\\ud800"]}',
        b'{"texts": ["\xff"]}',
        b'{"texts": ["w4"], "options": {"length_penalty": NaN}}',
        b'{"texts": ["w4"], "options": {"max_length": ' + b"9" * 5000 + b"}}",
        b"[" * 100_000,
        b'{"texts": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"",
        b"null",
        b"[]",
    ],
)
def test_malformed_json_is_refused(server: Server, body: bytes) -> None:
    answer = server.ask("POST", "/v1/translate", body, JSON)
    assert answer.status == 422
    assert answer.json["error"]


def test_nul_is_a_character_like_others(server: Server) -> None:
    assert server.post("/v1/translate", {"texts": ["w4\0 w5"]}).status == 200


def test_unknown_models_and_paths_are_named(server: Server) -> None:
    answer = server.post("/v1/translate", {"texts": ["w4"], "model": "huge"})
    assert (answer.status, answer.json["error"]) == (404, "no model 'huge'; served: tiny")
    assert server.ask("GET", "/v1/nothing").status == 404
    answer = server.ask("GET", "/v1/translate")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


def test_models_are_listed(server: Server) -> None:
    (listed,) = server.ask("GET", "/v1/models").json["models"]
    assert listed["name"] == "tiny"
    assert listed["languages"] == {"source": ["de"], "target": ["en"]}
    assert listed["engine"].split()[0] == (
        "native" if find_spec("tfexport_native") else "onnxruntime"
    )
    assert listed["input"] == "text"
    assert listed["version"]


def test_texts_of_no_json_are_refused(server: Server) -> None:
    answer = server.ask("POST", "/v1/translate", b"texts=w4", {"Content-Type": "text/plain"})
    assert answer.status == 415
    assert "application/json" in answer.json["error"]
