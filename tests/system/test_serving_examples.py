"""The files in examples/serving, each run as far as it can be without what it is made for."""

import asyncio
import contextlib
import dataclasses
import importlib.util
import json
import re
import shutil
import socket
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serve.servers import JSON, Server, serving
from tests.support.command import COMMANDS
from tests.support.paths import REPOSITORY
from tfexport.runtime import Translator
from tfexport.serve.settings import Settings

EXAMPLES = REPOSITORY / "examples" / "serving"
MODEL = EXAMPLES / "triton" / "translation"
TEXTS = ["w12 w4 w5", "", "w5 w5 w9 w4", "w7"]

pytestmark = pytest.mark.slow


def load(path: Path) -> types.ModuleType:
    """A file as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def server(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("serving"), tiny_bundle) as running:
        yield running


@pytest.fixture
def translations(tiny_bundle: Path) -> list[str | None]:
    with Translator(tiny_bundle, threads=1) as translator:
        return [result.text for result in translator.translate(TEXTS, beam_size=2)]


# Triton


class Tensor:
    """As triton_python_backend_utils has it."""

    def __init__(self, name: str, values: Any) -> None:
        self.name, self._values = name, values

    def as_numpy(self) -> Any:
        return self._values


def triton_utils() -> types.ModuleType:
    """What Triton gives its Python backend, as far as the model uses it."""
    module: Any = types.ModuleType("triton_python_backend_utils")
    module.Tensor, module.TritonError = Tensor, RuntimeError

    def respond(output_tensors: Any = (), error: Any = None) -> Any:
        return types.SimpleNamespace(tensors=list(output_tensors), error=error)

    module.InferenceResponse = respond
    module.get_input_tensor_by_name = lambda request, name: request[name]
    return module  # type: ignore[no-any-return]


def triton_config(bundle: Path) -> dict[str, Any]:
    """config.pbtxt as Triton hands it over, with another bundle and options."""
    text = (MODEL / "config.pbtxt").read_text(encoding="utf-8")
    found = re.findall(r'key: "(\w+)", value: \{ string_value: "(.*)" \}', text)
    values = {key: value.replace('\\"', '"') for key, value in found}
    assert set(values) == {"bundle", "threads", "options"}
    assert json.loads(values["options"]) == {"beam_size": 1}
    values |= {"bundle": str(bundle), "threads": "1", "options": '{"beam_size": 2}'}
    size = re.search(r"^max_batch_size: (\d+)$", text, re.MULTILINE)
    assert size is not None
    parameters = {key: {"string_value": value} for key, value in values.items()}
    return {"max_batch_size": int(size[1]), "parameters": parameters}


def request(*texts: str) -> dict[str, Tensor]:
    return {"text": Tensor("text", np.array([[text.encode()] for text in texts], object))}


def test_triton_model_translates_requests_together(
    tiny_bundle: Path, translations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", triton_utils())
    model = load(MODEL / "1" / "model.py").TritonPythonModel()
    model.initialize({"model_config": json.dumps(triton_config(tiny_bundle))})
    try:
        first, wrong, last = model.execute(
            [request(*TEXTS[:3]), request("w4", "w4 " * 999), request(TEXTS[3])]
        )
    finally:
        model.finalize()
    assert "limit of 64" in str(wrong.error)
    found = [one.tensors[0].as_numpy() for one in (first, last)]
    assert [one.shape for one in found] == [(3, 1), (1, 1)]
    assert [text.decode() for one in found for text in one[:, 0]] == translations
    assert first.tensors[0].name == "translation"


# Ray Serve


@contextlib.contextmanager
def ray_serve_stub(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Deployments that are plain classes, where ray[serve] is not installed."""
    serve: Any = types.ModuleType("ray.serve")

    class Plain:
        def __init__(self, kind: Any, given: dict[str, Any]) -> None:
            self.kind, self.given = kind, given

        def options(self, **more: Any) -> "Plain":
            return Plain(self.kind, {**self.given, **more})

        def bind(self, *args: Any) -> Any:
            return types.SimpleNamespace(replica=self.kind(*args), given=self.given)

    serve.deployment = lambda **given: lambda kind: Plain(kind, given)
    serve.Application = serve.Deployment = object
    ray: Any = types.ModuleType("ray")
    ray.serve = serve
    patch.setitem(sys.modules, "ray", ray)
    patch.setitem(sys.modules, "ray.serve", serve)
    yield


def http_request(body: bytes) -> Any:
    from starlette.requests import Request

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


