"""The site: Sphinx over the Markdown of docs/, which GitHub shows too. ``make docs`` builds it."""

import re
import sys
from importlib.metadata import version as installed
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject

sys.path.insert(0, str(Path(__file__).parent))

project = "tfexport"
author = "the authors of tfexport"
project_copyright = "the authors of tfexport, Apache-2.0"
release = version = installed("tfexport")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "repository_pages",
]
exclude_patterns = ["_site"]
html_theme = "furo"
html_title = "tfexport"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_copy_source = False
html_show_sphinx = False
html_scaled_image_link = False
# To pages that only the site has; `make docs` reports those that lead nowhere.
linkcheck_ignore = ["repository:"]
templates_path: list[str] = []

smartquotes = False  # two dashes begin an option

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
myst_url_schemes = ["http", "https", "mailto", "repository"]
# Blocks in several languages stand without one where they are for a shell.
highlight_language = "console"

autoclass_content = "both"  # arguments stand in the docstring of __init__
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True


_PAGE = re.compile(r"docs/([\w/-]+)\.md")


def _mend(app: Sphinx, tree: nodes.document) -> None:
    """What docstrings and help texts say in their own way.

    Dashes that napoleon writes as two hyphens, FILE:KEY, which docutils takes for a link, and
    pages of docs/ by their path, which become links.
    """
    for link in list(tree.findall(nodes.reference)):
        if link.get("refuri", "").startswith("FILE:"):
            link.parent.replace(link, link.children)
    for text in list(tree.findall(nodes.Text)):
        if isinstance(text.parent, nodes.literal | nodes.literal_block | nodes.reference):
            continue
        mended = text.replace(" -- ", " – ")
        if mended != text or _PAGE.search(mended):
            text.parent.replace(text, _linked(mended))


def _linked(text: str) -> list[nodes.Node]:
    """The text, in which every path of a page is a link to it."""
    parts, end = list[nodes.Node](), 0
    for path in _PAGE.finditer(text):
        target = {"refdomain": "std", "reftype": "doc", "reftarget": f"/{path[1]}"}
        shown = nodes.inline("", path[0])
        parts += [nodes.Text(text[end : path.start()]), pending_xref("", shown, **target)]
        parts[-1]["refexplicit"] = True
        end = path.end()
    return [*parts, nodes.Text(text[end:])]


def _examples(_: Sphinx, __: object, lines: list[str]) -> None:
    """Lines of a command's help that click leaves as they are, which are examples, as code."""
    shown = list[str]()
    for line in lines:
        if line.startswith("| ") and not (shown and shown[-1].startswith("   ")):
            shown += [".. code-block:: console", ""]
        shown.append(f"   {line[2:]}" if line.startswith("| ") else line)
    lines[:] = shown


def setup(app: Sphinx) -> None:
    """What Sphinx calls."""
    for field in PyObject.doc_field_types:  # of what napoleon makes of "Attributes"
        if field.name == "variable":
            field.label = "Attributes"
    app.connect("sphinx-click-process-description", _examples)
    app.connect("doctree-read", _mend)
