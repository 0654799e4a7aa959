"""Pieces of text while it is decoded."""

from typing import Any

import pytest

from tfexport.runtime.streaming import TextStream

pytestmark = pytest.mark.no_model


def test_no_piece_of_a_stream_splits_a_character() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(
        {char: i for i, char in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))},
        [],
    ))  # fmt: skip
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    text = "Straße 👩‍🚀 日本語 é\u0301 naïve \ufffd end"
    stream = TextStream(tokenizer.decode)
    pieces = [stream.add(token) for token in tokenizer.encode(text).ids] + [stream.end()]
    assert "".join(pieces) == text
    assert len([piece for piece in pieces if piece]) > 20
    assert not any("\ufffd" in piece for piece in pieces[:-6])


def test_words_that_a_decoder_joins_later_are_not_shown_too_early() -> None:
    def decode(ids: Any) -> str:  # as WordPiece's clean-up does
        return " ".join(["don", "'", "t", "go"][i] for i in ids).replace(" ' ", "'")

    stream = TextStream(decode, whole_words=True)
    pieces = [stream.add(i) for i in range(4)] + [stream.end()]
    assert pieces == ["", "don", "", "'t", " go"]
