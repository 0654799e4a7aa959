"""A bundle of a Whisper model without graphs, and a table in their place; neither needs torch.

Ids: text below 30, then the end, the start, languages, tasks and marks; timestamps from 40. A
window has 0.24 s.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.table_model import Logits, TableModel, TableState
from tfexport.bundle import Limits, Manifest, SpecialIds, TokenizerEntry, write_manifest
from tfexport.runtime.model.alignment import attend_heads
from tfexport.speech import Speech

EOS, START, VOCABULARY, BINS, FRAMES, POSITIONS = 30, 31, 56, 6, 24, 30
RATE = 16_000
SPEECH: dict[str, Any] = {
    "no_timestamps": 39, "positions": POSITIONS, "languages": {"en": 32, "de": 33, "fr": 34},
    "tasks": {"transcribe": 35, "translate": 36}, "language": None, "task": "transcribe",
    "previous": 37, "most_initial": 4, "max_new_tokens": None,
    "condition_on_previous": None, "compression_ratio_threshold": None, "logprob_threshold": None,
    "no_speech_threshold": None, "alignment_heads": None, "median_filter_width": 7,
}  # fmt: skip


class SpokenTable(TableModel):
    """Logits that depend on the window and on all tokens so far; texts end after a few tokens.

    Attributes:
        seconds: that each step takes.
    """

    engine, has_slots = "table", False
    has_attention = has_alignment = True
    searches_encoded = False

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(VOCABULARY)
        self.seconds = seconds

    def encoded(self, rows: Sequence[Any]) -> list[list[int]]:
        return [[int(1000 * np.abs(row["input_features"]).sum())] for row in rows]

    def logits(self, source: Sequence[int], seen: Sequence[int]) -> Logits:
        values = super().logits(source, seen)
        values[EOS] += 1.5
        values[40:] += 1.0
        return values

    def weights(self, source: Sequence[int], seen: Sequence[int], longest: int) -> Logits:
        return super().weights([*source, *range(FRAMES // 2 - 1)], seen, FRAMES // 2)

    def step(
        self, input_ids: NDArray[np.int64], state: TableState, candidates: None = None
    ) -> Logits:
        time.sleep(self.seconds)
        return super().step(input_ids, state)

    def alignment(self, row: Any, ids: Any, heads: Any) -> Any:
        model: Any = self
        return attend_heads(model, row, ids, heads)

    def close(self) -> None:
        pass


def write_words(folder: Path, count: int) -> None:
    """Write a tokenizer of the words w0, w1, …, each with the id of its number."""
    words = {f"w{number}": number for number in range(count)}
    tokenizer = {"model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
                 "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": []}  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def write_spoken_bundle(folder: Path, **speech: Any) -> Path:
    """Write a bundle whose texts are words, w0 to w29, with other settings of speech."""

    def tensor(name: str, *axes: int) -> dict[str, Any]:
        return {"name": name, "dtype": "float32", "axes": ["batch", *axes]}

    folder.mkdir()
    for name in ("encoder", "decoder"):
        (folder / f"{name}.onnx").write_bytes(b"")
    write_words(folder, VOCABULARY)
    write_manifest(folder, Manifest(
        tfexport_version="0", opset={"": 20}, ir_version=10, minimum_onnxruntime="1.18",
        config={"add_source_bos": False, "add_source_eos": False},
        special_ids=SpecialIds(pad=EOS, bos=EOS, eos=EOS, start=START),
        limits=Limits(1, VOCABULARY, None, POSITIONS),
        graphs={"encoder": "encoder.onnx", "decoder": "decoder.onnx"},
        generation={
            "search_rules": "transformers", "early_stopping": False, "max_length": POSITIONS - 1,
            "suppress_tokens": [*range(START, 39)], "suppress_first_tokens": [5, EOS],
        },
        module={
            "inputs": [tensor("input_features", BINS, FRAMES)], "memory": [tensor("memory.0", 1)],
            "state": [tensor("past.0", 1)], "growth": {}, "many_tokens": True, "padded": False,
            "recomputes": False, "below": {},
        },
        preprocessing={
            "kind": "log_mel", "input": "input_features", "sampling_rate": RATE,
            "feature_size": BINS, "n_fft": 400, "hop_length": 160, "num_samples": 160 * FRAMES,
            "padding_value": 0.0, "do_normalize": False,
        },
        speech=Speech(**{**SPEECH, **speech}),
        tokenizers={"target": TokenizerEntry("tokenizers", "tokenizer.json")},
    ))  # fmt: skip
    return folder


def use_table(patch: Any, seconds: float = 0.0) -> None:
    """Let bundles of speech be opened with a table; others as ever.

    Args:
        patch: pytest's ``MonkeyPatch``, or a process that ends.
        seconds: that each step takes.
    """
    from tfexport.runtime import engine

    own: Any = engine
    choose, open_model = own.choose_engine, own.open_model

    def choose_engine(manifest: Any, *args: Any) -> Any:
        return ("onnxruntime", "") if manifest.speech else choose(manifest, *args)

    def opened(path: Any, manifest: Any, *args: Any) -> Any:
        return SpokenTable(seconds) if manifest.speech else open_model(path, manifest, *args)

    patch.setattr(engine, "choose_engine", choose_engine)
    patch.setattr(engine, "open_model", opened)
