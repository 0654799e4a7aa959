"""Pages of the site for what its Markdown links to outside docs/: code, examples, settings.

On GitHub such a link leads to the file. Here it leads to a page that shows the file, or lists the
folder, so that the site needs nothing but itself.
"""

import html
import posixpath
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = "repository"  # of the site's pages
_LINK = re.compile(r"\]\((?P<path>(?:\.\./)+[^)#\s]+|(?!\w+:)[\w./-]+/)(?P<anchor>#[^)\s]+)?\)")
_MOST_BYTES = 200_000
_ON_SITE = {"README.md": "index", "CHANGELOG.md": "changelog"}  # pages that say the same


def tracked_files() -> set[str]:
    """Paths of the files that the repository holds."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if listed.returncode == 0:
        return set(listed.stdout.split("\0")[:-1])
    return {path.relative_to(REPOSITORY).as_posix() for path in REPOSITORY.rglob("*")}


def rewrite_links(app: Sphinx, page: str, content: list[str]) -> None:
    """Give links that leave docs/ a scheme of their own, which no page of docs/ has."""
    folder = posixpath.dirname(f"docs/{page}")

    def rewritten(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found["path"]))
        if path.startswith("docs/") or not (REPOSITORY / path).exists():
            return found[0]  # a page of the site; or nothing, which Sphinx reports
        app.env.repository_paths.add(path)  # type: ignore[attr-defined]
        return f"](repository:{path})"

    content[0] = _LINK.sub(rewritten, content[0])


def resolve_links(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Point the links of ``rewrite_links`` at the pages."""
    for reference in tree.findall(nodes.reference):
        target = reference.get("refuri", "")
        if target.startswith("repository:"):
            reference["refuri"] = app.builder.get_relative_uri(page, _page(target[11:]))


def _page(path: str) -> str:
    return _ON_SITE.get(path, f"{FOLDER}/{path}")


def make_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for every file and folder that is linked, and for what those folders hold."""
    files = tracked_files()
    waiting, done = sorted(app.env.repository_paths), set[str]()  # type: ignore[attr-defined]
    while waiting:
        path = waiting.pop()
        if path in done or path in _ON_SITE:
            continue
        done.add(path)
        if path in files:
            body = _file(path)
        else:
            inside = sorted(file for file in files if file.startswith(f"{path}/"))
            waiting += [file for file in inside if _shown(file)]
            body = _listing(app, path, inside)
        context = {"title": path, "body": f"<h1>{html.escape(path)}</h1>\n{body}"}
        yield _page(path), context, "page.html"


def _shown(path: str) -> bool:
    file = REPOSITORY / path
    return file.stat().st_size <= _MOST_BYTES and b"\0" not in file.read_bytes()


def _file(path: str) -> str:
    if not _shown(path):
        return "<p>Not text, or too large to be shown here.</p>"
    try:
        lexer = get_lexer_for_filename(path)
    except ClassNotFound:
        lexer = TextLexer()
    text = (REPOSITORY / path).read_text(encoding="utf-8")
    return highlight(text, lexer, HtmlFormatter(cssclass="highlight"))


def _listing(app: Sphinx, path: str, inside: list[str]) -> str:
    items = []
    for file in inside:
        name = html.escape(file.removeprefix(f"{path}/"))
        target = app.builder.get_relative_uri(_page(path), _page(file))
        items.append(
            f'<li><a href="{target}">{name}</a></li>' if _shown(file) else f"<li>{name}</li>"
        )
    return f"<ul>{''.join(items)}</ul>"


def _begin(app: Sphinx) -> None:
    app.env.repository_paths = set()  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, Any]:
    """What Sphinx calls."""
    app.connect("builder-inited", _begin)
    app.connect("source-read", rewrite_links)
    app.connect("doctree-resolved", resolve_links)
    app.connect("html-collect-pages", make_pages)
    # Paths are collected in memory as sources are read, so every build reads them all.
    return {"parallel_read_safe": False, "parallel_write_safe": False}
