"""Dialects of Markdown: what each has besides CommonMark that is no words."""

import re
from typing import Literal, get_args

from tfexport.markup.tokens import CODE_BLOCK, STATEMENT

Dialect = Literal["commonmark", "gfm", "mkdocs", "kramdown", "mdx", "obsidian"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
# The constructs of each; groups of the patterns below have these names.
_CONSTRUCTS: dict[Dialect, str] = {
    "commonmark": "",
    "gfm": "front statement alert task footnote sign formula lowered",
    "mkdocs": "front statement admonition attributes abbreviation contents snippet keys task "
    "footnote definition sign formula marked lowered",
    "kramdown": "front statement attributes abbreviation contents footnote definition sign formula",
    "mdx": "front statement attributes program comment fence task footnote sign formula",
    "obsidian": "front statement alert task footnote formula wiki remark aside anchor marked "
    "hashtag",
}
# In a file of no named dialect "%% words %%" within a line may be words; it may be of VitePress,
# of Microsoft's documentation or of Pandoc.
_EVERY = (
    frozenset(name for names in _CONSTRUCTS.values() for name in names.split())
    - {"aside"} | {"include", "command"}
)  # fmt: skip
FRONT = re.compile(
    r"---[ \t]*\n.*?\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)|\+{3}[ \t]*\n.*?\n\+{3}[ \t]*(?:\n|\Z)",
    re.DOTALL,
)
ADMONITION = re.compile(  # of Python-Markdown, and a tab of pymdown-extensions
    r"(?:(?:!!!|\?\?\?\+?)\s+[a-z][\w-]*(?:\s+(?:inline|end))*|===[!+]?(?=\s+\"))"
    r"(?:\s+\"(?P<title>[^\"]*)\")?\s*$"
)
# Lines that are no words.
OWN_LINE = re.compile(
    rf"(?P<statement>{STATEMENT.pattern}\s*$)"
    r"|(?P<alert>\[!\w+\][+-]?\s*$)"
    rf"|(?P<admonition>{ADMONITION.pattern})"
    r"|(?P<attributes>\{:?\s*[#.:][^{}]*\}\s*$|\{:[^{}]*\}\s*$)"  # of kramdown, Python-Markdown
    r"|(?P<abbreviation>\*\[[^\]]+\]:)"
    r"|(?P<contents>\[(?:TOC|\[_?TOC_?\])\]\s*$)"
    r"|(?P<snippet>--8<--)|(?P<anchor>\^[\w-]+\s*$)"
    r"|(?P<remark>%%.*%%\s*$)|(?P<comment>\{/\*.*\*/\}\s*$)"  # comments of Obsidian, of MDX
    r"|(?P<include><<<\s|\[!INCLUDE\s*\[)|(?P<command>\\[A-Za-z]{2,40}(?:\{[^{}]*\})*\s*$)"
    r"|(?P<fence>:::)"  # around a block of Docusaurus, MyST or Pandoc
)
# Blocks that are no words, of one line or several.
OWN_BLOCK = re.compile(
    rf"^[ \t]*(?:(?P<statement>{CODE_BLOCK})[ \t]*$"
    r"|(?P<remark>%%[ \t]*\n(?:.*\n)*?[ \t]*%%[ \t]*$)"
    r"|(?P<comment>\{/\*(?:(?!\{/\*)(?:.|\n))*?\*/\}[ \t]*$))",
    re.MULTILINE,
)
# Statements of MDX: a paragraph that begins with one and ends as one is none.
PROGRAM = re.compile(
    r"import\s+(?:[\w*{].*\sfrom\s+)?[\"'][^\"']+[\"'];?\s*$|import\s*\{[^}]*$"
    r"|export\s+(?:default\s+(?:async\s+)?(?:function|class)?\s*\w*\s*[({\[;]"
    r"|(?:const|let|var)\s+[\w{\[]+.*=|(?:async\s+)?function\b[^(]*\(|class\s+\w+[^{.]*\{)"
    r"|export\s*[{*]"
)
PROGRAM_END = re.compile(
    r"[\"'})\];]\s*$|^export\s+(?:const|let|var)\s+\w+\s*=\s*(?:-?\d[\w.]*|true|false|null)\s*$"
)
# What a text begins with that is no words.
OWN_START = re.compile(
    r"(?P<footnote>\[\^[^\]\s]+\]:\s*)|(?P<definition>:\s+(?=\S))"
    r"|(?P<alert>\[!\w+\][+-]?[ \t]+(?=\S))"  # before a title, which ends with its line
)
TASK = re.compile(r"(?P<task>\[[ xX]\]\s+)")
# Parts of a line that are no words.
PARTS = re.compile(
    rf"(?P<statement>{STATEMENT.pattern})"
    r"|(?P<attributes>\{:?\s?[#.][\w.#\s=\"'-]{1,200}\}|\{:[^{}\n]{1,200}\})"
    r"|(?P<comment>\{/\*[^\n]{0,500}?\*/\})|(?P<aside>%%[^%\n]{1,500}%%)"
    r"|(?P<anchor>(?<=\s)\^[\w-]{1,80}\s*$)"
    r"|(?P<hashtag>(?<![\w&#/])#[^\W\d][\w/-]{0,80})"
    r"|(?P<wiki>!?\[\[[^\[\]\n]{1,200}\]\])"
    r"|(?P<keys>(?<!\S)\+\+[\w+-]{1,80}\+\+)"
    r"|(?P<footnote>\[\^[^\]\s]{1,100}\])"
    r"|(?P<sign>(?<![\w:]):(?=[0-9_+-]{0,40}[a-z])[a-z0-9_+-]{1,40}:(?![\w:]))"
    r"|(?P<formula>(?<![\w$])\$(?=[^\s$])[^$\n]{0,300}(?<=[^\s])\$(?![\w$])|\$\$[^$\n]{1,300}\$\$)"
)


# Signs around words, which parsers of CommonMark do not know: of a link to what a program of a
# template finds, of a highlight, of words with attributes, of an index below.
AROUND = re.compile(
    r"(?P<statement>\[)(?P<label>[^\[\]\n]{1,200})(?P<target>\]\(\{[%{][^()\n]{1,200}[%}]\}[^()\s]{0,80}\))"
    r"|(?P<marked>==)(?P<words>[^\s=](?:[^=\n]{0,300}[^\s=])?)=="
    r"|(?P<attributes>\[)(?P<named>[^\[\]\n]{1,200})(?P<names>\]\{:?\s?[#.][\w.#\s=\"'-]{1,200}\})"
    r"|(?P<lowered>(?<!~)~)(?P<index>[^\s~]{1,80})~(?!~)"
)


def constructs(dialect: Dialect | None) -> frozenset[str]:
    """The names of a dialect's constructs besides CommonMark; of all dialects for None."""
    return _EVERY if dialect is None else frozenset(_CONSTRUCTS[dialect].split())


def is_known(found: re.Match[str] | None, known: frozenset[str]) -> bool:
    """Whether a match of one of the patterns is of a construct that is known."""
    if found is None:
        return False
    return any(text is not None and name in known for name, text in found.groupdict().items())
