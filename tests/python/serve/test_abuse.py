"""Clients that are slow, broken or hostile: no 5xx but by design, no growth, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from running_server import RunningServer, eventually
from starlette.requests import Request
from starlette.responses import Response
from test_access import state_of
from test_paths import ask

from embedkit.serve.app import create_app
from embedkit.serve.bodies import EmbedRequest
from embedkit.serve.requests import read
from embedkit.serve.settings import Limits


@pytest.fixture(scope="module")
def guarded(start: Callable[..., RunningServer]) -> Iterator[RunningServer]:
    with start("--header-timeout", "1", "--body-timeout", "2", "--keep-alive", "2") as running:
        yield running


def read_all(connection: socket.socket) -> bytes:
    received = b""
    with suppress(ConnectionError):
        while chunk := connection.recv(1 << 16):
            received += chunk
    return received


def request(body: bytes, *headers: str) -> bytes:
    lines = [
        "POST /v1/embeddings HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {len(body)}",
        *headers,
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"input": [%b""]}' % (b'"a",' * 200_000), 413),
        (b'{"input": [%b[1]]}' % (b"[1]," * 200_000), 413),
        (b'{"input": ["a"], "ignored": [%b{}]}' % (b"{}," * 100_000), 413),
        (b'{"input": ' + b"[" * 1_000_000, 413),
        (b'{"input": [[%b1]]}' % (b"1," * 3_000_000), 413),
        (b'{"input": ["a"], "user": "%b"}' % (rb"[\"{, \\" * 100_000), 200),
        (rb'\\"' * 300_000, 413),
        (b'{"input": "%b%b' % (rb"\"" * 140_000, b"[" * 40_000), 400),  # a string that does not end
    ],
)
def test_a_body_of_more_parts_than_texts_is_not_parsed(
    guarded: RunningServer, body: bytes, status: int
) -> None:
    answer = guarded.client.post("/v1/embeddings", content=body)
    assert answer.status_code == status
    if status == 413:
        assert answer.json()["error"]["code"] == "too_many"


@pytest.mark.parametrize(
    ("encoding", "status"),
    [
        ("gzip", 415),
        ("identity, GZip", 415),
        ("Identity", 404),
        ("", 404),
        ("utf-8", 404),
        ("aws-chunked", 404),
    ],
)
def test_a_compressed_body_is_refused_by_name(encoding: str, status: int) -> None:
    body = b'{"inputs": "a"}'
    content = gzip.compress(body) if status == 415 else body
    answer = ask(state_of(), "POST", "/embed", content=content, headers={"content-encoding": encoding})
    assert answer.status_code == status, answer.text
    if status == 415:
        assert answer.json()["error"] == f"Content-Encoding {encoding} is not taken; send the body as it is"


@pytest.mark.parametrize(("limit", "status"), [(100, 413), (1000, 404)])
def test_a_body_is_read_up_to_the_limit_however_large_that_is(
    monkeypatch: pytest.MonkeyPatch, limit: int, status: int
) -> None:
    monkeypatch.setattr("embedkit.serve.requests._DISCARDED", 400)
    answer = ask(state_of(Limits(body=limit)), "POST", "/embed", content=b'{"inputs": "a"}' + b" " * 500)
    assert answer.status_code == status


def test_bodies_of_all_connections_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedkit.serve.requests._BODIES", 2)
    monkeypatch.setattr("embedkit.serve.requests._PARSED_HERE", 200)
    state = state_of(Limits(body=1000))
    application = create_app(state)

    async def post(
        *parts: bytes, last: bytes, until: asyncio.Event | None = None
    ) -> tuple[int, dict[bytes, bytes]]:
        """The status and the headers of a request whose ``last`` part comes after an event."""
        waiting = [*parts, last]
        sent = []

        async def receive() -> Any:
            if until is not None and len(waiting) == 1:
                await until.wait()
            return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/embed", "query_string": b"", "headers": []}
        await application(scope, receive, send)
        return sent[0]["status"], dict(sent[0]["headers"])

    async def ask() -> None:
        until = asyncio.Event()
        slow = [
            asyncio.create_task(post(b'{"inputs": "a"}' + b" " * 900, last=b" ", until=until))
            for _ in range(2)
        ]
        await asyncio.sleep(0.01)
        held = state.bodies
        assert held == 2 * 915
        status, headers = await post(b" " * 100, b" " * 100, last=b" " * 100)
        assert (status, headers[b"retry-after"]) == (503, b"1")
        assert (await post(b'{"inputs": "a"}', last=b" "))[0] == 404  # which has room; no model is served
        assert (await post(b" " * 100, b" " * 1000, last=b""))[0] == 413
        assert state.bodies == held
        until.set()
        assert [status for status, _ in await asyncio.gather(*slow)] == [404, 404]
        assert state.bodies == 0
        assert (await post(b'{"inputs": "a"}' + b" " * 900, last=b" "))[0] == 404

    asyncio.run(ask())


def test_bodies_are_counted_until_their_requests_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedkit.serve.requests._BODIES", 1)
    monkeypatch.setattr("embedkit.serve.requests._PARSED_HERE", 200)
    limits = Limits(body=1000)
    state = state_of(limits)
    application = create_app(state)
    body = b'{"inputs": "a"}' + b" " * 900

    async def check() -> None:
        read_, until = asyncio.Event(), asyncio.Event()

        async def waits(request: Request) -> Response:
            await read(request, EmbedRequest, limits)
            read_.set()
            await until.wait()  # as in a model's queue
            return Response()

        application.add_route("/waits", waits, methods=["POST"])
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            waiting = asyncio.create_task(client.post("/waits", content=body))
            await read_.wait()
            assert state.bodies == len(body)
            assert (await client.post("/embed", content=body)).status_code == 503
            until.set()
            assert (await waiting).status_code == 200
            assert state.bodies == 0
            assert (await client.post("/embed", content=body)).status_code == 404  # no model is served

    asyncio.run(check())


def test_probes_of_http_1_0_name_no_host(guarded: RunningServer) -> None:
    with guarded.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 200")


def test_a_slash_at_the_end_is_another_path(guarded: RunningServer) -> None:
    """A redirect would lead to http, whatever a proxy in front speaks."""
    assert guarded.post("/embed/", {"inputs": "a"}).status_code == 404


@pytest.mark.parametrize("sent", [b"", b"POST /v1/emb", b"GET / HTTP/1.1\r\nHost: local", b"\r\n\r\n\r\n"])
def test_a_head_that_does_not_end(guarded: RunningServer, sent: bytes) -> None:
    begin = time.monotonic()
    with guarded.connect() as connection:
        connection.sendall(sent)
        assert read_all(connection) == b""
    assert 0.5 < time.monotonic() - begin < 5
    assert guarded.metric("embedkit_rejected_total", reason="slow_client") >= 1


def test_a_head_that_drips(guarded: RunningServer) -> None:
    begin = time.monotonic()
    with guarded.connect() as connection, suppress(ConnectionError):
        connection.sendall(b"GET /livez HTTP/1.1\r\n")
        for number in range(100):
            connection.sendall(f"X-{number}: y\r\n".encode())
            time.sleep(0.1)
    assert time.monotonic() - begin < 5


def test_a_body_that_does_not_end(guarded: RunningServer) -> None:
    begin = time.monotonic()
    with guarded.connect() as connection:
        connection.sendall(request(b'{"input": "a"}')[:-3])
        assert read_all(connection) == b""
    assert 1 < time.monotonic() - begin < 8


def test_an_idle_connection_is_closed(guarded: RunningServer) -> None:
    with guarded.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        begin = time.monotonic()
        assert b"200 OK" in read_all(connection)
        assert 1 < time.monotonic() - begin < 8


def test_a_slow_client_keeps_nobody_waiting(guarded: RunningServer) -> None:
    slow = [guarded.connect() for _ in range(200)]
    try:
        for connection in slow:
            connection.sendall(b"POST /v1/embeddings HTTP/1.1\r\n")
        begin = time.monotonic()
        guarded.embed("others")
        assert time.monotonic() - begin < 10
        eventually(lambda: guarded.files() < 100)
    finally:
        for connection in slow:
            connection.close()


def test_a_header_without_end(guarded: RunningServer) -> None:
    before = guarded.memory()
    with guarded.connect() as connection, suppress(ConnectionError):
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        for _ in range(1000):
            connection.sendall(b"a" * 100_000)
    assert guarded.memory() < before + 16e6
    with guarded.connect() as connection, suppress(ConnectionError):
        connection.sendall(b"GET / HTTP/1.1\r\n")
        for _ in range(1000):
            connection.sendall(b"X: " + b"a" * 1000 + b"\r\n")
    eventually(lambda: guarded.metric("embedkit_rejected_total", reason="head_too_large") >= 2)


def test_a_reader_that_does_not_read(guarded: RunningServer) -> None:
    texts = json.dumps({"input": ["a"] * 10_000}).encode()
    dropped = guarded.metric("embedkit_rejected_total", reason="slow_reader")
    with guarded.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request(texts))
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            if guarded.metric("embedkit_rejected_total", reason="slow_reader") > dropped:
                break
            time.sleep(0.2)
    assert guarded.metric("embedkit_rejected_total", reason="slow_reader") == dropped + 1


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_100_megabytes(server: RunningServer, chunked: bool) -> None:
    before = server.memory()
    size, piece = 100 << 20, b" " * (1 << 20)

    def body() -> Iterator[bytes]:
        for _ in range(size // len(piece)):
            yield piece

    headers = {} if chunked else {"content-length": str(size)}
    response = server.client.post("/v1/embeddings", content=body(), headers=headers)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"
    assert server.memory() < before + 64e6


def test_an_announced_terabyte_is_refused_at_once(server: RunningServer) -> None:
    with server.connect() as connection:
        connection.sendall(request(b"").replace(b"Length: 0", b"Length: 1000000000000"))
        assert b"413" in read_all(connection).splitlines()[0]


def test_too_many_texts(start: Callable[..., RunningServer]) -> None:
    with start("--max-texts", "3", "--max-body", "1kB") as running:
        response = running.post("/v1/embeddings", {"input": ["a"] * 4})
        assert response.status_code == 413
        assert response.json()["error"]["param"] == "input"
        assert running.post("/v1/embeddings", {"input": "a" * 2000}).status_code == 413
        running.embed(["a"] * 3)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",  # TLS
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http(guarded: RunningServer, sent: bytes) -> None:
    with guarded.connect() as connection:
        connection.sendall(sent)
        answer = read_all(connection)
    assert answer == b"" or b" 400 " in answer.splitlines()[0]
    guarded.embed("still here")


def test_half_closed_and_reset_connections_leave_nothing(guarded: RunningServer) -> None:
    guarded.embed("a")
    files = guarded.files()
    for _ in range(30):
        with guarded.connect() as connection:
            connection.sendall(request(json.dumps({"input": ["text"] * 50}).encode()))
            connection.shutdown(socket.SHUT_WR)
            read_all(connection)
    for _ in range(30):
        connection = guarded.connect()
        connection.sendall(request(json.dumps({"input": ["text"] * 50}).encode()))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        connection.close()  # RST
    guarded.embed("still here")
    eventually(lambda: guarded.files() <= files + 2)
    eventually(lambda: guarded.metric("embedkit_queue_tokens") == 0)
    assert guarded.metric("embedkit_requests_total", status="500") == 0


def test_pipelined_requests_are_answered_in_their_order(guarded: RunningServer) -> None:
    with guarded.connect() as connection:
        bodies = [json.dumps({"input": ["a"] * n}).encode() for n in (3, 1, 2)]
        connection.sendall(
            b"".join(request(body) for body in bodies[:-1]) + request(bodies[-1], "Connection: close")
        )
        answer = read_all(connection)
    counts = [part.count(b'"index":') for part in answer.split(b"HTTP/1.1 200")[1:]]
    assert counts == [3, 1, 2]
    assert guarded.errors() == ""


OFFER = (
    "Connection: Upgrade, HTTP2-Settings, close",
    "Upgrade: h2c",
    "HTTP2-Settings: AAMAAABkAAQAAP__",
)


@pytest.mark.parametrize("cut", [None, 40, -5])
def test_an_offer_of_another_protocol_is_ignored(guarded: RunningServer, cut: int | None) -> None:
    """RFC 9110, 7.8. The clients of Java and ``curl --http2`` make one; parts may arrive one by one."""
    sent = request(b'{"input": ["a", "b"]}', *OFFER)
    with guarded.connect() as connection:
        connection.sendall(sent[:cut])
        if cut is not None:
            time.sleep(0.1)
            connection.sendall(sent[cut:])
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b'"index":') == 2
    assert guarded.errors() == ""


def test_an_offer_before_another_request(guarded: RunningServer) -> None:
    with guarded.connect() as connection:
        first = request(b'{"input": "a"}', "Connection: Upgrade", "Upgrade: websocket")
        connection.sendall(first + request(b'{"input": ["a", "b"]}', "Connection: close"))
        answers = read_all(connection).split(b"HTTP/1.1 200")[1:]
    assert [answer.count(b'"index":') for answer in answers] == [1, 2]


def test_who_hangs_up_on_pipelined_requests_leaves_no_trace(guarded: RunningServer) -> None:
    answered = guarded.metric("embedkit_requests_total", route="/v1/embeddings")
    body = json.dumps({"input": ["word " * 400] * 8, "dimensions": 1}).encode()
    for _ in range(10):
        with guarded.connect() as connection:
            connection.sendall(request(body) * 2)
            time.sleep(0.01)
    deadline = time.monotonic() + 30
    while guarded.metric("embedkit_requests_total", route="/v1/embeddings") < answered + 10:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert guarded.errors() == ""


def test_an_offer_lifts_no_limit(guarded: RunningServer) -> None:
    """A head that is too large is not read again in part, and CONNECT and many offers end in order."""
    body = b"GET /livez HTTP/1.1\r\nA: b\r\n\r\n"
    large = [f"X-{number}: {'y' * 1000}" for number in range(70)]
    head = ["POST /a HTTP/1.1", "Host: localhost", *OFFER, *large, f"Content-Length: {len(body)}", "", ""]
    with guarded.connect() as connection, suppress(ConnectionError):
        connection.sendall("\r\n".join(head).encode() + body)
        assert read_all(connection) == b""
    with guarded.connect() as connection:
        connection.sendall(b"CONNECT http://h:443/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 40")
    one = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    with guarded.connect() as connection:
        connection.sendall(one * 600 + one.replace(b"upgrade", b"close, upgrade") + one)
        assert read_all(connection).count(b"HTTP/1.1 200") == 601
    assert guarded.errors() == ""
