"""The content of a bundle's ``manifest.json``, and its JSON form, which ends with a digest."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from tfexport.errors import BundleError, InputError, Message, Option, join_problems, shown
from tfexport.graph_io import (
    ALIGNMENT,
    ATTENTION_MASK,
    BATCH,
    DTYPES,
    EMBEDDINGS,
    INPUT_IDS,
    RESERVED,
    SOURCE_INPUTS,
    STATES,
    ModuleIO,
    TensorSpec,
    tensor_from_dict,
)
from tfexport.json_checks import (
    Check,
    every,
    integer,
    is_unicode,
    list_of,
    matching,
    of_type,
    one_of,
    or_null,
    record,
)
from tfexport.languages import LANGUAGES, Languages
from tfexport.languages import find_contradictions as find_wrong_languages
from tfexport.preprocessing import MEDIA, check_preprocessing
from tfexport.speech import SPEECH, Speech
from tfexport.speech import find_contradictions as find_wrong_speech

SEARCH_RULES = ("tfexport", "transformers")

_BOOLEAN = of_type("true or false", bool)
_REAL = of_type("a number", int, float)
_ID = integer(0)

# Decoding options of which a bundle may have its own default.
OPTIONS: dict[str, Check] = {
    "beam_size": integer(1),
    "num_hypotheses": integer(1),
    "length_penalty": _REAL,
    "early_stopping": _BOOLEAN,
    "exhaustive": _BOOLEAN,
    "search_rules": one_of(*SEARCH_RULES),
    "renormalize_logits": _BOOLEAN,
    "sampling": _BOOLEAN,
    "temperature": _REAL,
    "top_k": integer(0),
    "top_p": _REAL,
    "min_length": integer(0),
    "max_length": integer(0),
    "no_repeat_ngram_size": integer(0),
    "encoder_no_repeat_ngram_size": integer(0),
    "repetition_penalty": _REAL,
    "suppress_tokens": list_of(_ID),
    "suppress_first_tokens": list_of(_ID),
    "suppress_sequences": list_of(list_of(_ID)),
    "first_token": _ID,
    "last_token": _ID,
    "end_tokens": list_of(_ID),
}
GENERATION = record({}, OPTIONS)


def find_foreign_ids(values: Mapping[str, Any], size: int) -> Iterator[str]:
    """Ids of defaults, whose values are of the right types, beyond the target vocabulary."""
    for name, number in _ids(values):
        if number >= size:
            yield f"{name}: {number} is not an id of the target vocabulary (0 to {size - 1})"


def _ids(values: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Every id among the defaults, with its key."""
    for name in ("first_token", "last_token"):
        if name in values:
            yield f"generation.{name}", values[name]
    for name in ("suppress_tokens", "suppress_first_tokens", "end_tokens"):
        for place, number in enumerate(values.get(name, ())):
            yield f"generation.{name}[{place}]", number
    for place, sequence in enumerate(values.get("suppress_sequences", ())):
        for number in sequence:
            yield f"generation.suppress_sequences[{place}]", number


# Checks of a manifest's JSON values, each problem one sentence.
#
# A manifest may have been edited by hand and given a correct digest, so every value is checked:
# first its type and bounds; then, if all of these are right, whether values contradict each other.


MANIFEST = "manifest.json"
SIDES = ("source", "target")
ROLES = ("encoder", "decoder")  # that every bundle has
MOST_LAYERS = 10_000  # each layer is four names of tensors
DEEPEST = 20  # nested lists and objects; tfexport writes 5 levels


def find_problems(values: Mapping[str, Any]) -> list[str]:
    """Every problem of a manifest, without its format and digest."""
    check = _transformer if values.get("module") is None else _module
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
_COUNT = integer(0, 2**63 - 1)

PARITY = record({"reference": _TEXT, "tokens": _COUNT, "torch": _TEXT}, closed=False)


