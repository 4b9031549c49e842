"""The ASGI application: routes, and what every request passes through."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Sequence
from contextlib import suppress

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import openapi, page, routes
from .errors import ApiError, busy, error_response, style_of
from .search import search
from .settings import host_name, web_origin
from .state import State

__all__ = ["create_app"]

logger = logging.getLogger("embedkit.serve")

_REFUSALS = frozenset({"queue_full", "memory_full", "too_many_connections"})  # that are counted
_UNREAD = 1 << 30  # bytes of answers that clients have not read, of all connections
_SMALL = 1 << 18  # bytes of an answer that is never refused for them
_PROBES = frozenset({"/health", "/livez", "/readyz"})
_OPEN = _PROBES | {"/docs", "/openapi.json"}  # without a key: they tell nothing but the version


def create_app(state: State) -> Starlette:
    """The application of a server."""
    table: Sequence[Route] = [
        Route("/v1/embeddings", routes.embeddings, methods=["POST"]),
        Route("/v1/models", routes.models, methods=["GET"]),
        Route("/v1/models/{name:path}", routes.models, methods=["GET"]),
        Route("/v1/search", search, methods=["POST"]),
        *(Route(path, routes.rerank, methods=["POST"]) for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
        *(Route(path, routes.embed, methods=["POST"]) for path in ("/embed", "/")),
        Route("/info", routes.info, methods=["GET"]),
        Route("/health", routes.health, methods=["GET"]),
        Route("/readyz", routes.health, methods=["GET"]),
        Route("/livez", routes.live, methods=["GET"]),
        Route("/metrics", routes.metrics, methods=["GET"]),
        Route("/openapi.json", openapi.description, methods=["GET"]),
        Route("/docs", openapi.documentation, methods=["GET"]),
        Route("/", page.start, methods=["GET"]),
    ]
    middleware = [Middleware(_Gate, state=state, table=table)]
    if state.settings.origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(state.settings.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # OpenAI's client has some of its own
            expose_headers=["retry-after"],
        )
        middleware.insert(0, cors)
    app = Starlette(
        routes=list(table), middleware=middleware, exception_handlers={HTTPException: _as_api_error}
    )
    app.router.redirect_slashes = False  # to http, whatever a proxy in front speaks
    app.state.shared = state
    return app


async def _as_api_error(request: Request, error: Exception) -> Response:
    """404 and 405 of the router, in the format of the API."""
    assert isinstance(error, HTTPException)
    known = {404: f"there is no {request.url.path}", 405: f"{request.method} is not for {request.url.path}"}
    message = known.get(error.status_code, error.detail)
    found = ApiError(error.status_code, message, headers=dict(error.headers or {}))
    return error_response(found, style_of(request.url.path))


class _Gate:
    """Counts, times and authorizes requests, and writes errors in the format of the route's clients."""

    def __init__(self, app: ASGIApp, state: State, table: Sequence[Route]) -> None:
        self._app = app
        self._state = state
        self._metrics = state.metrics
        self._keys = [key.encode() for key in state.settings.api_keys]
        self._known = {route.path for route in table if "{" not in route.path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        path = scope["path"]
        status = 500
        begun = False
        sent = 0

        async def send_and_note(message: Message) -> None:
            nonlocal status, begun, sent
            if message["type"] == "http.response.start":
                size = int(Headers(raw=message["headers"]).get("content-length", 0))
                self._check_room(size)
                sent = size
                self._state.unread += sent  # it waits here where an earlier one is not read
                status = message["status"]
                begun = True
            await send(message)

        try:
            if scope.get("state", {}).get("crowded") and path not in _PROBES:
                raise self._crowded()
            self._admit(scope["method"], path, Headers(scope=scope))
            await self._app(scope, receive, send_and_note)
        except ApiError as error:
            status = error.status
            if error.code in _REFUSALS:
                self._metrics.rejected.labels(error.code).inc()
            if not begun:
                await error_response(error, style_of(path))(scope, receive, send_and_note)
        except ClientDisconnect:
            status = 499
        except asyncio.CancelledError:  # the time to finish is over
            if not self._state.draining or begun:
                raise
            late = busy("the server is stopping", 1, 503, "stopping")
            await error_response(late, style_of(path))(scope, receive, send_and_note)
        except Exception:
            logger.exception("%s %s failed", scope["method"], path)
            if begun:
                raise
            await error_response(ApiError(500, "internal error; see the server's log"), style_of(path))(
                scope, receive, send_and_note
            )
        finally:
            self._state.unread -= sent  # from now on, its connection counts it
            self._state.release(scope)
            route = (
                path if path in self._known else "/v1/models" if path.startswith("/v1/models/") else "other"
            )
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - begin)

    def _check_room(self, size: int) -> None:
        """Refuse a large answer (`ApiError` 503) where others that clients do not read fill the memory."""
        unread = self._state.unread
        if size > _SMALL and unread and unread + size > _UNREAD:
            raise busy(
                "the answers that other clients do not read fill the memory; try again later",
                1,
                503,
                "memory_full",
            )

    def _is_known(self, origin: str, host: str, headers: Headers) -> bool:
        """Whether pages of a web origin may call the server: given ones, and its own, also as proxies name it."""
        origins = self._state.settings.origins
        if "*" in origins or origin in origins or headers.get("sec-fetch-site") == "same-origin":
            return True
        with suppress(ValueError):  # "null", and what no browser sends
            return web_origin(f"{origin.partition('://')[0]}://{host}") == web_origin(origin)
        return False

    def _crowded(self) -> ApiError:
        error = busy("too many connections; try again later", 1, 503, "too_many_connections")
        error.headers["connection"] = "close"
        return error

    def _admit(self, method: str, path: str, headers: Headers) -> None:
        """Refuse who may not ask.

        Raises:
            ApiError: 401, no key or a wrong one; 403, a page of another site, or another name of this host.
        """
        settings = self._state.settings
        host = headers.get("host")
        # Browsers always send it, and pages of another site are all that the names guard against. Kubernetes asks the
        # probes by address.
        named = host is None or not settings.hosts or host_name(host) in settings.hosts
        if not named and path not in _PROBES:
            raise ApiError(403, f"the host {host!r} is not served; see --allow-host", code="host_not_allowed")
        origin = headers.get("origin")
        if origin is not None and not self._is_known(origin, host or "", headers):
            raise ApiError(
                403,
                f"pages of {origin!r} may not call this server; see --allow-origin",
                code="origin_not_allowed",
            )
        is_open = path in _OPEN or (path == "/" and method != "POST")
        if self._keys and not is_open:
            kind, _, key = headers.get("authorization", "").partition(" ")
            given = key.strip().encode() if kind.lower() == "bearer" else b""
            allowed = False
            for one in self._keys:  # all of them, so that the time tells nothing
                allowed |= hmac.compare_digest(given, one)
            if not allowed:
                raise ApiError(
                    401,
                    "a valid API key is needed: Authorization: Bearer KEY",
                    code="invalid_api_key",
                    headers={"www-authenticate": "Bearer"},
                )
