"""Values, JSON trees and bytes that are nearly right, or not at all."""

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 19, 63, 64, 65, 127, 255, 256, 2**15, 2**16, 10**6, 2**31 - 1, 2**31,
    -(2**31), 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 10**20, 10**30, 10**400, -(10**400),
    10**5000, 0.0, -0.0, 0.5, -0.5, 1.0, 1.5, 1e-3, 1e-30, 1e-45, 1e-300, 5e-324, 1e30, 1e300,
    1.8e308, math.inf, -math.inf, math.nan,
)  # fmt: skip
TEXTS = (
    "", " ", "\n", "\t", "\0", "a\0b", "w5", "w4 w5", "w5  w6 ", "<unk>", "<pad>", "</s>", "nope",
    "0", "1", "-1", "1.18", "99.0", "true", "null", "-inf", "nan", "\ud800", "a\udfffb", "\ufeff",
    "\u2028", "e\u0301", "日本語", "😀", "..", ".", "/", "../x", "/etc/passwd", "C:\\x", "\\\\h\\s",
    "%s", "{}", "[", "(", "*", "\\", "rows", "tokens", "words", "encoder", "weights.bin",
    "manifest.json",
)  # fmt: skip


def number(rng: Random) -> Any:
    """A number, mostly small."""
    return rng.choice(NUMBERS) if rng.random() < 0.7 else rng.randint(-5, 20)


def text(rng: Random) -> str:
    """A text, mostly short."""
    if rng.random() < 0.1:
        return rng.choice(TEXTS) * rng.choice([10, 1000, 100_000])
    return rng.choice(TEXTS)


def odd(rng: Random, depth: int = 0) -> Any:
    """A value of any of JSON's types."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind < 2:
        return number(rng)
    if kind == 2:
        return text(rng)
    if kind < 5:
        return rng.choice([None, True, False])
    if kind == 5:
        return [odd(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return {text(rng): odd(rng, depth + 1) for _ in range(rng.randrange(4))}
    return nested(rng)


def nested(rng: Random) -> Any:
    """Lists or objects inside one another, some deeper than a recursion goes."""
    value: Any = rng.choice([None, 1, "x"])
    in_list = rng.random() < 0.5
    for _ in range(rng.choice([2, 10, 100, 900, 990])):
        value = [value] if in_list else {"a": value}
    return value


def any_type(rng: Random) -> Any:
    """A value of any of Python's types, for arguments of a call."""
    import numpy as np

    kind = rng.randrange(12)
    if kind < 6:
        return odd(rng)
    makers: list[Callable[[], Any]] = [
        object,
        lambda: text(rng).encode("utf-8", "surrogatepass"),
        lambda: np.array([rng.randrange(20) for _ in range(rng.randrange(4))]),
        lambda: np.float32(rng.random()),
        lambda: np.int64(rng.randrange(30)),
        lambda: (rng.randrange(20), rng.randrange(20)),
        lambda: {rng.randrange(5)},
        lambda: iter([[5], [6]]),
        lambda: range(rng.randrange(5)),
        lambda: complex(1, 2),
        lambda: print,
        lambda: type,
        lambda: np.zeros((2, 2)),
        lambda: np.array(["w5"]),
        lambda: np.array(None),
    ]
    return rng.choice(makers)()


def mutate_json(rng: Random, tree: Any) -> Any:
    """Change one place of a JSON tree; it is changed itself, and given back."""
    places = [place for place in _places(tree) if place[1] is not None]
    if not places or rng.random() < 0.02:
        return odd(rng)
    parent, key = rng.choice(places)
    value, kind = parent[key], rng.randrange(9)
    if kind < 3:
        parent[key] = odd(rng)
    elif kind == 3:
        del parent[key]
    elif kind == 4 and isinstance(parent, dict):
        parent[text(rng)] = value
    elif kind == 5 and isinstance(parent, dict):
        parent[text(rng)] = parent.pop(key)
    elif kind == 6:
        other, other_key = rng.choice(places)
        try:
            parent[key] = json.loads(dumps(other[other_key]))
        except RecursionError:  # nested too deep to be copied
            parent[key] = nested(rng)
    elif isinstance(value, int) and not isinstance(value, bool):
        parent[key] = rng.choice(
            [value + 1, value - 1, -value, value * 10**9, float(value), str(value)]
        )
    elif isinstance(value, str):
        parent[key] = rng.choice([value + text(rng), value[1:], value.upper(), [value]])
    elif isinstance(value, list):
        parent[key] = rng.choice(
            [value * 2, value[::-1], [value], value[1:], dict.fromkeys("ab", value)]
        )
    else:
        parent[key] = odd(rng)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            yield node, key
            if isinstance(node[key], dict | list):
                waiting.append(node[key])


def mutate_bytes(rng: Random, content: bytes) -> bytes:
    """Flip, cut, insert, repeat or overwrite a part."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.choice([1, 2, 8, 100]))
        elif kind == 3:
            data[at:at] = data[at : at + rng.choice([1, 10, 1000])]
        elif kind == 4:
            data[at : at + 8] = rng.choice([b"\0", b"\xff", b"\x7f"]) * 8
        else:
            del data[at : at + rng.choice([1, 4, 100])]
    return bytes(data)


def dumps(value: Any) -> str:
    """JSON of any value, also of numbers and depths that Python refuses to write."""
    limits = sys.get_int_max_str_digits(), sys.getrecursionlimit()
    sys.set_int_max_str_digits(0)
    sys.setrecursionlimit(20_000)
    try:
        return json.dumps(value, default=str)
    finally:
        sys.set_int_max_str_digits(limits[0])
        sys.setrecursionlimit(limits[1])


@contextlib.contextmanager
def allowed(*kinds: type[BaseException]) -> Iterator[None]:
    """Errors that a call may raise: the project's own, and these."""
    from tfexport.errors import TfexportError

    with contextlib.suppress(TfexportError, *kinds):
        yield