def _gate(name: str, value: Any) -> Iterator[str]:
    """The figures of the quality check, or a text if there was none."""
    if not isinstance(value, str):
        yield from record({"agreement": _NUMBER, "tokens": _COUNT}, closed=False)(name, value)


QUANTIZATION = record({"weights": _TEXT}, {"kept": list_of(_TEXT), "gate": _gate}, closed=False)

_AXIS = integer(0)


def _axis(name: str, value: Any) -> Iterator[str]:
    if not (isinstance(value, str) and value):
        yield from _AXIS(name, value)


_TENSOR = record({"name": _TEXT, "dtype": one_of(*DTYPES), "axes": list_of(_axis)})
_TENSORS = list_of(_TENSOR)
_FRAMING = {"add_source_bos": _FLAG, "add_source_eos": _FLAG}
_SIZES = {
    "d_model": integer(1),
    "num_decoder_layers": integer(1, MOST_LAYERS),
    "num_heads": integer(1),
    "head_dim": integer(1),
    "decoder_num_heads": integer(0),
}
_CONFIG = record({**_SIZES, **_FRAMING}, closed=False)
MODULE = record(
    {
        "inputs": _TENSORS,
        "memory": _TENSORS,
        "state": _TENSORS,
        "growth": every(record({"start": _axis, "step": integer(1)})),
        "many_tokens": _FLAG,
        "padded": _FLAG,
        "recomputes": _FLAG,
        "below": every(integer(1)),
    },
    {
        "longest": every(integer(1)),
        "found": record(
            {name: list_of(_TEXT) for name in ("memory", "state", "again")} | {"portable": _FLAG}
        ),
        "decoder": record(
            {"config": _CONFIG, "states": _TENSOR},
            {"kept": _TENSOR, "encoder": record({"config": _CONFIG, "embeddings": _TENSOR})},
        ),
        "attention": record({"layers": integer(1, MOST_LAYERS), "heads": integer(1)}),
    },
)
_KEYS: dict[str, Check] = {
    "tfexport_version": _TEXT,
    "opset": every(integer(1)),
    "ir_version": integer(1),
    "minimum_onnxruntime": matching(r"\d{1,6}(\.\d{1,6}){0,3}", "a version"),
    "special_ids": record(
        {name: integer(0) for name in ("pad", "bos", "eos")}
        | {name: or_null(integer(0)) for name in ("unk", "start")}
    ),
    "limits": record(
        {f"{side}_vocab_size": integer(1) for side in SIDES}
        | {f"max_{side}_length": or_null(integer(1)) for side in SIDES}
    ),
    "graphs": every(_TEXT),
    "tokenizers": every(record({"kind": _TEXT, "file": _TEXT})),
    "files": every(
        record({"size": _COUNT, "sha256": matching("[0-9a-f]{64}", "64 hexadecimal digits")})
    ),
    "parity": or_null(PARITY),
    "quantization": or_null(QUANTIZATION),
    "generation": GENERATION,
    "languages": or_null(LANGUAGES),
    "reads": or_null(one_of("texts")),
    "preprocessing": or_null(check_preprocessing),
    "origins": every(_TEXT),
    "parameters": every(list_of(_TEXT)),
    "speech": or_null(SPEECH),
}
_transformer = record({**_KEYS, "config": _CONFIG, "module": or_null(MODULE)})
_module = record({**_KEYS, "config": record(_FRAMING), "module": MODULE})


def _contradictions(values: Mapping[str, Any]) -> Iterator[str]:
    files, graphs, tokenizers = values["files"], values["graphs"], values["tokenizers"]
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
    yield from _wrong_preprocessing(values["preprocessing"], values["module"])
    if values["module"] is not None:
        yield from _wrong_tensors(values["module"], values["limits"])
        if "decoder" in values["module"]:
            yield from _wrong_decoder(values["module"]["decoder"], values)
    yield from _wrong_alignment(values)
    yield from _contradicted(values["config"], "config", values)


