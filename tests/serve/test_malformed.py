"""Malformed requests never cost more than themselves. MALFORMED says how many are drawn."""

import contextlib
import http.client
import os
import random
import re
import socket
from collections import Counter
from pathlib import Path

import pytest

from tests.serve.malformed import Drawn, draw
from tests.serve.servers import Server, serving

DRAWN = int(os.environ.get("MALFORMED", "600"))
GROWTH = 48 << 20  # bytes that a process may come to need for its first requests


def send(connection: http.client.HTTPConnection, drawn: Drawn) -> tuple[int, bytes]:
    connection.putrequest(drawn.method, drawn.path, skip_accept_encoding=True)
    for name, value in drawn.headers.items():
        connection.putheader(name, value.encode("latin-1"))
    connection.putheader("Content-Length", str(len(drawn.body)))
    connection.endheaders(drawn.body)
    response = connection.getresponse()
    return response.status, response.read()


def resident(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


@pytest.mark.slow
def test_no_request_is_a_fault_of_the_server(tiny_bundle: Path, tmp_path: Path) -> None:
    codes: Counter[int] = Counter()
    options = ["--languages", "tiny=de-en", "--timeout", 20, "--glossaries", tmp_path / "kept"]
    with serving(tmp_path, tiny_bundle, *options) as server:
        connection = server.connect()
        before = 0
        for seed in range(DRAWN):
            drawn = draw(random.Random(seed))
            try:
                status, body = send(connection, drawn)
            except (OSError, http.client.HTTPException):
                # Refused without reading it all, and closed.
                connection.close()
                continue
            assert status < 500, (seed, drawn, body)
            assert status < 400 or drawn.method == "HEAD" or body, (seed, drawn)
            codes[status] += 1
            if seed == DRAWN // 3:
                before = resident(server)
        connection.close()
        server.wait_idle()
        grown = resident(server) - before
        log = server.log.read_text()
        assert "Traceback" not in log
        assert '"event":"fault"' not in log
        assert grown < GROWTH, grown
        assert server.end() == 0
    assert sum(codes.values()) > 0.95 * DRAWN
    assert codes[200] > DRAWN // 20
    assert codes[422] + codes[400] > DRAWN // 4


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /x%00%ff HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nBad Header: x\r\n\r\n",
        b"POST /v1/translate HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/translate HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /v1/translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20000 + b"\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(server: Server, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        received = b""
        with contextlib.suppress(OSError):
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                received += piece
    assert not re.match(rb"HTTP/1.1 5", received), received
    assert server.ask("GET", "/health/live").status == 200
    log = server.log.read_text()
    assert "Traceback" not in log
    assert '"event":"fault"' not in log
