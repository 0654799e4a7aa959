"""``tfexport translate --format``: files of which only the words are translated."""

import codecs
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfexport.atomic import naming, new_file
from tfexport.cli.console import cut_lines, needs, unknown_tokens
from tfexport.cli.decoding_options import given, without_effect
from tfexport.cli.terms_option import unmet, unmet_terms
from tfexport.errors import ConfigError, InputError, Problem, join_problems, shown
from tfexport.gc_pause import collect_seldom, no_collecting
from tfexport.runtime.engine import Engine
from tfexport.runtime.terms import Terms
from tfexport.runtime.text.codec import LanguagePair

if TYPE_CHECKING:
    from tfexport.markup.tokens import KeptPart

# Options of lines that files of other formats do not have.
_OF_LINES = (
    "ids", "inputs", "resume", "jsonl", "alignment", "attention_plot", "target_prefix",
    "target_prefix_file",
)  # fmt: skip
# Names of files that are seldom lines of text.
_SUFFIXES = {
    ".html": "html", ".htm": "html", ".xhtml": "xml", ".xml": "xml", ".md": "markdown",
    ".markdown": "markdown", ".srt": "srt", ".vtt": "vtt", ".po": "po", ".pot": "po",
    ".json": "json-strings", ".arb": "json-strings", ".xlf": "xml", ".xliff": "xml",
    ".ts": "xml",
}  # fmt: skip
_MOST_LISTED = 20  # sentences
MOST_BYTES = 64 << 20  # of a file, which is read as a whole
_OF_FORMATS: tuple[str, ...] = (
    "placeholders", "placeholder_pattern", "ignore_tags", "markdown_dialect", "fuzzy", "report",
    "strict",
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
    for name, of in (("fuzzy", "po"), ("markdown_dialect", "markdown")):
        if getattr(call, name) and call.format not in (None, of):
            found.append(f"{_flag(name)} applies to --format {of}, not to {kind}")
    if call.format is not None:
        added = [name for name in _OF_RESULTS if call.decoding.get(name)]
        found += [f"{_flag(name)} adds to lines, not to {kind}" for name in added]
        found += without_effect({"force": call.force}, {"force": call.output != "-"})
        files = [Path(name).absolute() for name in (call.file, call.output) if name != "-"]
        if call.report and Path(call.report).absolute() in files:
            found.append("--report names the file that is read or written; give it another name")
    if found:
        raise ConfigError(join_problems("translate", [Problem(None, text) for text in found]))


def named_format(call: Any) -> str | None:
    """The format that the name of a file says, if it is read line by line."""
    lines = call.format is None and call.inputs is None and not call.ids and call.file != "-"
    return _SUFFIXES.get(Path(call.file).suffix.lower()) if lines else None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def translate_document(call: Any, engine: Engine, terms: Terms | None) -> bool:
    """Translate ``call.file``, and report cut sentences, unknown tokens and terms not met.

    What stays as it is, though it may have words, is reported too.

    Args:
        call: the command's arguments and options.
        engine: the bundle.
        terms: of all texts.

    Returns:
        Whether all was translated that may have words.

    Raises:
        InputError: the file is malformed, or has more than ``MOST_BYTES``.
        ConfigError: options are wrong.
    """
    with needs("markup"):
        from tfexport.markup.document import Markup
        from tfexport.markup.files import FileOptions, read_file
        from tfexport.markup.placeholders import USUAL, Placeholders
        from tfexport.markup.tokens import KeptPart, TagRules
        from tfexport.markup.translate import translate_texts

    kinds = (
        USUAL if call.placeholders is None else tuple(filter(None, call.placeholders.split(",")))
    )
    placeholders = Placeholders(kinds, call.placeholder_pattern)
    ignored = (name.strip() for name in (call.ignore_tags or "").split(","))
    rules = TagRules(frozenset(filter(None, ignored)))
    markup = Markup(placeholders=placeholders, rules=rules, dialect=call.markdown_dialect)
    name = "stdin" if call.file == "-" else call.file
    content, mark = _content(call.file)
    collect_seldom()
    keywords = given(call.decoding)
    keywords["return_scores"] = False
    language_pair = LanguagePair(call.source_language, call.target_language)
    try:
        with no_collecting():
            file = read_file(content, call.format, markup, FileOptions(fuzzy=call.fuzzy))
        found = translate_texts(engine, file.texts, keywords, language_pair, terms)
        # A text of a file is translated as a whole; a file that is one text, a sentence at a time.
        # A message of ICU alone has no translation: it stays empty in a catalog.
        written = file.write([
            None if text.line is not None and (lost or (whole and made == text.text)) else made
            for text, made, lost, whole in zip(
                file.texts, found.texts, found.lost, found.whole, strict=True
            )
        ])  # fmt: skip
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    kept = [*file.kept, *(
        KeptPart(text.line, sentence, "no translation has its placeholders")
        for text, sentences in zip(file.texts, found.lost, strict=True)
        for sentence in sentences
    ), *(
        KeptPart(text.line, message, "a message of ICU is kept as a whole: translate its forms")
        for text, messages in zip(file.texts, found.whole, strict=True)
        for message in messages
    )]  # fmt: skip
    kept.sort(key=lambda each: each.line or 0)
    _write(call, mark + written)
    if call.report:
        from tfexport.cli.kept_report import write_report

        write_report(Path(call.report), name, kept)
    _tell_kept(name, kept)
    for sentence, missing in found.unmet[:_MOST_LISTED]:
        click.echo(f"{name}: {shown(sentence)}: {unmet(missing)}", err=True)
    if found.unmet:
        count = sum(len(missing) for _, missing in found.unmet)
        click.echo(unmet_terms(count, len(found.unmet), "sentences"), err=True)
    if found.unfinished:
        click.echo(cut_lines(found.unfinished, "sentences", None), err=True)
    if found.unknown[0]:
        click.echo(unknown_tokens(*found.unknown, "sentences"), err=True)
    return not kept


def _tell_kept(name: str, kept: Sequence["KeptPart"]) -> None:
    """Say on standard error what stays as it is."""
    for each in kept[:_MOST_LISTED]:
        place = name if each.line is None else f"{name}:{each.line}"
        click.echo(f"{place}: {shown(each.text)} stays as it is: {each.reason}", err=True)
    if kept:
        count = "1 text stays as it is" if len(kept) == 1 else f"{len(kept)} texts stay as they are"
        click.echo(f"{count}; --report FILE lists all, --strict makes the exit status 1", err=True)


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
