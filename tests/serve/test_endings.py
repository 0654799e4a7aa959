"""A server ends though clients do not take their answers."""

import json
import signal
import socket
from pathlib import Path

import pytest

from tests.serve.servers import request_of, serving, wait_until
from tests.support.combinations import few_of

LASTING = {"min_length": 59, "max_length": 60}


@pytest.mark.slow
@pytest.mark.parametrize("stream", few_of([False, True], True))
def test_a_client_that_takes_nothing_does_not_keep_it_from_ending(
    tiny_bundle: Path, tmp_path: Path, stream: bool
) -> None:
    texts = ["\n".join(["w4 w5 w6 w7 w8 w9"] * 400)]
    options = {"return_attention": not stream, **LASTING}
    body = {"texts": texts, "stream": stream, "options": options}
    with serving(tmp_path, tiny_bundle, "--timeout", 20) as server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall(request_of(json.dumps(body).encode()))
            wait_until(lambda: unsent(server.port) > 128 << 10)
            server.signal(signal.SIGTERM)
            assert server.process.wait(120) == 0
        assert [line for line in server.lines() if line["event"] == "dropped"]
        assert "Traceback" not in server.log.read_text()


def unsent(port: int) -> int:
    """Bytes that the system keeps for clients of a port."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[1].endswith(f":{port:04X}") and words[3] == "01":
            return int(words[4].partition(":")[0], 16)
    return 0
