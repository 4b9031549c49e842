"""Runs the application on uvicorn, until a signal."""

from __future__ import annotations

import gc
import logging
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn

from .app import create_app
from .protocol import guarded_protocol
from .state import State

__all__ = ["LOOPBACK", "bind", "run"]

LOOPBACK = ("127.0.0.1", "::1", "localhost")

_SWITCH_SECONDS = 0.0005  # a worker thread waits this long for the interpreter, rather than 5 ms


class _Server(uvicorn.Server):
    """Says when it is ready, tells the readiness check of a signal at once, and lets requests finish."""

    def __init__(self, config: uvicorn.Config, state: State, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._state = state
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()  # from here on a signal ends it in order: its handlers stand

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._state.draining = True
        super().handle_exit(sig, frame)
        self._captured_signals.clear()  # to end with exit code 0, not by the signal


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, so that a port in use is found before any model is loaded.

    Raises:
        OSError: the address is not there, or in use; a `socket.gaierror` if ``host`` is unknown.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def run(
    state: State,
    bound: socket.socket,
    *,
    ready: Callable[[], None] = lambda: None,
    drain: float = 30.0,
    log_level: str = "warning",
) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was begun within ``drain`` seconds, and close ``state``.

    ``ready`` is called once connections are accepted and signals are handled.
    """
    limits = state.settings.limits
    config = uvicorn.Config(
        create_app(state),
        http=guarded_protocol(limits, state.metrics),
        loop="auto",
        ws="none",
        lifespan="off",
        log_level=log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(limits.keep_alive),
        timeout_graceful_shutdown=int(drain) or 1,
        limit_concurrency=limits.connections,
        backlog=1024,
    )
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # models and code are not looked at again
    try:
        with suppress(KeyboardInterrupt):
            _Server(config, state, ready).run([bound])
    finally:
        sys.setswitchinterval(before)
        state.close()
        logging.getLogger("embedkit.serve").info("stopped")
