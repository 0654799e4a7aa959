"""``tfexport translate --format``: files whose words are translated."""

import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from tests.support.command import invoke
from tests.support.documents import read_blocks, words
from tests.support.paths import REPOSITORY
from tfexport.cli import document_files
from tfexport.cli.translate_command import FORMATS, MARKDOWN_DIALECTS
from tfexport.errors import TfexportWarning
from tfexport.markup import Markup, Placeholders, translate_markup
from tfexport.markup import translate as translate_module
from tfexport.markup.alignment import Tokens
from tfexport.markup.dialects import DIALECTS, Dialect
from tfexport.markup.document import Row
from tfexport.markup.files import FILE_FORMATS
from tfexport.runtime import Translator

DEMO = REPOSITORY / "examples" / "de-en.bundle"


def translated(*texts: str) -> list[str]:
    return [str(found.text) for found in Translator(DEMO, threads=1).translate(texts)]


def test_the_page_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, command, printed = read_blocks(REPOSITORY / "docs" / "markup.md")[:3]
    (tmp_path / "page.html").write_text(page.text, encoding="utf-8")
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    monkeypatch.chdir(tmp_path)
    done = invoke(*words(command.text)[1:])
    assert (done.exit_code, done.stdout) == (0, printed.text), done.stderr


def test_a_file_is_written_with_its_line_breaks_and_mark(tmp_path: Path) -> None:
    source, target = tmp_path / "a.xml", tmp_path / "b.xml"
    source.write_bytes(
        "\ufeff<?xml version='1.0'?>\r\n<a><b>Guten Morgen!</b>\r\n</a>\r\n".encode()
    )
    assert invoke("translate", DEMO, source, "--format", "xml", "-o", target).exit_code == 0
    made = f"\ufeff<?xml version='1.0'?>\r\n<a><b>{translated('Guten Morgen!')[0]}</b>\r\n</a>\r\n"
    assert target.read_bytes() == made.encode()
    again = invoke("translate", DEMO, source, "--format", "xml", "-o", target)
    assert again.exit_code == 1
    assert "--force" in again.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--placeholders", "url"), ["--placeholders needs --format"]),
        (("--ignore-tags", "x"), ["--ignore-tags needs --format"]),
        (("--strict", "--report", "x"), ["--strict needs --format", "--report needs --format"]),
        (("--format", "html", "-o", "x", "--report", "x"), ["--report names the file"]),
        (("--format", "srt", "--jsonl", "--beam-size", "2", "--num-hypotheses", "2"),
         ["--jsonl applies to lines, not to --format srt", "--num-hypotheses adds to lines"]),
        (("--format", "html", "--placeholders", "xx"), ["'xx' is not one of url, email"]),
        (("--format", "html", "--placeholder-pattern", "("), ["'(' is not a regular expression"]),
        (("--format", "html", "--force"), ["--force needs"]),
        (("--fuzzy",), ["--fuzzy needs --format"]),
        (("--format", "srt", "--fuzzy"), ["--fuzzy applies to --format po, not to"]),
        (("--format", "html", "--markdown-dialect", "gfm"),
         ["--markdown-dialect applies to --format markdown"]),
    ],
)  # fmt: skip
def test_options_without_effect_are_refused(options: tuple[str, ...], said: list[str]) -> None:
    done = invoke("translate", DEMO, *options, stdin="Guten Morgen!")
    assert done.exit_code == 2
    for text in said:
        assert text in done.stderr


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        ("xml", b"<a>", "stdin: text 1: not well-formed XML"),
        ("json-strings", b"{", "stdin: not JSON"),
        ("json-strings", b'"\\ud800"', "stdin: not valid Unicode text"),
        ("json-strings", b"[" * 100_000, "stdin: not JSON"),
        ("po", b"x", "stdin: not a catalog of messages"),
        ("po", b'msgid "a\n', "stdin: not a catalog of messages"),
        ("vtt", b"x", "stdin: not WebVTT"),
        ("srt", b"1\nx\n", "stdin: not SubRip"),
        ("html", b"\xff", "-: is not UTF-8 at byte 0"),
        ("srt", "1".encode("utf-16"), "-: is UTF-16; convert it to UTF-8"),
    ],
)
def test_malformed_files_are_refused(kind: str, content: bytes, said: str) -> None:
    done = invoke("translate", DEMO, "--format", kind, stdin=content)
    assert done.exit_code == 1, done.stdout
    assert said in done.stderr
    assert not done.stdout