def _wrong_decoder(decoder: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    """A recognised decoder whose states no graph gives, or whose config contradicts the rest."""
    states = decoder["states"]
    batch, *sizes = states["axes"] or [None]
    if batch != BATCH or len(sizes) != 2 or not isinstance(sizes[1], int) or not sizes[1]:
        yield f"module.decoder.states: has axes {shown(states['axes'])}, not (batch, length, size)"
    if states["dtype"] != "float32":
        yield f"module.decoder.states: is {states['dtype']}, not float32"
    kept = decoder.get("kept", {"axes": states["axes"][:2], "dtype": "bool"})
    if kept["axes"] != states["axes"][:2] or kept["dtype"] != "bool":
        yield "module.decoder.kept: is not bool, of the first axes of the states"
    if "encoder" in decoder:
        yield from _wrong_encoder(decoder)
    needed = EMBEDDINGS if "encoder" in decoder else STATES
    if needed not in values["graphs"]:
        yield f"graphs: {needed} is missing"
    side = "source_vocab_size"  # of the decoder's config: nobody's
    config = {key: value for key, value in decoder["config"].items() if key != side}
    yield from _contradicted(config, "module.decoder.config", values)


def _wrong_alignment(values: Mapping[str, Any]) -> Iterator[str]:
    """A graph of heads that nothing names, or of no recognised decoder; or none of known heads."""
    there = ALIGNMENT in values["graphs"]
    if "attention" in (values["module"] or {}):
        if not there:
            yield f"graphs: {ALIGNMENT} is missing"
        return
    if not there:
        return
    if not (values["speech"] or {}).get("alignment_heads"):
        yield f"graphs: {ALIGNMENT} is there, but speech.alignment_heads is not"
    if "decoder" not in (values["module"] or {}):
        yield f"graphs: {ALIGNMENT} is there, but module.decoder is not"


def _wrong_encoder(decoder: Mapping[str, Any]) -> Iterator[str]:
    """A recognised encoder that does not give what the decoder takes."""
    embeddings, states = decoder["encoder"]["embeddings"], decoder["states"]
    if (embeddings["dtype"], embeddings["axes"]) != (states["dtype"], states["axes"]):
        yield "module.decoder.encoder.embeddings: has another type or other axes than the states"
    if [decoder["encoder"]["config"]["d_model"]] != states["axes"][2:]:
        yield "module.decoder.encoder.config: d_model is not the size of the states"
    if "kept" in decoder:
        yield "module.decoder.encoder: a recognised encoder masks no states"


def _contradicted(config: Mapping[str, Any], name: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Keys of a config that the manifest repeats otherwise."""
    for key, repeated, where in _repeated(values):
        if key in config and config[key] != repeated:
            yield (
                f"{where}: {shown(repeated)} contradicts {name}.{key}, which is "
                f"{shown(config[key])}"
            )


def _wrong_ids(values: Mapping[str, Any]) -> Iterator[str]:
    """Ids beyond the vocabularies in which they are used."""
    config, ids, limits = values["config"], values["special_ids"], values["limits"]
    used = {"source": ["pad", "unk"], "target": ["pad", "bos", "eos", "start"]}
    used["source"] += [name for name in ("bos", "eos") if config[f"add_source_{name}"]]
    module = values["module"]
    if module is not None and not any(t["name"] == INPUT_IDS for t in module["inputs"]):
        del used["source"]
    for side, names in used.items():
        size = limits[f"{side}_vocab_size"]
        for name in names:
            value = ids[name]
            if value is not None and value >= size:
                yield (
                    f"special_ids.{name}: {value} is not an id of the {side} vocabulary "
                    f"(0 to {size - 1})"
                )


def _wrong_decoding(values: Mapping[str, Any]) -> Iterator[str]:
    """Decoding defaults and languages that the vocabularies do not have."""
    sizes = {side: values["limits"][f"{side}_vocab_size"] for side in SIDES}
    yield from find_foreign_ids(values["generation"], sizes["target"])
    if values["languages"] is not None:
        yield from find_wrong_languages(values["languages"], sizes)
    if values["speech"] is not None:
        inputs = (values["module"] or {}).get("inputs", [])
        eos = values["special_ids"]["eos"]
        yield from find_wrong_speech(values["speech"], sizes["target"], eos, inputs)


def _wrong_preprocessing(
    preprocessing: Mapping[str, Any] | None, module: Mapping[str, Any] | None
) -> Iterator[str]:
    """Preprocessing of an input that the model does not have."""
    if preprocessing is None:
        return
    inputs = [tensor["name"] for tensor in (module or {}).get("inputs", ())]
    if preprocessing["input"] not in inputs:
        yield f"preprocessing.input: {shown(preprocessing['input'])} is not an input of the model"
    if (key := MEDIA[preprocessing["kind"]]) in inputs:
        yield f"preprocessing: {shown(key)} is an input of the model"


def _wrong_tensors(module: Mapping[str, Any], limits: Mapping[str, Any]) -> Iterator[str]:
    """Tensors of a module that its graphs cannot have, and a limit that they need."""
    if limits["max_target_length"] is None:
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
    """Config keys whose value the manifest repeats, with that value and its other key."""
    for name in ("pad", "bos", "eos", "unk", "start"):
        yield f"{name}_id", values["special_ids"][name], f"special_ids.{name}"
    for side in SIDES:
        name = f"{side}_vocab_size"
        yield name, values["limits"][name], f"limits.{name}"


FORMAT = "tfexport-bundle"
FORMAT_VERSION = 1
TRANSFORMERS = "transformers"  # the origin of a default of Hugging Face transformers
REEXPORT = "Export it again, or copy it again from a complete one."


@dataclass(frozen=True)
class FileEntry:
    """The size in bytes and the sha256 of one file of a bundle."""

    size: int
    sha256: str


@dataclass(frozen=True)
class SpecialIds:
    """The ids of the special tokens; ``unk`` may be missing.

    Attributes:
        pad: fills a batch's shorter rows.
        bos: the start token.
        eos: the end token.
        unk: the unknown token.
        start: the token that decoding starts from if it is not ``bos``.
    """

    pad: int
    bos: int
    eos: int
    unk: int | None = None
    start: int | None = None

    @property
    def decoder_start(self) -> int:
        """The token that decoding starts from."""
        return self.bos if self.start is None else self.start


@dataclass(frozen=True)
class Limits:
    """Vocabulary sizes and longest sequences; a length is None if the model has no limit."""

    source_vocab_size: int
    target_vocab_size: int
    max_source_length: int | None = None
    max_target_length: int | None = None


@dataclass(frozen=True)
class TokenizerEntry:
    """One tokenizer of the bundle.

    Attributes:
        kind: "tokenizers", "sentencepiece", "words", "vocabulary", "pieces", "bytes", "lower_bpe"
            or "moses_bpe".
        file: its file inside the bundle.
    """

    kind: str
    file: str


@dataclass(frozen=True)
class Manifest:
    """The content of a bundle's ``manifest.json``.

    Attributes:
        tfexport_version: the version of the export.
        opset: operator domain to version, for all graphs.
        ir_version: the IR version of all graphs.
        minimum_onnxruntime: the oldest onnxruntime that loads the graphs.
        config: the model's, as TransformerConfig.to_dict returns it; for a user's module, whether a
            text gets a start and an end token.
        special_ids: the special tokens of the vocabularies.
        limits: vocabulary sizes and longest sequences.
        graphs: role to file: "encoder", "decoder" and others, such as "generate" and "beam".
        tokenizers: "source" and "target" to a tokenizer; empty if the bundle takes ids only.
        files: every file of the bundle except the manifest, by its path in the folder.
        parity: summary of the comparison with eager PyTorch; None if there was none.
        quantization: kind of weights, parameters that stayed float32, and the result of the quality
            check; None for float32 weights. If set, ``parity`` is that of the float32 bundle.
        module: inputs, memory and state of a user's module, as ``ModuleIO.to_dict`` returns them;
            None for a Transformer.
        generation: decoding option to its default in this bundle, as a JSON value; empty if the
            defaults are those of ``DecodingOptions``.
        languages: the languages that have tokens; None if the model has no language tokens.
        reads: "texts" if the model reads several sentences at once, as for summaries; None if it
            reads sentences, or if that is unknown.
        preprocessing: how sound or a picture becomes inputs of the model, see
            ``tfexport.preprocessing``; None if the model's inputs are given as they are.
        origins: each setting of ``config`` that the weights do not show, with its origin: "assumed"
            (the layout's default), "settings", "module" or the name of a file; the same for
            ``max_length`` in ``generation``, TRANSFORMERS if the model's files name none. Empty for
            a user's module.
        parameters: of a module that was recognised: each of its parameters to the weights that have
            its values, as ``compact_report`` shortens them; else empty.
        speech: what Whisper's way of decoding needs to know; None for every other model.
    """

    tfexport_version: str
    opset: dict[str, int]
    ir_version: int
    minimum_onnxruntime: str
    config: dict[str, Any]
    special_ids: SpecialIds
    limits: Limits
    graphs: dict[str, str]
    tokenizers: dict[str, TokenizerEntry] = field(default_factory=dict)
    files: dict[str, FileEntry] = field(default_factory=dict)
    parity: dict[str, Any] | None = None
    quantization: dict[str, Any] | None = None
    module: dict[str, Any] | None = None
    generation: dict[str, Any] = field(default_factory=dict)
    languages: Languages | None = None
    reads: str | None = None
    preprocessing: dict[str, Any] | None = None
    origins: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, list[str]] = field(default_factory=dict)
    speech: Speech | None = None

    @property
    def hidden_ids(self) -> tuple[int, ...]:
        """The ids that text does not show."""
        special = self.special_ids
        languages = () if self.languages is None else self.languages.ids.values()
        of_speech = () if self.speech is None else self.speech.ids
        return (
            special.pad,
            special.bos,
            special.eos,
            special.decoder_start,
            *languages,
            *of_speech,
        )

    @property
    def module_io(self) -> ModuleIO | None:
        """The tensors of a user's module; None for a Transformer."""
        return None if self.module is None else ModuleIO.from_dict(self.module)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of the encoder."""
        io = self.module_io
        return SOURCE_INPUTS if io is None else io.inputs

    @property
    def transformer(self) -> dict[str, Any] | None:
        """The config of what the native engine may run.

        It is that of the model, or of the decoder that was recognised in a user's module; None if
        none was.
        """
        if self.module is None:
            return self.config
        config: dict[str, Any] | None = self.module.get("decoder", {}).get("config")
        return config

    @property
    def states(self) -> tuple[TensorSpec, ...]:
        """The tensors that the recognised decoder of a user's module takes; empty if there is none.

        The second tensor, if there is one, says which positions are not masked.
        """
        decoder = (self.module or {}).get("decoder", {})
        return tuple(tensor_from_dict(decoder[key]) for key in ("states", "kept") if key in decoder)

    @property
    def attention_shape(self) -> tuple[int, int] | None:
        """Layers of the cross-attention that the bundle gives, and heads of each; None if none."""
        if self.module is None:
            config = self.config
            return config["num_decoder_layers"], config["decoder_num_heads"] or config["num_heads"]
        shape = self.module.get("attention")
        return None if shape is None else (shape["layers"], shape["heads"])

    @property
    def alignment_heads(self) -> Sequence[Sequence[int]]:
        """Layer and number of the heads in a module's graph ``alignment``, in its order."""
        if (shape := self.attention_shape) is not None:
            layers, heads = shape
            return [(layer, head) for layer in range(layers) for head in range(heads)]
        return () if self.speech is None else self.speech.alignment_heads or ()

    @property
    def embedded_encoder(self) -> tuple[dict[str, Any], TensorSpec] | None:
        """The config of a recognised encoder's layers, and the embeddings that they take.

        None if its states come from a graph.
        """
        encoder = (self.module or {}).get("decoder", {}).get("encoder")
        if encoder is None:
            return None
        return encoder["config"], tensor_from_dict(encoder["embeddings"])

    def require_ids(self) -> None:
        """Refuse ids and text for a user's module that takes something else.

        Raises:
            InputError: the module takes other inputs; the message names them.
        """
        io = self.module_io
        if io is not None and not io.takes_ids:
            taken = ", ".join(tensor.name for tensor in io.inputs)
            files = "" if self.media is None else f", or files ({self.media})"
            rows = "in Python generate_from, on the command line ", Option("inputs"), files
            raise InputError(Message(f"the model takes {taken}, not ids or text: ", *rows))

    @property
    def media(self) -> str | None:
        """The key of rows of files, "audio" or "image"; None if the bundle does not read files."""
        return None if self.preprocessing is None else MEDIA[self.preprocessing["kind"]]

    @property
    def size(self) -> int:
        """Bytes of all files of the bundle except the manifest."""
        return sum(entry.size for entry in self.files.values())

    def to_json(self) -> str:
        """The manifest with format, version and its own digest, as JSON text."""
        head = {"format": FORMAT, "format_version": FORMAT_VERSION}
        values = {**head, **dataclasses.asdict(self)}
        values["digest"] = digest_of(values)
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, path: Path) -> "Manifest":
        """Read and check a manifest; ``path`` is for messages.

        Raises:
            BundleError: not a manifest, another format, a wrong digest, or an unsafe file name.
        """
        values = parse_manifest(text, path)
        _check_format(values.get("format_version"), path)
        claimed = values.pop("digest", None)
        if claimed != digest_of(values):
            raise BundleError(f"{path}: its digest does not match its content. {REEXPORT}")
        del values["format"], values["format_version"]
        if problems := find_problems(values):
            raise BundleError(join_problems(str(path), problems, REEXPORT))
        values["files"] = {k: FileEntry(**v) for k, v in values["files"].items()}
        values["tokenizers"] = {k: TokenizerEntry(**v) for k, v in values["tokenizers"].items()}
        values["special_ids"] = SpecialIds(**values["special_ids"])
        values["limits"] = Limits(**values["limits"])
        if values["languages"] is not None:
            values["languages"] = Languages(**values["languages"])
        if values["speech"] is not None:
            values["speech"] = Speech(**values["speech"])
        return cls(**values)


def parse_manifest(text: str, path: Path) -> dict[str, Any]:
    """Parse a manifest's text; ``path`` is for messages.

    Raises:
        BundleError: it is not the JSON object of a bundle.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path}: not JSON: {error}. {REEXPORT}") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise BundleError(f"{path}: not the manifest of a tfexport bundle.")
    if unsafe := find_unsafe_json(values):
        raise BundleError(f"{path}: {unsafe}. {REEXPORT}")
    return values


def _check_format(version: Any, path: Path) -> None:
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise BundleError(f"{path}: format_version is {version!r}, not a positive integer.")
    if version > FORMAT_VERSION:
        raise BundleError(
            f"{path}: bundle format {version}; this tfexport reads format {FORMAT_VERSION}. "
            "Upgrade tfexport, or export the model with this version."
        )


def digest_of(values: Mapping[str, Any]) -> str:
    """The digest of a manifest's values except the digest itself."""
    body = {key: value for key, value in values.items() if key != "digest"}
    text = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
