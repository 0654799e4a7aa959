"""Descriptions of paths for OpenAPI, and a page that shows them offline."""

import html
import json
from collections.abc import Callable, Mapping
from typing import Any

import pydantic
from fastapi import APIRouter

from tfexport.serve.access import path_rules
from tfexport.serve.bodies import JSON, Fields
from tfexport.serve.failures import ErrorFormat, RequestError

_REFERENCE = "#/components/schemas/{model}"


def describe(kind: type[Fields], summary: str, *media_types: str) -> dict[str, Any]:
    """Keywords of a route whose body has these fields, in JSON if no media types are named."""
    schema = kind.model_json_schema(ref_template=_REFERENCE)
    content = {name: {"schema": schema} for name in media_types or (JSON,)}
    body = {"required": True, "content": content}
    return {"summary": summary, "openapi_extra": {"requestBody": body}}


def complete(
    document: dict[str, Any],
    answers: Mapping[tuple[str, str], type[pydantic.BaseModel]],
    *,
    keys: bool,
) -> None:
    """Add answers, errors and keys to an OpenAPI document.

    Args:
        document: the document, which is changed.
        answers: method and path to the fields of the answer.
        keys: whether callers have to send a key.
    """
    parts = document.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    for path, methods in document["paths"].items():
        rules = path_rules(path)
        for method, described in methods.items():
            content = described.get("requestBody", {}).get("content", {})
            for body in content.values():
                schemas.update(body["schema"].pop("$defs", {}))
            responses = described["responses"]
            if (answer := answers.get((method, path))) is not None:
                schema = answer.model_json_schema(ref_template=_REFERENCE)
                schemas.update(schema.pop("$defs", {}))
                done = next(status for status in responses if status.startswith("2"))
                responses[done]["content"] = {JSON: {"schema": schema}}
            responses.pop("422", None)  # for parameters of paths, which are text here
            if rules.is_work:
                responses.update(_errors(rules.error_format, keys and rules.needs_key))
            if keys and rules.needs_key:
                error_format = rules.error_format
                described["security"] = [{error_format.name: []}]
                parts.setdefault("securitySchemes", {})[error_format.name] = _key_scheme(
                    error_format
                )


def _key_scheme(error_format: ErrorFormat) -> dict[str, str]:
    """How a caller sends a key."""
    if error_format.scheme is None:
        where = "in the body of a POST"
        return {"type": "apiKey", "in": "query", "name": "api_key", "description": where}
    scheme = error_format.scheme.decode()
    if scheme == "Bearer":
        return {"type": "http", "scheme": "bearer"}
    how = f"{scheme}, a space, and the key"
    return {"type": "apiKey", "in": "header", "name": "Authorization", "description": how}


def _errors(error_format: ErrorFormat, keys: bool) -> dict[str, Any]:
    of_error: dict[str, Any] = {"type": "object", "properties": {
        name: _schema_of(value)
        for name, value in error_format.body(RequestError(400, ["a", "b"])).items()
    }}  # fmt: skip
    texts = {
        error_format.wrong: "the request is invalid; all problems are listed",
        404: "not found",
        413: "the request is too large", 500: "internal server error",
        503: "the server is full or stopping; retry after the seconds in Retry-After",
        504: "the request timed out",
    }  # fmt: skip
    if keys:
        texts[error_format.no_key] = "the key is missing or wrong"
    content = {JSON: {"schema": of_error}}
    return {str(n): {"description": texts[n], "content": content} for n in sorted(texts)}


def _schema_of(value: Any) -> dict[str, Any]:
    """The schema of a value of an error."""
    if isinstance(value, Mapping):
        return {"type": "object", "properties": {key: _schema_of(it) for key, it in value.items()}}
    if isinstance(value, list):
        return {"type": "array", "items": {"type": "string"}}
    return {"type": "string"} if isinstance(value, str) else {"type": ["string", "null"]}


def add_probe(router: APIRouter, path: str, answer: Callable[..., Any], summary: str) -> None:
    """Add the path of a health probe."""
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
