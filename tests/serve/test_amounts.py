"""Single requests within the documented limits that ask for a great amount of work."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.serve.fuzz_requests import run
from tests.serve.probe import probing
from tests.serve.servers import FORM, JSON, Server, request_of, serving, wait_until
from tests.support.combinations import few_of
from tfexport.serve import request_log
from tfexport.serve.bodies import form_fields
from tfexport.serve.failures import MOST_PROBLEMS, RequestError, wrong
from tfexport.serve.protocols.kserve import _rows

SECRET = "secret-key"
NAME = "translate.example.org"


@pytest.fixture(scope="module", name="keyed")
def _keyed(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "keys.txt").write_text(f"{SECRET}\n")
    options = ["--api-key-file", folder / "keys.txt", "--languages", "tiny=de-en"]
    with serving(folder, tiny_bundle, *options, "--allowed-host", NAME) as running:
        yield running


def many(one: str, count: int) -> str:
    return "[" + ",".join([one] * count) + "]"


def names(count: int) -> str:
    return "{" + ",".join(f'"k{place}":1' for place in range(count)) + "}"


def own(options: str) -> str:
    return f'{{"texts":["w4"],"options":{options}}}'


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/v1/translate", own(names(90_000)), 422, "90000 names; 64 at most"),
        ("/v1/translate", names(90_000), 422, "90000 names; 64 at most"),
        ("/v1/translate", f'{{"texts":{many("1", 500_000)}}}', 422, r"texts\[0\]"),
        (
            "/v1/translate",
            own(f'{{"suppress_sequences":{many("[1]", 200_000)}}}'),
            422,
            "1000 items",
        ),
        ("/v1/translate", own(f'{{"end_tokens":{many("1", 500_000)}}}'), 422, "1000 items"),
        ("/v1/translate", own(f'{{"first_token":"{"a" * 900_000}"}}'), 422, "2000 at most"),
        ("/v1/translate", own(f'{{"target_prefix":"{"a" * 900_000}"}}'), 413, "900002 characters"),
        ("/v1/translate", own(f'{{"target_prefix":[{many("4", 400_000)}]}}'), 413, "400002"),
        ("/v1/pieces", f'{{"text":"w4","tokens":[{many("4", 400_000)}]}}', 413, "400002"),
        ("/v1/pieces", f'{{"text":"w4","tokens":{many("1", 400_000)}}}', 422, r"tokens\[0\]"),
        ("/translate", f'{{"target":"en","q":{many("1", 500_000)}}}', 400, r"\[0\]"),
        ("/v2/translate", f'{{"target_lang":"EN","text":{many("1", 500_000)}}}', 400, r"text\[0\]"),
        (
            "/v2/models/tiny/infer",
            f'{{"inputs":[],"parameters":{names(90_000)}}}',
            400,
            "64 at most",
        ),
    ],
)
def test_amounts_that_nobody_needs_are_refused_in_short(
    server: Server, path: str, body: str, status: int, said: str
) -> None:
    begun = time.monotonic()
    answer = server.ask("POST", path, body, JSON)
    assert time.monotonic() - begun < 60  # what is looked at whole takes longer
    assert (answer.status, len(answer.body) < 5000) == (status, True)
    assert re.search(said, answer.body.decode())
    assert b"more problems" not in answer.body  # of a list, what is wrong first is looked for


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ([10**11, 0], []), ([10**30, 0], []), ([0, 10**30], []), ([2**32, 2**32], []),
        ([-1, -1], [1]), ([3, 0], []), ([10**6, 1], [4] * 300_000), ([300_000, 1], [4] * 300_000),
        ([1, 10**600], [1]),
    ],
)  # fmt: skip
def test_shapes_of_no_batch_are_refused(server: Server, shape: list[int], data: list[int]) -> None:
    tensor = {"name": "input_ids", "shape": shape, "datatype": "INT64", "data": data}
    answer = server.post("/v2/models/tiny/infer", {"inputs": [tensor]})
    assert answer.status in (400, 413)
    assert len(answer.body) < 500
    text = {"name": "text", "shape": shape, "datatype": "BYTES", "data": []}
    answer = server.post("/v2/models/tiny/infer", {"inputs": [text]})
    assert answer.status in (400, 413)
    assert len(answer.body) < 500


def test_rows_are_counted_before_they_are_lists() -> None:
    with pytest.raises(RequestError, match="3 rows are more than the 2 of a request"):
        _rows(2, {"input_ids": np.zeros((3, 1), np.int64)})


def test_a_key_is_read_before_anything_else(keyed: Server) -> None:
    wrong_fields = {"q": 1, "colour": "red"}
    answer = keyed.post("/translate", wrong_fields)
    assert (answer.status, "api_key" in answer.json["error"]) == (403, True)
    assert keyed.post("/translate", {**wrong_fields, "api_key": SECRET}).status == 400
    for path, body in (("/translate", "q=&colour=1"), ("/languages", "a=%41&" * 200_000)):
        method = "GET" if path == "/languages" else "POST"
        assert keyed.ask(method, path, body, FORM).status == 403


def test_fields_of_a_form_are_counted_before_they_are_read() -> None:
    with pytest.raises(RequestError, match="more than 32 fields"):
        form_fields(b"a=%41&" * 200_000, 32)


def test_of_many_problems_some_are_told_and_all_are_counted() -> None:
    failure = wrong([f"a: {place}" for place in range(1000)])
    assert len(failure.problems) == MOST_PROBLEMS + 1
    assert failure.problems[-1] == "and 980 more problems"


def test_problems_of_options_are_told_one_by_one(server: Server) -> None:
    body = {"texts": ["w4"], "options": {"beam_size": 0, "colour": 1}}
    problems = server.post("/v1/translate", body).json["problems"]
    assert len(problems) == 2
    assert any(one.startswith("beam_size: ") for one in problems)
    assert any("'colour'" in one for one in problems)


def test_the_log_names_what_was_wrong_and_quotes_nothing(server: Server) -> None:
    body = {"texts": "secret one", "secret two": 1, "options": {"beam_size": "secret three"}}
    answer = server.post("/v1/translate", body)
    line = server.wait_for_line(answer.headers["x-request-id"])
    assert line["problem"].startswith("an invalid request: texts")
    assert "secret" not in json.dumps(line)


def test_many_hypotheses_take_their_number_times_one(tiny_bundle: Path, tmp_path: Path) -> None:
    """Their time was that times their number again; no deadline ended it."""
    text = "w4 w5 w6 " * 12
    options = {"return_attention": True, "min_length": 50, "max_length": 60}
    wide = {"beam_size": 16, "num_hypotheses": 16}
    with serving(tmp_path, tiny_bundle, "--timeout", 20) as server:
        body = {"texts": [text] * 8, "options": {**options, **wide}}
        one = server.post("/v1/translate", {"texts": [text], "options": {**options, **wide}}).json
        hypotheses = one["translations"][0]["hypotheses"]
        assert len(hypotheses) == 16
        assert len({json.dumps(found["tokens"]) for found in hypotheses}) == 16
        assert all(len(found["attention"]) == len(found["tokens"]) for found in hypotheses)
        assert hypotheses[0] == {name: one["translations"][0][name] for name in hypotheses[0]}
        with probing(server.port) as waits:
            assert server.post("/v1/translate", body).status == 200
        assert waits.longest < 5


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://example.org"}, 403),  # a Blob without a type
        ({"Origin": "null"}, 403),
        ({"Origin": "https://example.org", **FORM}, 403),
        ({"Origin": "https://example.org", "Content-Type": "text/plain"}, 403),
        ({"Origin": "https://example.org", "Sec-Fetch-Site": "cross-site", **JSON}, 403),
        ({"Origin": "http://localhost:1", "Sec-Fetch-Site": "same-site", **JSON}, 403),
        ({"Origin": "https://public", "Sec-Fetch-Site": "same-origin", **JSON}, 200),
        ({"Origin": "http://localhost:7", "Host": "localhost:7", **JSON}, 200),
        ({"Origin": "http://localhost:7", "Host": "localhost:7"}, 200),
        ({"Origin": "https://example.org", **JSON}, 200),  # the browser has asked before
        ({}, 200),  # no browser
    ],
)
def test_pages_of_other_origins_cannot_have_texts_translated(
    server: Server, headers: dict[str, str], status: int
) -> None:
    answer = server.ask("POST", "/v1/translate", b'{"texts": ["w4"]}', headers)
    assert answer.status == status


def test_a_server_may_have_names(keyed: Server) -> None:
    key = {"Authorization": f"Bearer {SECRET}"}
    for host, status in ((NAME, 200), ("example.org", 421)):
        assert keyed.ask("GET", "/v1/models", headers={"Host": host, **key}).status == status
    answer = keyed.ask("GET", "/v1/models", headers={"Host": "example.org", **key})
    assert "allowed-host" in answer.json["error"]


@pytest.mark.parametrize("path", ["/page", "/v1/models/", "/languages/", "/docs/"])
def test_nothing_is_redirected(server: Server, path: str) -> None:
    """A redirect would repeat whatever host was named, and say http behind TLS."""
    assert server.ask("GET", path).status in (200, 404, 405)


def test_statistics_are_elsewhere(server: Server) -> None:
    for path in ("/v2/models/stats", "/v2/models/tiny/stats"):
        answer = server.ask("GET", path)
        assert (answer.status, "/metrics" in answer.json["error"]) == (404, True)


def test_model_probes_need_no_key(keyed: Server) -> None:
    assert keyed.ask("GET", "/v2/models/tiny/ready").status == 200
    assert keyed.ask("GET", "/v2/models/tiny").status == 401


def test_compressed_bodies_are_named_plainly(server: Server) -> None:
    answer = server.ask("POST", "/v1/translate", b"x", {**JSON, "Content-Encoding": "gzip"})
    assert "Content-Encoding 'gzip':" in answer.json["error"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="pipes and signals of POSIX")
@pytest.mark.parametrize("kind", few_of(["gone", "unread"], "unread"))
def test_a_log_that_cannot_be_written_holds_up_nobody(tiny_bundle: Path, kind: str) -> None:
    read, written = os.pipe()
    command = [sys.executable, "-m", "tfexport", "serve", str(tiny_bundle), "--port", "0"]
    process = subprocess.Popen([*command, "--threads", "1"], stderr=written)
    os.close(written)
    try:
        said = b""
        while not (found := re.search(rb" at http://[\d.]+:(\d+)\n", said)):
            part = os.read(read, 1 << 16)
            assert part, said
            said += part
        server = Server(process, int(found[1]), Path(os.devnull))
        if kind == "gone":
            os.close(read)
        number = "x" * 120
        for _ in range(400):  # more lines than a pipe holds
            answer = server.ask("GET", "/nowhere", headers={"X-Request-Id": number})
            assert answer.status == 404
        assert server.post("/v1/translate", {"texts": ["w4"]}).status == 200
        wait_until(lambda: server.figure("tfexport_running_rows") == 0)  # it is answered before
        long = json.dumps({"texts": ["\n".join(["w4 w5 w6 w7"] * 40)]}).encode()
        answers: list[int] = []
        asking = threading.Thread(
            target=lambda: answers.append(server.ask("POST", "/v1/translate", long, JSON).status)
        )
        asking.start()
        wait_until(lambda: bool(answers) or server.figure("tfexport_running_rows") > 0)
        server.signal(signal.SIGTERM)
        assert process.wait(60) == 0
        asking.join()
        assert answers == [200]
    finally:
        process.kill()
        process.wait()
        if kind == "unread":
            os.close(read)


def test_lines_that_could_not_be_written_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        writer = request_log._Writer(file.fileno())
        writer._lost = 7
        writer.add('{"event": "a"}')
        writer.end()
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["event"], first["lines"], second["event"]) == ("lost", 7, "a")


@pytest.mark.no_model
@pytest.mark.parametrize("text", ["é\u2028\x85", "\x9b2J", "\ud800", "a\nb"])
def test_callers_can_neither_end_a_line_nor_steer_a_terminal(
    capsys: pytest.CaptureFixture[str], text: str
) -> None:
    request_log.write("refused", problem=text, path=Path("x"))
    written = capsys.readouterr().err
    assert written.isascii()
    (line,) = written.splitlines()
    assert (json.loads(line)["problem"], json.loads(line)["path"]) == (text, "x")


def test_lines_are_written_together_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several processes may share a pipe, which takes 4,096 bytes of one without another's."""
    lines = [json.dumps({"number": place, "text": "x" * (place * 7)}) for place in range(99)]
    lines[50] = "y" * 5000
    written, failing, write = list[bytes](), set[bytes](), os.write

    def noted(number: int, data: bytes) -> int:
        if number != -1:
            return write(number, data)
        if data in failing:
            raise OSError
        written.append(data)
        return len(data)

    def write_all() -> int:
        """Write all lines in this thread; return how many are lost."""
        writer = request_log._Writer(-1)
        for line in (*lines, None):
            writer._lines.put(line)
        writer._run()
        return writer._lost

    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    monkeypatch.setattr(os, "write", noted)
    assert write_all() == 0
    assert b"".join(written) == "".join(f"{line}\n" for line in lines).encode()
    assert all(each.endswith(b"\n") for each in written)
    assert all(len(each) <= 4096 or each.count(b"\n") == 1 for each in written)
    assert len(written) < 20
    missing = written.pop(1)
    failing, expected = {missing}, [*written]
    written.clear()
    assert write_all() == missing.count(b"\n")
    assert written == expected


