"""The routes that embed and rerank: OpenAI's, Cohere's and those of Text Embeddings Inference."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import Response

from .. import __version__
from .bodies import EmbeddingsRequest, EmbedRequest, RerankRequest
from .errors import ApiError
from .models import EmbeddingModel, RerankModel
from .rendering import dumps, float_rows, join_rows, rows_as_base64
from .requests import check_count, check_lengths, check_pair_lengths, in_time, prompt_of, read, task_of
from .settings import Settings
from .state import State

__all__ = ["embed", "embeddings", "health", "info", "live", "metrics", "models", "rerank"]

_JSON = "application/json"


async def embeddings(request: Request) -> Response:
    """Vectors of texts, as OpenAI's API gives them."""
    state = State.of(request)
    body = await read(request, EmbeddingsRequest, state.settings.limits)
    begin = time.monotonic()
    async with state.embedders.use(body.model) as (name, model):
        return await in_time(request, _embeddings(body, name, model, state.settings), begin)


async def _embeddings(
    body: EmbeddingsRequest, name: str, model: EmbeddingModel, settings: Settings
) -> Response:
    if isinstance(body.input, list) and not (body.input and isinstance(body.input[0], int)):
        check_count(len(body.input), settings.limits, "input")
    prompt = prompt_of(model, body.prompt_name, body.input_type)
    form = model.form(prompt, body.dimensions, body.normalize, task_of(body.input_type))
    texts = await _texts_of(model, body.input, form.task)
    tokens = await model.count(texts, form)
    await check_lengths(model, texts, form, tokens, param="input", truncate=body.truncate, settings=settings)
    vectors = await model.embed(texts, form, tokens)
    written = rows_as_base64 if body.encoding_format == "base64" else float_rows
    data = await join_rows(vectors, written, _embedding_item)
    total = sum(tokens)
    tail = {"model": name, "usage": {"prompt_tokens": total, "total_tokens": total}}
    return Response(b'{"object":"list","data":[%b],%b' % (data, dumps(tail)[1:]), media_type=_JSON)


def _embedding_item(index: int, row: bytes) -> bytes:
    return b'{"object":"embedding","index":%d,"embedding":%b}' % (index, row)


async def _texts_of(model: EmbeddingModel, given: Any, task: str | None) -> list[str]:
    if isinstance(given, str):
        return [given]
    if not given:
        raise ApiError(400, "input is empty; give at least one text", param="input")
    if isinstance(given[0], str):
        return list(given)
    ids = [given] if isinstance(given[0], int) else given
    return await asyncio.to_thread(model.decoder.texts, ids, "input", task)


async def embed(request: Request) -> Response:
    """Vectors of texts, as Text Embeddings Inference gives them."""
    state = State.of(request)
    body = await read(request, EmbedRequest, state.settings.limits)
    begin = time.monotonic()
    texts = [body.inputs] if isinstance(body.inputs, str) else list(body.inputs)
    check_count(len(texts), state.settings.limits, "inputs")
    async with state.embedders.use(body.model) as (_, model):
        return await in_time(request, _embed(body, texts, model, state.settings), begin)


async def _embed(body: EmbedRequest, texts: list[str], model: EmbeddingModel, settings: Settings) -> Response:
    form = model.form(body.prompt_name, body.dimensions, body.normalize is not False)
    tokens = await model.count(texts, form)
    await check_lengths(model, texts, form, tokens, param="inputs", truncate=body.truncate, settings=settings)
    vectors = await model.embed(texts, form, tokens)
    return Response(b"[%b]" % await join_rows(vectors, float_rows), media_type=_JSON)


