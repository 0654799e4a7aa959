"""Limits, keys, ids of requests, figures and the log."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.servers import FORM, JSON, Server, serving

KEY = "s3cret-ä"
OTHER = "another"


@pytest.fixture(scope="module", name="guarded")
def _guarded(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With keys and small limits."""
    folder = tmp_path_factory.mktemp("guarded")
    keys = folder / "keys.txt"
    keys.write_text(f"{KEY}\n\n{OTHER}\r\n", encoding="utf-8")
    options = ["--api-key-file", keys, "--languages", "tiny=de-en", "--max-texts", 2]
    options += ["--max-characters", 40, "--cors-origin", "https://example.org", "--timeout", 5]
    with serving(folder, tiny_bundle, *options) as running:
        yield running


Call = tuple[str, dict[str, Any]]
OWN: Call = ("/v1/translate", {"texts": ["w4"]})
DEEPL = ("/v2/translate", {"text": ["w4"], "target_lang": "EN"})
LIBRE = ("/translate", {"q": "w4", "source": "de", "target": "en"})
KSERVE = (
    "/v2/models/tiny/infer",
    {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["w4"]}]},
)


@pytest.mark.parametrize(
    ("call", "scheme", "status"),
    [(OWN, "Bearer", 401), (DEEPL, "DeepL-Auth-Key", 403), (KSERVE, "Bearer", 401)],
)
def test_keys_stand_in_the_header(
    guarded: Server, call: tuple[str, dict[str, Any]], scheme: str, status: int
) -> None:
    path, body = call
    for key in (KEY, OTHER):
        given = f"{scheme} {key}".encode().decode("latin-1")
        assert guarded.ask("POST", path, json.dumps(body), {**JSON, "Authorization": given}
                           ).status == 200  # fmt: skip
    wrong = ("", f"{scheme} ", f"{scheme} {KEY[:-1]}", f"{scheme} x", f"Basic {OTHER}")
    for given in (*wrong, scheme, OTHER):
        headers = {**JSON, "Authorization": given.encode().decode("latin-1")}
        assert guarded.ask("POST", path, json.dumps(body), headers).status == status
    assert guarded.post(path, body).status == status


def test_libretranslate_has_its_key_in_the_body(guarded: Server) -> None:
    path, body = LIBRE
    assert guarded.post(path, {**body, "api_key": KEY}).status == 200
    form = f"q=w4&source=de&target=en&api_key={OTHER}"
    assert guarded.ask("POST", path, form, FORM).status == 200
    for key in (None, "", "x"):
        answer = guarded.post(path, {**body, "api_key": key})
        assert (answer.status, list(answer.json)) == (403, ["error"])
    assert guarded.ask("GET", "/languages").status == 403
    assert guarded.ask("GET", f"/languages?api_key={OTHER}").status == 200
    assert guarded.ask("GET", "/frontend/settings").json["keyRequired"] is True


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics", "/v2/health/live",
                                  "/docs", "/openapi.json", "/"])  # fmt: skip
def test_probes_and_pages_need_no_key(guarded: Server, path: str) -> None:
    assert guarded.ask("GET", path).status == 200


@pytest.mark.parametrize("path", ["/v1/models", "/v2/usage", "/v2", "/v2/models/tiny"])
def test_everything_else_does(guarded: Server, path: str) -> None:
    assert guarded.ask("GET", path).status in (401, 403)


def test_without_keys_any_is_ignored(server: Server) -> None:
    assert server.post(*OWN, Authorization="Bearer x").status == 200
    assert server.post("/translate", {**LIBRE[1], "api_key": "x"}).status == 200


def test_keys_and_texts_are_not_in_the_log(guarded: Server) -> None:
    secret = {"texts": ["w4 w5 w6"], "options": {"target_prefix": "w10 w11"}}
    good = guarded.post("/v1/translate", secret, Authorization=f"Bearer {OTHER}")
    guarded.ask("GET", f"/languages?api_key={OTHER}")
    wrong = {"texts": ["w4"], "options": {"suppress_tokens": ["w10 w11"], "w10 w11": 1}}
    said = guarded.post("/v1/translate", wrong, Authorization=f"Bearer {OTHER}")
    assert b"w10 w11" in said.body
    last = guarded.wait_for_line(good.headers["x-request-id"])
    refused = guarded.wait_for_line(said.headers["x-request-id"])
    log = guarded.log.read_text()
    assert not any(word in log for word in (OTHER, KEY, "w5 w6", "w10 w11"))
    assert (refused["status"], refused["problem"]) == (422, "an invalid request: suppress_tokens")
    assert (last["status"], last["texts"], last["characters"], last["model"]) == (200, 1, 8, "tiny")
    assert last["seconds"] > 0