def test_lines_that_nobody_takes_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_MOST_WAITING", 3)
    read, written = os.pipe()
    writer = request_log._Writer(written)
    line = "x" * (1 << 20)  # more than a pipe holds

    def add() -> None:
        for _ in range(9):
            writer.add(line)

    adding = threading.Thread(target=add, daemon=True)
    adding.start()
    adding.join(60)
    waits = adding.is_alive()
    os.close(read)  # which ends all waiting
    adding.join(60)
    writer.end()
    os.close(written)
    assert not waits
    assert writer._lost == 9


def test_clients_that_leave_a_stream_leave_nothing_in_the_log(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    body = json.dumps({"texts": ["w4 w5 w6 " * 15], "stream": True}).encode()
    with serving(tmp_path, tiny_bundle) as server:
        for count in range(0, 90, 3):
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(request_of(body))
                for _ in range(count):
                    client.recv(1)
        server.wait_idle()
        assert server.end() == 0
        log = server.log.read_text()
        assert '"level":"error"' not in log
        assert "destroyed" not in log


@pytest.mark.slow
def test_drawn_requests_are_no_fault_of_the_server(tiny_bundle: Path, tmp_path: Path) -> None:
    """`make fuzz-serve` draws 20,000 of them, and measures."""
    with serving(tmp_path, tiny_bundle, "--languages", "tiny=de-en", "--timeout", 20) as server:
        with probing(server.port) as waits:
            found = run(server, 300)
        server.wait_idle()
        log = server.log.read_text()
        assert server.end() == 0
    assert not found.problems
    assert found.statuses[200] > 60
    assert "Traceback" not in log
    assert '"fault"' not in log
    assert not waits.failures
    assert waits.longest < 60
