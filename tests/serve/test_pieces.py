"""The texts of tokens, for those who show where a translation comes from."""

from typing import Any

import pytest

from tests.serve.servers import Server
from tfexport.serve.protocols.token_offsets import _pieces


def pieces(server: Server, text: str, tokens: list[list[int]], **more: Any) -> Any:
    return server.post("/v1/pieces", {"text": text, "tokens": tokens, **more})


def test_every_token_of_both_sides_has_its_text(server: Server) -> None:
    text, options = " w4 w5.\n\nw6 w99 w7", {"return_attention": True, "max_length": 5}
    answer = server.post("/v1/translate", {"texts": [text], "options": options})
    made = answer.json["translations"][0]["sentences"]
    found = pieces(server, text, [one["tokens"] for one in made]).json
    assert found["model"] == "tiny"
    assert [one["source"] for one in found["sentences"]] == ["w4 w5.", "w6 w99 w7"]
    assert [one["source_pieces"] for one in found["sentences"]] == [
        ["w4", "w5.", ""],
        ["w6", "w99", "w7", ""],
    ]
    for sentence, known in zip(found["sentences"], made, strict=True):
        assert len(sentence["source_pieces"]) == len(known["source_tokens"])
        assert len(sentence["pieces"]) == len(known["tokens"])
        assert "".join(sentence["pieces"]) == known["text"]


@pytest.mark.parametrize(
    ("text", "tokens", "said"),
    [
        ("w4", [], "0 rows for the 1 sentences"),
        ("w4", [[5], [6]], "2 rows for the 1 sentences"),
        ("", [[5]], "1 rows for the 0 sentences"),
        ("w4", [[999]], "tokens[0]: "),
        ("w4", [[-1]], "tokens[0]: "),
        ("w4", [["w4"]], "tokens[0][0]: should be a valid integer"),
        ("w4 " * 999, [[5]], "limit of 64"),
    ],
)
def test_what_does_not_fit_is_named(
    server: Server, text: str, tokens: list[list[int]], said: str
) -> None:
    answer = pieces(server, text, tokens)
    assert answer.status == 422
    assert said in answer.json["error"]


def test_there_are_as_many_as_characters_may_be(server: Server) -> None:
    assert pieces(server, "w4", [[5] * 100_001]).status == 413
    answer = pieces(server, "w4", [[5] * 90_000])  # in time that grows no faster than they do
    assert len(answer.json["sentences"][0]["pieces"]) == 90_000


def test_pieces_of_bytes_and_of_joined_words_are_whole() -> None:
    """Bytes that make no character yet, and a decoder that joins ``don ' t``."""

    def of_bytes(tokens: Any) -> str:
        return bytes(tokens).decode(errors="replace")

    assert [*_pieces(of_bytes, "aü€b".encode())] == ["a", "", "ü", "", "", "€", "b"]
    words = ["don", "'", "t", "stop"]

    def of_words(tokens: Any) -> str:
        return " ".join(words[token] for token in tokens).replace(" ' ", "'")

    assert [*_pieces(of_words, [0, 1, 2, 3])] == ["don", " '", "'t", " stop"]
