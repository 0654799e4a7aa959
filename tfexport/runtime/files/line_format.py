"""Results as lines of a file: text, text with alignments, or JSON."""

import json
from dataclasses import dataclass
from typing import Any

from tfexport.runtime.files.line_stream import LineResult
from tfexport.runtime.results import TranslationResult, moses


@dataclass(frozen=True)
class LineFormat:
    """The form of an output's lines.

    Attributes:
        jsonl: one JSON object for each input line, instead of text.
        alignment: ``text ||| 0-0 1-2`` instead of the text alone.
        ids: lines are ids between spaces, instead of text.
        hypotheses: how many were asked for. Of text each becomes a line of its own, empty where
            there are fewer; in JSON more than one are listed.
    """

    jsonl: bool = False
    alignment: bool = False
    ids: bool = False
    hypotheses: int = 1

    @property
    def lines_each(self) -> int:
        """Output lines for each input line."""
        return 1 if self.jsonl else self.hypotheses

    def write(self, line: LineResult) -> list[str]:
        """The output lines of an input line."""
        return [self._json(line)] if self.jsonl else self._texts(line)

    def identity(self) -> dict[str, Any]:
        """Facts, as JSON values, by which a later run knows lines of the same form.

        The number of hypotheses is among the decoding options, which are compared too.
        """
        return {"format": [self.jsonl, self.alignment, self.ids]}

    def _json(self, line: LineResult) -> str:
        values: dict[str, Any]
        if line.result is None:
            text = None if self.ids else ""
            values = {"text": text, "tokens": None, "score": None, "error": str(line.problem)}
        else:
            values = line.result.to_dict(hypotheses=self.hypotheses > 1)
        return json.dumps(values, ensure_ascii=False)

    def _texts(self, line: LineResult) -> list[str]:
        result, written = line.result, list[str]()
        if result is not None:
            for place in range(min(self.hypotheses, len(result.hypotheses))):
                pairs = f" ||| {moses(result.alignment(place))}" if self.alignment else ""
                written.append(self._text(result, place) + pairs)
        return written + [""] * (self.hypotheses - len(written))

    def _text(self, result: TranslationResult, place: int) -> str:
        if self.ids:
            return " ".join(map(str, result.hypotheses[place].tokens))
        text = result.texts[place]
        # A tokenizer may know line breaks; one line in stays one line out.
        return " ".join(text.splitlines()) if len(text.splitlines()) > 1 else text.rstrip("\r\n")
