"""uvicorn's HTTP protocol with deadlines: for the head and the body of a request, and for a client that reads."""

# ruff: noqa: D102 (callbacks of asyncio and httptools)

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .state import State

__all__ = ["GuardedProtocol"]

# A line for each broken request would let anyone fill the log.
_logger = logging.getLogger("embedkit.serve.protocol")
_logger.setLevel(logging.ERROR)

_HEAD = 64 << 10  # bytes of all headers together
_OFFERS = (b"upgrade", b"http2-settings")  # of another protocol
# Until a client that has ended its side is taken for one that has gone: on the wire the two look the same.
_HALF_CLOSED_SECONDS = 1.0


class GuardedProtocol(HttpToolsProtocol):
    """One connection: drops a client that is slower or larger than the limits allow.

    A timer runs whenever it is the client's turn.
    """

    def __init__(self, state: State, *args: Any, **options: Any) -> None:
        """The other arguments are uvicorn's."""
        super().__init__(*args, **options)
        self._state = state
        self._limits = state.settings.limits
        self._unread = 0  # bytes that wait until the client reads
        self.logger = _logger
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._between = True  # no message has begun
        self._silent = 0  # bytes since the parser last told of something
        self._head = 0
        self._dropped = False
        self._offered = False  # the request's head offers another protocol
        self._beyond = False  # made when there were too many, as there still are
        self._cycles: list[RequestResponseCycle] = []  # requests that are not answered

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._beyond = self._crowded()
        self._arm(self._limits.header_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._dropped = True
        for timer in (self._timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._count_unread(0)
        self._leave()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def send_400_response(self, msg: str) -> None:
        self._leave()
        super().send_400_response(msg)

    def data_received(self, data: bytes) -> None:
        if self._dropped:
            return
        if self._between and self._timer is None:
            self._arm(self._limits.header_timeout)
        self._silent += len(data)
        self._unset_keepalive_if_required()
        left = data
        while left:
            left = self._parse(left)
        # A header that never ends reaches no callback, and the parser keeps all of it.
        if self._silent > _HEAD + len(data) or self._head > _HEAD:
            self._drop("head_too_large")

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's own type
        """Answer a client that has ended its side of the connection, if that takes a moment only."""
        if not self._answering:
            return False
        self.cycle.keep_alive = False
        self._timer = self.loop.call_later(_HALF_CLOSED_SECONDS, self.transport.close)
        return True

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._between = False
        self._silent = self._head = 0
        self._arm(self._limits.header_timeout)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._silent = 0
        self._head += len(name) + len(value)
        if self._head <= _HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._silent = 0
        self._arm(self._limits.body_timeout)
        self._beyond = self._beyond and self._crowded()
        self.scope["state"]["crowded"] = self._beyond  # which the application refuses
        self._offered = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._offered:  # read again, without the offer
            return
        super().on_headers_complete()
        self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete] + [self.cycle]

    def on_body(self, body: bytes) -> None:
        self._silent = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._offered:
            return
        self._silent = 0
        self._between = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._count_unread(self.transport.get_write_buffer_size())
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self._limits.body_timeout, self._drop, "slow_reader")

    def resume_writing(self) -> None:
        self._count_unread(0)
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    def _count_unread(self, size: int) -> None:
        self._state.unread += size - self._unread
        self._unread = size

    def _parse(self, data: bytes) -> bytes:
        """Parse ``data``; returns what is to be parsed next."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self._offered and self._head <= _HEAD:
                return self._without_offer() + data[offer.args[0] :]
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        return b""

    def _without_offer(self) -> bytes:
        """The head of a request without its offer of another protocol, for a parser that knows of none.

        A server may ignore an offer (RFC 9110, 7.8). httptools would skip the body: Java's client offers HTTP/2
        with every request.
        """
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            kept = value
            if name == b"connection":
                tokens = (token.strip() for token in value.split(b","))
                kept = b", ".join(token for token in tokens if token.lower() not in _OFFERS)
            if name not in _OFFERS:
                lines.append(b"%b: %b" % (name, kept))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self._offered = False
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _leave(self) -> None:
        """Tell all requests that nobody waits for them; uvicorn tells the last one."""
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def _crowded(self) -> bool:
        """Whether there are too many connections, those included that have gone and left a task."""
        return max(len(self.connections), len(self.tasks)) > self._limits.connections

    @property
    def _answering(self) -> bool:
        """Whether the last request has been received as a whole, and not answered."""
        return self._between and self.cycle is not None and not self.cycle.response_complete

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._late, seconds)

    def _late(self, seconds: float) -> None:
        self._timer = None
        waits = self.flow is not None and self.flow.read_paused
        if waits or self._answering:  # it is not the client who is slow
            self._arm(seconds)
        else:
            self._drop("slow_client")

    def _drop(self, reason: str) -> None:
        if not self._dropped:
            self._dropped = True
            self._state.metrics.rejected.labels(reason).inc()
            self.transport.abort()
