"""Requests as clients send them, drawn: texts of all scripts, options, protocols and framings."""

import json
import random
import struct
import unicodedata
import urllib.parse
from dataclasses import dataclass
from typing import Any

LONGEST = 100_000  # characters of a request
_BLOCKS = [(0x20, 0x7F), (0xA0, 0x250), (0x370, 0x400), (0x400, 0x530), (0x590, 0x5FF),
           (0x600, 0x700), (0x900, 0x980), (0xE00, 0xE80), (0x1100, 0x1200), (0x2000, 0x2070),
           (0x20A0, 0x20C0), (0x3000, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xE000, 0xE100),
           (0xFB00, 0xFE10), (0xFF00, 0xFFF0), (0x1F300, 0x1F700), (0x20000, 0x20100)]  # fmt: skip
_SPACES = [chr(code) for code in range(0x3001) if unicodedata.category(chr(code)) == "Zs"]
_ODD = [*_SPACES, *map(chr, range(0x20)), "\x7f", "\x85", "\u200b", "\u200d", "\u2028", "\u2029",
        "\ufeff", "\ufffe", "\U0010ffff", "\u0301", "\u202e", "</s>", "<unk>", "<pad>", "▁", "@@",
        "⁇", ">>fra<<", '"', "'", "„", "“", "”", "«", "»", "‘", "’", "`", "\\", "\0"]  # fmt: skip
_ENDS = [". ", "! ", "? ", "… ", "。", "！", "؟ ", "।", ".\u00a0", ":\n", "\n\n", "\r\n", ".", ""]
_WORDS = ["Guten Morgen", "Der Hund schläft", "Plan B", "z. B.", "am 3. Oktober", "Dr. Müller",
          "w4 w5 w6", "你好", "مرحبا", "Привет", "שלום", "नमस्ते", "สวัสดี", "👩‍👩‍👧", "A",
          "e\u0301"]  # fmt: skip
_MARKUP = ["<b>", "</b>", "<i class='x'>", "</i>", "<p>", "</p>", "<br>", "<img src=x>", "&amp;",
           "<!-- x -->", "<code>", "</code>", "<pre>", "</pre>", "<script>", "</script>", "<x/>",
           "%s", "{name}", "{n, plural, one {#}", "}", "https://x.org/a", "a@x.org", "<![CDATA[",
           "]]>", "<", ">", "&", "<noscript>", "<!DOCTYPE a>", "<?xml version='1.0'?>"]  # fmt: skip
