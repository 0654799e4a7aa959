"""The text of one translation, in pieces, while its tokens are decoded."""

from collections.abc import Iterator

from tfexport.runtime.options import Step
from tfexport.runtime.streaming import TextStream
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
        for request, sentence in zip(rows.requests, self._layout.sentences, strict=True):
            stream = TextStream(texts.decode, texts.target.whole_words)
            self._streams.append(stream)
            prefix = () if request is None else request.prefix
            begun = [stream.add(token) for token in prefix]
            self._waiting.append([sentence] if request is None else begun)
        self._kept = [request is None for request in rows.requests]
        self._ended = [*self._kept]
        self._place, self._begun = 0, False  # of the sentence that is shown
        self._shown = ["", ""]  # of the sentence before it, and of itself

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
            gap = ""
            if not self._begun and (text or self._ended[self._place]):
                gap, self._begun = self._gap(text), True
            self._shown[1] += text
            if gap or text:
                yield gap + text
            if not self._ended[self._place]:
                return
            self._place, self._begun, self._shown = self._place + 1, False, [self._shown[1], ""]

    def _gap(self, text: str) -> str:
        """What goes before the sentence that is shown now, which begins with a text."""
        place = self._place
        kept = any(self._kept[max(place - 1, 0) : place + 1])
        return self._layout.gap(place, self._shown[0], text, kept)
