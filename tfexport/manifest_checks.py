"""Checks of a manifest's JSON values, each problem one sentence.

A manifest may have been edited by hand and given a correct digest, so every value is checked: first
its type and bounds; then, if all of these are right, whether values contradict each other.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from tfexport.errors import shown

MANIFEST = "manifest.json"
SIDES = ("source", "target")
ROLES = ("encoder", "decoder")  # that every bundle has
LARGEST = 2**31 - 1  # of any size, length and id
MOST_LAYERS = 10_000  # each layer is four names of tensors
DEEPEST = 20  # lists and objects inside one another; what is written by tfexport has 5

Check = Callable[[str, Any], Iterator[str]]


def find_problems(values: Mapping[str, Any]) -> list[str]:
    """Every problem of a version-1 manifest, without its format and digest."""
    return [*_manifest("", values)] or [*_contradictions(values)]


def find_unsafe_json(value: Any) -> str | None:
    """Why a parsed JSON value cannot be processed; None if it can.

    It may be nested so deeply that recursion fails, or contain a lone surrogate, which UTF-8 cannot
    encode.
    """
    level = [value]
    for _ in range(DEEPEST):
        texts = [text for part in level if isinstance(part, dict) for text in part]
        level = [inner for part in level for inner in _inside(part)]
        texts += [text for text in level if isinstance(text, str)]
        for text in texts:
            if not _is_unicode(text):
                return f"{shown(text)} is not valid Unicode text"
        if not level:
            return None
    return f"its lists and objects are nested more than {DEEPEST} deep"


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_inside(name: str) -> bool:
    """Whether a file's name stays inside the bundle's folder, on every operating system."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    parts = {*posix.parts, *windows.parts}
    absolute = posix.is_absolute() or windows.drive or windows.root
    return bool(name) and name != MANIFEST and "\0" not in name and not (
        absolute or parts & {"..", "."}
    )  # fmt: skip


def _whole(least: int, most: int = LARGEST) -> Check:
    def check(name: str, value: Any) -> Iterator[str]:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            yield f"{name}: {shown(value)} is not a whole number from {least} to {most}"

    return check


def _a(kind: str, *types: type) -> Check:
    def check(name: str, value: Any) -> Iterator[str]:
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            yield f"{name}: {shown(value)} is not {kind}"

    return check


def _matching(pattern: str, kind: str) -> Check:
    def check(name: str, value: Any) -> Iterator[str]:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            yield f"{name}: {shown(value)} is not {kind}"

    return check


def _or_null(inner: Check) -> Check:
    def check(name: str, value: Any) -> Iterator[str]:
        if value is not None:
            yield from inner(name, value)

    return check


def _list_of(inner: Check) -> Check:
    def check(name: str, value: Any) -> Iterator[str]:
        if not isinstance(value, list):
            yield f"{name}: {shown(value)} is not a list"
            return
        for i, part in enumerate(value):
            yield from inner(f"{name}[{i}]", part)

    return check


def _every(inner: Check) -> Check:
    """An object whose values, under any keys, are all of one kind."""

    def check(name: str, value: Any) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{name}: {shown(value)} is not an object"
            return
        for key, part in value.items():
            yield from inner(f"{name}.{shown(key)[1:-1]}", part)

    return check


def _record(
    needed: Mapping[str, Check], optional: Mapping[str, Check] | None = None, closed: bool = True
) -> Check:
    """An object with these keys, and no others if it is ``closed``."""
    known = {**needed, **(optional or {})}

    def check(name: str, value: Any) -> Iterator[str]:
        where = f"{name}." if name else ""
        if not isinstance(value, dict):
            yield f"{name}: {shown(value)} is not an object"
            return
        for key in needed:
            if key not in value:
                yield f"{where}{key}: missing"
        for key, part in value.items():
            if key in known:
                yield from known[key](f"{where}{key}", part)
            elif closed:
                yield f"{where}{shown(key)[1:-1]}: not a key of a version-1 manifest"

    return check


