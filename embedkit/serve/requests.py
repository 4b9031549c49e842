"""From an HTTP request to what the routes work with."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request

from ..inputs import windows
from .batching import too_late
from .bodies import parse
from .errors import ApiError, busy, gone
from .models import TEXTS_AT_ONCE, EmbeddingModel, Form, RerankModel
from .settings import Limits, Settings
from .state import State

__all__ = [
    "check_count",
    "check_lengths",
    "check_pair_lengths",
    "in_time",
    "prompt_of",
    "read",
    "task_of",
]

_B = TypeVar("_B", bound=BaseModel)
_T = TypeVar("_T")

# What clients call the two sides of a retrieval; a model may have prompts of these very names.
_INPUT_TYPES = {
    "query": "query",
    "search_query": "query",
    "document": "document",
    "search_document": "document",
    "passage": "document",
}
_PARSED_HERE = 1 << 18  # bytes: about 2 ms; larger bodies are parsed on another thread
_MOST_NUMBERS = 1 << 21  # of a body: parsing holds the interpreter, about 0.2 s for so many
_STRING = re.compile(rb'"[^"]*"?')  # in a body without escapes; one that does not end has all that follows
_WATCH_SECONDS = 0.02  # shorter requests are not watched for a client that hangs up
_DISCARDED = 256 << 20  # bytes of a refused body that are read, so that the client hears why
# Clients name other encodings, such as utf-8, of bodies that they send as they are.
_COMPRESSED = frozenset({"gzip", "x-gzip", "deflate", "compress", "x-compress", "br", "zstd"})
_BODIES = 64  # of the largest size, that all connections may hold together


async def read(request: Request, kind: type[_B], limits: Limits) -> _B:
    """The body of a request, checked.

    Raises:
        ApiError: 413, it is larger than the limit; 415, it is compressed; 503, those of other requests fill the
            memory; 400, it is not what the route takes; 499, the client has gone.
    """
    try:
        body = await _receive(request, limits.body)
        if len(body) <= _PARSED_HERE:
            return parse(kind, body)
        async with State.of(request).parsing:  # one at a time: what is parsed takes many times its size
            return await asyncio.to_thread(_parse_large, kind, body, limits)
    except ClientDisconnect:
        raise gone() from None


def _parse_large(kind: type[_B], body: bytes, limits: Limits) -> _B:
    """A body as ``kind``, unless it has more parts than a request may have texts (`ApiError` 413).

    Millions of them would hold the interpreter for seconds, and take gigabytes.
    """
    # a text of Cohere's documents has a list of its own, and fields
    lists, strings = 2 * limits.texts + 1000, 8 * limits.texts + 1000
    many = False
    if (
        body.count(b'"') > 2 * strings
        or _brackets(body) > lists
        or body.count(b",") > _MOST_NUMBERS + strings
    ):
        plain = body.replace(rb"\\", b"").replace(rb"\"", b"")  # whatever the texts hold
        many = plain.count(b'"') > 2 * strings
        if not many:
            rest, found = _STRING.subn(b"", plain)
            many = _brackets(rest) > lists or rest.count(b",") - found - lists > _MOST_NUMBERS
    if many:
        raise ApiError(
            413,
            f"the body holds more than {limits.texts:,} texts with their fields, or {_MOST_NUMBERS:,} numbers; "
            "send fewer a request",
            code="too_many",
        )
    return parse(kind, body)


def _brackets(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{")


async def _receive(request: Request, limit: int) -> bytes:
    """A body, which `State.bodies` counts until its request is answered; none of one that is refused."""
    state = State.of(request)
    chunks: list[bytes] = []
    announced = request.headers.get("content-length", "")
    size = int(announced) if announced.isascii() and announced.isdigit() else 0
    encoding = request.headers.get("content-encoding", "")
    refused = None
    if size > limit:
        refused = _too_large(limit)
    elif not _COMPRESSED.isdisjoint(encoding.lower().replace(" ", "").split(",")):
        refused = ApiError(
            415, f"Content-Encoding {encoding} is not taken; send the body as it is", code="compressed"
        )
    received = 0
    most = max(limit, _DISCARDED)
    if size <= most:
        async for chunk in request.stream():
            received += len(chunk)
            if received > most:
                refused = _too_large(limit)
                break
            if refused is not None:
                continue
            chunks.append(chunk)
            state.hold(request.scope, len(chunk))
            if received > limit:
                refused = _too_large(limit)
            elif received > _PARSED_HERE and state.bodies > _BODIES * limit:
                refused = busy(
                    "the bodies of other requests fill the memory; try again later", 1, 503, "memory_full"
                )
            if refused is not None:
                state.release(request.scope)
                chunks.clear()
    if refused is not None:
        raise refused
    return b"".join(chunks)


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        f"the body is larger than {limit:,} bytes; send fewer texts a request",
        code="body_too_large",
        headers={"connection": "close"},
    )


async def _hang_up(request: Request) -> None:
    """Wait until the client of a request, whose body was read, has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def in_time(request: Request, work: Coroutine[Any, Any, _T], begin: float) -> _T:
    """What ``work`` returns; it is cancelled when its client has gone, or the time of a request from ``begin`` is over.

    Raises:
        ApiError: 499, 504.
    """
    seconds = State.of(request).settings.limits.timeout
    left = begin + seconds - time.monotonic()
    answer = asyncio.ensure_future(work)
    closed: asyncio.Future[None] | None = None
    try:
        await asyncio.wait({answer}, timeout=min(left, _WATCH_SECONDS))
        if not answer.done():
            closed = asyncio.ensure_future(_hang_up(request))
            either: set[asyncio.Future[Any]] = {answer, closed}
            await asyncio.wait(either, timeout=left - _WATCH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        answer.cancel()  # no effect on one that is done
        if closed is not None:
            closed.cancel()
    if answer.done():
        return answer.result()
    raise gone() if closed is not None and closed.done() else too_late(seconds)


def check_count(count: int, limits: Limits, param: str) -> None:
    """Refuse more texts than a request may have (`ApiError` 413)."""
    if count > limits.texts:
        raise ApiError(
            413,
            f"{param} holds {count:,} texts, at most {limits.texts:,} are taken",
            param=param,
            code="too_many",
        )


async def check_lengths(
    model: EmbeddingModel,
    texts: list[str],
    form: Form,
    tokens: list[int],
    *,
    param: str,
    truncate: bool | None,
    settings: Settings,
) -> None:
    """Refuse texts that are longer than the model reads, where they are not to be truncated.

    Raises:
        ApiError: 400; names the first text.
    """
    if _truncates(truncate, settings):
        return
    most = model.length_of(form.task)
    full = [index for index, count in enumerate(tokens) if count >= most]
    for index in full:
        if await asyncio.to_thread(model.too_long, form.prompt + texts[index], form.task):
            raise _too_long(f"{param}[{index}]", "is", most)


async def check_pair_lengths(
    model: RerankModel, query: str, texts: list[str], *, param: str, truncate: bool | None, settings: Settings
) -> None:
    """Refuse texts that with the query are longer than the model reads, where they are not to be truncated.

    Raises:
        ApiError: 400; names the first text.
    """
    if _truncates(truncate, settings):
        return
    too_long = await asyncio.to_thread(model.too_long, query)
    begin = 0
    for part in windows(texts, TEXTS_AT_ONCE):
        found = await asyncio.to_thread(too_long, part)
        if any(found):
            raise _too_long(f"{param}[{begin + found.index(True)}]", "and the query are", model.max_length)
        begin += len(part)


def _truncates(truncate: bool | None, settings: Settings) -> bool:
    return settings.on_overflow == "truncate" if truncate is None else truncate


def _too_long(param: str, verb: str, most: int) -> ApiError:
    return ApiError(
        400,
        f"{param} {verb} longer than the {most} tokens that the model reads; shorten the text, or let it be "
        "truncated with truncate=true",
        param=param,
        code="text_too_long",
    )


def task_of(input_type: str | None) -> str | None:
    """The task of a model with a Router that an input type means: query, document, or its own name."""
    return None if input_type is None else _INPUT_TYPES.get(input_type, input_type)


def prompt_of(model: EmbeddingModel, prompt_name: str | None, input_type: str | None) -> str | None:
    """The name of the prompt that a request asks for; None for the model's default.

    Raises:
        ApiError: 400, the input type is unknown.
    """
    if prompt_name is not None or input_type is None:
        return prompt_name
    if (task := _INPUT_TYPES.get(input_type)) in model.given:
        return task
    prompts = model.encoder.prompts
    if input_type in prompts:
        return input_type
    if input_type not in _INPUT_TYPES:
        known = ", ".join(map(repr, dict.fromkeys([*_INPUT_TYPES, *prompts])))
        raise ApiError(400, f"input_type {input_type!r} is unknown; known are {known}", param="input_type")
    return _INPUT_TYPES[input_type]
