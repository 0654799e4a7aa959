"""The content of a bundle's ``manifest.json``, and its JSON form, which ends with a digest."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfexport.errors import BundleError, InputError, Message, Option, join_problems
from tfexport.languages import Languages
from tfexport.manifest_checks import find_problems, find_unsafe_json
from tfexport.module_io import ModuleIO

FORMAT = "tfexport-bundle"
FORMAT_VERSION = 1
TRANSFORMERS = "transformers"  # the origin of a default of that library
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
        start: the token that decoding starts from where it is another than ``bos``.
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
        tfexport_version: of the export.
        opset: operator domain to version, for all graphs.
        ir_version: of all graphs.
        minimum_onnxruntime: the oldest onnxruntime that loads the graphs.
        config: of the model, as TransformerConfig.to_dict gives it; of a user's module, whether a
            text gets a start and an end token.
        special_ids: of the vocabularies.
        limits: vocabulary sizes and longest sequences.
        graphs: role ("encoder", "decoder", and in most bundles "generate") to file.
        tokenizers: "source" and "target" to a tokenizer; empty if the bundle takes ids only.
        files: every file of the bundle except the manifest, by its path in the folder.
        parity: summary of the comparison with eager PyTorch; None if there was none.
        quantization: kind of weights, parameters that stayed float32, and the result of the quality
            gate; None for float32 weights. With it, ``parity`` is that of the float32 bundle.
        module: inputs, memory and state of a user's module, as ``ModuleIO.to_dict`` gives them;
            None for a Transformer.
        generation: decoding option to its default in this bundle, as a JSON value; empty if the
            defaults are those of ``DecodingOptions``.
        languages: that the model is told of by tokens; None if it is told of none.
        reads: "texts" if the model reads them as a whole, as one that summarises does; None if it
            reads sentences, or nobody knows.
        origins: setting of ``config`` that the weights do not show to where it comes from:
            "assumed" (the layout's default), "settings", "module" or the name of a file; and the
            same of ``max_length`` in ``generation``, TRANSFORMERS where the model's files name
            none. Empty for a user's module.
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
    origins: dict[str, str] = field(default_factory=dict)

    @property
    def hidden_ids(self) -> tuple[int, ...]:
        """The ids that text does not show."""
        special = self.special_ids
        languages = () if self.languages is None else self.languages.ids.values()
        return (special.pad, special.bos, special.eos, special.decoder_start, *languages)

    @property
    def module_io(self) -> ModuleIO | None:
        """The tensors of a user's module; None for a Transformer."""
        return None if self.module is None else ModuleIO.from_dict(self.module)

    def require_ids(self) -> None:
        """Refuse ids and text for a user's module that takes something else.

        Raises:
            InputError: naming what it takes.
        """
        io = self.module_io
        if io is not None and not io.takes_ids:
            taken = ", ".join(tensor.name for tensor in io.inputs)
            rows = "in Python generate_from, on the command line ", Option("inputs")
            raise InputError(Message(f"the model takes {taken}, not ids or text: ", *rows))

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
            raise BundleError(f"{path}: its digest does not fit: it was changed. {REEXPORT}")
        del values["format"], values["format_version"]
        if problems := find_problems(values):
            raise BundleError(join_problems(str(path), problems, REEXPORT))
        values["files"] = {k: FileEntry(**v) for k, v in values["files"].items()}
        values["tokenizers"] = {k: TokenizerEntry(**v) for k, v in values["tokenizers"].items()}
        values["special_ids"] = SpecialIds(**values["special_ids"])
        values["limits"] = Limits(**values["limits"])
        if values["languages"] is not None:
            values["languages"] = Languages(**values["languages"])
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
        raise BundleError(f"{path}: format_version is {version!r}, not an integer from 1 on.")
    if version > FORMAT_VERSION:
        raise BundleError(
            f"{path}: bundle format {version}; this tfexport reads format {FORMAT_VERSION}. "
            "Upgrade tfexport, or export the model with this version."
        )


def digest_of(values: Mapping[str, Any]) -> str:
    """The digest of a manifest's values, without their own entry of it."""
    body = {key: value for key, value in values.items() if key != "digest"}
    text = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
