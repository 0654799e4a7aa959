"""KServe's open inference protocol, in JSON and with binary tensors."""

import dataclasses
import json
import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serve.servers import JSON, Answer, Server, serving
from tfexport.bundle import MANIFEST, read_manifest, write_manifest
from tfexport.runtime import Translator

INFER = "/v2/models/tiny/infer"
TEXTS = ["w4 w5", "w6"]


def text_input(texts: Sequence[str], shape: Sequence[int] | None = None) -> dict[str, Any]:
    return {
        "name": "text", "shape": [len(texts)] if shape is None else shape, "datatype": "BYTES",
        "data": texts,
    }  # fmt: skip


def ids_input(rows: list[list[int]], name: str = "input_ids") -> dict[str, Any]:
    return {"name": name, "shape": [len(rows), len(rows[0])], "datatype": "INT64", "data": rows}


def infer(server: Server, *inputs: Mapping[str, Any], **more: Any) -> Answer:
    return server.post(INFER, {"inputs": inputs, **more})


@pytest.fixture(name="wanted")
def _wanted(translator: Translator) -> list[str]:
    return [str(one.text) for one in translator.translate(TEXTS)]


def test_texts_are_translated(server: Server, wanted: list[str]) -> None:
    found = infer(server, text_input(TEXTS), id="7").json
    version = server.ask("GET", "/v1/models").json["models"][0]["version"]
    assert found == {
        "model_name": "tiny",
        "model_version": version,
        "id": "7",
        "outputs": [
            {"name": "translation", "shape": [2], "datatype": "BYTES", "data": wanted},
        ],
    }
    path = f"/v2/models/tiny/versions/{version}/infer"
    assert server.post(path, {"inputs": [text_input(TEXTS)]}).json["outputs"] == found["outputs"]
    assert server.post(INFER.replace("/infer", "/versions/9/infer"), {}).status == 404


def test_requests_are_counted_by_their_routes(server: Server) -> None:
    base, gone = "/v2/models/{name}", "/versions/{version}"
    before = {
        (route, code): server.figure("tfexport_requests_total", route=route, code=code)
        for route, code in ((f"{base}/infer", "200"), (f"{base}{gone}/infer", "404"))
    }
    assert infer(server, text_input(TEXTS)).status == 200
    assert server.post(INFER.replace("/infer", "/versions/9/infer"), {}).status == 404
    for (route, code), count in before.items():
        found = server.figure("tfexport_requests_total", route=route, code=code)
        assert found == count + 1, route
    assert server.ask("GET", INFER).headers["allow"] == "POST"


def test_outputs_have_the_shape_of_inputs(server: Server, wanted: list[str]) -> None:
    nested = {**text_input(TEXTS, [2, 1]), "data": [[text] for text in TEXTS]}
    for given in (text_input(TEXTS, [2, 1]), nested):
        (output,) = infer(server, given).json["outputs"]
        assert output["shape"] == [2, 1]
        assert output["data"] == wanted


def test_parameters_are_options(server: Server, translator: Translator) -> None:
    found = infer(server, text_input(TEXTS), parameters={"max_length": 2, "beam_size": 2}).json
    wanted = translator.translate(TEXTS, max_length=2, beam_size=2)
    assert found["outputs"][0]["data"] == [one.text for one in wanted]


def test_ids_give_sequences(server: Server, translator: Translator) -> None:
    rows = [[4, 5, 6, 2], [7, 8, 2, 0]]
    mask = [[1, 1, 1, 1], [1, 1, 1, 0]]
    answer = infer(server, ids_input(rows), ids_input(mask, "attention_mask"))
    (output,) = answer.json["outputs"]
    wanted = translator.generate([[4, 5, 6, 2], [7, 8, 2]], return_end_token=True)
    tokens = [one.hypotheses[0].tokens for one in wanted]
    longest = max(map(len, tokens))
    assert output["name"] == "sequences"
    assert output["shape"] == [2, longest]
    data = np.array(output["data"]).reshape(2, longest)
    assert data.tolist() == [[*row, *[0] * (longest - len(row))] for row in tokens]


def test_empty_batches_give_empty_ones(server: Server) -> None:
    (output,) = infer(server, text_input([])).json["outputs"]
    assert (output["shape"], output["data"]) == ([0], [])
    empty = {"name": "input_ids", "shape": [0, 4], "datatype": "INT64", "data": []}
    (output,) = infer(server, empty).json["outputs"]
    assert output["shape"] == [0, 0]