_TEXT, _FLAG, _NUMBER = _a("text", str), _a("true or false", bool), _a("a number", int, float)
_COUNT = _whole(0, 2**63 - 1)

PARITY = _record({"reference": _TEXT, "tokens": _COUNT, "torch": _TEXT}, closed=False)


def _gate(name: str, value: Any) -> Iterator[str]:
    """The quality gate's figures; or text, which says that there was no gate."""
    if not isinstance(value, str):
        yield from _record({"agreement": _NUMBER, "tokens": _COUNT}, closed=False)(name, value)


QUANTIZATION = _record({"weights": _TEXT}, {"kept": _list_of(_TEXT), "gate": _gate}, closed=False)

_manifest = _record(
    {
        "tfexport_version": _TEXT,
        "opset": _every(_whole(1)),
        "ir_version": _whole(1),
        "minimum_onnxruntime": _matching(r"\d{1,6}(\.\d{1,6}){0,3}", "a version"),
        "config": _record(
            {
                "d_model": _whole(1),
                "num_decoder_layers": _whole(1, MOST_LAYERS),
                "num_heads": _whole(1),
                "head_dim": _whole(1),
                "add_source_bos": _FLAG,
                "add_source_eos": _FLAG,
            },
            closed=False,
        ),
        "special_ids": _record(
            {name: _whole(0) for name in ("pad", "bos", "eos")}, {"unk": _or_null(_whole(0))}
        ),
        "limits": _record(
            {f"{side}_vocab_size": _whole(1) for side in SIDES},
            {f"max_{side}_length": _or_null(_whole(1)) for side in SIDES},
        ),
        "graphs": _every(_TEXT),
    },
    {
        "tokenizers": _every(_record({"kind": _TEXT, "file": _TEXT})),
        "files": _every(
            _record(
                {
                    "size": _COUNT,
                    "sha256": _matching("[0-9a-f]{64}", "64 hexadecimal digits"),
                }
            )
        ),
        "parity": _or_null(PARITY),
        "quantization": _or_null(QUANTIZATION),
    },
)


def _contradictions(values: Mapping[str, Any]) -> Iterator[str]:
    files, graphs = values.get("files", {}), values["graphs"]
    tokenizers = values.get("tokenizers", {})
    for name in files:
        if not is_inside(name):
            yield f"{shown(name)} leaves the bundle's folder"
    for name in (*graphs.values(), *(entry["file"] for entry in tokenizers.values())):
        if name not in files:
            yield f"{shown(name)} is used but not listed"
    for role in ROLES:
        if role not in graphs:
            yield f"graphs: {role} is missing"
    for side in tokenizers:
        if side not in SIDES:
            yield f"tokenizers.{shown(side)[1:-1]}: not one of {', '.join(SIDES)}"
    yield from _wrong_ids(values)
    for name, repeated, where in _repeated(values):
        if name in values["config"] and values["config"][name] != repeated:
            yield (
                f"{where}: {shown(repeated)} contradicts config.{name}, which is "
                f"{shown(values['config'][name])}"
            )


def _wrong_ids(values: Mapping[str, Any]) -> Iterator[str]:
    """Ids beyond the vocabularies in which they are used."""
    config, ids, limits = values["config"], values["special_ids"], values["limits"]
    used = {"source": ["pad", "unk"], "target": ["pad", "bos", "eos"]}
    used["source"] += [name for name in ("bos", "eos") if config[f"add_source_{name}"]]
    for side, names in used.items():
        size = limits[f"{side}_vocab_size"]
        for name in names:
            value = ids.get(name)
            if value is not None and value >= size:
                yield (
                    f"special_ids.{name}: {value} is not an id of the {side} vocabulary "
                    f"(0 to {size - 1})"
                )


def _repeated(values: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Config keys whose value the manifest repeats elsewhere, with that value and its key."""
    for name in ("pad", "bos", "eos", "unk"):
        yield f"{name}_id", values["special_ids"].get(name), f"special_ids.{name}"
    for side in SIDES:
        name = f"{side}_vocab_size"
        yield name, values["limits"][name], f"limits.{name}"