def test_ray_serve_deployment_answers_requests(
    tiny_bundle: Path, translations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ray_serve_stub(monkeypatch):
        made = load(EXAMPLES / "ray_serve.py").app({"bundle": str(tiny_bundle), "threads": "2"})
    replica = made.replica
    assert made.given["ray_actor_options"] == {"num_cpus": 2}
    good = json.dumps({"texts": TEXTS, "options": {"beam_size": 2}}).encode()
    wrong = [
        (b'{"texts": ["w4"], "options": {"beam_sise": 2}}', "'beam_sise'"),
        (json.dumps({"texts": ["w4 " * 999]}).encode(), "limit of 64"),
        (b"{", '"texts"'),
        (b"[]", '"texts"'),
        (b"{}", '"texts"'),
    ]

    async def ask() -> list[Any]:
        bodies = [good, *(body for body, _ in wrong), good]
        return await asyncio.gather(*(replica(http_request(body)) for body in bodies))

    try:
        first, *refused, last = asyncio.run(ask())
    finally:
        replica.scheduler.close()
        replica.engine.close()
    for answer in (first, last):
        assert json.loads(answer.body) == {"translations": translations}
    for answer, (_, said) in zip(refused, wrong, strict=True):
        assert answer.status_code == 422
        assert said in json.loads(answer.body)["error"]


# Grafana


def test_dashboard_asks_for_figures_that_there_are(server: Server) -> None:
    dashboard = json.loads((EXAMPLES / "grafana.json").read_text(encoding="utf-8"))
    server.post("/v1/translate", {"texts": ["w4 w5"]})
    figures = server.ask("GET", "/metrics").body.decode()
    series: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(tfexport_\w+)(?:{(.*)})? ", figures, re.MULTILINE):
        series.setdefault(name, set()).update(re.findall(r"(\w+)=", labels))
    asked = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            for name, labels in re.findall(r"(tfexport_\w+)(?:{(.*?)})?", target["expr"]):
                asked.add(name)
                assert name in series, target["expr"]
                assert set(re.findall(r"(\w+)=", labels)) <= series[name], target["expr"]
    required = """requests_total request_seconds queue_rows queue_seconds batch_rows slots
        generated_tokens_total source_tokens_total time_to_first_token_seconds"""
    plain = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    assert {f"tfexport_{name}" for name in required.split()} == plain
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)


# systemd


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    unit = (EXAMPLES / "tfexport.service").read_text(encoding="utf-8")
    command = re.search(r"^ExecStart=(\S+) (.*)$", unit, re.MULTILINE)
    assert command is not None
    copy = tmp_path / "tfexport.service"
    copy.write_text(unit.replace(command[1], sys.executable), encoding="utf-8")
    listens = shutil.copy(EXAMPLES / "tfexport.socket", tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "verify", copy, listens], capture_output=True, text=True, timeout=60
    )
    ours = [line for line in done.stderr.splitlines() if "tfexport" in line]
    assert (done.returncode, ours) == (0, [])
    verb, *words = command[2].split()
    given = COMMANDS[verb].make_context(verb, words).params
    stop = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert stop is not None
    assert int(stop[1]) > given["timeout"]


# nginx


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture
def nginx(server: Server, tmp_path: Path) -> Iterator[int]:
    """The port of an nginx with the file, in front of a server."""
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if not binary:
        pytest.skip("needs nginx")
    port = free_port()
    text = (EXAMPLES / "nginx.conf").read_text(encoding="utf-8")
    text = text.replace("listen 8080", f"listen 127.0.0.1:{port}")
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    config = tmp_path / "nginx.conf"
    config.write_text(text, encoding="utf-8")
    more = f"daemon off; pid {tmp_path}/pid; error_log stderr;"
    command: list[Any] = [binary, "-p", tmp_path, "-c", config, "-e", "stderr", "-g", more]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stderr
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(port)
            yield port
        finally:
            process.terminate()


def wait_for(port: int) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.02)
        else:
            return


def test_nginx_passes_streams_on_as_they_come(server: Server, nginx: int) -> None:
    front = dataclasses.replace(server, port=nginx)
    with contextlib.closing(front.connect()) as connection:
        body = json.dumps({"texts": ["w4 w5"], "stream": True})
        connection.request("POST", "/v1/translate", body, JSON)
        answer = connection.getresponse()
        parts = [*iter(answer.read1, b"")]
    assert answer.status == 200
    assert len(parts) > 1
    assert b'"done": true' in b"".join(parts)


def test_nginx_lets_the_largest_body_pass_that_the_server_takes(server: Server, nginx: int) -> None:
    front = dataclasses.replace(server, port=nginx)
    most = Settings().max_body
    assert front.ask("POST", "/v1/translate", b" " * most, JSON).status == 422
    assert front.ask("POST", "/v1/translate", b" " * (most + 100_000), JSON).status == 413
    assert front.ask("GET", "/metrics").status == 200