_CODES = ["de", "en", "DE", "EN-US", "de-AT", "deu_Latn", "fr", "xx", "auto", "", "und", "zh-Hans"]
_OPTIONS: dict[str, list[Any]] = {
    "beam_size": [1, 2, 4, 5, 0, 64], "max_length": [1, 5, 40, 2**31 - 1, 0], "min_length": [0, 3],
    "num_hypotheses": [1, 2, 4], "return_attention": [True], "return_token_scores": [True],
    "length_penalty": [0.0, 1.0, 2.5], "repetition_penalty": [1.2, 0.0],
    "no_repeat_ngram_size": [2, 3], "sampling": [True], "temperature": [0.7, 0.0],
    "top_k": [5], "top_p": [0.9], "seed": [1, -1], "truncate": [True], "disable_unk": [True],
    "suppress_tokens": [[5, 6], ["the"], [10**9], list(range(300))], "end_tokens": [[2], []],
    "suppress_sequences": [["a b"], [[4, 5]]], "return_end_token": [True],
    "target_prefix": ["The", "", [4, 5], [[4], None]], "callback": [1], "colour": ["red"],
    "source_language": ["de", *_CODES], "target_language": ["en", *_CODES],
}  # fmt: skip
_GETS = ["/", "/docs", "/health/live", "/health/ready", "/metrics", "/v1/models", "/languages",
         "/v2/languages?type=target", "/v2/languages?type=source", "/v2/usage", "/v2",
         "/v2/health/ready", "/frontend/settings", "/openapi.json", "/nowhere"]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A request.

    Attributes:
        method: of it.
        path: of it.
        sent: its bytes.
    """

    method: str
    path: str
    sent: bytes


def draw_case(draw: random.Random, model: str) -> Case:
    """A request for a server of a model."""
    if draw.random() < 0.12:
        method, path = draw.choice(["GET", "GET", "HEAD"]), draw.choice(_GETS)
        return Case(method, path, _head(draw, method, path, {}) + b"\r\n")
    headers: dict[str, str] = {}
    path, body = draw.choice(_PROTOCOLS)(draw, model, headers)
    return Case("POST", path, _framed(draw, path, headers, body))


def draw_text(draw: random.Random) -> str:
    """A text."""
    kind = draw.random()
    if kind < 0.001:  # of the longest length, sentences or one word
        piece = draw.choice([*_WORDS, "!?…", "a", "\u00a0", "。", *_ODD]) + draw.choice(_ENDS)
        return (piece * (LONGEST // len(piece) + 1))[: LONGEST - draw.randrange(2)]
    if kind < 0.35:
        low, high = draw.choice(_BLOCKS)
        text = "".join(chr(draw.randrange(low, high)) for _ in range(draw.randrange(40)))
        return text
    parts = []
    if kind > 0.85:
        for _ in range(draw.choice([1, 3, 6, 12])):
            parts.append(draw.choice(_MARKUP if draw.random() < 0.6 else _WORDS))
            parts.append(draw.choice(["", " "]))
        return "".join(parts)
    for _ in range(draw.choice([1, 1, 2, 3, 6])):
        parts.append(draw.choice(_WORDS if draw.random() < 0.7 else _ODD))
        parts.append(draw.choice(_ENDS if draw.random() < 0.6 else _SPACES))
    return "".join(parts)


def _texts(draw: random.Random) -> list[str]:
    return [draw_text(draw) for _ in range(draw.choice([1, 1, 1, 1, 2, 5, 0]))]


def _options(draw: random.Random) -> dict[str, Any]:
    names = draw.sample(list(_OPTIONS), draw.choice([0, 0, 0, 1, 1, 2, 3]))
    return {name: draw.choice(_OPTIONS[name]) for name in names}


def _json(draw: random.Random, headers: dict[str, str], value: Any) -> bytes:
    headers["Content-Type"] = draw.choice(["application/json", "application/json; charset=utf-8"])
    text = json.dumps(value, ensure_ascii=draw.random() < 0.5)
    if draw.random() < 0.01:
        text = text.replace("a", "\\ud800", 1)  # half a character
    return text.encode(errors="surrogatepass")


def _own(draw: random.Random, model: str, headers: dict[str, str]) -> tuple[str, bytes]:
    value: dict[str, Any] = {"texts": _texts(draw), "options": _options(draw)}
    if draw.random() < 0.15:
        value |= {"stream": True, "texts": [draw_text(draw)]}
    if draw.random() < 0.1:
        value["model"] = draw.choice([model, "other"])
    if draw.random() < 0.1:
        value["split_sentences"] = draw.choice(["lines", "punctuation", "none", "x"])
    if draw.random() < 0.1:
        value["divide"] = draw.choice([True, False])
    if draw.random() < 0.2:
        value["format"] = draw.choice(["html", "html", "xml", "text", "x"])
    if draw.random() < 0.1:
        value["placeholders"] = draw.sample(
            ["url", "printf", "braces", "icu", "emoji", "number"], 3
        )
    if draw.random() < 0.15:
        value["terms"] = [_term(draw) for _ in range(draw.choice([1, 2, 5, 300]))]
    return "/v1/translate", _json(draw, headers, value)


def _term(draw: random.Random) -> list[Any]:
    """A term, as a rule of words that texts have."""
    source = draw.choice(_WORDS).split()[0]
    targets = [draw.choice([*_WORDS, "a house", draw_text(draw)]) for _ in range(3)]
    return [source, draw.choice([targets[0], targets, targets[:1], [], ""])]


def _score(draw: random.Random, model: str, headers: dict[str, str]) -> tuple[str, bytes]:
    sources = _texts(draw)
    value = {"sources": sources, "targets": [draw_text(draw) for _ in sources]}
    return "/v1/score", _json(draw, headers, value)


def _pieces(draw: random.Random, model: str, headers: dict[str, str]) -> tuple[str, bytes]:
    rows = [[draw.randrange(12) for _ in range(draw.randrange(9))] for _ in range(2)]
    value = {"text": draw_text(draw), "tokens": rows[: draw.choice([0, 1, 1, 1, 2])]}
    return "/v1/pieces", _json(draw, headers, value)


def _libretranslate(draw: random.Random, model: str, headers: dict[str, str]) -> tuple[str, bytes]:
    value: dict[str, Any] = {
        "q": draw_text(draw) if draw.random() < 0.7 else _texts(draw),
        "source": draw.choice([*["de", "auto"] * 6, *_CODES]),
        "target": draw.choice([*["en"] * 24, *_CODES]),
    }  # fmt: skip
    if draw.random() < 0.2:
        value["alternatives"] = draw.choice([1, 2, 3, -1, 1000])
    if draw.random() < 0.2:
        value["format"] = draw.choice(["text", "html", "html"])
    path = draw.choice(["/translate", "/translate", "/translate", "/detect"])
    return path, _form(headers, value) if draw.random() < 0.3 else _json(draw, headers, value)


def _deepl(draw: random.Random, model: str, headers: dict[str, str]) -> tuple[str, bytes]:
    value: dict[str, Any] = {
        "text": _texts(draw), "target_lang": draw.choice([*["EN-US", "EN-GB"] * 12, *_CODES])
    }  # fmt: skip
    if draw.random() < 0.3:
        value["source_lang"] = draw.choice([*["DE"] * 12, *_CODES])
    if draw.random() < 0.3:
        value["split_sentences"] = draw.choice(["0", "1", "nonewlines", 1, "2"])
    if draw.random() < 0.1:
        value["formality"] = draw.choice(["default", "more"])
    if draw.random() < 0.2:
        value["tag_handling"] = draw.choice(["html", "xml", "xml"])
        value["ignore_tags"] = draw.choice([["x"], "b,i", [], ""])
        value["splitting_tags"] = draw.choice([["i"], "b", []])
    body = _form(headers, value) if draw.random() < 0.3 else _json(draw, headers, value)
    return "/v2/translate", body


def _kserve(draw: random.Random, model: str, headers: dict[str, str]) -> tuple[str, bytes]:
    path, raw = f"/v2/models/{model}/infer", b""
    if draw.random() < 0.3:
        shape = [draw.choice([1, 2, 0]), draw.choice([3, 1, 0])]
        shape = draw.choice([shape, shape, shape, [10**11, 0], [0, 10**30], [-1, 3], [1, 2**40]])
        data = [draw.randrange(4, 20) for _ in range(min(6, max(0, shape[0] * shape[1])))]
        tensor: dict[str, Any] = {
            "name": "input_ids",
            "shape": shape,
            "datatype": "INT64",
            "data": data,
        }
    else:
        texts = _texts(draw)
        tensor = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}
        if draw.random() < 0.4:
            encoded = [text.encode() for text in texts]
            raw = b"".join(struct.pack("<I", len(one)) + one for one in encoded)
            del tensor["data"]
            tensor["parameters"] = {"binary_data_size": len(raw)}
    value: dict[str, Any] = {"inputs": [tensor]}
    if draw.random() < 0.3:
        value["parameters"] = {**_options(draw), "binary_data_output": True}
    body = _json(draw, headers, value)
    if raw:
        headers["Inference-Header-Content-Length"] = str(len(body))
        headers["Content-Type"] = "application/octet-stream"
    return path, body + raw


_PROTOCOLS = [_own, _own, _own, _libretranslate, _deepl, _kserve, _score, _pieces]


def _form(headers: dict[str, str], value: dict[str, Any]) -> bytes:
    headers["Content-Type"] = "application/x-www-form-urlencoded"
    pairs = [
        (name, str(one))
        for name, held in value.items()
        for one in (held if isinstance(held, list) else [held])
    ]
    return urllib.parse.urlencode(pairs, errors="replace").encode()


def _head(draw: random.Random, method: str, path: str, headers: dict[str, str]) -> bytes:
    given = {"Host": draw.choice(["localhost", "127.0.0.1:80", "[::1]"]), **headers}
    if draw.random() < 0.03:
        given |= {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": draw.choice(["h2c", "x"]),
                  "HTTP2-Settings": "AAMAAABkAAQ"}  # fmt: skip
    if draw.random() < 0.05:
        given["X-Request-Id"] = draw.choice(["abc", "x" * 300, "a b"])
    if draw.random() < 0.02:
        given["Cookie"] = "x" * draw.choice([10, 20_000])
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}".encode("latin-1")


def _framed(draw: random.Random, path: str, headers: dict[str, str], body: bytes) -> bytes:
    if draw.random() < 0.7:
        headers["Content-Length"] = str(len(body))
        return _head(draw, "POST", path, headers) + b"\r\n" + body
    headers["Transfer-Encoding"] = "chunked"
    sent, place = _head(draw, "POST", path, headers) + b"\r\n", 0
    while place < len(body):
        part = body[place : place + draw.choice([1, 7, 100, 5000, 50_000]) + len(body) // 50]
        extension = b";a=b" if draw.random() < 0.05 else b""
        sent += b"%x%b\r\n%b\r\n" % (len(part), extension, part)
        place += len(part)
    trailers = b"X-Sum: 1\r\n" * draw.choice([0, 0, 0, 1, 3])
    return sent + b"0\r\n" + trailers + b"\r\n"