def pack(texts: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def binary(server: Server, call: Mapping[str, Any], raw: bytes, **headers: str) -> Answer:
    text = json.dumps(call).encode()
    given = {"Inference-Header-Content-Length": str(len(text)), **headers}
    return server.ask("POST", INFER, text + raw, given)


def test_binary_texts_give_binary_translations(server: Server, wanted: list[str]) -> None:
    raw = pack([text.encode() for text in TEXTS])
    call = {
        "inputs": [
            {"name": "text", "shape": [2], "datatype": "BYTES",
             "parameters": {"binary_data_size": len(raw)}},
        ],
        "outputs": [{"name": "translation", "parameters": {"binary_data": True}}],
    }  # fmt: skip
    answer = binary(server, call, raw)
    assert answer.status == 200, answer.body
    size = int(answer.headers["inference-header-content-length"])
    (output,) = json.loads(answer.body[:size])["outputs"]
    assert answer.body[size:] == pack([text.encode() for text in wanted])
    assert output["parameters"] == {"binary_data_size": len(answer.body) - size}


def test_binary_ids_give_sequences_in_json(server: Server, translator: Translator) -> None:
    raw = np.array([[4, 5, 2]], "<i8").tobytes()
    call = {"inputs": [{"name": "input_ids", "shape": [1, 3], "datatype": "INT64",
                        "parameters": {"binary_data_size": 24}}]}  # fmt: skip
    (output,) = binary(server, call, raw).json["outputs"]
    wanted = translator.generate([[4, 5, 2]], return_end_token=True)[0].hypotheses[0].tokens
    assert output["data"] == wanted


@pytest.mark.parametrize(
    ("raw", "size", "said"),
    [
        (pack([b"w4", b"w5"]), 11, "11 bytes together, and 12 follow"),
        (pack([b"w4"]), None, "has 2 elements, the data 1"),
        (b"\x09\0\0\0w4", None, "ends within text 0"),
        (pack([b"w4"]) + b"\0", None, "ends within the length of text 1"),
        (pack([b"\xff", b"w5"]), None, "text 0 is not UTF-8"),
        (pack([b"w4", b"w5"]), -1, "together"),
        (pack([b"w4", b"w5"]), True, "binary_data_size is a number"),
    ],
)
def test_wrong_binary_data_is_named(server: Server, raw: bytes, size: Any, said: str) -> None:
    given = len(raw) if size is None else size
    call = {"inputs": [{"name": "text", "shape": [2], "datatype": "BYTES",
                        "parameters": {"binary_data_size": given}}]}  # fmt: skip
    answer = binary(server, call, raw)
    assert answer.status == 400
    assert said in answer.json["error"]


@pytest.mark.parametrize("length", ["-1", "x", "99999999999999999999999", "1e3"])
def test_a_wrong_length_of_the_header_is_named(server: Server, length: str) -> None:
    headers = {**JSON, "Inference-Header-Content-Length": length}
    answer = server.ask("POST", INFER, b'{"inputs": []}', headers)
    assert answer.status == 400
    assert "Inference-Header-Content-Length" in answer.json["error"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({}, "inputs: is missing"),
        ({"inputs": [text_input(["w4"], [2])]}, "has 2 elements, the data 1"),
        ({"inputs": [text_input(["w4"], [1, 2])]}, "neither [N] nor [N, 1]"),
        ({"inputs": [text_input(["w4"], [-1])]}, "is not a shape"),
        ({"inputs": [text_input(["w4"], [1 << 62, 1])]}, "is not a shape"),
        ({"inputs": [{**text_input(["w4"]), "datatype": "FP32"}]}, "'FP32' is not BYTES"),
        ({"inputs": [{**text_input(["w4"]), "data": [None]}]}, "not all of the data is text"),
        ({"inputs": [{**text_input(["w4"]), "name": "words"}]}, "they are text, or input_ids"),
        ({"inputs": [text_input(["w4"])] * 2}, "they are text, or input_ids"),
        ({"inputs": [text_input(["w4"])], "outputs": [{"name": "score"}]}, "'score' is not there"),
        ({"inputs": [text_input(["w4"])], "parameters": {"beem_size": 1}}, "'beem_size'"),
        ({"inputs": [ids_input([[4, 99]])]}, "id 99 is not in the vocabulary"),
        ({"inputs": [ids_input([[4, True]])]}, "not all of the data are integers"),
        ({"inputs": [ids_input([[4, 1 << 70]])]}, "not INT64"),
        (
            {"inputs": [ids_input([[4, 5]]), ids_input([[0, 1]], "attention_mask")]},
            "rows are ones, and then zeros",
        ),
        (
            {"inputs": [ids_input([[4, 5]]), ids_input([[1]], "attention_mask")]},
            "is not that of input_ids",
        ),
        ({"inputs": [text_input(["w4"])], "parameters": {"priority": 1}}, "'priority'"),
    ],
)
def test_wrong_calls_are_named(server: Server, call: dict[str, Any], said: str) -> None:
    answer = server.post(INFER, call)
    assert answer.status == 400, answer.body
    assert list(answer.json) == ["error"]
    assert said in answer.json["error"]


def test_server_and_models_are_described(server: Server) -> None:
    assert "binary_tensor_data" in server.ask("GET", "/v2").json["extensions"]
    assert server.ask("GET", "/v2/health/live").status == 200
    assert server.ask("HEAD", "/v2/health/ready").status == 200
    assert server.ask("GET", "/v2/models/tiny/ready").json["ready"] is True
    found = server.ask("GET", "/v2/models/tiny").json
    assert found["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    answer = server.ask("GET", "/v2/models/none")
    assert (answer.status, answer.json) == (404, {"error": "no model 'none'; served: tiny"})


def test_models_without_a_tokenizer_take_ids(
    tiny_bundle: Path, tmp_path: Path, translator: Translator
) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "ids.bundle"))
    manifest = dataclasses.replace(read_manifest(bundle), tokenizers={})
    (bundle / MANIFEST).unlink()
    write_manifest(bundle, manifest)
    wanted = translator.generate([[4, 5, 2]], return_end_token=True)[0].hypotheses[0].tokens
    with serving(tmp_path, bundle) as server:
        found = server.ask("GET", "/v2/models/ids").json
        assert [one["name"] for one in found["inputs"]] == ["input_ids"]
        path = "/v2/models/ids/infer"
        answer = server.post(path, {"inputs": [ids_input([[4, 5, 2]])]})
        assert answer.json["outputs"][0]["data"] == wanted
        answer = server.post(path, {"inputs": [text_input(["w4"])]})
        assert answer.status == 400
        assert "holds no tokenizer" in answer.json["error"]
        for body in ({"texts": ["w4"]}, {"texts": ["w4"], "stream": True}):
            assert server.post("/v1/translate", body).status == 422
        scores = {"sources": ["w4"], "targets": ["w5"]}
        assert server.post("/v1/score", scores).status == 422
