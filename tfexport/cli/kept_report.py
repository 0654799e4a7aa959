"""``tfexport translate --report``: what stays as it is in a file, as lines of JSON or a page."""

import html
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tfexport.atomic import new_file

if TYPE_CHECKING:
    from tfexport.markup.files import Kept

_PAGE = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; vertical-align: top }}
th, td {{ padding: .3em .8em; border-bottom: 1px solid #ccc }}
td:first-child {{ text-align: right }}
pre {{ margin: 0; white-space: pre-wrap; overflow-wrap: anywhere }}
</style>
<h1>{title}</h1>
<p>{summary}</p>
{table}
</html>
"""


def write_report(path: Path, name: str, kept: Sequence["Kept"]) -> None:
    """Write what stays as it is: a page if the path ends in ``.html``, else JSON, one a line.

    Args:
        path: of the report; one that is there is replaced.
        name: of the file that was translated.
        kept: in the order of the file.
    """
    page = path.suffix.lower() in (".html", ".htm")
    text = _page(name, kept) if page else "".join(_line(name, each) for each in kept)
    with new_file(path, force=True) as place:
        place.write_text(text, encoding="utf-8", errors="replace")


def _line(name: str, kept: "Kept") -> str:
    return json.dumps({"file": name, **asdict(kept)}, ensure_ascii=False) + "\n"


def _page(name: str, kept: Sequence["Kept"]) -> str:
    rows = "".join(
        f"<tr><td>{each.line or ''}<td><pre>{html.escape(each.text)}</pre>"
        f"<td>{html.escape(each.reason)}\n"
        for each in kept
    )
    return _PAGE.format(
        title=f"What stays as it is in {html.escape(name)}",
        summary="Nothing: all was translated." if not kept else f"Texts: {len(kept)}",
        table=f"<table><tr><th>Line<th>Text<th>Why\n{rows}</table>" if kept else "",
    )
