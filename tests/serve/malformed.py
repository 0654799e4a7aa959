"""Malformed requests, drawn: damaged forms of good ones, over all protocols."""

import json
import random
import struct
import urllib.parse
from dataclasses import dataclass, field
from typing import Any

_TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["w4"]}
_IDS = {"name": "input_ids", "shape": [1, 3], "datatype": "INT64", "data": [[4, 5, 2]]}
_DICTIONARY = {"source_lang": "de", "target_lang": "en", "entries": "w4\tw9"}
_GOOD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/translate", {"texts": ["w4 w5"], "options": {"beam_size": 2}, "model": "tiny"}),
    ("/v1/translate", {"texts": ["w4"], "stream": True}),
    ("/v1/pieces", {"text": "w4 w5", "tokens": [[5, 6]]}),
    ("/v1/score", {"sources": ["w4"], "targets": ["w5"], "options": {}}),
    ("/translate", {"q": "w4", "source": "de", "target": "en", "alternatives": 1}),
    ("/v2/translate", {"text": ["w4"], "target_lang": "EN", "split_sentences": "1"}),
    ("/v1/translate", {"texts": ["w4 w5"], "terms": [["w4", "w9"], ["w5", ["w6", "w7"]]]}),
    ("/translate", {"q": "w4", "source": "de", "target": "en", "glossary": {"w4": ["w9"]}}),
    ("/v2/glossaries", {"name": "n", **_DICTIONARY, "entries_format": "tsv"}),
    ("/v3/glossaries", {"name": "n", "dictionaries": [_DICTIONARY]}),
    ("/v2/models/tiny/infer", {"inputs": [_TENSOR], "parameters": {"max_length": 4}}),
    ("/v2/models/tiny/infer", {"inputs": [_IDS], "outputs": [{"name": "sequences"}]}),
]
_ODD: list[Any] = [
    None, True, False, 0, -1, 1 << 40, 1 << 200, 1.5, 1e308, -0.0, float("nan"), float("inf"), "",
    "\0", "\ud800", "\U0001f600", "a" * 3000, "de", "en", [], {}, [[]], [None], [[[["x"]]]],
    {"a": {"b": [1]}}, ["w4"] * 300, "w4 " * 50, "../../etc/passwd", "%s%n", "w4\r\nx: y",
]  # fmt: skip
_NAMES = ["", "x", "\0", "texts", "q", "text", "options", "beam_size", "sampling", "callback",
          "max_length", "seed", "suppress_tokens", "batch_size", "target_prefix", "data", "shape",
          "temperature", "top_p", "num_hypotheses", "return_alternatives", "__class__",
          "é" * 50]  # fmt: skip
_TYPES = [
    "application/json", "application/x-www-form-urlencoded", "text/plain", "multipart/form-data",
    "application/octet-stream", "application/json; charset=utf-16", "", ";;;", "application/+json",
    "application/xml",
]  # fmt: skip
_METHODS = ["POST"] * 12 + ["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]
_PATHS = ["/", "//", "/v2/models//infer", "/v2/models/%00/infer", "/v2/models/%2e%2e/infer",
          "/page/../../etc/passwd", "/page/%2e%2e/%2e%2e/settings.py", "/v1/%ff", "/docs/x",
          "/v2/languages?type=%ff", "/languages?api_key=%00", "/v2/models/tiny/versions/0/infer",
          "/v2/glossaries/%2e%2e", "/v3/glossaries/x/entries?source_lang=%ff&target_lang=%00",
          "/v3/glossaries/00000000-0000-0000-0000-000000000000/dictionaries?source_lang=de",
          "/health/live/x", "/openapi.json?x=" + "y" * 500]  # fmt: skip


@dataclass
class Drawn:
    """A request to send."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def draw(random: random.Random) -> Drawn:
    """A request in which something is wrong, most of the time."""
    path, good = random.choice(_GOOD)
    value = json.loads(json.dumps(good))
    for _ in range(random.choice([0, 1, 1, 2, 3])):
        value = _change(random, value)
    headers = {"Content-Type": "application/json"}
    if random.random() < 0.2 and isinstance(value, dict):
        body = _form(value)
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    else:
        body = json.dumps(value).encode()
    if "/infer" in path and random.random() < 0.4:
        body = _binary(random, body, headers)
    if random.random() < 0.3:
        body = _damage(random, body)
    if random.random() < 0.1:
        headers["Content-Type"] = random.choice(_TYPES)
    if random.random() < 0.05:
        headers[random.choice(["Content-Encoding", "Authorization", "X-Request-Id", "Accept",
                               "Inference-Header-Content-Length", "Origin"])] = random.choice(
            ["gzip", "identity", "Bearer x", "-1", "99999999999999999999", "\xff", "0"]
        )  # fmt: skip
    if random.random() < 0.08:
        path = random.choice(_PATHS)
    return Drawn(random.choice(_METHODS), path, body, headers)


def _change(random: random.Random, value: Any) -> Any:
    """Put something odd somewhere."""
    if isinstance(value, dict) and value and random.random() < 0.85:
        if random.random() < 0.25:
            return {**value, random.choice(_NAMES): random.choice(_ODD)}
        name = random.choice(list(value))
        if random.random() < 0.15:
            return {key: one for key, one in value.items() if key != name}
        return {**value, name: _change(random, value[name])}
    if isinstance(value, list) and value and random.random() < 0.7:
        place = random.randrange(len(value))
        return [*value[:place], _change(random, value[place]), *value[place + 1 :]]
    return random.choice(_ODD)


def _form(value: dict[str, Any]) -> bytes:
    def text(one: Any) -> str:
        return str(one).encode(errors="replace").decode()

    pairs = [(text(name), text(one)) for name, held in value.items()
             for one in (held if isinstance(held, list) else [held])]  # fmt: skip
    return urllib.parse.urlencode(pairs).encode()


def _binary(random: random.Random, body: bytes, headers: dict[str, str]) -> bytes:
    """The same with a binary tensor behind it, the sizes of which may be wrong."""
    raw = struct.pack("<I", random.choice([2, 0, 1 << 31, 7])) + b"w4"
    text = body.replace(b'"data": ["w4"]', b'"parameters": {"binary_data_size": %d}'
                        % random.choice([6, 6, 6, 5, -6, 1 << 70]))  # fmt: skip
    headers["Inference-Header-Content-Length"] = str(len(text) + random.choice([0, 0, 0, 1, -1]))
    return text + raw


def _damage(random: random.Random, body: bytes) -> bytes:
    place = random.randrange(len(body) + 1)
    return random.choice([
        body[:place],
        body[:place] + bytes([random.randrange(256)]) + body[place:],
        body[:place] + bytes([random.randrange(256)]) + body[place + 1 :],
        body + body,
        b"\xef\xbb\xbf" + body,
        b"[" * 3000 + body,
        body[:place] + b"\\ud800" + body[place:],
        body[:place] + b"NaN" + body[place:],
        body[:place] + b"9" * 5000 + body[place:],
        b"",
    ])  # fmt: skip