def limited(guarded: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": f"{'DeepL-Auth-Key' if path[:4] == '/v2/' else 'Bearer'} {OTHER}"}
    answer = guarded.post(path, body, **headers)
    assert answer.status == 413, answer.body
    found: dict[str, Any] = answer.json
    return found


def test_too_much_is_refused_with_the_limit(guarded: Server) -> None:
    found = limited(guarded, "/v1/translate", {"texts": ["w4"] * 3})
    assert found["error"] == "3 texts are more than the 2 of a request"
    found = limited(guarded, "/v1/translate", {"texts": ["w4 " * 20] * 3})
    assert len(found["problems"]) == 2
    found = limited(guarded, "/v1/score", {"sources": ["w4" * 11], "targets": ["w4" * 11]})
    assert "44 characters are more than the 40" in found["error"]
    found = limited(guarded, "/v2/translate", {"text": ["w4"] * 3, "target_lang": "EN"})
    assert "3 texts" in found["message"]
    libre = {"q": "w4" * 30, "target": "en", "api_key": KEY}
    assert "60 characters" in limited(guarded, "/translate", libre)["error"]


def test_long_rows_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    with serving(tmp_path, tiny_bundle, "--max-tokens", 20) as server:
        short = server.post("/v1/translate", {"texts": ["w4 w5"], "options": {"min_length": 19}})
        assert short.status == 200
        assert len(short.json["translations"][0]["tokens"]) <= 20
        asked = {"texts": ["w4"], "options": {"max_length": 21}}
        answer = server.post("/v1/translate", asked)
        assert answer.status == 422
        assert answer.json["error"] == "max_length: 21 is more than the 20 tokens of a row here"
        answer = server.post("/v1/translate", {"texts": ["w4", "w4 " * 30]})
        assert answer.status == 422
        assert "row 1: 31 tokens exceed the limit of 20" in answer.json["error"]
        for pair in ({"sources": ["w4 " * 30], "targets": ["w4"]},
                     {"sources": ["w4"], "targets": ["w4 " * 30]}):  # fmt: skip
            assert server.post("/v1/score", pair).status == 422
        rows = {"name": "input_ids", "shape": [1, 30], "datatype": "INT64", "data": [4] * 30}
        path = f"/v2/models/{tiny_bundle.name.removesuffix('.bundle')}/infer"
        assert server.post(path, {"inputs": [rows]}).status == 400
        parameters = {"inputs": [{**rows, "shape": [1, 5], "data": [4] * 5}],
                      "parameters": {"max_length": 21}}  # fmt: skip
        assert server.post(path, parameters).status == 400


def raw(server: Server, *parts: bytes, pause: float = 0.0) -> bytes:
    """Send bytes as they are, and read the response to its end."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
            received = b""
            while piece := connection.recv(65536):
                received += piece
        except ConnectionError:
            pass
        return received


HEAD = b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_long_bodies_are_refused_before_they_are_read(server: Server) -> None:
    head = HEAD + b"Content-Length: 999999999999999999999\r\n\r\n"
    assert b" 400 " in raw(server, head)[:20] or b" 413 " in raw(server, head)[:20]
    assert raw(server, HEAD + b"Content-Length: 2000000\r\n\r\n").startswith(b"HTTP/1.1 413")


def test_bodies_without_a_length_are_refused_where_they_become_too_long(server: Server) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    answer = raw(server, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", chunk * 30)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 413")
    server.wait_idle()


@pytest.mark.parametrize("framing", [b"Content-Length: 2000000", b"Transfer-Encoding: chunked"])
def test_a_client_that_still_sends_gets_its_answer(server: Server, framing: bytes) -> None:
    parts = [b" " * 100_000] * 20
    if b"chunked" in framing:
        parts = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts] + [b"0\r\n\r\n"]
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(HEAD + framing + b"\r\n\r\n")
        for part in parts:
            time.sleep(0.02)
            client.sendall(part)
        received = b""
        while part := client.recv(1 << 16):
            received += part
    assert received.startswith(b"HTTP/1.1 413")
    assert b"the body has more than" in received


def test_half_a_body_is_given_up(guarded: Server) -> None:
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"
    begun = time.monotonic()
    assert raw(guarded, head).startswith(b"HTTP/1.1 408")
    assert 4 < time.monotonic() - begun < 25  # the socket itself gives up after 30


def test_compressed_bodies_are_refused(server: Server) -> None:
    answer = server.ask("POST", "/v1/translate", b"xx", {**JSON, "Content-Encoding": "gzip"})
    assert answer.status == 415
    assert "gzip" in answer.json["error"]
    assert server.post(OWN[0], OWN[1], **{"Content-Encoding": "identity"}).status == 200


def test_other_charsets_are_refused(server: Server) -> None:
    headers = {"Content-Type": "application/json; charset=utf-16"}
    assert server.ask("POST", "/v1/translate", b"{}", headers).status == 415


@pytest.mark.parametrize("path", ["/", "/page/main.js", "/v1/models", "/metrics", "/nowhere"])
def test_browsers_believe_what_answers_are(server: Server, path: str) -> None:
    assert server.ask("GET", path).headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/page/main.js"])
def test_browsers_ask_again_for_the_page(server: Server, path: str) -> None:
    answer = server.ask("GET", path)
    assert answer.headers["cache-control"] == "no-cache"
    same = {"If-None-Match": answer.headers["etag"]}
    if path != "/":
        again = server.ask("GET", path, None, same)
        assert (again.status, again.headers["cache-control"]) == (304, "no-cache")


def test_request_ids_come_back(server: Server) -> None:
    assert (
        server.post(OWN[0], OWN[1], **{"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    )
    for odd in ("a b", "x" * 200, "é"):
        made = server.post(OWN[0], OWN[1], **{"X-Request-Id": odd}).headers["x-request-id"]
        assert len(made) == 16
    assert server.wait_for_line(made)["route"] == "/v1/translate"


def test_other_origins_are_let_in_only_if_asked_for(server: Server, guarded: Server) -> None:
    preflight = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    allowed = guarded.ask("OPTIONS", "/v1/translate", None, preflight)
    assert allowed.headers["access-control-allow-origin"] == "https://example.org"
    elsewhere = {**preflight, "Origin": "https://example.com"}
    for answer in (
        guarded.ask("OPTIONS", "/v1/translate", None, elsewhere),
        server.ask("OPTIONS", "/v1/translate", None, preflight),
        server.post(*OWN, Origin="https://example.org"),
    ):
        assert "access-control-allow-origin" not in answer.headers


def test_figures_count_requests_and_tokens(server: Server) -> None:
    labels = {"route": "/v1/translate", "code": "200", "model": "tiny"}
    before = server.figure("tfexport_requests_total", **labels)
    tokens = server.figure("tfexport_generated_tokens_total")
    sources = server.figure("tfexport_source_tokens_total")
    made = server.post(*OWN).json["translations"][0]["tokens"]
    server.wait_idle()
    assert server.figure("tfexport_requests_total", **labels) == before + 1
    assert server.figure("tfexport_generated_tokens_total") >= tokens + len(made)
    assert server.figure("tfexport_source_tokens_total") == sources + 2  # with the end token
    assert server.figure("tfexport_slots", model="tiny") == 32


@pytest.mark.parametrize(
    "name",
    [
        "tfexport_requests_total", "tfexport_request_seconds", "tfexport_queue_rows",
        "tfexport_queue_seconds", "tfexport_batch_rows", "tfexport_slots",
        "tfexport_generated_tokens_total", "tfexport_source_tokens_total",
        "tfexport_time_to_first_token_seconds",
    ],
)  # fmt: skip
def test_every_figure_is_there(server: Server, name: str) -> None:
    server.post(*OWN)
    text = server.ask("GET", "/metrics").body.decode()
    kind = "histogram" if name.endswith(("seconds", "batch_rows")) else None
    assert f"# HELP {name}" in text
    if kind:
        assert f"# TYPE {name} {kind}" in text
        assert server.figure(f"{name}_count") > 0


def test_unknown_paths_make_no_series_of_their_own(server: Server) -> None:
    server.ask("GET", "/some/odd/path")
    assert "odd" not in server.ask("GET", "/metrics").body.decode()


def test_documentation_needs_no_network(server: Server) -> None:
    page = server.ask("GET", "/docs").body.decode()
    assert "POST /v1/translate" in page
    assert "http" not in page.replace("html", "")
    paths = server.ask("GET", "/openapi.json").json["paths"]
    for path in ("/v1/translate", "/translate", "/v2/translate", "/v2/models/{name}/infer"):
        content = paths[path]["post"]["requestBody"]["content"]
        assert content["application/json"]["schema"]["properties"]
