"""Results as lines of a file: text, text with alignments, or JSON."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tfexport.errors import Option
from tfexport.runtime.files.line_stream import LineResult
from tfexport.runtime.results import TranslationResult, moses


@dataclass(frozen=True)
class LineFormat:
    """The form of an output's lines.

    Attributes:
        jsonl: write one JSON object for each input line, instead of text.
        alignment: write ``text ||| 0-0 1-2`` instead of the text alone.
        ids: write ids separated by spaces, instead of text.
        num_hypotheses: hypotheses for each input line. As text each has a line of its own, which
            is empty if the search found fewer; a JSON object lists them if there are several.
        spell: writes the options in the ``error`` of a JSON object: as Python's keywords, or as
            the flags of a command line.
    """

    jsonl: bool = False
    alignment: bool = False
    ids: bool = False
    num_hypotheses: int = 1
    spell: Callable[[Option], str] = field(default=str, compare=False)

    @property
    def lines_per_input(self) -> int:
        """Output lines for each input line."""
        return 1 if self.jsonl else self.num_hypotheses

    def write(self, line: LineResult) -> list[str]:
        """The output lines for the result of an input line."""
        return [self._json(line)] if self.jsonl else self._texts(line)

    def identity(self) -> dict[str, Any]:
        """The format as JSON values, which a run that resumes an output compares with its own.

        The number of hypotheses is left to the decoding options, which are compared too.
        """
        return {"format": [self.jsonl, self.alignment, self.ids]}

    def _json(self, line: LineResult) -> str:
        values: dict[str, Any]
        if line.result is None:
            text = None if self.ids else ""
            error = None if line.problem is None else line.problem.spelled(self.spell)
            values = {"text": text, "tokens": None, "score": None, "error": error}
        else:
            values = line.result.to_dict(hypotheses=self.num_hypotheses > 1)
        return json.dumps(values, ensure_ascii=False)

    def _texts(self, line: LineResult) -> list[str]:
        result, written = line.result, list[str]()
        if result is not None:
            for index in range(min(self.num_hypotheses, len(result.hypotheses))):
                pairs = f" ||| {moses(result.alignment(index))}" if self.alignment else ""
                written.append(self._text(result, index) + pairs)
        return written + [""] * (self.num_hypotheses - len(written))

    def _text(self, result: TranslationResult, index: int) -> str:
        if self.ids:
            return " ".join(map(str, result.hypotheses[index].tokens))
        return one_line(result.texts[index])


def one_line(text: str) -> str:
    """A decoded text without its line breaks: each input line has to stay one output line."""
    return " ".join(text.splitlines()) if len(text.splitlines()) > 1 else text.rstrip("\r\n")
