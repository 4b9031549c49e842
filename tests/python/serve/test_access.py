"""Who may use a server, and how many at once; in this process, without models."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_server import RunningServer  # noqa: F401  (skips where the server's packages are missing)

from embedkit.cli.serve import _keys, _parser, main
from embedkit.serve.app import create_app
from embedkit.serve.metrics import Metrics
from embedkit.serve.models import Memory, Pool
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


@pytest.mark.parametrize("option", ["*", ORIGIN, "HTTPS://App.Example/", f"{ORIGIN}:443"])
def test_pages_of_an_allowed_origin_may_call(option: str) -> None:
    origins = tuple(_parser().parse_args(["--allow-origin", option]).allow_origin)
    state = state_of(origins=origins)
    response = answer(state, origin=ORIGIN)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] in {ORIGIN, "*"}
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
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
