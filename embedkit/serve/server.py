"""Runs the application on uvicorn, until a signal."""

from __future__ import annotations

import asyncio
import errno
import gc
import ipaddress
import logging
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from uvicorn.logging import DefaultFormatter

from .app import create_app
from .protocol import GuardedProtocol
from .state import State

__all__ = ["bind", "is_local", "run"]

_BACKLOG = 1024  # connections that wait to be accepted, also while models are loaded
_OTHER_FILES = 256  # that are open beside the connections, such as an index's
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


def bind(host: str, port: int) -> list[socket.socket]:
    """A listening socket for each address that ``host`` has here, so that one in use is found before a model loads.

    Raises:
        OSError: no address is of this machine, or one is in use; a `socket.gaierror` if ``host`` is unknown.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    bound: list[socket.socket] = []
    elsewhere: OSError | None = None
    try:
        for family, address in dict.fromkeys((one[0], one[4]) for one in found):
            try:
                bound.append(
                    _bound(family, address, bound[0].getsockname()[1] if bound else port, len(found) > 1)
                )
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                elsewhere = error  # such as the ::1 of localhost on a machine without IPv6
        if elsewhere is not None and not bound:
            raise elsewhere
    except OSError:
        for one in bound:
            one.close()
        raise
    return bound


def is_local(bound: Iterable[socket.socket]) -> bool:
    """Whether only this machine reaches the sockets."""
    addresses = [ipaddress.ip_address(one.getsockname()[0]) for one in bound]
    # before Python 3.13 ::ffff:127.0.0.1 is no loopback address
    return all((getattr(one, "ipv4_mapped", None) or one).is_loopback for one in addresses)


def _bound(family: int, address: tuple[Any, ...], port: int, several: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if several and family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
        made.bind((address[0], port, *address[2:]))
        made.listen(_BACKLOG)  # until then another process may bind the port, too
    except OSError:
        made.close()
        raise
    return made


def _open_more_files(connections: int) -> int:
    """Raise the process's own limit of open files (1,024 in most shells); returns how many connections it allows."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return connections
    wanted = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= wanted:
        return connections
    most = wanted if hard == unlimited else min(wanted, hard)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most == wanted:
        return connections
    left = max(1, most - _OTHER_FILES)
    logging.getLogger("embedkit.serve").warning(
        "at most %d files may be open (ulimit -Hn), so that --max-connections is %d and not %d",
        most,
        left,
        connections,
    )
    return left


def run(
    state: State,
    bound: list[socket.socket],
    *,
    ready: Callable[[], None] = lambda: None,
    drain: float = 30.0,
    log_level: str = "warning",
) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was begun within ``drain`` seconds, and close ``state``.

    ``ready`` is called once connections are accepted and signals are handled.
    """
    logger, handler = logging.getLogger("embedkit"), logging.StreamHandler()
    before, level = sys.getswitchinterval(), logger.level
    handler.setFormatter(DefaultFormatter("%(levelprefix)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(log_level.upper())
    try:
        _run(state, bound, ready, drain, log_level)
    finally:
        sys.setswitchinterval(before)
        state.close()
        logging.getLogger("embedkit.serve").info("stopped")
        logger.removeHandler(handler)
        logger.setLevel(level)


def _run(
    state: State, bound: list[socket.socket], ready: Callable[[], None], drain: float, log_level: str
) -> None:
    limits = replace(state.settings.limits, connections=_open_more_files(state.settings.limits.connections))
    state.settings = replace(state.settings, limits=limits)
    config = uvicorn.Config(
        create_app(state),
        # uvicorn calls it as it calls a class
        http=cast(type[asyncio.Protocol], partial(GuardedProtocol, state)),
        loop="auto",
        ws="none",
        lifespan="off",
        log_level=log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=limits.keep_alive,  # type: ignore[arg-type]  # it goes to loop.call_later
        timeout_graceful_shutdown=drain,  # type: ignore[arg-type]  # and this to asyncio.wait_for
        backlog=_BACKLOG,
    )
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # models and code are not looked at again
    with suppress(KeyboardInterrupt):
        _Server(config, state, ready).run(bound)
