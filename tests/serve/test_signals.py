"""The life of a server: full queues, deadlines, clients that leave, SIGTERM and SIGHUP."""

import asyncio
import contextlib
import http.client
import json
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.serve.servers import JSON, Answer, Server, request_of, serving, wait_until
from tfexport.runtime import Translator
from tfexport.serve.server import handling_signals

pytestmark = pytest.mark.slow

# As slow as the tiny model can be: many rows, long, and in few slots.
SLOW: dict[str, Any] = {"texts": ["\n".join(["w4 w5 w6 w7"] * 15)] * 4, "options": {"beam_size": 4}}


@pytest.fixture(scope="module", name="narrow")
def _narrow(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Of few slots and a short queue, which tests fill and leave empty."""
    folder = tmp_path_factory.mktemp("narrow")
    with serving(folder, tiny_bundle, "--slots", 4, "--max-queue", 2) as running:
        yield running


def test_a_full_queue_says_when_to_come_again(narrow: Server) -> None:
    with ThreadPoolExecutor(12) as pool:
        body = {"texts": SLOW["texts"]}
        answers = list(pool.map(lambda _: narrow.post("/v1/translate", body), range(12)))
    refused = [answer for answer in answers if answer.status == 503]
    assert {answer.status for answer in answers} == {200, 503}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert len({answer.body for answer in answers if answer.status == 200}) == 1
    narrow.wait_idle()
    assert narrow.post("/v1/translate", {"texts": ["w4"]}).status == 200


def test_late_requests_leave(tiny_bundle: Path, tmp_path: Path) -> None:
    options = ["--timeout", 0.2, "--slots", 4, "--max-texts", 9000, "--max-characters", 10_000_000]
    scores = {"sources": ["w4 w5"] * 9000, "targets": ["w4 " * 60] * 9000}
    with serving(tmp_path, tiny_bundle, *options) as server:
        for path, body in (("/v1/translate", SLOW), ("/v1/score", scores)):
            answer = server.post(path, body)
            assert answer.status == 504
            assert "time" in answer.json["error"]
            server.wait_idle(10.0)
        answer = server.post("/v1/translate", {"texts": [LONG], "stream": True})
        if answer.status == 200:  # the time was over after the first event
            last = answer.body.decode().strip().rpartition("\n\n")[2].removeprefix("data: ")
            assert json.loads(last)["status"] == 504, last
        else:
            assert answer.status == 504


def leave(server: Server, sent: bytes, wait: float) -> None:
    """Send bytes, wait, and close the connection."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(sent)
        time.sleep(wait)


def test_clients_that_leave_free_their_slots(tiny_bundle: Path, tmp_path: Path) -> None:
    with serving(tmp_path, tiny_bundle, "--slots", 4) as server:
        whole = request_of(json.dumps(SLOW).encode())
        stream = {"texts": [LONG], "stream": True}
        streamed = request_of(json.dumps(stream).encode())
        begun = time.monotonic()
        server.post("/v1/translate", SLOW)
        alone = time.monotonic() - begun
        for sent in (b"", whole[:20], whole[:200], whole, streamed):
            for wait in (0.0, 0.05, 0.2):
                for _ in range(2):
                    leave(server, sent, wait)
        # All together are done long before they would be, had nobody left.
        server.wait_idle(max(5.0, 3 * alone))
        gone = [line for line in server.lines() if line.get("status") == 499]
        assert len(gone) >= 8
        assert server.post("/v1/translate", {"texts": ["w4"]}).status == 200


def test_a_slow_reader_holds_up_nobody(server: Server) -> None:
    stream = {"texts": [LONG], "stream": True}
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request_of(json.dumps(stream).encode()))
        for _ in range(20):
            assert server.post("/v1/translate", {"texts": ["w4"]}).status == 200
    server.wait_idle()


def test_slow_senders_keep_nobody_out(narrow: Server) -> None:
    half = request_of(b"x" * 100)[:-50]
    with contextlib.ExitStack() as senders:
        for _ in range(20):
            address = ("127.0.0.1", narrow.port)
            sender = senders.enter_context(socket.create_connection(address))
            sender.sendall(half)
        wait_until(lambda: narrow.figure("tfexport_active_requests") > 20)
        assert narrow.post("/v1/translate", {"texts": ["w4"]}).status == 200
        assert narrow.ask("GET", "/").status == 200


class Load:
    """Clients that ask for translations until they are told to stop."""

    def __init__(self, server: Server, clients: int = 6) -> None:
        self._server, self._stop = server, threading.Event()
        self.answers: list[Answer] = []
        self.lost: list[Exception] = []  # accepted, and not answered
        self.refused = 0  # connections
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            connection = self._server.connect()
            try:
                connection.connect()
            except OSError:
                self.refused += 1
                time.sleep(0.01)
                continue
            try:
                connection.request("POST", "/v1/translate", BODY, JSON)
                response = connection.getresponse()
                headers = dict(response.headers)
                self.answers.append(Answer(response.status, headers, response.read()))
                time.sleep(0.0 if response.status == 200 else 0.1)
            except (OSError, http.client.HTTPException) as error:
                self.lost.append(error)
            finally:
                connection.close()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


LONG = "\n".join(["w4 w5"] * 2000)  # of one text
BODY = b'{"texts": ["w4 w5 w6\\nw7 w8", "w9"], "options": {"beam_size": 3}}'


@pytest.fixture(name="expected")
def _expected(translator: Translator) -> list[str]:
    first, second, third = translator.translate(["w4 w5 w6", "w7 w8", "w9"], beam_size=3)
    return [f"{first.text}\n{second.text}", str(third.text)]


