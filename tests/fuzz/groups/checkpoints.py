"""Checkpoints: zip, legacy and safetensors, with unusual tensors, keys, wrappers and bytes."""

import argparse
import functools
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save as save_safetensors
from torch import Tensor

from tests.fuzz.bundles import command
from tests.fuzz.mutate import allowed, any_type, mutate_bytes, text
from tests.support import tutorial
from tfexport.model_src.checkpoint.read import examine_checkpoint, load_checkpoint

SETTINGS = ("num_heads=2", "pad_id=0", "bos_id=1", "eos_id=2")
State = dict[Any, Any]


def prepare(bundle: Path) -> None:
    """Read one sound checkpoint."""
    path = bundle.parent / "sound-checkpoint.pt"
    if not path.exists():
        torch.save(_model(), path)
    load_checkpoint(path, None, SETTINGS).build()
    command("inspect", path, *(f"--set={word}" for word in SETTINGS))


@functools.cache
def _model() -> dict[str, Tensor]:
    model = tutorial.make(d_model=8, num_heads=2, encoder_layers=1, decoder_layers=1, d_ff=12)
    return {key: value.clone() for key, value in model.state_dict().items()}


def run(rng: Random, scratch: Path, bundle: Path) -> None:
    """Read a checkpoint, build its model or inspect it."""
    state: State = dict(_model())
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        rng.choice([_change_tensor, _change_tensor, _change_keys])(rng, state)
    path = _write(rng, scratch, _wrap(rng, state) if rng.random() < 0.5 else state)
    settings = [word for word in SETTINGS if rng.random() < 0.97]
    kind = rng.randrange(4)
    if kind == 0:
        command("inspect", path, *(f"--set={word}" for word in settings))
    elif kind == 1:
        with allowed():
            examine_checkpoint(path, None, settings, None)
    else:
        with allowed():
            load_checkpoint(path, None, settings).build()


def _change_tensor(rng: Random, state: State) -> None:
    key = rng.choice(sorted(state, key=repr))
    value = state[key]
    if isinstance(value, Tensor):
        state[key] = rng.choice(_CHANGES)(rng, value)


def _where_it_can_be(change: Callable[[Tensor], Any]) -> Callable[[Random, Tensor], Any]:
    """A change that keeps the tensor as it is where it cannot be made."""

    def apply(rng: Random, value: Tensor) -> Any:
        try:
            return change(value)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
            return value  # another type or shape than torch can change so: the case is another

    return apply


def _cast(name: str, value: Tensor) -> Tensor:
    kind: torch.dtype = getattr(torch, name)
    return value.to(kind)


