"""A bundle: one folder that holds everything decoding needs.

``manifest.json`` lists its files, each with its size and sha256, and ends with a digest of itself.
Writing is atomic: a process that is killed leaves the complete old bundle, the complete new one, or
the old one renamed, which the next error message names. Files are checked before they are used.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfexport import atomic
from tfexport.errors import BundleError, Message, Option, OutputExistsError, join_problems
from tfexport.locks import check_unlocked
from tfexport.manifest_checks import MANIFEST as MANIFEST
from tfexport.manifest_checks import find_problems, find_unsafe_json
from tfexport.module_io import ModuleIO

FORMAT = "tfexport-bundle"
FORMAT_VERSION = 2  # that of a user's module; other bundles have version 1
WEIGHTS = "weights.bin"
MAX_MANIFEST_BYTES = 4 << 20  # one of 10,000 parameters takes 1 MB
_REEXPORT = "Export it again, or copy it again from where it is whole."


@dataclass(frozen=True)
class FileEntry:
    """The size in bytes and the sha256 of one file of a bundle."""

    size: int
    sha256: str


@dataclass(frozen=True)
class SpecialIds:
    """The ids of the special tokens; ``unk`` may be missing."""

    pad: int
    bos: int
    eos: int
    unk: int | None = None


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
        kind: "tokenizers", "sentencepiece" or "words".
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

    @property
    def module_io(self) -> ModuleIO | None:
        """The tensors of a user's module; None for a Transformer."""
        return None if self.module is None else ModuleIO.from_dict(self.module)

    @property
    def size(self) -> int:
        """Bytes of all files of the bundle except the manifest."""
        return sum(entry.size for entry in self.files.values())

    def to_json(self) -> str:
        """The manifest with format, version and its own digest, as JSON text."""
        version = 1 if self.module is None else 2
        values = {"format": FORMAT, "format_version": version, **dataclasses.asdict(self)}
        if version == 1:  # which knows no such key
            del values["module"]
        values["digest"] = _digest(values)
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, path: Path) -> "Manifest":
        """Read and check a manifest; ``path`` is for messages.

        Raises:
            BundleError: not a manifest, a newer format, a wrong digest, or an unsafe file name.
        """
        values = _parse(text, path)
        _check_format(values, path)
        claimed = values.pop("digest", None)
        if claimed != _digest(values):
            raise BundleError(f"{path}: its digest does not fit: it was changed. {_REEXPORT}")
        version = values.pop("format_version")
        del values["format"]
        if problems := find_problems(values, version):
            raise BundleError(join_problems(str(path), problems, _REEXPORT))
        entries = values.get("files", {}), values.get("tokenizers", {})
        values["files"] = {k: FileEntry(**v) for k, v in entries[0].items()}
        values["tokenizers"] = {k: TokenizerEntry(**v) for k, v in entries[1].items()}
        values["special_ids"] = SpecialIds(**values["special_ids"])
        values["limits"] = Limits(**values["limits"])
        return cls(**values)


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path}: not JSON: {error}. {_REEXPORT}") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise BundleError(f"{path}: not the manifest of a tfexport bundle.")
    if unsafe := find_unsafe_json(values):
        raise BundleError(f"{path}: {unsafe}. {_REEXPORT}")
    return values


def _check_format(values: Mapping[str, Any], path: Path) -> None:
    version = values.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise BundleError(f"{path}: format_version is {version!r}, not a whole number from 1 on.")
    if version > FORMAT_VERSION:
        raise BundleError(
            f"{path}: bundle format {version}; this tfexport reads up to {FORMAT_VERSION}. "
            "Upgrade tfexport, or export the model with this version."
        )


