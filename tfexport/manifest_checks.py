"""Checks of a manifest's JSON values, each problem one sentence.

A manifest may have been edited by hand and given a correct digest, so every value is checked: first
its type and bounds; then, if all of these are right, whether values contradict each other.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from tfexport.errors import shown
from tfexport.generation_checks import GENERATION, find_foreign_ids
from tfexport.graph_io import ATTENTION_MASK, BATCH, INPUT_IDS
from tfexport.json_checks import (
    Check,
    every,
    is_unicode,
    list_of,
    matching,
    of_type,
    one_of,
    or_null,
    record,
    whole,
)
from tfexport.languages import LANGUAGES
from tfexport.languages import find_contradictions as find_wrong_languages
from tfexport.module_io import DTYPES, RESERVED

MANIFEST = "manifest.json"
SIDES = ("source", "target")
ROLES = ("encoder", "decoder")  # that every bundle has
MOST_LAYERS = 10_000  # each layer is four names of tensors
DEEPEST = 20  # lists and objects inside one another; what is written by tfexport has 5


def find_problems(values: Mapping[str, Any], version: int = 1) -> list[str]:
    """Every problem of a manifest of a version, without its format and digest."""
    checks = {1: _transformer, 2: _module, 3: _decoding_module}
    if version == 3 and values.get("module") is None:
        checks[3] = _decoding_transformer
    check = checks[version]
    return [*check("", values)] or [*_contradictions(values)]


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
            if not is_unicode(text):
                return f"{shown(text)} is not valid Unicode text"
        if not level:
            return None
    return f"its lists and objects are nested more than {DEEPEST} deep"


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def is_inside(name: str) -> bool:
    """Whether a file's name stays inside the bundle's folder, on every operating system."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    parts = {*posix.parts, *windows.parts}
    absolute = posix.is_absolute() or windows.drive or windows.root
    return bool(name) and name != MANIFEST and "\0" not in name and not (
        absolute or parts & {"..", "."}
    )  # fmt: skip


_TEXT, _FLAG, _NUMBER = (
    of_type("text", str),
    of_type("true or false", bool),
    of_type("a number", int, float),
)
_COUNT = whole(0, 2**63 - 1)

PARITY = record({"reference": _TEXT, "tokens": _COUNT, "torch": _TEXT}, closed=False)


def _gate(name: str, value: Any) -> Iterator[str]:
    """The quality gate's figures; or text, which says that there was no gate."""
    if not isinstance(value, str):
        yield from record({"agreement": _NUMBER, "tokens": _COUNT}, closed=False)(name, value)


QUANTIZATION = record({"weights": _TEXT}, {"kept": list_of(_TEXT), "gate": _gate}, closed=False)

_AXIS = whole(0)


def _axis(name: str, value: Any) -> Iterator[str]:
    """A size, or the name of an axis."""
    if not (isinstance(value, str) and value):
        yield from _AXIS(name, value)


_TENSORS = list_of(record({"name": _TEXT, "dtype": one_of(*DTYPES), "axes": list_of(_axis)}))
MODULE = record(
    {
        "inputs": _TENSORS,
        "memory": _TENSORS,
        "state": _TENSORS,
        "growth": every(record({"start": _axis, "step": whole(1)})),
        "many_tokens": _FLAG,
        "padded": _FLAG,
        "recomputes": _FLAG,
        "below": every(whole(1)),
    }
)
_FRAMING = {"add_source_bos": _FLAG, "add_source_eos": _FLAG}
_NEEDED: dict[str, Check] = {
    "tfexport_version": _TEXT,
    "opset": every(whole(1)),
    "ir_version": whole(1),
    "minimum_onnxruntime": matching(r"\d{1,6}(\.\d{1,6}){0,3}", "a version"),
    "special_ids": record(
        {name: whole(0) for name in ("pad", "bos", "eos")}, {"unk": or_null(whole(0))}
    ),
    "limits": record(
        {f"{side}_vocab_size": whole(1) for side in SIDES},
        {f"max_{side}_length": or_null(whole(1)) for side in SIDES},
    ),
    "graphs": every(_TEXT),
}
_OPTIONAL: dict[str, Check] = {
    "tokenizers": every(record({"kind": _TEXT, "file": _TEXT})),
    "files": every(
        record({"size": _COUNT, "sha256": matching("[0-9a-f]{64}", "64 hexadecimal digits")})
    ),
    "parity": or_null(PARITY),
    "quantization": or_null(QUANTIZATION),
    "origins": every(_TEXT),
}
_SIZES = {
    "d_model": whole(1),
    "num_decoder_layers": whole(1, MOST_LAYERS),
    "num_heads": whole(1),
    "head_dim": whole(1),
}
_CONFIG = record({**_SIZES, **_FRAMING}, closed=False)
_transformer = record({**_NEEDED, "config": _CONFIG}, _OPTIONAL)
_module = record({**_NEEDED, "config": record(_FRAMING), "module": MODULE}, _OPTIONAL)
# Version 3 says more about decoding, of both.
_DECODED = {
    **_NEEDED,
    "special_ids": record(
        {name: whole(0) for name in ("pad", "bos", "eos")},
        {"unk": or_null(whole(0)), "start": whole(0)},
    ),
}
_DECODING: dict[str, Check] = {
    **_OPTIONAL,
    "generation": GENERATION,
    "languages": LANGUAGES,
    "reads": one_of("texts"),
}
_decoding_transformer = record({**_DECODED, "config": _CONFIG}, _DECODING)
_decoding_module = record({**_DECODED, "config": record(_FRAMING), "module": MODULE}, _DECODING)


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
    yield from _wrong_decoding(values)
    if "module" in values:
        yield from _wrong_tensors(values["module"], values["limits"])
    for name, repeated, where in _repeated(values):
        if name in values["config"] and values["config"][name] != repeated:
            yield (
                f"{where}: {shown(repeated)} contradicts config.{name}, which is "
                f"{shown(values['config'][name])}"
            )


