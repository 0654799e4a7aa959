"""The text of one translation, in pieces, while its tokens are decoded."""

from collections.abc import Iterator

from tfexport.runtime.step import Step
from tfexport.runtime.text.streaming import TextStream
from tfexport.serve.models import Model
from tfexport.serve.texts import Rows


class LiveText:
    """A text's translation so far; its sentences are decoded side by side and shown in order."""

    def __init__(self, model: Model, rows: Rows) -> None:
        """Begin.

        Args:
            model: that decodes.
            rows: of one text.
        """
        (self._layout,) = rows.layouts
        self._options, texts = rows.options, model.engine.texts
        self._streams, self._waiting = list[TextStream](), list[list[str]]()
        for request in rows.requests:
            assert request is not None  # sentences are not blank
            stream = TextStream(texts.decode, texts.target.whole_words)
            self._streams.append(stream)
            self._waiting.append([stream.add(token) for token in request.prefix])
        self._ended = [False] * len(self._streams)
        self._place, self._begun = 0, False  # of the sentence that is shown

    def add(self, step: Step) -> Iterator[str]:
        """Take a token; gives what is shown by it."""
        if self._options.return_end_token or step.token not in self._options.end_tokens:
            self._waiting[step.row].append(self._streams[step.row].add(step.token))
        if step.last:
            self._end(step.row)
        yield from self._show()

    def end(self) -> Iterator[str]:
        """All that is not shown yet, the white space at the end too."""
        for row in range(self._place, len(self._streams)):
            if not self._ended[row]:
                self._end(row)
        yield from self._show()
        if self._layout.gaps[-1]:
            yield self._layout.gaps[-1]

    def _end(self, row: int) -> None:
        self._waiting[row].append(self._streams[row].end())
        self._ended[row] = True

    def _show(self) -> Iterator[str]:
        while self._place < len(self._streams):
            text = "".join(self._waiting[self._place])
            self._waiting[self._place].clear()
            if not self._begun and (text or self._ended[self._place]):
                text, self._begun = self._layout.gaps[self._place] + text, True
            if text:
                yield text
            if not self._ended[self._place]:
                return
            self._place, self._begun = self._place + 1, False
