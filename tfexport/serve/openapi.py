"""Descriptions of paths for OpenAPI, and the page that shows them without a network."""

import html
import json
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter

from tfexport.serve.bodies import FORM, JSON, Fields


def describe(kind: type[Fields], summary: str, *, forms: bool = False) -> dict[str, Any]:
    """Keywords of a route whose body has these fields."""
    schema = kind.model_json_schema()
    content = {name: {"schema": schema} for name in ((JSON, FORM) if forms else (JSON,))}
    body = {"required": True, "content": content}
    return {"summary": summary, "openapi_extra": {"requestBody": body}}


def add_probe(router: APIRouter, path: str, answer: Callable[..., Any], summary: str) -> None:
    """Add a path that is asked for its status."""
    router.add_api_route(path, answer, methods=["GET"], summary=summary)


def page(document: Mapping[str, Any]) -> str:
    """A page of plain HTML that lists the paths of an OpenAPI document."""
    info = document["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width'>",
        f"<title>{html.escape(info['title'])}</title>",
        "<style>body{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}"
        "pre{background:#8882;padding:.7em;overflow:auto}</style>",
        f"<h1>{html.escape(info['title'])} {html.escape(info['version'])}</h1>",
        "<p>As data: <a href=openapi.json>openapi.json</a></p>",
    ]
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            parts.append(_section(path, method, described))
    return "\n".join(parts)


def _section(path: str, method: str, described: Mapping[str, Any]) -> str:
    text = f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>"
    text += f"<p>{html.escape(described.get('summary', ''))}</p>"
    content = described.get("requestBody", {}).get("content", {})
    for name, body in content.items():
        shown = html.escape(json.dumps(body["schema"].get("properties", {}), indent=2))
        text += f"<details><summary>{html.escape(name)}</summary><pre>{shown}</pre></details>"
    return text
