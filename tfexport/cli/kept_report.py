"""``tfexport translate --report``: what stays as it is in a file, as lines of JSON or a page."""

import html
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tfexport.atomic import new_file
from tfexport.cli.reports import save_page
from tfexport.markup.tokens import KeptPart


def write_report(path: Path, name: str, parts: Sequence[KeptPart]) -> None:
    """Write what stays as it is: a page if the path ends in ``.html``, else JSON, one a line.

    Args:
        path: of the report; one that is there is replaced.
        name: of the file that was translated.
        parts: in the order of the file.
    """
    if path.suffix.lower() in (".html", ".htm"):
        title = f"What stays as it is in {name}"
        save_page(path, title, title, _table(parts) if parts else ["<p>Nothing.</p>"])
        return
    with new_file(path, force=True) as place:
        text = "".join(_line(name, part) for part in parts)
        place.write_text(text, encoding="utf-8", errors="replace")


def _line(name: str, part: KeptPart) -> str:
    return json.dumps({"file": name, **asdict(part)}, ensure_ascii=False) + "\n"


def _table(parts: Sequence[KeptPart]) -> list[str]:
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("line", "text", "why"))
    rows = [
        f"<tr><td>{part.line or ''}</td><td>{html.escape(part.text)}</td>"
        f"<td>{html.escape(part.reason)}</td></tr>"
        for part in parts
    ]
    head = f'<div class="map"><table class="texts"><thead><tr>{heads}</tr></thead>'
    return [head, *rows, "</table></div>"]
