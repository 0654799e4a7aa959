"""Markdown files outside docs/ as HTML, with headings, tables and links that lead somewhere."""

import html
from collections.abc import Callable

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.anchors import anchors_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_by_name
from pygments.util import ClassNotFound

Target = Callable[[str], "str | None"]  # of a relative link as it is written; None: it has none


def render(text: str, link: Target, image: Target) -> str:
    """Render a file; headings have the anchors that GitHub gives them.

    Args:
        text: of the file.
        link: the page that a relative link leads to. Without one the link becomes plain text.
        image: the file that a relative image is shown from. Without one its text is shown.
    """
    markdown = MarkdownIt("commonmark", {"highlight": _highlight}).enable("table")
    anchors_plugin(markdown, max_level=6)
    # Tables are wide: the table scrolls, the page does not.
    markdown.add_render_rule("table_open", _table_open)
    markdown.add_render_rule("table_close", lambda *_: "</table></div>\n")
    tokens = markdown.parse(text)
    for token in tokens:
        if token.children:
            token.children = _resolved(token.children, link, image)
    rendered: str = markdown.renderer.render(tokens, markdown.options, {})
    return rendered


def _table_open(*_: object) -> str:
    return '<div class="table-wrapper docutils container"><table class="docutils">\n'


def _highlight(text: str, language: str, _: str) -> str:
    try:
        lexer = get_lexer_by_name(language or "console")
    except ClassNotFound:
        lexer = TextLexer()
    return highlight(text, lexer, HtmlFormatter(cssclass="highlight", wrapcode=False))


def _resolved(tokens: list[Token], link: Target, image: Target) -> list[Token]:
    """The same inline tokens with other targets; what has none loses its tag."""
    kept, opened = list[Token](), list[bool]()
    for token in tokens:
        if token.type == "link_open":
            opened.append(_retarget(token, "href", link))
            kept += [token] if opened[-1] else []
        elif token.type == "link_close":
            kept += [token] if opened.pop() else []
        elif token.type == "image" and not _retarget(token, "src", image):
            kept.append(Token("html_inline", "", 0, content=html.escape(token.content)))
        else:
            kept.append(token)
    return kept


def _retarget(token: Token, attribute: str, find: Target) -> bool:
    found = find(str(token.attrGet(attribute)))
    token.attrSet(attribute, found or "")
    return found is not None