def test_sigterm_answers_everything_that_was_accepted(
    tiny_bundle: Path, tmp_path: Path, expected: list[str]
) -> None:
    with serving(tmp_path, tiny_bundle, "--languages", "tiny=de-en") as server:
        # It comes in the middle of a long answer, too.
        pool = ThreadPoolExecutor(1)
        body = {**SLOW, "texts": SLOW["texts"] * 2}
        long = pool.submit(server.post, "/v1/translate", body)
        wait_until(lambda: server.figure("tfexport_running_rows") > 0)
        load = Load(server)
        wait_until(lambda: len(load.answers) > 20)
        assert not long.done()
        assert server.end() == 0
        load.stop()
        assert long.result().status == 200
        assert {answer.status for answer in load.answers} <= {200, 503}
        right = [answer for answer in load.answers if answer.status == 200]
        assert len(right) > 10
        for answer in right:
            assert [one["text"] for one in answer.json["translations"]] == expected
        for answer in load.answers:
            assert answer.status == 200 or answer.headers["retry-after"] == "1"
        written = [line for line in server.lines() if line.get("route") == "/v1/translate"]
        # A connection that the system had accepted, and the server not yet, may be reset.
        assert len(written) == len(load.answers) + 1
        assert "Traceback" not in server.log.read_text()


def test_a_stopping_server_is_not_ready(tiny_bundle: Path, tmp_path: Path) -> None:
    with serving(tmp_path, tiny_bundle, "--slots", 4) as server:
        assert server.ask("GET", "/health/ready").status == 200
        with ThreadPoolExecutor(1) as pool:
            body = {**SLOW, "texts": SLOW["texts"][:2]}
            long = pool.submit(server.post, "/v1/translate", body)
            wait_until(lambda: server.figure("tfexport_running_rows") > 0)
            server.signal(signal.SIGTERM)
            wait_until(lambda: server.ask("GET", "/health/ready").status == 503)
            assert server.ask("GET", "/health/live").status == 200
            assert server.ask("GET", "/v2/health/ready").status == 503
            refused = server.post("/v1/translate", {"texts": ["w4"]})
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert long.result().status == 200
        assert server.process.wait(60) == 0


def test_ctrl_c_ends_it_as_sigterm_does(tiny_bundle: Path, tmp_path: Path) -> None:
    with serving(tmp_path, tiny_bundle) as server:
        server.signal(signal.SIGINT)
        assert server.process.wait(60) == 130
        assert "Traceback" not in server.log.read_text()


def test_a_second_signal_ends_it_at_once(tiny_bundle: Path, tmp_path: Path) -> None:
    with serving(tmp_path, tiny_bundle, "--slots", 1) as server, ThreadPoolExecutor(1) as pool:
        slow = {**SLOW, "options": {"beam_size": 1}}
        pool.submit(server.post, "/v1/translate", slow)
        wait_until(lambda: server.figure("tfexport_running_rows") > 0)
        server.signal(signal.SIGTERM)
        time.sleep(0.1)
        server.signal(signal.SIGTERM)
        server.process.wait(60)


@pytest.mark.skipif(sys.platform == "win32", reason="threads get no signals on Windows")
def test_a_signal_wakes_a_waiting_event_loop() -> None:
    late = list[bool]()

    async def wait() -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.call_later(10, late.append, True)
        with handling_signals({signal.SIGTERM: lambda _: ended.set()}):
            # A signal that another thread gets interrupts no wait of this one.
            own = lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # noqa: E731
            threading.Timer(0.05, own).start()
            await ended.wait()

    before = signal.getsignal(signal.SIGTERM)
    asyncio.run(wait())
    assert not late
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")
def test_sighup_opens_replaced_bundles_and_loses_nothing(
    tiny_bundle: Path, tmp_path: Path, expected: list[str]
) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "de-en.bundle"))
    with serving(tmp_path, bundle) as server:
        load = Load(server)
        first = version(server)
        for number in range(3):
            replace(bundle, tmp_path / f"new-{number}", f"\n{' ' * number}")
            server.signal(signal.SIGHUP)
            wait_until(lambda number=number: server.figure(  # type: ignore[misc]
                "tfexport_reloads_total", outcome="opened") == number + 1)  # fmt: skip
        assert version(server) != first
        manifest = bundle / "manifest.json"
        manifest.write_text("{")
        server.signal(signal.SIGHUP)
        wait_until(lambda: server.figure("tfexport_reloads_total", outcome="failed") == 1)
        load.stop()
        assert load.lost == []
        assert load.refused == 0
        assert {answer.status for answer in load.answers} == {200}
        for answer in load.answers:
            assert [one["text"] for one in answer.json["translations"]] == expected
        (failed,) = [line for line in server.lines() if line.get("level") == "error"]
        assert "manifest.json" in failed["error"]
        assert threads(server) < 40  # those of old models have ended
        assert server.end() == 0


def version(server: Server) -> str:
    return str(server.ask("GET", "/v1/models").json["models"][0]["version"])


def replace(bundle: Path, new: Path, end: str) -> None:
    """Put a bundle in the place of another that is its equal, but for its version."""
    shutil.copytree(bundle, new)
    manifest = new / "manifest.json"
    manifest.write_text(manifest.read_text() + end)
    old = new.with_suffix(".old")
    bundle.rename(old)
    new.rename(bundle)


def threads(server: Server) -> int:
    tasks = Path(f"/proc/{server.process.pid}/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 0
