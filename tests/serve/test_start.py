"""How a server is started: on which socket, with which lines about it, and with what in its log."""

import contextlib
import http.client
import inspect
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import granian.server.common
import pytest
from packaging.requirements import Requirement

from tests.serve.servers import serving, wait_until
from tfexport.errors import ConfigError
from tfexport.serve import bind_path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sockets of other systems")


class _Connection(http.client.HTTPConnection):
    """A connection over a socket that is made some other way."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


def _get(connection: http.client.HTTPConnection) -> int:
    with contextlib.closing(connection):
        connection.request("GET", "/v1/models")
        return connection.getresponse().status


def _start(folder: Path, *args: object, before: Callable[[], object] | None = None,
           files: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:  # fmt: skip
    command = [sys.executable, "-m", "tfexport", "serve", "--threads", "1", *map(str, args)]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, stderr=log, preexec_fn=before, pass_fds=files)


def _lines(folder: Path) -> list[str]:
    return (folder / "log").read_text().splitlines()


def test_granian_takes_a_socket_in_the_way_that_the_server_knows() -> None:
    # Private names: an update of granian that has moved one would bind another address.
    source = inspect.getsource(granian.server.common.AbstractServer)
    assert "_init_shared_socket" in vars(granian.server.common.AbstractServer)
    assert {name for name in ("_ssp", "_shd", "_sfd") if f"self.{name} = " not in source} == set()
    assert callable(granian._granian.SocketHolder)
    (pinned,) = (each for each in metadata.requires("tfexport") or () if each.startswith("granian"))
    version = metadata.version("granian")
    assert Requirement(pinned).specifier.contains(version)
    assert not Requirement(pinned).specifier.contains("2.9.0")


def test_it_listens_on_a_path(tiny_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    for _ in range(2):  # the second finds what the first has left
        process = _start(tmp_path, tiny_bundle, "--uds", path)
        try:
            wait_until(lambda: any(f"at unix:{path}" in line for line in _lines(tmp_path)), 60)
            assert _get(_Connection(str(path))) == 200
            with pytest.raises(ConfigError, match="cannot listen on"):
                bind_path(path)
            assert path.is_socket()
        finally:
            process.kill()
            process.wait()
        (tmp_path / "log").write_text("")


def test_a_socket_that_is_handed_over_keeps_connections_while_it_is_restarted(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]

        script = (
            "import os, sys; os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1');"
            "from tfexport.cli.main import main; sys.argv[0] = 'tfexport'; main()"
        )
        command = [sys.executable, "-c", script, "serve", "--threads", "1", str(tiny_bundle)]
        for _ in range(2):
            waiting = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            waiting.connect()  # before there is a server
            with (tmp_path / "log").open("ab") as log:
                process = subprocess.Popen(
                    command, stderr=log, pass_fds=(3,) if held.fileno() == 3 else (),
                    preexec_fn=lambda: os.dup2(held.fileno(), 3), close_fds=False,
                )  # fmt: skip
            try:
                assert _get(waiting) == 200
            finally:
                process.terminate()
                assert process.wait(60) == 0


def test_lines_about_the_start_may_be_json(tiny_bundle: Path, tmp_path: Path) -> None:
    process = _start(tmp_path, tiny_bundle, "--port", "0", "--json")
    try:
        wait_until(lambda: any('"serving"' in line for line in _lines(tmp_path)), 60)
    finally:
        process.kill()
        process.wait()
    told = [json.loads(line) for line in _lines(tmp_path)]
    assert [one["event"] for one in told] == ["model", "serving"]
    assert told[1]["url"].startswith("http://127.0.0.1:")
    assert told[1]["models"] == ["tiny"]


def test_the_log_has_no_more_than_is_asked_for(tiny_bundle: Path, tmp_path: Path) -> None:
    with serving(tmp_path, tiny_bundle, "--log-level", "warning") as running:
        running.post("/v1/translate", {"texts": ["w4"]}, **{"X-Request-Id": "good"})
        running.post("/v1/translate", {"texts": 5}, **{"X-Request-Id": "wrong"})
        line = running.wait_for_line("wrong")
        assert line["level"] == "warning"
        time.sleep(0.2)
        assert [one["request_id"] for one in running.lines()] == ["wrong"]
        assert running.figure("process_resident_memory_bytes") > 1e6
