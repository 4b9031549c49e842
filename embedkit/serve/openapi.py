"""The OpenAPI description, and a page of it that loads nothing from elsewhere."""

from __future__ import annotations

from functools import cache
from html import escape
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from .. import __version__
from .bodies import EmbeddingsRequest, EmbedRequest, RerankRequest, SearchRequest
from .page import respond
from .rendering import dumps

__all__ = ["describe", "description", "documentation"]

_NUMBERS = {"type": "array", "items": {"type": "number"}}
_MODELS = {"type": "array", "items": {"type": "object"}}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


_EMBEDDINGS = _object(
    object={"const": "list"},
    data={
        "type": "array",
        "items": _object(
            object={"const": "embedding"},
            index={"type": "integer"},
            embedding={"anyOf": [_NUMBERS, {"type": "string", "contentEncoding": "base64"}]},
        ),
    },
    model={"type": "string"},
    usage=_object(prompt_tokens={"type": "integer"}, total_tokens={"type": "integer"}),
)
_HITS = _object(
    object={"const": "list"},
    data={
        "type": "array",
        "items": _object(index={"type": "integer"}, hits={"type": "array", "items": {"type": "object"}}),
    },
    documents={"type": "integer"},
    took_ms={"type": "number"},
)
_RERANKED = {
    "anyOf": [
        _object(id={"type": "string"}, results={"type": "array", "items": {"type": "object"}}),
        {
            "type": "array",
            "items": _object(index={"type": "integer"}, score={"type": "number"}),
        },
    ]
}

# path, method, what it does, body, answer
_ROUTES: tuple[tuple[str, str, str, type[Any] | None, dict[str, Any]], ...] = (
    (
        "/v1/embeddings",
        "post",
        "Vectors of texts, as OpenAI's API gives them",
        EmbeddingsRequest,
        _EMBEDDINGS,
    ),
    ("/v1/search", "post", "Hits in the index that is open", SearchRequest, _HITS),
    ("/rerank", "post", "Documents by how well they answer a query (Cohere, TEI)", RerankRequest, _RERANKED),
    ("/v1/rerank", "post", "The same", RerankRequest, _RERANKED),
    ("/v2/rerank", "post", "The same", RerankRequest, _RERANKED),
    (
        "/embed",
        "post",
        "Vectors of texts, as Text Embeddings Inference gives them",
        EmbedRequest,
        {"type": "array", "items": _NUMBERS},
    ),
    ("/", "post", "The same", EmbedRequest, {"type": "array", "items": _NUMBERS}),
    (
        "/v1/models",
        "get",
        "The models that requests may name",
        None,
        _object(object={"const": "list"}, data=_MODELS),
    ),
    ("/info", "get", "What runs here", None, {"type": "object"}),
    (
        "/health",
        "get",
        "Readiness: 503 where no requests should be sent",
        None,
        _object(status={"type": "string"}),
    ),
    ("/readyz", "get", "The same", None, _object(status={"type": "string"})),
    ("/livez", "get", "Liveness: the process answers", None, _object(status={"type": "string"})),
)
_ERRORS = {
    "400": "A field is wrong; the error names it, and the index of a bad text",
    "401": "The API key is missing or wrong",
    "403": "A page of another site, or a name of this host that is not allowed",
    "404": "There is no such model, document or index",
    "413": "The body is too large, or holds too many texts",
    "415": "The body is compressed",
    "429": "The queue is full; see Retry-After",
    "503": "The server is stopping, or models in use, bodies or unread answers fill the memory; see Retry-After",
    "504": "The deadline has passed",
}


@cache
def describe() -> dict[str, Any]:
    """OpenAPI 3.1."""
    bodies = [body for _, _, _, body, _ in _ROUTES if body is not None]
    template = "#/components/schemas/{model}"
    refs, definitions = models_json_schema(
        [(body, "validation") for body in dict.fromkeys(bodies)], ref_template=template
    )
    error = {"type": "object", "properties": {"error": {"type": ["object", "string"]}}, "required": ["error"]}
    paths: dict[str, Any] = {}
    for path, method, summary, body, answer in _ROUTES:
        operation: dict[str, Any] = {
            "summary": summary,
            "operationId": f"{method}{path.replace('/', '_')}",
            "responses": {"200": _content("Done", answer)},
        }
        codes = _ERRORS if body is not None else {code: _ERRORS[code] for code in ("401", "403", "503")}
        for code, meaning in codes.items():
            operation["responses"][code] = _content(meaning, {"$ref": "#/components/schemas/Error"})
        if path == "/health" or path.endswith("z"):
            operation["responses"]["503"]["description"] = "Not ready"
        if body is not None:
            operation["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": refs[(body, "validation")]}},
            }
        paths[path] = {method: operation}
    paths["/metrics"] = {
        "get": {
            "summary": "Metrics for Prometheus",
            "operationId": "get_metrics",
            "responses": {
                "200": {"description": "Done", "content": {"text/plain": {"schema": {"type": "string"}}}}
            },
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "embedkit-serve", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**definitions["$defs"], "Error": error},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _content(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


async def description(_: Request) -> Response:
    """``/openapi.json``."""
    return Response(dumps(describe()), media_type="application/json")


async def documentation(_: Request) -> Response:
    """``/docs``: the description for people."""
    parts = []
    for path, methods in describe()["paths"].items():
        for method, operation in methods.items():
            parts.append(
                f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])}.</p>"
            )
            body = operation.get("requestBody")
            if body is not None:
                name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                parts.append(_fields(describe()["components"]["schemas"][name]))
    errors = "".join(f"<tr><td>{code}</td><td>{escape(what)}</td></tr>" for code, what in _ERRORS.items())
    text = f"{''.join(parts)}<h2>Errors</h2><table>{errors}</table>"
    return respond("docs.html", {"<!-- routes -->": text, "<!-- version -->": escape(__version__)})


def _fields(schema: dict[str, Any]) -> str:
    rows = []
    for name, field in schema["properties"].items():
        needed = " (required)" if name in schema.get("required", ()) else ""
        rows.append(
            f"<tr><td><code>{escape(name)}</code>{needed}</td><td>{escape(_type(field))}</td>"
            f"<td>{escape(field.get('description', ''))}</td></tr>"
        )
    return f"<table><tr><th>field</th><th>type</th><th></th></tr>{''.join(rows)}</table>"


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(one) for one in field["anyOf"] if one.get("type") != "null"))
    if "enum" in field:
        return " or ".join(map(str, field["enum"]))
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    return str(field.get("type", "any"))
