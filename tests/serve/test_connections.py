"""Connections: what is no request, sends too much, too slowly, or takes nothing."""

import re
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.serve.overload import resident
from tests.serve.servers import Server, request_of, serving
from tfexport.serve import server as serve_server
from tfexport.serve.server import bind

HEAD = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
LAST = HEAD + b"Connection: close\r\n\r\n"
CHUNKED = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
TEXTS = b'{"texts": ["w4"]}'


@pytest.fixture(scope="module", name="own")
def _own(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose memory is measured."""
    with serving(tmp_path_factory.mktemp("own"), tiny_bundle, "--max-queue", 4) as running:
        yield running


def talk(server: Server, *parts: bytes, pause: float = 0.0, wait: float = 90.0) -> bytes:
    """What a server sends until it closes, or nothing came for a while."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as client:
        with suppress(ConnectionError):
            for part in parts:
                client.sendall(part)
                time.sleep(pause)
        with suppress(OSError):
            while part := client.recv(1 << 16):
                received += part
    return received


def statuses(received: bytes) -> list[int]:
    return [int(one) for one in re.findall(rb"HTTP/1\.1 (\d+) ", received)]


MANY = b"a: b\r\n" * 20_000


@pytest.mark.parametrize(
    "parts",
    [
        [HEAD, *[MANY] * 100],
        [HEAD + b"a: ", *[b"x" * 100_000] * 100],
        [CHUNKED + b"2\r\n{}\r\n0\r\n", *[MANY] * 100],  # trailers
        [CHUNKED + b"2;", *[b"a=b;" * 25_000] * 100],  # extensions of a chunk
    ],
    ids=["headers", "header", "trailers", "extensions"],
)
def test_what_does_not_end_is_cut_off(own: Server, parts: Sequence[bytes]) -> None:
    before = resident(own)
    begun = time.monotonic()
    assert statuses(talk(own, *parts)) in ([], [400], [431])
    assert time.monotonic() - begun < 60
    assert resident(own) < before + 64
    assert own.ask("GET", "/health/live").status == 200


def test_a_long_path_is_refused(own: Server) -> None:
    assert statuses(talk(own, b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")) == [414]


def test_requests_sent_ahead_wait_their_turn(own: Server) -> None:
    """However many a client sends, one is looked at; the others stay with the system."""
    slow = request_of(b'{"texts": ["%s"]}' % b"w4 w5. " * 2000)
    before = resident(own)
    clients = [socket.create_connection(("127.0.0.1", own.port)) for _ in range(20)]
    for client in clients:
        client.setblocking(False)
        with suppress(BlockingIOError):
            client.send(slow + b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 15_000)
    begun = time.monotonic()
    assert own.ask("GET", "/health/live").status == 200
    assert time.monotonic() - begun < 60
    assert own.figure("tfexport_active_requests") <= 21
    for client in clients:
        client.close()
    own.wait_idle()
    assert resident(own) < before + 64


def test_a_body_whose_request_offers_an_upgrade_is_read(own: Server) -> None:
    inner = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for offered in (b"h2c", b"websocket", b"x"):
        for body, status in ((TEXTS, 200), (inner, 422)):
            head = b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            head += b"Upgrade: %b\r\nContent-Length: %d\r\n\r\n" % (offered, len(body))
            assert statuses(talk(own, head, body, LAST, pause=0.1)) == [status, 200]


@pytest.mark.parametrize(
    "path", [b"/v1/models", b"/languages", b"/", b"/docs", b"/metrics", b"/nowhere"]
)
def test_head_has_no_body(own: Server, path: bytes) -> None:
    received = talk(own, b"HEAD " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", LAST)
    first, _, second = received.partition(b"\r\n\r\n")
    assert second.startswith(b"HTTP/1.1 200")
    assert statuses(first) == [own.ask("GET", path.decode()).status]
    assert re.search(rb"content-length: [1-9]", first)


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        (b"", 400),
        (b"Host:\r\n", 400),
        (b"Host: localhost\r\nHost: localhost\r\n", 400),
        (b"Host: localhost:1\r\n", 200),
        (b"Host: 127.0.0.1\r\n", 200),
        (b"Host: [::1]:8000\r\n", 200),
        (b"Host: a.localhost\r\n", 200),
        (b"Host: example.org\r\n", 421),
        (b"Host: localhost.example.org\r\n", 421),
    ],
)
def test_a_request_names_one_host_which_is_this_machine(
    own: Server, hosts: bytes, status: int
) -> None:
    received = talk(own, b"GET /v1/models HTTP/1.1\r\n" + hosts + b"Connection: close\r\n\r\n")
    assert statuses(received) == [status]


def test_http_1_0_needs_no_host(own: Server) -> None:
    assert b" 200 OK" in talk(own, b"GET /v1/models HTTP/1.0\r\n\r\n")


@pytest.mark.slow
def test_connections_beyond_the_limit_wait(tiny_bundle: Path, tmp_path: Path) -> None:
    with serving(tmp_path, tiny_bundle, "--max-connections", 2) as server:
        address = ("127.0.0.1", server.port)
        idle = [socket.create_connection(address, timeout=20) for _ in range(2)]
        for client in idle:
            client.sendall(HEAD + b"\r\n")
            assert statuses(client.recv(1 << 16)) == [200]
        with socket.create_connection(address, timeout=1) as third:
            third.sendall(HEAD + b"\r\n")
            with pytest.raises(TimeoutError):
                third.recv(1 << 16)
            idle[0].close()
            third.settimeout(20)
            assert statuses(third.recv(1 << 16)) == [200]
        idle[1].close()


@pytest.mark.slow
def test_heads_and_idle_connections_have_their_time(tiny_bundle: Path, tmp_path: Path) -> None:
    sent: Sequence[Sequence[bytes]] = (
        [], [HEAD], [HEAD, *[b"a: b\r\n"] * 30], [HEAD + b"\r\n"], [HEAD + b"\r\n", HEAD],
    )  # fmt: skip

    def time_of(parts: Sequence[bytes]) -> tuple[float, list[int]]:
        begun = time.monotonic()
        received = talk(server, *parts, pause=0.1)
        return time.monotonic() - begun, statuses(received)

    with (
        serving(tmp_path, tiny_bundle, program="tests.serve.short_times") as server,
        ThreadPoolExecutor(len(sent)) as pool,
    ):
        for seconds, found in pool.map(time_of, sent):
            assert 0.8 < seconds < 60
            assert found in ([], [408], [200], [200, 408])


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has none")
def test_a_client_that_takes_nothing_is_dropped_and_a_slow_one_is_not(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    text = "\n".join(["w4 w5 w6 w7 w8 w9"] * 400)
    body = b'{"texts": ["%s"], "options": {"return_attention": true, "min_length": 59, ' % (
        text.replace("\n", "\\n").encode()
    ) + b'"max_length": 60}}'  # fmt: skip
    with (
        serving(tmp_path, tiny_bundle, program="tests.serve.short_times") as server,
        socket.socket() as lazy,
        socket.socket() as slow,
    ):
        for client in (lazy, slow):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall(request_of(body))
        received = slow.recv(1 << 14)
        begun = time.monotonic()
        while time.monotonic() - begun < 6:
            received += slow.recv(1 << 14)
            time.sleep(0.02)
        length = int(re.findall(rb"content-length: (\d+)", received)[0])
        assert length > 1 << 20
        taken = 0
        with suppress(ConnectionError):
            while part := lazy.recv(1 << 20):
                taken += len(part)
        assert taken < length
        assert slow.recv(1)


def test_a_port_is_nobody_elses() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(Exception, match=rf"cannot listen on 127\.0\.0\.1:{port}"):
            bind("127.0.0.1", port)


def test_idle_connections_outlive_those_of_proxies() -> None:
    assert serve_server.HEAD_SECONDS > 60
