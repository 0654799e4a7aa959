"""Checks of a tokenizer.json before it is given to the library that runs its rules.

A few replacement rules can make a text grow without bound (thirty times "a" by "aa"), which ends
the process: the library cannot be stopped.
"""

import base64
import binascii
import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from tfexport.errors import shown

MAX_GROWTH = 4_096  # characters that one may become; NFKC makes 18 of one letter
MAX_RULES = 256
_MAX_PATTERN = 4_096
_SEVERAL = ("normalizers", "pretokenizers", "decoders", "processors")  # of a sequence of rules


def read_rules(content: bytes) -> dict[str, Any]:
    """The values of a tokenizer.json.

    Raises:
        ValueError: not a JSON object, nested too deeply, with a repeated key, or with rules that
            let a text grow without bound.
    """
    try:
        values = json.loads(content, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(values, dict):
        raise ValueError(f"it holds a {type(values).__name__}, not an object")
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        _check(part, [*rules_of(values.get(part))])
    return values


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("it has a key twice")
    return values


def rules_of(value: Any) -> Iterator[dict[str, Any]]:
    """The rules of a rule, which may be a sequence."""
    left = [value]
    while left:
        rule = left.pop()
        if isinstance(rule, dict):
            yield rule
            left += [it for key in _SEVERAL for it in _listed(rule.get(key))]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _check(part: str, rules: Sequence[dict[str, Any]]) -> None:
    if len(rules) > MAX_RULES:
        raise ValueError(f"its {part} has {len(rules)} rules, more than {MAX_RULES}")
    growth = 1
    for rule in rules:
        growth *= _growth(rule)
        if growth > MAX_GROWTH:
            raise ValueError(
                f"its {part} can make more than {MAX_GROWTH} characters of one, so a text could "
                f"grow without end; the last such rule is {shown(rule.get('type'))}"
            )
        for pattern in _patterns(rule):
            if len(pattern) > _MAX_PATTERN:
                raise ValueError(
                    f"its {part} has a pattern of {len(pattern)} characters, more than "
                    f"{_MAX_PATTERN}"
                )


def _patterns(rule: dict[str, Any]) -> list[str]:
    pattern = rule.get("pattern")
    values = pattern.values() if isinstance(pattern, dict) else [pattern]
    return [value for value in values if isinstance(value, str)]


def _growth(rule: dict[str, Any]) -> int:
    """The most characters that a rule may make of one."""
    kind = rule.get("type")
    content = rule.get("content", rule.get("prepend"))
    length = len(content) if isinstance(content, str) else 0
    if kind == "Replace":
        pattern = rule.get("pattern")
        literal = pattern.get("String") if isinstance(pattern, dict) else None
        if isinstance(literal, str) and literal:
            return max(1, -(-length // len(literal)))
        return 1 + length  # a regular expression may match between any two characters
    if kind == "Prepend":
        return max(1, length - 8)  # once for a text
    if kind == "Precompiled":
        return _longest_of_charsmap(rule.get("precompiled_charsmap"))
    return 1


def _longest_of_charsmap(value: Any) -> int:
    """The longest replacement of a SentencePiece normalization: a trie, then texts that end in 0.

    Source: ``Normalizer::DecodePrecompiledCharsMap`` of SentencePiece.
    """
    try:
        blob = base64.b64decode(value or b"", validate=True) if isinstance(value, str) else b""
        (size,) = struct.unpack_from("<I", blob) if blob else (0,)
    except (binascii.Error, struct.error):
        return 1  # the library refuses it
    texts = blob[4 + size :].split(b"\0")
    return max(1, *(len(text.decode(errors="replace")) for text in texts))
