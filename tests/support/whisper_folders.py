"""Tiny folders of Whisper whose ends and timestamps are reached, with settings as published.

Ids: text below 30, then the end, the start, languages, tasks and marks; timestamps from 40.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.export.transformers_folders.families import make_model
from tests.support.spoken_bundle import write_words
from tfexport.bundle import Limits, Manifest, TokenizerEntry, write_manifest
from tfexport.runtime.model.alignment import attend_heads

EOS, START, ENGLISH, GERMAN, FRENCH, TRANSCRIBE, TRANSLATE = range(30, 37)
PREVIOUS, NO_SPEECH, NO_TIMESTAMPS, VOCABULARY = 37, 38, 39, 56
BINS, FRAMES, POSITIONS = 6, 24, 30
OF_LANGUAGES = {
    "lang_to_id": {"<|en|>": ENGLISH, "<|de|>": GERMAN, "<|fr|>": FRENCH},
    "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE}, "is_multilingual": True,
}  # fmt: skip
LOG_MEL = {
    "kind": "log_mel", "input": "input_features", "sampling_rate": 16000, "feature_size": BINS,
    "n_fft": 400, "hop_length": 160, "num_samples": 160 * FRAMES, "padding_value": 0.0,
    "do_normalize": False,
}  # fmt: skip
OF_ENGLISH = {"is_multilingual": False, "forced_decoder_ids": [[1, NO_TIMESTAMPS]]}


def write_whisper(folder: Path, multilingual: bool = True, seed: int = 0, **settings: Any) -> Any:
    """Write a folder and return its model as transformers loads it."""
    model = make_model(
        "whisper", seed=seed, vocab_size=VOCABULARY, pad_token_id=EOS, eos_token_id=EOS,
        bos_token_id=EOS, decoder_start_token_id=START, max_target_positions=POSITIONS,
    )  # fmt: skip
    with torch.no_grad():
        table = model.model.decoder.embed_tokens.weight
        table[EOS] *= 1.6
        table[NO_TIMESTAMPS + 1 :] *= 1.1
    model.save_pretrained(folder)
    special = [START, ENGLISH, GERMAN, FRENCH, TRANSCRIBE, TRANSLATE, PREVIOUS, NO_SPEECH]
    values = {
        "eos_token_id": EOS, "pad_token_id": EOS, "bos_token_id": EOS, "max_length": POSITIONS,
        "decoder_start_token_id": START, "no_timestamps_token_id": NO_TIMESTAMPS,
        "suppress_tokens": [3, 7, *special], "begin_suppress_tokens": [5, EOS],
        "max_initial_timestamp_index": 4, "prev_sot_token_id": PREVIOUS,
        **(OF_LANGUAGES if multilingual else OF_ENGLISH), **settings,
    }  # fmt: skip
    values = {name: value for name, value in values.items() if value is not None}
    (folder / "generation_config.json").write_text(json.dumps(values))
    return type(model).from_pretrained(folder, attn_implementation="eager").eval()


@dataclass
class EagerState:
    """Rows of a decoder that computes its prefix anew at every step."""

    features: torch.Tensor
    tokens: torch.Tensor
    position: int = 0

    def select(self, rows: Any) -> None:
        self.features, self.tokens = self.features[rows], self.tokens[rows]


@dataclass
class EagerModel:
    """The model of transformers in place of a bundle's graphs, which other tests compare."""

    model: Any
    vocab_size: int = VOCABULARY
    has_shortlist: bool = False
    has_attention: bool = True
    has_alignment: bool = True
    searches_encoded: bool = False
    log_normalizer: None = None
    engine: str = "eager"

    def encoded(self, rows: Sequence[Any]) -> Sequence[Any]:
        return rows

    def encode(self, rows: Sequence[Any]) -> EagerState:
        features = torch.from_numpy(np.stack([row["input_features"] for row in rows]))
        return EagerState(features, torch.zeros((len(rows), 0), dtype=torch.int64))

    @torch.no_grad()
    def step(self, ids: Any, state: EagerState, candidates: Any = None) -> Any:
        return self.attend(ids, state)[0]

    @torch.no_grad()
    def attend(self, ids: Any, state: EagerState, candidates: Any = None) -> Any:
        state.tokens = torch.cat([state.tokens, torch.from_numpy(ids)], dim=1)
        made = self.model(
            state.features, decoder_input_ids=state.tokens, output_attentions=True
        )  # fmt: skip
        new = slice(-ids.shape[1], None)
        weights = torch.stack(made.cross_attentions, dim=1)[:, :, :, new]
        return made.logits[:, new].numpy().copy(), weights.numpy()

    def alignment(self, row: Any, ids: Any, heads: Any) -> Any:
        model: Any = self
        return attend_heads(model, row, ids, heads)


def tensor(name: str, *axes: int) -> dict[str, Any]:
    return {"name": name, "dtype": "float32", "axes": ["batch", *axes]}


def write_without_graphs(folder: Path, found: Any, texts: bool = False) -> None:
    """Write a bundle of which nothing but the graphs is missing.

    Args:
        folder: of the bundle.
        found: what was read of the model's folder.
        texts: whether it has preprocessing, of windows of 0.24 s, and a tokenizer.
    """
    folder.mkdir()
    for name in ("encoder", "decoder"):
        (folder / f"{name}.onnx").write_bytes(b"")
    if texts:
        write_words(folder, VOCABULARY)
    write_manifest(folder, Manifest(
        tfexport_version="0", opset={"": 20}, ir_version=10, minimum_onnxruntime="1.18",
        config={"add_source_bos": False, "add_source_eos": False}, special_ids=found.special,
        limits=Limits(1, VOCABULARY, None, found.max_length),
        graphs={"encoder": "encoder.onnx", "decoder": "decoder.onnx"},
        generation={**found.generation.defaults}, speech=found.generation.speech,
        module={
            "inputs": [tensor("input_features", BINS, FRAMES)], "memory": [tensor("memory.0", 1)],
            "state": [tensor("past.0", 1)], "growth": {}, "many_tokens": True, "padded": False,
            "recomputes": False, "below": {},
        },
        preprocessing=LOG_MEL if texts else None,
        tokenizers={"target": TokenizerEntry("tokenizers", "tokenizer.json")} if texts else {},
    ))  # fmt: skip
