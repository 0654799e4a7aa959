"""Whisper (tiny, English): speech to text. Its weights are in a package in CTranslate2's form.

They are written as the folder that transformers reads, so a user writes nothing. That they are in
the right places is judged by the transcripts: a word error rate beyond ``MOST_ERRORS`` is an error.
"""

from functools import cache
from importlib import import_module
from typing import Any

import torch

from benchmarks.real.published import BEAM, Published, Way
from benchmarks.real.speech import RATE, speaker
from benchmarks.real.whisper_folders import MODELS, folder, transformers_library
from tfexport.export.quantization.word_errors import edit_rows, words_of
from tfexport.module_rows import Array

MODEL = "tiny.en"
(REQUIREMENT,) = MODELS[MODEL].requirements
LENGTH = 64  # tokens of a row, the start token too
MOST_ERRORS = 0.3
END, START, NO_TIMESTAMPS = 50256, 50257, 50362


def published() -> Published:
    """The model, loaded."""
    transformers, tokenizers = transformers_library(), import_module("tokenizers")
    made = folder(MODEL)
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
        spoken, found = words_of(text), words_of(tokenizer.decode(tokens))
        errors[text] = edit_rows(spoken, found)[-1], len(spoken)
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
