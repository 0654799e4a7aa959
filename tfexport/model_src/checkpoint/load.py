"""Files to a flat state dict, without ever running what a file says.

Pickles are read with ``weights_only=True``, always. What wraps a state dict in real files (a
training-state dictionary, DistributedDataParallel, torch.compile) is undone here.
"""

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tfexport.errors import CheckpointError

FILE_NAMES = ("model.safetensors", "model.pt", "model.pth", "model.bin", "pytorch_model.bin")
_PICKLE_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".tar")
_LARGE = 2**28
_WRAPPERS = ("state_dict", "model_state_dict", "model")


@dataclass(frozen=True)
class StateDict:
    """What a file holds.

    Attributes:
        path: the file itself, also where a folder was named.
        tensors: flat, with the wrappers' prefixes removed.
        others: keys whose values are no tensors.
        metadata: of a safetensors file.
    """

    path: Path
    tensors: dict[str, Tensor]
    others: tuple[str, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)


def find_file(path: str | Path) -> Path:
    """The checkpoint file that a path means: itself, or the one inside a folder."""
    path = Path(path)
    if path.is_file():
        return path
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder.")
    found = [path / name for name in FILE_NAMES if (path / name).is_file()]
    if not found:
        raise CheckpointError(
            f"{path}: no checkpoint in this folder; looked for {', '.join(FILE_NAMES)}. "
            "Name the file itself."
        )
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise CheckpointError(f"{path}: holds several checkpoints: {names}. Name one of them.")
    return found[0]


def load_state_dict(path: str | Path) -> StateDict:
    """Read a .safetensors file or a PyTorch pickle of tensors.

    Raises:
        CheckpointError: the file is missing, damaged, no checkpoint, or holds more than tensors.
    """
    path = find_file(path)
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}.") from None
    if not head:
        raise CheckpointError(f"{path}: the file is empty.")
    if path.suffix == ".safetensors":
        return _load_safetensors(path)
    if path.suffix not in _PICKLE_SUFFIXES and not _looks_like_pickle(path, head):
        raise CheckpointError(
            f"{path}: not a checkpoint. Expected a .pt, .pth or .bin file that torch.save wrote, "
            "or a .safetensors file."
        )
    return flatten(_load_pickle(path, head), path)


def _looks_like_pickle(path: Path, head: bytes) -> bool:
    return head[:1] == b"\x80" or zipfile.is_zipfile(path)


def _load_safetensors(path: Path) -> StateDict:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged, or not a safetensors file: {error}.") from None
    names = _without_prefixes(tensors)
    return StateDict(path, {names[key]: tensor for key, tensor in tensors.items()}, (), metadata)


def _load_pickle(path: Path, head: bytes) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about archives that the next lines refuse anyway
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if _looks_like_pickle(path, head):
            raise CheckpointError(_refused(path, str(error))) from None
        raise CheckpointError(f"{path}: not a PyTorch checkpoint.") from None
    except Exception as error:  # torch raises anything from KeyError to RuntimeError on bad bytes
        text = str(error)
        if "TorchScript" in text:
            raise CheckpointError(
                f"{path}: a TorchScript archive, not a checkpoint. Save the weights where it "
                "was trained: torch.save(model.state_dict(), 'model.pt')."
            ) from None
        reason = text.splitlines()[0][:160].rstrip(". ") if text else type(error).__name__
        raise CheckpointError(
            f"{path}: truncated, damaged, or not a PyTorch checkpoint ({reason}). Copy it again."
        ) from None


def _refused(path: Path, reason: str) -> str:
    found = sorted(set(re.findall(r"GLOBAL ([\w.]+)", reason)))
    what = f" ({', '.join(found)})" if found else ""
    return (
        f"{path}: holds Python objects{what}, not only tensors; reading them could run code, "
        "so the file was refused. Where you trust it, re-save the weights alone:\n"
        f"  checkpoint = torch.load({path.name!r}, weights_only=False)\n"
        "  torch.save(checkpoint['state_dict'], 'model.pt')  # a whole module: .state_dict()"
    )


def flatten(value: Any, path: Path) -> StateDict:
    """Undo the wrappers around a state dict.

    Raises:
        CheckpointError: no dictionary, or one without tensors.
    """
    if not isinstance(value, Mapping):
        raise CheckpointError(
            f"{path}: holds a {type(value).__name__}, not a state dict. Save the weights with "
            "torch.save(model.state_dict(), 'model.pt')."
        )
    while (inner := next((k for k in _WRAPPERS if isinstance(value.get(k), Mapping)), "")) != "":
        value = value[inner]
    tensors = {str(key): item for key, item in value.items() if isinstance(item, Tensor)}
    others = tuple(str(key) for key, item in value.items() if not isinstance(item, Tensor))
    if not tensors:
        raise CheckpointError(
            f"{path}: holds no tensors; its keys are {', '.join(others[:8]) or 'none'}. "
            f"Expected a state dict, alone or under one of {', '.join(_WRAPPERS)}."
        )
    spread = [key for key, tensor in tensors.items() if _is_spread_out(tensor)]
    if spread:
        raise CheckpointError(f"{path}: claims far more values than it holds: {', '.join(spread)}.")
    names = _without_prefixes(tensors)
    return StateDict(path, {names[key]: tensor for key, tensor in tensors.items()}, others)


def _is_spread_out(tensor: Tensor) -> bool:
    # A view with strides of 0 costs nothing in the file and everything when it is looked at.
    if tensor.layout != torch.strided or tensor.numel() < _LARGE:
        return False
    return tensor.numel() * tensor.element_size() > 2 * tensor.untyped_storage().nbytes()


def _without_prefixes(keys: Mapping[str, Any]) -> dict[str, str]:
    names = {key: key.replace("_orig_mod.", "") for key in keys}
    while names and all(name.startswith("module.") for name in names.values()):
        names = {key: name.removeprefix("module.") for key, name in names.items()}
    return names


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CheckpointError: the file is missing, not JSON, or not an object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON: {error}.") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: holds a {type(values).__name__}, not a JSON object.")
    return values
