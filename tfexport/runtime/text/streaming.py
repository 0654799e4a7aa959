"""Text that appears as it is decoded."""

from collections.abc import Callable, Sequence

UNDECIDED = "\ufffd"  # what decoders write for bytes that are no character yet


class TextStream:
    """Tokens to pieces of text that never split a character and are never taken back.

    The pieces together are the text of all tokens. A piece waits while its end is an unfinished
    character.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], whole_words: bool = False) -> None:
        """Begin a text.

        Args:
            decode: ids to text.
            whole_words: show no word before the next one begins, for decoders that still change it
                (WordPiece writes ``do n ' t`` as ``don't``).
        """
        self._decode, self._whole_words = decode, whole_words
        self._tokens: list[int] = []
        self._shown = ""

    def add(self, token: int) -> str:
        """The text that is certain with one more token; often empty."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        # White space waits too: decoders drop it at an end.
        certain = text.rstrip(UNDECIDED).rstrip()
        if self._whole_words:
            certain = certain[: max(certain.rfind(" "), 0)]
        return self._show(certain)

    def end(self) -> str:
        """The rest of the text, which was held back."""
        return self._show(self._decode(self._tokens))

    def _show(self, text: str) -> str:
        if not text.startswith(self._shown):
            return ""
        piece = text[len(self._shown) :]
        self._shown = text
        return piece
