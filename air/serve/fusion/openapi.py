"""Builds the OpenAPI description of SandboxFusion's endpoints as JSON, and as an HTML page that needs no
external files."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from pydantic.json_schema import models_json_schema

from air.serve.fusion.request_handling import Endpoint

_ERRORS = {
    "401": "the request carries no valid token",
    "413": "the body is too large",
    "422": "the request is not valid, or the image lacks the language",
    "504": "all boxes are in use for longer than the client waits",
}
_STYLE = (
    "body{font:16px sans-serif;max-width:60em;margin:2em auto}"
    "pre{background:#eee;padding:1em;overflow:auto}"
)


def description(endpoints: Sequence[Endpoint], gets: dict[str, str]) -> dict[str, Any]:
    """Returns the OpenAPI description of `endpoints` (all are POST requests) as a JSON object. `gets` adds
    the GET requests: it maps the path of each to a sentence about the result."""
    used = [(each.request, "validation") for each in endpoints]
    used += [(each.answer, "serialization") for each in endpoints]
    names, schemas = models_json_schema(
        used,  # type: ignore[arg-type]
        ref_template="#/components/schemas/{model}",
    )
    paths: dict[str, Any] = {
        path: {"get": {"summary": text, "responses": {"200": {"description": text}}}}
        for path, text in gets.items()
    }
    for each in endpoints:
        asked, given = names[each.request, "validation"], names[each.answer, "serialization"]
        answers: dict[str, Any] = {"200": {"description": "the result"} | _json(given)}
        answers |= {code: {"description": text} for code, text in _ERRORS.items()}
        summary = (each.handle.__doc__ or "").strip().partition("\n")[0]
        body = {"required": True} | _json(asked)
        paths[each.path] = {"post": {"summary": summary, "requestBody": body, "responses": answers}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "air serve sandbox: SandboxFusion", "version": version("air-agent")},
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }


def _json(schema: Any) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def page(text: dict[str, Any]) -> str:
    """Converts an OpenAPI description, the JSON object `text`, to an HTML page for people, and returns the
    page."""
    parts = []
    for path, methods in text["paths"].items():
        for method, each in methods.items():
            parts.append(f"<h2>{method.upper()} {html.escape(path)}</h2>")
            parts.append(f"<p>{html.escape(each['summary'])}</p>")
            if "requestBody" in each:
                name = _name(each["requestBody"])
                parts.append(f'<p>Request: <a href="#{name}">{name}</a>. ')
                name = _name(each["responses"]["200"])
                parts.append(f'Answer: <a href="#{name}">{name}</a>.</p>')
    for name, schema in text["components"]["schemas"].items():
        shown = html.escape(json.dumps(schema, indent=1))
        parts.append(f'<h3 id="{name}">{name}</h3><pre>{shown}</pre>')
    title = html.escape(text["info"]["title"])
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
        f'<h1>{title}</h1><p>As JSON: <a href="openapi.json">openapi.json</a></p>{"".join(parts)}'
    )


def _name(body: dict[str, Any]) -> str:
    name: str = body["content"]["application/json"]["schema"]["$ref"]
    return name.rpartition("/")[2]
