"""Refusals by their heads, of a server that has enough to do."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tfexport.serve import Service, Settings, door
from tfexport.serve.door import Door


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/translate", "error"), ("/v2/translate", "message")]
)
def test_a_crowded_server_refuses_in_the_form_of_the_protocol(
    tiny_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    path: str,
    field: str,
) -> None:
    monkeypatch.setattr(door, "_SECONDS", 0.05)
    service = Service([tiny_bundle], Settings(threads=1, max_queue=2, slots=3))

    async def run() -> Any:
        entrance = Door(service, [path])
        let_in = []
        for _ in range(5):
            let_in.append(entrance.refusal(path, []))
            entrance.let_in()
        with service.accepted():  # whose bodies are awaited count for nothing
            service.arriving -= 1
            let_in.append(entrance.refusal(path, []))
            entrance.let_in()
        refused = [entrance.refusal(path, [(b"x-request-id", b"mine")]) for _ in range(7)]
        probe = entrance.refusal("/health/live", [])
        await asyncio.sleep(0.1)
        return let_in, refused, probe

    try:
        let_in, refused, probe = asyncio.run(run())
    finally:
        service.close()
    assert (let_in, probe) == ([None] * 6, None)
    head, _, body = refused[0].partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 1\r\n" in head
    assert head.endswith(b"\r\nx-request-id: mine")
    assert "too many requests" in json.loads(body)[field]
    (line,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert (line["event"], line["requests"]) == ("refused", 7)
    counted = f'tfexport_requests_total{{code="503",model="",route="{path}"}} 7.0'
    assert counted in service.metrics.text().decode()
