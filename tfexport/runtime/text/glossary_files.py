"""Files of glossaries: TSV, CSV and TBX."""

import os
from pathlib import Path

from tfexport.errors import InputError, Message, Option
from tfexport.runtime.text import tbx
from tfexport.runtime.text.glossary import MOST_BYTES, Glossary, decoded, parse_csv, parse_tsv
from tfexport.runtime.text.language_codes import Code

SUFFIXES = (".tsv", ".csv", ".tbx")


def read_glossary(
    path: str | os.PathLike[str], source: str | None = None, target: str | None = None
) -> Glossary:
    """Read a glossary; the end of its name tells its format.

    Args:
        path: of a file that ends in ``.tsv``, ``.csv`` or ``.tbx``.
        source: language of the texts; TBX needs it.
        target: language of the translations; TBX needs it.

    Raises:
        InputError: naming everything that is wrong with it, or that its languages are others.
        OSError: it cannot be read.
    """
    path = Path(path)
    try:
        return _read(path, source, target)
    except InputError as error:
        raise InputError(Message(f"{path}: ", error.message)) from None


def _read(path: Path, source: str | None, target: str | None) -> Glossary:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"is no glossary; its name has to end in {', '.join(SUFFIXES)}")
    most = tbx.MOST_BYTES if suffix == ".tbx" else MOST_BYTES
    with path.open("rb") as file:
        content = file.read(most + 1)
    if suffix == ".tbx":
        if not source or not target:
            raise InputError(Message(
                "TBX has terms of several languages, and the bundle does not say which are its "
                "own; name them with ", Option("languages", "de-en"),
            ))  # fmt: skip
        return tbx.parse_tbx(content, source, target)
    text = decoded(content)
    found = parse_csv(text) if suffix == ".csv" else parse_tsv(text)
    check_languages(found, source, target)
    return found


def check_languages(glossary: Glossary, source: str | None, target: str | None) -> None:
    """Refuse a glossary that names other languages than those of the texts and translations.

    Raises:
        InputError: naming both.
    """
    for side, code, own in zip(
        ("source", "target"), (source, target), glossary.languages or (), strict=False
    ):
        if code and not Code.of(code).likeness(Code.of(own)):
            raise InputError(f"its {side} language is {own[:20]}, not {code[:20]}")
