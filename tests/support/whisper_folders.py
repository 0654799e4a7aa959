"""Tiny folders of Whisper whose ends and timestamps are reached, with settings as published.

Ids: text below 30, then the end, the start, languages, tasks and marks; timestamps from 40.
"""

import json
from pathlib import Path
from typing import Any

import torch

from tests.export.transformers_folders.families import make_model

EOS, START, ENGLISH, GERMAN, FRENCH, TRANSCRIBE, TRANSLATE = range(30, 37)
PREVIOUS, NO_SPEECH, NO_TIMESTAMPS, VOCABULARY = 37, 38, 39, 56
BINS, FRAMES, POSITIONS = 6, 24, 30
OF_LANGUAGES = {
    "lang_to_id": {"<|en|>": ENGLISH, "<|de|>": GERMAN, "<|fr|>": FRENCH},
    "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE}, "is_multilingual": True,
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
