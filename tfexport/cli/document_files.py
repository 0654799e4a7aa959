"""``tfexport translate --format``: files of which only the words are translated."""

import codecs
import sys
from pathlib import Path
from typing import Any

import click

from tfexport.atomic import naming, new_file
from tfexport.cli.console import cut_lines, needs, unknown_tokens
from tfexport.cli.decoding_options import given, without_effect
from tfexport.cli.terms_option import unmet, unmet_terms
from tfexport.errors import ConfigError, InputError, Problem, join_problems, shown
from tfexport.runtime.engine import Engine
from tfexport.runtime.terms import Terms
from tfexport.runtime.text.codec import LanguagePair

# Options of lines that files of other formats do not have.
_OF_LINES = (
    "ids", "inputs", "resume", "jsonl", "alignment", "attention_plot", "target_prefix",
    "target_prefix_file",
)  # fmt: skip
_MOST_UNMET = 20  # sentences that are listed
MOST_BYTES = 64 << 20  # of a file, which is read as a whole
_OF_FORMATS: tuple[str, ...] = (
    "placeholders", "placeholder_pattern", "ignore_tags",
)  # fmt: skip
_OF_RESULTS = (
    "return_attention", "return_token_scores", "return_end_token", "num_hypotheses",
    "return_alternatives",
)  # fmt: skip


def check_document_call(call: Any) -> None:
    """Refuse options that do not apply to ``--format``, or apply to it alone.

    Raises:
        ConfigError: there are any; all are listed.
    """
    kind = f"--format {call.format}"
    if call.format is None:
        names, reason = _OF_FORMATS, "needs --format"
    else:
        names, reason = _OF_LINES, f"applies to lines, not to {kind}"
    found = [f"{_flag(name)} {reason}" for name in names if getattr(call, name)]
    if call.format is not None:
        added = [name for name in _OF_RESULTS if call.decoding.get(name)]
        found += [f"{_flag(name)} adds to lines, not to {kind}" for name in added]
        found += without_effect({"force": call.force}, {"force": call.output != "-"})
    if found:
        raise ConfigError(join_problems("translate", [Problem(None, text) for text in found]))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def translate_document(call: Any, engine: Engine, terms: Terms | None) -> None:
    """Translate ``call.file``, and report cut sentences, unknown tokens and terms not met.

    Args:
        call: the command's arguments and options.
        engine: the bundle.
        terms: of all texts.

    Raises:
        InputError: the file is malformed, or has more than ``MOST_BYTES``.
        ConfigError: options are wrong.
    """
    with needs("markup"):
        from tfexport.markup.document import Markup
        from tfexport.markup.files import read_file
        from tfexport.markup.placeholders import USUAL, Placeholders
        from tfexport.markup.tokens import TagRules
        from tfexport.markup.translate import translate_texts

    kinds = (
        USUAL if call.placeholders is None else tuple(filter(None, call.placeholders.split(",")))
    )
    placeholders = Placeholders(kinds, call.placeholder_pattern)
    ignored = (name.strip() for name in (call.ignore_tags or "").split(","))
    markup = Markup(placeholders=placeholders, rules=TagRules(frozenset(filter(None, ignored))))
    name = "stdin" if call.file == "-" else call.file
    content, mark = _content(call.file)
    keywords = given(call.decoding)
    keywords["return_scores"] = False
    language_pair = LanguagePair(call.source_language, call.target_language)
    try:
        file = read_file(content, call.format, markup)
        found = translate_texts(engine, file.texts, keywords, language_pair, terms)
        written = file.write(found.texts)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    _write(call, mark + written)
    for sentence, missing in found.unmet[:_MOST_UNMET]:
        click.echo(f"{name}: {shown(sentence)}: {unmet(missing)}", err=True)
    if found.unmet:
        count = sum(len(missing) for _, missing in found.unmet)
        click.echo(unmet_terms(count, len(found.unmet), "sentences"), err=True)
    if found.unfinished:
        click.echo(cut_lines(found.unfinished, "sentences", None), err=True)
    if found.unknown[0]:
        click.echo(unknown_tokens(*found.unknown, "sentences"), err=True)


def _content(file: str) -> tuple[str, str]:
    """The text of a file, with the line breaks that it has, and its byte order mark."""
    if file == "-":
        raw = sys.stdin.buffer.read(MOST_BYTES + 1)
    else:
        with naming(file), Path(file).open("rb") as opened:
            raw = opened.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise InputError(
            f"{file}: has more than {MOST_BYTES:,} bytes, the most with --format; divide the file, "
            "or translate it line by line, without --format"
        )
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        wide = raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        what = "is UTF-16" if wide else f"is not UTF-8 at byte {error.start}"
        example = "UTF-16" if wide else "WINDOWS-1252"
        raise InputError(
            f"{file}: {what}; convert it to UTF-8, such as with iconv -f {example} -t UTF-8"
        ) from None
    return (text[1:], "\ufeff") if text.startswith("\ufeff") else (text, "")


def _write(call: Any, text: str) -> None:
    if call.output == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
        return
    with new_file(call.output, call.force) as path:
        path.write_bytes(text.encode())
