"""Pages of the site for what its Markdown links to outside docs/: code, examples, settings.

On GitHub such a link leads to the file. Here it leads to a page that shows the file (Markdown as
HTML), or lists the folder, so that the site needs nothing but itself.
"""

import html
import posixpath
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from markdown_pages import render
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = "repository"  # of the site's pages
_LINK = re.compile(r"\]\((?P<path>(?:\.\./)+[^)#\s]+|(?!\w+:)[\w./-]+/)(?P<anchor>#[^)\s]+)?\)")
_MOST_BYTES = 200_000
_ON_SITE = {"CHANGELOG.md": "changelog"}  # a page that says the same


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
        return f"](repository:{path}{found['anchor'] or ''})"

    content[0] = _LINK.sub(rewritten, content[0])


def resolve_links(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Point the links of ``rewrite_links`` at the pages."""
    for reference in tree.findall(nodes.reference):
        target = reference.get("refuri", "")
        if target.startswith("repository:"):
            path, _, anchor = target[11:].partition("#")
            reference["refuri"] = _uri(app, page, _page(path), anchor if _is_text(path) else "")


def _page(path: str) -> str:
    return _ON_SITE.get(path, f"{FOLDER}/{path}")


def _is_text(path: str) -> bool:
    """Whether its page has headings."""
    return path.endswith(".md")


def _uri(app: Sphinx, page: str, target: str, anchor: str) -> str:
    uri = app.builder.get_relative_uri(page, target)
    return f"{uri}#{anchor}" if anchor else uri


def make_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for every file and folder that is linked, and for what those folders hold."""
    files = tracked_files()
    waiting, done = sorted(app.env.repository_paths), set[str]()  # type: ignore[attr-defined]
    while waiting:
        path = waiting.pop()
        if path in done or path in _ON_SITE:
            continue
        done.add(path)
        if path in files and _is_text(path):
            body, linked = _text(app, path, files)
            waiting += linked
        elif path in files:
            body = f"<h1>{html.escape(path)}</h1>\n{_file(path)}"
        else:
            inside = sorted(file for file in files if file.startswith(f"{path}/"))
            waiting += [file for file in inside if _shown(file)]
            body = f"<h1>{html.escape(path)}</h1>\n{_listing(app, path, inside)}"
        yield _page(path), {"title": path, "body": body}, "page.html"


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


def _text(app: Sphinx, path: str, files: set[str]) -> tuple[str, list[str]]:
    """A Markdown file as HTML, and the paths that it links to."""
    page, folder, linked = _page(path), posixpath.dirname(path), list[str]()

    def link(written: str) -> str | None:
        target, _, anchor = written.partition("#")
        if not target or re.match(r"\w+:", target):
            return written
        target = posixpath.normpath(posixpath.join(folder, target))
        if target.startswith("docs/") and _is_text(target) and target in files:
            name = target[5:-3]
            # Anchors as they are written, to those that the site has.
            slugs = app.env.metadata[name].get("myst_slugs", {})
            return _uri(app, page, name, slugs.get(anchor, (0, anchor))[1] if anchor else "")
        if target not in files and not any(file.startswith(f"{target}/") for file in files):
            return None
        linked.append(target)
        return _uri(app, page, _page(target), anchor if _is_text(target) else "")

    def image(written: str) -> str | None:
        target = posixpath.normpath(posixpath.join(folder, written))
        if target not in files:
            return None
        source = posixpath.relpath(target, "docs")
        name = app.builder.images.setdefault(source, posixpath.basename(target))
        return posixpath.relpath(f"{app.builder.imagedir}/{name}", posixpath.dirname(page))

    return render((REPOSITORY / path).read_text(encoding="utf-8"), link, image), linked


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
    app.env.repository_trees = {}  # type: ignore[attr-defined]


def share_tree(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None
) -> None:
    """Make the tree of all pages once for each folder of these pages: its links are the same."""
    if not page.startswith(f"{FOLDER}/"):
        return
    own, folder = context["toctree"], posixpath.dirname(page)
    trees = app.env.repository_trees  # type: ignore[attr-defined]

    def toctree(**options: Any) -> str:
        key = (folder, *sorted(options.items()))
        if key not in trees:
            trees[key] = own(**options)
        found: str = trees[key]
        return found

    context["toctree"] = toctree


def setup(app: Sphinx) -> dict[str, Any]:
    """What Sphinx calls."""
    app.connect("builder-inited", _begin)
    app.connect("source-read", rewrite_links)
    app.connect("doctree-resolved", resolve_links)
    app.connect("html-collect-pages", make_pages)
    app.connect("html-page-context", share_tree, priority=100)  # before the theme
    # Paths are collected in memory as sources are read, so every build reads them all.
    return {"parallel_read_safe": False, "parallel_write_safe": False}