_DTYPES = (
    "float16", "bfloat16", "float64", "float32", "int8", "uint8", "int64", "bool", "complex64",
    "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
_CHANGES: list[Callable[[Random, Tensor], Any]] = [
    *(_where_it_can_be(functools.partial(_cast, name)) for name in _DTYPES),
    _where_it_can_be(lambda value: value.T),
    _where_it_can_be(lambda value: value[:-1]),
    _where_it_can_be(lambda value: value[None]),
    _where_it_can_be(lambda value: value[:0]),
    _where_it_can_be(lambda value: value.flatten()[0]),
    _where_it_can_be(lambda value: torch.full_like(value, torch.nan)),
    _where_it_can_be(lambda value: torch.full_like(value, -torch.inf)),
    _where_it_can_be(lambda value: torch.zeros(1).expand(2**27)),
    _where_it_can_be(lambda value: torch.zeros(1, dtype=torch.float16).expand(2**28 - 1)),
    _where_it_can_be(lambda value: torch.zeros(1).expand(2**20, 2**20)),
    _where_it_can_be(lambda value: torch.zeros(1)[:0].expand(2**40, 0)),
    _where_it_can_be(lambda value: value.to("meta")),
    _where_it_can_be(lambda value: value.to_sparse()),
    _where_it_can_be(lambda value: value.to_sparse_csr()),
    _where_it_can_be(lambda value: torch.quantize_per_tensor(value, 0.1, 0, torch.qint8)),
    _where_it_can_be(lambda value: torch.nested.nested_tensor([value, value])),
    _where_it_can_be(lambda value: torch.nn.Parameter(value)),
    lambda rng, value: any_type(rng),
    lambda rng, value: value.tolist(),
]


def _change_keys(rng: Random, state: State) -> None:
    key = rng.choice(sorted(state, key=repr))
    kind = rng.randrange(6)
    if kind == 0:
        del state[key]
    elif kind == 1:
        state[rng.choice([text(rng), str(key) + text(rng), 5, None, (1, 2)])] = state.pop(key)
    elif kind == 2:
        state[str(key).replace("0", rng.choice(["1", "7", "999999999999", "-1", "x"]))] = state[key]
    elif kind == 3:
        for other in list(state):
            state[f"{rng.choice(['module.', 'model.', '_orig_mod.'])}{other}"] = state.pop(other)
    elif kind == 4:
        for i in range(rng.choice([1, 100, 3000])):
            state[f"transformer.encoder.layers.{i}.linear1.bias"] = torch.zeros(1)
    else:
        state["transformer"] = dict.fromkeys("abc", torch.zeros(2))


def _wrap(rng: Random, state: State) -> Any:
    kind = rng.randrange(8)
    name = rng.choice(["state_dict", "model_state_dict", "model", "net", 5])
    if kind == 0:
        return {name: state, "epoch": any_type(rng)}
    if kind == 1:
        state[name] = state  # holds itself
        return state
    if kind == 2:
        value: Any = state
        for _ in range(rng.choice([3, 100, 300])):
            value = {name: value}
        return value
    if kind == 3:
        one, other = dict(state), dict(state)
        one["model"], other["state_dict"] = other, one
        return one
    if kind > 5:  # as toolkits save it
        options = argparse.Namespace(arch="transformer", value=any_type(rng), again=any_type(rng))
        words = {"src": any_type(rng), "tgt": ["<unk>", any_type(rng)]}
        keys = ("args", "extra_state") if kind == 6 else ("opt", "vocab")
        return dict(zip(keys, (options, words), strict=True)) | {"model": state, "generator": state}
    return rng.choice([[state], (state,), state.get("x"), [], {}, torch.zeros(3), 5])


def _write(rng: Random, scratch: Path, value: Any) -> Path:
    form = rng.choice(["zip", "zip", "legacy", "safetensors"])
    path = scratch / {"zip": "m.pt", "legacy": "m.bin", "safetensors": "m.safetensors"}[form]
    try:
        if form == "safetensors":
            tensors = {str(k): v for k, v in value.items() if isinstance(v, Tensor)}
            if sum(tensor.numel() for tensor in tensors.values()) > 1 << 20:
                raise ValueError
            content = save_safetensors({key: it.contiguous() for key, it in tensors.items()})
        else:
            file = io.BytesIO()
            torch.save(value, file, _use_new_zipfile_serialization=form == "zip")
            content = file.getvalue()
    except Exception:  # torch raises anything where it cannot write; then there is nothing to read
        content = b"\x80\x02}q\x00."
    if rng.random() < 0.3:
        content = mutate_bytes(rng, content)
    if form == "zip" and rng.random() < 0.1:
        content = _deflated(rng, content)
    path.write_bytes(content)
    return path


def _deflated(rng: Random, content: bytes) -> bytes:
    """The same archive with one record that inflates to much more than it takes."""
    out = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
            names = old.namelist()
            large = rng.choice(names)
            for name in names:
                data = old.read(name)
                data += b"\0" * (1 << 26) if name == large else b""
                new.writestr(name, data, zipfile.ZIP_DEFLATED, compresslevel=1)
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError, IndexError):
        return content  # damaged before: there is nothing in it to deflate
    return out.getvalue()