async def rerank(request: Request) -> Response:
    """Documents by how well they answer a query."""
    state = State.of(request)
    settings = state.settings
    body = await read(request, RerankRequest, settings.limits)
    begin = time.monotonic()
    if (body.documents is None) == (body.texts is None):
        raise ApiError(400, "give documents (Cohere) or texts (TEI), one of them", param="documents")
    param = "texts" if body.documents is None else "documents"
    texts: list[str] = body.texts if body.documents is None else body.documents
    check_count(len(texts), settings.limits, param)
    async with state.rerankers.use(body.model) as (name, model):
        scores = await in_time(request, _scores(body, texts, param, model, settings), begin)
    order = np.argsort(-scores, kind="stable")[: body.top_n].tolist()
    results: list[dict[str, Any]] = []
    if param == "texts":
        for index in order:
            hit: dict[str, Any] = {"index": index, "score": float(scores[index])}
            if body.return_text:
                hit["text"] = texts[index]
            results.append(hit)
        return Response(dumps(results), media_type=_JSON)
    for index in order:
        hit = {"index": index, "relevance_score": float(scores[index])}
        if body.return_documents:
            hit["document"] = {"text": texts[index]}
        results.append(hit)
    answer = {
        "id": f"rerank-{os.urandom(8).hex()}",
        "model": name,
        "results": results,
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    }
    return Response(dumps(answer), media_type=_JSON)


async def _scores(
    body: RerankRequest, texts: list[str], param: str, model: RerankModel, settings: Settings
) -> npt.NDArray[np.float32]:
    await check_pair_lengths(model, body.query, texts, param=param, truncate=body.truncate, settings=settings)
    return await model.score(body.query, texts, bool(body.raw_scores))


async def models(request: Request) -> Response:
    """The models that requests may name, in OpenAI's shape; `kind` says what each is for."""
    state = State.of(request)
    listed = [
        {
            "id": name,
            "object": "model",
            "created": state.created,
            "owned_by": "embedkit",
            "kind": kind,
            "loaded": model.loaded is not None,
        }
        for kind, pool in (("embedding", state.embedders), ("rerank", state.rerankers))
        for name, model in pool.models.items()
    ]
    wanted = request.path_params.get("name")
    if wanted is None:
        return Response(dumps({"object": "list", "data": listed}), media_type=_JSON)
    for model in listed:
        if model["id"] == wanted:
            return Response(dumps(model), media_type=_JSON)
    raise ApiError(404, f"model {wanted!r} is not served here", param="model", code="model_not_found")


async def info(request: Request) -> Response:
    """What runs here, in the fields of Text Embeddings Inference, and the whole of `Encoder.describe`."""
    state = State.of(request)
    limits = state.settings.limits
    answer: dict[str, Any] = {}
    served = next(iter(state.embedders.distinct), None)  # which answers requests that name none
    if served is not None:
        answer["model_id"] = served.name
    if served is not None and served.info is not None:
        answer |= {**served.info, "model": served.info["model"] | {"model": served.name}}
    answer |= {
        "max_concurrent_requests": limits.connections,
        "max_batch_tokens": limits.batch_tokens,
        "max_client_batch_size": limits.texts,
        "max_body_bytes": limits.body,
        "auto_truncate": state.settings.on_overflow == "truncate",
        "rerankers": [one.name for one in state.rerankers.distinct],
        "index": None if state.search is None else state.search.about(),
        "uptime_seconds": round(time.time() - state.created),
        "version": __version__,
        "sha": None,
        "docker_label": None,
    }
    return Response(dumps(answer), media_type=_JSON)


async def live(_: Request) -> Response:
    """Liveness: the process answers."""
    return Response(b'{"status":"ok"}', media_type=_JSON)


async def health(request: Request) -> Response:
    """Readiness: models are loaded, their threads run, and the server is not stopping."""
    problem = State.of(request).problem()
    if problem is not None:
        return Response(
            dumps({"status": "unavailable", "error": problem, "error_type": "Unhealthy"}),
            503,
            media_type=_JSON,
        )
    return Response(b'{"status":"ok"}', media_type=_JSON)


async def metrics(request: Request) -> Response:
    """Metrics for Prometheus."""
    return Response(State.of(request).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
