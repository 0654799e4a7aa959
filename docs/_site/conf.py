"""The site: Sphinx over the Markdown of docs/, which GitHub shows too. ``make docs`` builds it."""

import sys
from importlib.metadata import version as installed
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

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
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_copy_source = False
html_show_sphinx = False
html_scaled_image_link = False
templates_path: list[str] = []

smartquotes = False  # two dashes begin an option

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
myst_url_schemes = ["http", "https", "mailto", "repository"]
# Blocks in several languages stand without one where they are for a shell.
highlight_language = "console"

autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True


def _mend(app: Sphinx, tree: nodes.document) -> None:
    """Dashes that napoleon writes as two hyphens, and FILE:KEY, which docutils takes for a link."""
    for link in list(tree.findall(nodes.reference)):
        if link.get("refuri", "").startswith("FILE:"):
            link.parent.replace(link, link.children)
    for text in list(tree.findall(nodes.Text)):
        if " -- " in text and not isinstance(text.parent, nodes.literal | nodes.literal_block):
            text.parent.replace(text, nodes.Text(text.replace(" -- ", " – ")))


def setup(app: Sphinx) -> None:
    """What Sphinx calls."""
    app.connect("doctree-read", _mend)