def _digest(values: Mapping[str, Any]) -> str:
    body = {key: value for key, value in values.items() if key != "digest"}
    text = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Read a bundle's manifest, without looking at its other files.

    Raises:
        BundleError: there is no bundle, or its manifest is invalid.
    """
    folder = Path(folder)
    path = folder / MANIFEST
    try:
        with path.open("rb") as file:
            content = file.read(MAX_MANIFEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise BundleError(_no_bundle(folder)) from None
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}.") from None
    except ValueError as error:  # a null byte, or half of a surrogate pair
        raise BundleError(f"{str(path)!r}: not the name of a file: {error}.") from None
    if len(content) > MAX_MANIFEST_BYTES:
        raise BundleError(f"{path}: has more than {MAX_MANIFEST_BYTES} bytes. {_REEXPORT}")
    try:
        return Manifest.from_json(content.decode(), path)
    except UnicodeDecodeError:
        raise BundleError(f"{path}: not UTF-8 text. {_REEXPORT}") from None


def _no_bundle(folder: Path) -> str:
    set_aside = (
        sorted(folder.parent.glob(f".{folder.name}{atomic.ASIDE}*")) if not folder.exists() else []
    )
    if set_aside:
        return (
            f"{folder}: no such bundle; an export was interrupted and the previous bundle is whole "
            f"at {set_aside[-1]}. Rename it back to {folder}, or export again."
        )
    if not folder.exists():
        return f"{folder}: no such file or folder. Make a bundle with 'tfexport onnx'."
    return f"{folder}: not a bundle: it holds no {MANIFEST}. Make one with 'tfexport onnx'."


def open_bundle(folder: str | os.PathLike[str]) -> Manifest:
    """Read a bundle's manifest and check the size and sha256 of every file.

    Raises:
        BundleError: naming every file that is missing or changed.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    problems = []
    for name, entry in manifest.files.items():
        path = folder / name
        try:
            if not path.is_file():
                problems.append(f"{name} is missing")
            elif path.stat().st_size != entry.size:
                problems.append(f"{name} has {path.stat().st_size} bytes instead of {entry.size}")
            elif _sha256(path) != entry.sha256:
                problems.append(f"{name} was changed: its sha256 is not the manifest's")
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
    if problems:
        raise BundleError(join_problems(str(folder), problems, _REEXPORT))
    return manifest


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether a folder holds the manifest of a tfexport bundle, valid or not."""
    try:
        _parse((Path(path) / MANIFEST).read_text(encoding="utf-8"), Path(path))
    except (OSError, ValueError):
        return False
    return True


def check_output(path: str | os.PathLike[str], force: bool) -> None:
    """Refuse an output path that cannot be written, before the export begins.

    Raises:
        OutputExistsError: it exists and ``force`` is false, it is not a bundle, or another process
            writes it.
    """
    path = Path(path)
    _check_replaceable(path, force)
    check_unlocked(path)


def _check_replaceable(path: Path, force: bool) -> None:
    atomic.check_free(path, force)
    exists = path.exists() or path.is_symlink()
    if exists and not is_bundle(path) and not (path.is_dir() and not any(path.iterdir())):
        replaces = Message(Option("force", True), " replaces bundles only. Choose another output.")
        raise OutputExistsError(Message(f"{path}: exists and is not a bundle; ", replaces))


@contextlib.contextmanager
def new_bundle(path: str | os.PathLike[str], force: bool = False) -> Iterator[Path]:
    """Give a temporary folder to fill; it becomes the bundle at ``path`` when the block ends.

    If the block raises, the folder is deleted and an existing bundle is unchanged.

    Raises:
        OutputExistsError: see ``check_output``.
    """
    path = Path(path).absolute()
    _check_replaceable(path, force)
    # Checked again at the end: a program that ignores the lock may have written there meanwhile.
    with atomic.new_folder(path, before_move=lambda: _check_replaceable(path, force)) as folder:
        yield folder


def write_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Write ``manifest.json``, with every other file of the folder listed in it.

    It has to be the last file that is written: a folder without a manifest is not a bundle.
    """
    files = {
        path.relative_to(folder).as_posix(): FileEntry(path.stat().st_size, _sha256(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MANIFEST
    }
    manifest = dataclasses.replace(manifest, files=files)
    with (folder / MANIFEST).open("w", encoding="utf-8", newline="\n") as file:
        file.write(manifest.to_json())
    return manifest
