"""What a path is by its name and first bytes, before any library reads it: nouns and refusals."""

from pathlib import Path

from tfexport.errors import CheckpointError, join_some
from tfexport.file_access import HEAD, describe_content, describe_substitute, open_file
from tfexport.marian_binary import describe_marian, describe_marian_folder

ONNX_FILE = "an ONNX file"
_SEARCHED = 4096  # bytes of the beginning
_WEIGHTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".tar")
_BUNDLE = "A bundle is a folder with a manifest.json"
_EXPECTED = f"{_BUNDLE}; a checkpoint is a file of torch.save or a .safetensors file."


def name_kind(path: Path) -> str:
    """A noun for what may be a checkpoint or an exported file.

    Raises:
        CheckpointError: it cannot be either; the message states what it is instead.
    """
    if path.is_dir():
        _require_weights(path)
        return "a folder with a checkpoint"
    if not path.exists():
        raise CheckpointError(f"{path}: {describe_substitute(path) or 'no such file or folder.'}")
    try:
        with open_file(path) as file:
            head = file.read(HEAD)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}.") from None
    if other := describe_marian(head) or describe_content(head):
        raise CheckpointError(f"{path}: {other}")
    head = head[:_SEARCHED]
    if path.suffix == ".onnx":
        return ONNX_FILE
    if path.suffix == ".safetensors":
        return "a safetensors checkpoint"
    if head[:1] == b"\x80":
        return "a pickle, perhaps a checkpoint"
    if head.startswith(b"PK\x03\x04"):
        return _name_archive(head)
    if path.suffix in _WEIGHTS:
        return "a file that is named like a checkpoint"
    raise CheckpointError(
        f"{path}: neither a bundle, a checkpoint nor an exported file: {_name_content(head)}. "
        f"{_EXPECTED}"
    )


def _require_weights(folder: Path) -> None:
    """Refuse a folder without any file of weights by its name; see ``name_kind``."""
    names = sorted(item.name for item in folder.iterdir())
    if any(name.endswith(_WEIGHTS) for name in names):
        return
    if (other := describe_substitute(folder / "manifest.json")) is not None:
        raise CheckpointError(f"{folder / 'manifest.json'}: {other}")
    if (other := describe_marian_folder(folder)) is not None:
        raise CheckpointError(f"{folder}: {other}")
    content = join_some(names) or "nothing"
    raise CheckpointError(
        f"{folder}: a folder with neither bundle nor checkpoint; it holds {content}. {_EXPECTED}"
    )


def _name_archive(head: bytes) -> str:
    if b"/data.pkl" in head or b"/version" in head:
        return "a PyTorch checkpoint or program"
    if b".npy" in head:
        return "an archive of NumPy arrays"
    return "a zip archive"


def _name_content(head: bytes) -> str:
    if not head:
        return "it is empty"
    try:
        head[:-3].decode()  # the last character may be cut
    except UnicodeDecodeError:
        return "it holds bytes of an unknown form"
    return "it holds text" if b"\0" not in head else "it holds bytes of an unknown form"