def test_files_have_a_longest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they are named or come from standard input; the longest one is read to its end."""
    monkeypatch.setattr(document_files, "MOST_BYTES", 13)
    source = tmp_path / "a.txt"
    source.write_text("Guten Morgen!")
    done = invoke("translate", DEMO, source, "--format", "text")
    assert done.stdout == translated("Guten Morgen!")[0]
    source.write_text("Guten Morgen!!")
    for done, name in (
        (invoke("translate", DEMO, source, "--format", "text"), source),
        (invoke("translate", DEMO, "--format", "text", stdin=b"Guten Morgen!!"), "-"),
    ):
        assert (done.exit_code, done.stdout) == (1, "")
        assert f"{name}: has more than 13 bytes" in done.stderr


def test_every_format_is_offered() -> None:
    assert FORMATS == FILE_FORMATS


def test_text_keeps_its_lines_and_placeholders() -> None:
    done = invoke("translate", DEMO, "--format", "text", stdin="\nGuten Morgen!\n  Hallo %s!\n\n")
    assert done.stdout.startswith(f"\n{translated('Guten Morgen!')[0]}\n  ")
    assert done.stdout.count("%s") == 1
    assert done.stdout.endswith("\n\n")


def test_numbers_are_placeholders_on_request() -> None:
    text = "Er ging um 12:30 Uhr nach Hause."
    kept = invoke("translate", DEMO, "--format", "text", "--placeholders", "number", stdin=text)
    assert kept.stdout.count("12:30") == 1
    plain = invoke("translate", DEMO, "--format", "text", "--placeholders", "", stdin=text)
    assert plain.stdout == translated(text)[0]


def test_elements_are_kept_on_request() -> None:
    text = '<?xml version="1.0"?>\n<d><p>Tom liest ein Buch.</p><ui>Tom liest</ui></d>\n'
    made = invoke("translate", DEMO, "--format", "xml", "--ignore-tags", "ui, key", stdin=text)
    assert made.stdout == text.replace("Tom liest ein Buch.", "Tom is reading a book.")


UNREAD = (
    "WEBVTT\n\n00:00:01.000 -> 00:00:02.000\nGuten <b>Tag</b>\n\n00:01.000 --> 00:02.000\nHallo!\n"
)


def test_what_stays_is_said_and_written_into_a_report(tmp_path: Path) -> None:
    source, target = tmp_path / "a.vtt", tmp_path / "b.vtt"
    source.write_text(UNREAD, encoding="utf-8")
    given = ("translate", DEMO, source, "--format", "vtt", "--output", target, "--force")
    lines, page = tmp_path / "kept.jsonl", tmp_path / "kept.html"
    done = invoke(*given, "--report", lines)
    assert done.exit_code == 0
    assert target.read_text() == UNREAD.replace("Hallo!", translated("Hallo!")[0])
    assert f"{source}:3: '00:00:01.000 -> 00:00:02.000" in done.stderr
    assert "1 text stays as it is; --report FILE lists all" in done.stderr
    (entry,) = map(json.loads, lines.read_text().splitlines())
    assert (entry["file"], entry["line"]) == (str(source), 3)
    assert entry["text"].endswith("Guten <b>Tag</b>")
    assert "no cue" in entry["reason"]
    assert invoke(*given, "--report", page, "--strict").exit_code == 1
    assert target.exists()
    html = page.read_text()
    assert "Guten &lt;b&gt;Tag&lt;/b&gt;" in html
    assert "<td>3</td>" in html
    source.write_text(UNREAD.replace("->", "-->").replace("--->", "-->"), encoding="utf-8")
    done = invoke(*given, "--report", page, "--strict")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "<p>Nothing.</p>" in page.read_text()


def test_a_file_that_is_no_lines_by_its_name_is_said(tmp_path: Path) -> None:
    source = tmp_path / "a.po"
    source.write_text('msgid "Hallo"\nmsgstr ""\n', encoding="utf-8")
    done = invoke("translate", DEMO, source)
    assert done.exit_code == 0
    assert "translated line by line, with its syntax; --format po" in done.stderr
    source = source.rename(tmp_path / "a.txt")
    assert "--format" not in invoke("translate", DEMO, source).stderr


def test_a_sentence_without_its_placeholders_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model writes another placeholder whatever it reads."""
    monkeypatch.setattr(
        translate_module,
        "read_row",
        lambda *_: Row("%s", Tokens([], np.zeros((0, 0), np.float32), str)),
    )
    source = tmp_path / "a.po"
    source.write_text('msgid "Hallo {x}"\nmsgstr ""\n', encoding="utf-8")
    done = invoke("translate", DEMO, source, "--format", "po", "--strict")
    assert (done.exit_code, done.stdout) == (1, source.read_text())
    assert f"{source}:1: 'Hallo {{x}}' stays as it is: no translation has its placeholders" in (
        done.stderr
    )
    markup = Markup("text", Placeholders())
    with pytest.warns(TfexportWarning, match=r"placeholders of what stays as it is: 'Hallo {x}'"):
        made = translate_markup(Translator(DEMO, threads=1), ["Hallo {x}"], markup)
    assert made == ["Hallo {x}"]


def test_messages_of_icu_are_named_and_translations_marked_as_drafts(tmp_path: Path) -> None:
    source, report = tmp_path / "de.po", tmp_path / "report.jsonl"
    message = "{n, plural, one {# Buch} other {# Bücher}}"
    source.write_text(
        'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'
        f'msgid "&Bücher"\nmsgstr ""\n\nmsgid "{message}"\nmsgstr ""\n'
    )
    done = invoke(
        "translate", DEMO, source, "--format", "po", "--fuzzy", "--strict", "--report", report
    )
    assert done.exit_code == 1
    assert f"{source}:8: {message!r} stays as it is: a message of ICU is kept" in done.stderr
    assert json.loads(report.read_text())["text"] == message
    assert done.stdout.endswith(f'msgid "{message}"\nmsgstr ""\n')
    assert '#, fuzzy\nmsgid "&Bücher"\nmsgstr "&' in done.stdout


def test_a_dialect_of_markdown_may_be_named() -> None:
    assert get_args(Dialect) == DIALECTS == MARKDOWN_DIALECTS
    text = "Guten Morgen! [[Guten Morgen!]]"
    kept = invoke("translate", DEMO, "--format", "markdown", stdin=text).stdout
    assert kept.endswith("[[Guten Morgen!]]")
    options = ("--format", "markdown", "--markdown-dialect", "gfm")
    assert "[[Guten" not in invoke("translate", DEMO, *options, stdin=text).stdout
