"""Incremental detokenization for streaming."""

from collections.abc import Callable, Sequence

UNDECIDED = "\ufffd"  # written by tokenizers for incomplete UTF-8 bytes


class TextStream:
    """Turns tokens into pieces of text that consist of whole characters and stay valid.

    Joined, the pieces are the text of all tokens. Text is held back while it ends in an incomplete
    character.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], whole_words: bool = False) -> None:
        """Start a new text.

        Args:
            decode: ids to text.
            whole_words: hold a word back until the next one begins, for tokenizers whose later
                tokens may change it (WordPiece joins ``do n ' t`` to ``don't``).
        """
        self._decode, self._whole_words = decode, whole_words
        self._tokens: list[int] = []
        self._shown = ""

    def add(self, token: int) -> str:
        """Add a token; returns the text that is now final, often empty."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        # White space is held back too: decoders strip it at the end of a text.
        certain = text.rstrip(UNDECIDED).rstrip()
        if self._whole_words:
            certain = certain[: max(certain.rfind(" "), 0)]
        return self._show(certain)

    def end(self) -> str:
        """The text that was held back so far."""
        return self._show(self._decode(self._tokens))

    def _show(self, text: str) -> str:
        if not text.startswith(self._shown):
            return ""
        piece = text[len(self._shown) :]
        self._shown = text
        return piece
