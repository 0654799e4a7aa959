"""Pictures over HTTP: the own protocol and KServe's."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Once
from tests.serve.servers import Server, serving
from tests.support.picture_bundle import make_picture_bundle
from tfexport.runtime import Translator

Image = pytest.importorskip("PIL.Image", reason="the extra vision installs it")


def png(height: int, width: int, seed: int = 0) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


FILES = [png(9, 5 + seed, seed) for seed in range(5)]
CODED = [base64.b64encode(file).decode() for file in FILES]


@pytest.fixture(scope="module", name="bundle")
def _bundle(once: Once) -> Path:
    return once("pictures", make_picture_bundle) / "pictures.bundle"


@pytest.fixture(scope="module", name="server")
def _server(bundle: Path, tiny_bundle: Path) -> Iterator[Server]:
    options = ("--max-pixels", 200, "--max-file-bytes", 30_000, "--max-texts", 8)
    with serving(bundle.parent, bundle, tiny_bundle, *options) as running:
        yield running


def wanted(bundle: Path, **options: Any) -> list[tuple[str | None, list[int]]]:
    found = Translator(bundle, threads=1).generate_from([{"image": it} for it in FILES], **options)
    return [(one.text, list(one.hypotheses[0].tokens)) for one in found]


def test_texts_are_those_of_the_translator(server: Server, bundle: Path) -> None:
    for options in ({}, {"beam_size": 3, "max_length": 6}):
        body = {"model": "pictures", "images": CODED, "options": options}
        made = server.post("/v1/translate", body).json["translations"]
        texts = wanted(bundle, **options)
        assert [(one["text"], one["tokens"]) for one in made] == texts
    assert len({text for text, _ in texts}) > 1
    url = f"data:image/png;base64,{CODED[1]}"
    body = {"model": "pictures", "images": [url], "options": {"target_prefix": "w4"}}
    (one,) = server.post("/v1/translate", body).json["translations"]
    assert one["tokens"][0] == 4
    listed = {it["name"]: it["input"] for it in server.ask("GET", "/v1/models").json["models"]}
    assert listed["pictures"] == "image"


def test_kserve_takes_bytes_and_base64(server: Server, bundle: Path) -> None:
    texts = [text for text, _ in wanted(bundle)]
    path = "/v2/models/pictures"
    (listed,) = server.ask("GET", path).json["inputs"]
    assert listed == {"name": "image", "datatype": "BYTES", "shape": [-1]}
    tensor: dict[str, Any] = {"name": "image", "datatype": "BYTES", "shape": [len(FILES)]}
    found = server.post(f"{path}/infer", {"inputs": [{**tensor, "data": CODED}]})
    assert found.json["outputs"][0]["data"] == texts
    raw = b"".join(len(file).to_bytes(4, "little") + file for file in FILES)
    tensor["parameters"] = {"binary_data_size": len(raw)}
    head = json.dumps({"inputs": [tensor]}).encode()
    found = server.ask(
        "POST", f"{path}/infer", head + raw,
        {"Content-Type": "application/octet-stream",
         "Inference-Header-Content-Length": str(len(head))},
    )  # fmt: skip
    assert found.json["outputs"][0]["data"] == texts


def test_what_cannot_be_read_is_refused_by_name(server: Server) -> None:
    def refused(images: Any, model: str = "pictures", status: int = 422, **more: Any) -> str:
        body = {"model": model, "images": images, **more}
        answer = server.post("/v1/translate", body)
        assert answer.status == status, answer.body
        return str(answer.json["error"])

    text = refused([CODED[0], base64.b64encode(b"text").decode(), "?"])
    assert "images[2]: is not base64" in text
    text = refused(["/etc/passwd", "http://127.0.0.1/picture.png"])
    assert "images[1]: is not base64, nor a data URL of it; paths and other URLs" in text
    text = refused([CODED[0], base64.b64encode(b"text").decode(), CODED[1][:60]])
    assert "images[1]: no picture" in text
    assert "images[2]: " in text
    large = base64.b64encode(png(15, 14)).decode()
    assert "images[0]: it has 15 × 14 pixels, which is more than 200" in refused([large])
    assert "files are more than the 8" in refused([CODED[0]] * 9, status=413)
    padded = base64.b64encode(FILES[0] + bytes(31_000)).decode()
    assert "more than the 30000 of a request" in refused([padded], status=413)
    assert "takes text, not pictures; those of pictures: pictures" in refused(CODED, "tiny")
    assert "stream: is not a known field" in refused(CODED, stream=True)
    body = {"model": "pictures", "texts": ["w3"]}
    answer = server.post("/v1/translate", body)
    assert (answer.status, "takes pictures, not text" in answer.json["error"]) == (422, True)