def _wrong_ids(values: Mapping[str, Any]) -> Iterator[str]:
    """Ids beyond the vocabularies in which they are used."""
    config, ids, limits = values["config"], values["special_ids"], values["limits"]
    used = {"source": ["pad", "unk"], "target": ["pad", "bos", "eos", "start"]}
    used["source"] += [name for name in ("bos", "eos") if config[f"add_source_{name}"]]
    module = values.get("module")
    if module is not None and not any(t["name"] == INPUT_IDS for t in module["inputs"]):
        del used["source"]
    for side, names in used.items():
        size = limits[f"{side}_vocab_size"]
        for name in names:
            value = ids.get(name)
            if value is not None and value >= size:
                yield (
                    f"special_ids.{name}: {value} is not an id of the {side} vocabulary "
                    f"(0 to {size - 1})"
                )


def _wrong_decoding(values: Mapping[str, Any]) -> Iterator[str]:
    """Decoding defaults and languages that the vocabularies do not have."""
    sizes = {side: values["limits"][f"{side}_vocab_size"] for side in SIDES}
    yield from find_foreign_ids(values.get("generation", {}), sizes["target"])
    if "languages" in values:
        yield from find_wrong_languages(values["languages"], sizes)


def _wrong_tensors(module: Mapping[str, Any], limits: Mapping[str, Any]) -> Iterator[str]:
    """Tensors of a module that its graphs cannot have, and a limit that they need."""
    if limits.get("max_target_length") is None:
        yield "limits.max_target_length: missing"
    tensors = [tensor for kind in ("inputs", "memory", "state") for tensor in module[kind]]
    for kind in ("inputs", "memory"):
        if not module[kind]:
            yield f"module.{kind}: is empty"
    names = [tensor["name"] for tensor in tensors]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"module: {shown(name)} is the name of several tensors"
    for tensor in tensors:
        if tensor["axes"][:1] != [BATCH]:
            yield f"module: the first axis of {shown(tensor['name'])} is not {BATCH}"
    yield from _wrong_names(module, tensors)


def _wrong_names(module: Mapping[str, Any], tensors: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Names of a module's tensors and axes that its graphs cannot have."""
    for kind, prefix in (("memory", "memory"), ("state", "past")):
        for number, tensor in enumerate(module[kind]):
            if tensor["name"] != f"{prefix}.{number}":
                yield f"module.{kind}[{number}]: is called {shown(tensor['name'])}"
    inputs = {tensor["name"] for tensor in module["inputs"]}
    for name in sorted(inputs & {*RESERVED}):
        yield f"module.inputs: {shown(name)} is an input that the graphs add"
    if module["padded"] and inputs - {ATTENTION_MASK} != {INPUT_IDS}:
        yield "module.padded: only rows of ids can be padded"
    known = {axis for tensor in tensors for axis in tensor["axes"]} - {BATCH}
    for name, axis in module["growth"].items():
        if name not in known or (isinstance(axis["start"], str) and axis["start"] not in known):
            yield f"module.growth.{shown(name)[1:-1]}: not an axis of the state"


def _repeated(values: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Config keys whose value the manifest repeats elsewhere, with that value and its key."""
    for name in ("pad", "bos", "eos", "unk", "start"):
        yield f"{name}_id", values["special_ids"].get(name), f"special_ids.{name}"
    for side in SIDES:
        name = f"{side}_vocab_size"
        yield name, values["limits"][name], f"limits.{name}"
