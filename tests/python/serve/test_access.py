"""Who may use a server, and how many at once; in this process, without models."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from running_server import RunningServer  # noqa: F401  (skips where the server's packages are missing)
from starlette.applications import Starlette
from starlette.responses import Response
from uvicorn.server import ServerState

from embedkit.cli.serve import _keys, _parser, main
from embedkit.serve import server
from embedkit.serve.app import create_app
from embedkit.serve.metrics import Metrics
from embedkit.serve.models import Memory, Pool
from embedkit.serve.opening import Options
from embedkit.serve.protocol import GuardedProtocol
from embedkit.serve.settings import Limits, Settings, host_name, web_origin
from embedkit.serve.state import State

ORIGIN = "https://app.example"


def state_of(limits: Limits | None = None, **settings: Any) -> State:
    nothing: Pool[Any] = Pool([], Memory(None))
    return State(Settings(limits or Limits(), **settings), nothing, nothing, None, Metrics())


def answer(state: State, method: str = "GET", **headers: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, "/v1/models", headers=headers)

    return asyncio.run(ask())


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[Callable[..., Any]]:
    """What opens a connection to a server of ``app``."""
    config = uvicorn.Config(app, lifespan="off", ws="none")
    state = ServerState()
    made = await asyncio.get_running_loop().create_server(
        lambda: GuardedProtocol(app.state.shared, config=config, server_state=state, app_state={}),
        "127.0.0.1",
        0,
    )
    port = made.sockets[0].getsockname()[1]
    try:
        yield lambda: asyncio.open_connection("127.0.0.1", port)
    finally:
        made.close()


@pytest.mark.parametrize("option", ["*", ORIGIN, "HTTPS://App.Example/", f"{ORIGIN}:443"])
def test_pages_of_an_allowed_origin_may_call(option: str) -> None:
    origins = tuple(_parser().parse_args(["--allow-origin", option]).allow_origin)
    state = state_of(origins=origins)
    response = answer(state, origin=ORIGIN)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] in {ORIGIN, "*"}
    wanted = "authorization,content-type,x-stainless-lang"  # of OpenAI's client
    asked = {"access-control-request-method": "POST", "access-control-request-headers": wanted}
    assert answer(state, "OPTIONS", origin=ORIGIN, **asked).status_code == 200
    if option != "*":
        assert answer(state, origin="https://other.example").status_code == 403


@pytest.mark.parametrize(
    "origin", ["app.example", f"{ORIGIN}/page", f"{ORIGIN}//", "null", "https://", "https://*"]
)
def test_what_is_no_origin_is_refused(origin: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="is no web origin; give SCHEME://HOST"):
        web_origin(origin)
    assert main(["--allow-origin", origin]) == 2
    assert f"argument --allow-origin: {origin!r} is no web origin" in capsys.readouterr().err


def test_origins_keep_their_port() -> None:
    assert web_origin("http://[::1]:8080/") == "http://[::1]:8080"
    assert web_origin("http://app:443") == "http://app:443"


@pytest.mark.parametrize(
    ("option", "host"),
    [
        ("Example.COM", "example.com:8080"),
        ("example.com:8080", "Example.com"),
        ("::1", "[::1]:8080"),
        ("[::1]:80", "[::1]"),
    ],
)
def test_hosts_are_compared_without_case_and_port(option: str, host: str) -> None:
    hosts = tuple(_parser().parse_args(["--allow-host", option]).allow_host)
    assert answer(state_of(hosts=hosts), host=host).status_code == 200
    assert answer(state_of(hosts=hosts), host="other.example").status_code == 403
    assert host_name("*") == "*"


def test_keys_of_a_file_with_a_byte_order_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDKIT_API_KEY", "third, first")
    file = tmp_path / "keys"
    file.write_bytes(b"\xef\xbb\xbffirst\r\nsecond\n")
    assert _keys(_parser().parse_args(["--api-key-file", str(file)])) == ("third", "first", "second")


@pytest.mark.parametrize("empty", ["", " , "])
def test_an_empty_key_opens_no_server(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDKIT_API_KEY", empty)  # as of a secret that is missing
    with pytest.raises(ValueError, match="no API key was given"):
        _keys(_parser().parse_args([]))
    assert _keys(_parser().parse_args(["--api-key", "one"])) == ("one",)
    monkeypatch.delenv("EMBEDKIT_API_KEY")
    assert _keys(_parser().parse_args([])) == ()
    with pytest.raises(ValueError, match="no API key was given"):
        _keys(_parser().parse_args(["--api-key", " "]))


def test_keys_that_no_header_can_carry_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_bytes("first\nclé\n".encode())
    with pytest.raises(ValueError, match=r"--api-key-file .*keys, line 2: the key holds a character") as told:
        _keys(_parser().parse_args(["--api-key-file", str(file)]))
    assert "cl" not in str(told.value).partition("line 2")[2].replace("clients", "")
    with pytest.raises(ValueError, match="--api-key: the key"):
        _keys(_parser().parse_args(["--api-key", "a\x7fb"]))
    file.write_bytes(b"cl\xe9\n")
    with pytest.raises(ValueError, match="keys: it is not UTF-8"):
        _keys(_parser().parse_args(["--api-key-file", str(file)]))
    monkeypatch.setenv("EMBEDKIT_API_KEY", "ключ")
    with pytest.raises(ValueError, match="EMBEDKIT_API_KEY: the key"):
        _keys(_parser().parse_args([]))


def request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


async def answered(connect: Callable[[], Awaitable[Any]], sent: bytes) -> bytes:
    """All that comes back when the client ends its side after ``sent``."""
    reader, writer = await connect()
    writer.write(sent)
    writer.write_eof()
    received: bytes = await reader.read()
    writer.close()
    return received


def test_beyond_the_connections_health_is_told_and_the_rest_refused() -> None:
    limits = Limits(connections=2)
    state = state_of(limits)

    async def check() -> None:
        async with serving(create_app(state)) as connect:
            (_, idle), (reader, writer) = await connect(), await connect()
            writer.write(request("/v1/models"))  # the last one that is let in
            assert b" 200 OK" in await reader.readline()
            for path in ("/livez", "/health", "/readyz"):
                assert b" 200 OK" in await answered(connect, request(path))
            for path, told in (
                ("/v1/models", b'"code":"too_many_connections"'),
                ("/info", b'"error_type":"Unhealthy"'),
            ):
                refused = await answered(connect, request(path))
                assert b" 503 " in refused.splitlines()[0]
                assert b"retry-after: 1\r\n" in refused
                assert b"connection: close\r\n" in refused
                assert told in refused
            _, beyond = await connect()
            await reader.readuntil(b"]}")
            writer.write(request("/v1/models"))  # the connection is as old as it was, however many came after
            assert b" 200 OK" in await reader.readline()
            for one in (idle, writer, beyond):
                one.close()

    asyncio.run(check())
    text = state.metrics.text().decode()
    assert 'embedkit_rejected_total{reason="too_many_connections"} 2.0' in text
    assert 'embedkit_requests_total{route="/info",status="503"} 1.0' in text


@pytest.mark.parametrize("loops", ["asyncio", "uvloop"])
def test_a_half_closed_client_is_answered_if_that_takes_a_moment(
    loops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_of()
    app = create_app(state)
    left: list[bool] = []

    async def slow(request: Any) -> Any:
        while not await request.is_disconnected():
            await asyncio.sleep(0.01)
        left.append(True)

    app.add_route("/slow", slow)

    async def check() -> None:
        async with serving(app) as connect:
            received = await answered(connect, request("/livez") * 2)
            assert received.count(b"HTTP/1.1 200 OK") == 2
            assert received.endswith(b'{"status":"ok"}')
            monkeypatch.setattr("embedkit.serve.protocol._HALF_CLOSED_SECONDS", 0.2)
            assert await answered(connect, request("/slow")) == b""  # as one that has hung up
            assert await answered(connect, b"GET /livez HTTP/1.1\r\n") == b""
            await asyncio.sleep(0.1)

    loop = pytest.importorskip(loops).new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(check(), 60))
    finally:
        loop.close()
    assert left == [True]


def test_fractions_of_seconds_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(server._Server, "run", lambda self, _: seen.append(self.config))
    try:
        server.run(state_of(Limits(keep_alive=0.5)), [], drain=0.25)
    finally:
        gc.unfreeze()
    assert (seen[0].timeout_keep_alive, seen[0].timeout_graceful_shutdown) == (0.5, 0.25)


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("127.0.0.1", {"127.0.0.1"}),
        ("127.0.1.1", {"127.0.1.1"}),
        ("LOCALHOST", {"localhost"}),
        ("0.0.0.0", set()),
    ],
)
def test_on_loopback_the_host_must_be_named_however_it_was_given(
    host: str, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EMBEDKIT_API_KEY", raising=False)
    seen: list[Options] = []

    def stop(options: Options) -> State:
        seen.append(options)
        raise ValueError("enough")

    monkeypatch.setattr("embedkit.serve.opening.open_state", stop)
    assert main(["--host", host, "--port", "0"]) == 2
    hosts = set(seen[0].settings.hosts)
    assert hosts == (names | {"localhost", "127.0.0.1", "[::1]"} if names else set())


@pytest.mark.parametrize(
    ("addresses", "local"),
    [
        (["127.0.0.1", "::1"], True),
        (["::ffff:127.0.0.1"], True),
        (["127.0.0.1", "192.0.2.1"], False),
        (["::"], False),
    ],
    ids=str,
)
def test_a_server_is_local_if_all_its_addresses_are(addresses: list[str], local: bool) -> None:
    bound: list[Any] = [SimpleNamespace(getsockname=lambda one=one: (one, 80)) for one in addresses]
    assert server.is_local(bound) is local


@pytest.mark.parametrize(
    ("level", "told"),
    [
        ("error", []),
        ("warning", ["WARNING:  few files"]),
        ("info", ["WARNING:  few files", "INFO:     stopped"]),
    ],
)
def test_the_log_level_is_that_of_embedkit_too(
    level: str, told: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("embedkit.serve")
    monkeypatch.setattr(server._Server, "run", lambda *_: logger.warning("few files"))
    try:
        server.run(state_of(), [], log_level=level)
    finally:
        gc.unfreeze()
    assert capsys.readouterr().err.splitlines() == told


def test_it_listens_on_every_address_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ["192.0.2.1", "127.0.0.1", "127.0.0.2"]  # the first is never of this machine
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, port, **_: [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in addresses
        ],
    )
    bound = server.bind("name", 0)
    names = [one.getsockname() for one in bound]
    for one in bound:
        one.close()
    assert [name[0] for name in names] == addresses[1:]
    assert len({name[1] for name in names}) == 1
    del addresses[1:]
    with pytest.raises(OSError, match="Cannot assign") as told:
        server.bind("name", 0)
    assert told.value.errno == errno.EADDRNOTAVAIL


def test_every_option_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text("third\n")
    monkeypatch.setenv("EMBEDKIT_API_KEY", "second")
    opened, served, warned = [], [], []

    def open_state(options: Options) -> State:
        opened.append(options)
        return state_of()

    monkeypatch.setattr("embedkit.serve.opening.open_state", open_state)
    monkeypatch.setattr("embedkit.cli.serve.warn_of_prompts", lambda *told: warned.append(told))
    monkeypatch.setattr("embedkit.serve.server.run", lambda *_, ready, **options: served.append(options))
    given: dict[str, object] = {
        "model": "a=one",
        "query-prompt": "q: ",
        "document-prompt": "d: ",
        "rerank": "b=two",
        "index": "three",
        "precision": "bf16",
        "device": "cuda:1",
        "threads": 3,
        "max-memory": 5000,
        "on-overflow": "error",
        "port": 0,
        "api-key": "first",
        "api-key-file": tmp_path / "keys",
        "allow-origin": ORIGIN,
        "allow-host": "host.example",
        "max-body": 11,
        "max-texts": 12,
        "max-queue": 13,
        "max-queue-tokens": 14,
        "max-batch-tokens": 15,
        "max-connections": 16,
        "timeout": 21.5,
        "drain": 22.5,
        "keep-alive": 23.5,
        "header-timeout": 24.5,
        "body-timeout": 25.5,
        "log-level": "debug",
    }
    assert main([word for name, value in given.items() for word in (f"--{name}", str(value))]) == 0
    limits = Limits(
        body=11,
        texts=12,
        queue_requests=13,
        queue_tokens=14,
        batch_tokens=15,
        connections=16,
        timeout=21.5,
        keep_alive=23.5,
        header_timeout=24.5,
        body_timeout=25.5,
    )
    prompts = {"query": "q: ", "document": "d: "}
    settings = Settings(limits, ("first", "second", "third"), "error", (ORIGIN,), ("host.example",))
    assert opened == [Options(["a=one"], [prompts], ["b=two"], "three", "bf16", "cuda:1", 3, 5000, settings)]
    assert served == [{"drain": 22.5, "log_level": "debug"}]
    options = {option for action in _parser()._actions for option in action.option_strings}
    assert options == {f"--{name}" for name in given} | {"-h", "--help", "--version", "--host"}


@pytest.mark.parametrize("loops", ["asyncio", "uvloop"])
def test_answers_that_clients_do_not_read_are_bounded_together(
    loops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 32 << 20  # more than the sockets hold
    monkeypatch.setattr("embedkit.serve.app._UNREAD", 3 * size)
    state = state_of()
    app = create_app(state)

    async def large(_: Any) -> Response:
        return Response(b"a" * size)

    app.add_route("/large", large)

    async def status(reader: Any) -> bytes:
        line: bytes = await reader.readline()
        return line.split()[1]

    async def check() -> None:
        async with serving(app) as connect:
            readers = [await connect() for _ in range(2)]
            for reader, writer in readers:
                writer.write(request("/large"))
                assert await status(reader) == b"200"
            assert size < state.unread <= 2 * size
            # what waits on the same connection until the first answer is read counts, too
            readers[0][1].write(request("/large"))
            while state.unread <= 2 * size:
                await asyncio.sleep(0.01)
            assert state.unread <= 3 * size
            other, asks = await connect()
            asks.write(request("/large"))
            assert await status(other) == b"503"
            asks.close()
            readers[1][1].close()
            for _ in range(2):
                await readers[0][0].readuntil(b"a" * size)
            readers[0][1].close()
            while state.unread:
                await asyncio.sleep(0.01)
            other, asks = await connect()
            asks.write(request("/large"))
            assert await status(other) == b"200"
            asks.close()

    loop = pytest.importorskip(loops).new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(check(), 60))
    finally:
        loop.close()
    assert 'embedkit_rejected_total{reason="memory_full"} 1.0' in state.metrics.text().decode()
