"""Times of words beside the functions of transformers that they are taken from."""

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tfexport.runtime.speech.words import group_words, token_times

generation: Any = pytest.importorskip(
    "transformers.models.whisper.generation_whisper", reason="make optional installs it"
)
outputs: Any = pytest.importorskip("transformers.generation.utils")
pytestmark = [pytest.mark.peers, pytest.mark.no_model]
TEXTS = (
    ' Well, "it\'s" (almost) 3.5 km: \u00bfno? \u00c7a va... [really]! - yes \ufffd',
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u00fcber \U0001f600! ",
    '.\u00e9 .\u00e9" "',
)


@pytest.mark.parametrize("width", [1, 3, 7])
def test_times_of_tokens(width: int) -> None:
    draw = np.random.default_rng(width)
    own = SimpleNamespace(config=SimpleNamespace(decoder_layers=2, median_filter_width=width))
    for _ in range(30):
        tokens, positions = int(draw.integers(1, 9)), int(draw.integers(1, 24))
        weights = draw.dirichlet(np.full(positions, 0.3), (2, 1, 3, tokens)).astype(np.float32)
        heads = [[0, 2], [1, 0], [1, 1]]
        made = outputs.GenerateEncoderDecoderOutput(
            sequences=torch.zeros((1, tokens + 3)),
            cross_attentions=(tuple(
                torch.cat([torch.zeros(1, 3, 2, positions), torch.from_numpy(layer)], dim=2)
                for layer in weights
            ),),
        )  # fmt: skip
        frames = int(draw.integers(2, 2 * positions + 2))
        wanted = generation.WhisperGenerationMixin._extract_token_timestamps(
            own, made, heads, num_frames=torch.tensor([frames]), num_input_ids=2
        )
        chosen = np.stack([weights[layer, 0, head] for layer, head in heads])
        found = token_times(chosen[..., : frames // 2], width)
        np.testing.assert_allclose(found, wanted[0, 2:-1], atol=1e-6)


class Bytes:
    """A tokenizer of pieces of UTF-8."""

    eos_token_id = 10**6
    language = None

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def decode(self, tokens: Any, **_: Any) -> str:
        return b"".join(self.pieces[token] for token in tokens).decode(errors="replace")


@pytest.mark.parametrize(("code", "name"), [("en", "english"), ("zh", "chinese")])
def test_tokens_are_grouped(code: str, name: str) -> None:
    tokenization: Any = pytest.importorskip("transformers.models.whisper.tokenization_whisper")
    draw = random.Random(0)
    for text in TEXTS * 20:
        given, pieces = text.encode(), list[bytes]()
        while given:
            size = draw.randint(1, 5)
            pieces.append(given[:size])
            given = given[size:]
        tokens, tokenizer = [*range(len(pieces))], Bytes(pieces)
        words, _, places = tokenization._combine_tokens_into_words(tokenizer, tokens, name)
        times = [(place / 10, place / 10 + 0.1) for place in tokens]
        found = group_words(tokens, times, tokenizer.decode, code)
        assert [word.text for word in found] == words
        wanted = [(times[part[0]][0], times[part[-1]][1]) for part in places]
        assert [(word.start, word.end) for word in found] == wanted
