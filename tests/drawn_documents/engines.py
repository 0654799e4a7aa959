"""Translators of drawn documents: one that copies, one that marks, one that is careless."""

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from tests.drawn_documents.drawing import Drawn
from tests.markup.stubs import Order, careless, same, translated
from tfexport.markup.document import Markup, Row
from tfexport.markup.files import Text, read_file
from tfexport.runtime.text.sentences import split_text

Engine = Literal["copy", "mark", "careless"]
ENGINES: tuple[Engine, ...] = ("copy", "mark", "careless")
_WORD = re.compile(r"\b(?:wo|ke|pe)[a-z]+\b")
Translate = Callable[[Sequence[Text]], tuple[list[str], list[list[str]]]]


def translate_drawn(drawn: Drawn, translate: Translate) -> tuple[str, list[str]]:
    """The translation of a document, and the texts that stay as they are.

    Raises:
        InputError: it is refused.
    """
    file = read_file(drawn.content, drawn.file_format, Markup())  # type: ignore[arg-type]
    made, lost = translate(file.texts)
    written = file.write([
        None if left and text.line is not None else each
        for text, each, left in zip(file.texts, made, lost, strict=True)
    ])  # fmt: skip
    kept = [part.text for part in file.kept]
    for text, left in zip(file.texts, lost, strict=True):
        kept += [text.text] if left and text.line is not None else left
    return written, kept


def stub(engine: Engine) -> Translate:
    """A translator of words."""
    order: Order = careless if engine == "careless" else same
    words: dict[Engine, Callable[[str], str]] = {
        "copy": str, "mark": _mark, "careless": _careless_word,
    }  # fmt: skip

    def translate(texts: Sequence[Text]) -> tuple[list[str], list[list[str]]]:
        made, lost = list[str](), list[list[str]]()
        for text in texts:
            document = text.markup.read(text.text)
            document.cut(lambda segment: split_text(segment, "en", "punctuation", "spaces"))
            rows = [
                translated(form.text, order, words[engine])
                if form.worded else Row(form.text, kept=True)
                for form in document.forms
            ]  # fmt: skip
            choice = document.choose(rows)
            made.append(document.write(rows, choice))
            lost.append(choice.sentences)
        return made, lost

    return translate


def _mark(word: str) -> str:
    """A word in capitals, unless it is of a placeholder."""
    return word if "pe" in word else _WORD.sub(lambda found: found[0].upper(), word)


def _careless_word(word: str) -> str:
    """A word in capitals; one placeholder in ten is changed, and some are brought in."""
    chance = random.Random(word).random()
    if "wo" in word:
        return f"{word.upper()} {{pe}}" if chance < 0.02 else word.upper()
    return word.upper() if chance < 0.1 else word


def of_bundle(path: Path) -> Translate:
    """The translator of a bundle."""
    from tfexport.markup.translate import translate_texts
    from tfexport.runtime import Translator
    from tfexport.runtime.text.codec import LanguagePair

    translator = Translator(path, threads=1)

    def translate(texts: Sequence[Text]) -> tuple[list[str], list[list[str]]]:
        found = translate_texts(
            translator.engine, texts, {"max_length": 60}, LanguagePair(None, None)
        )
        return found.texts, found.lost

    return translate
