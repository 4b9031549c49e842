"""Which paths need a key, and under which name each is counted; in this process, without models."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from test_access import state_of

from embedkit.serve.app import create_app
from embedkit.serve.state import State


def ask(state: State, method: str, path: str, **options: Any) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **options)

    return asyncio.run(asked())


@pytest.mark.parametrize(
    ("method", "paths"),
    [
        ("POST", "/ /embed /v1/embeddings /rerank /v1/rerank /v2/rerank /v1/search"),
        ("GET", "/v1/models /v1/models/a /info /metrics /none"),
    ],
    ids=["post", "get"],
)
def test_every_route_but_the_probes_and_the_description_needs_a_key(method: str, paths: str) -> None:
    state = state_of(api_keys=("secret",))
    for path in paths.split():
        assert ask(state, method, path).status_code == 401, path
        for scheme, closed in (("Bearer", False), ("Basic", True)):
            answer = ask(state, method, path, headers={"authorization": f"{scheme} secret"})
            assert (answer.status_code == 401) is closed, path
    for path in ("/", "/docs", "/openapi.json", "/health", "/readyz", "/livez"):
        assert ask(state, "GET", path).status_code != 401, path


def test_the_probes_answer_under_any_name_of_the_host() -> None:
    state = state_of(hosts=("embed.example",))
    for path in ("/health", "/readyz", "/livez"):
        assert ask(state, "GET", path, headers={"host": "10.1.2.3:8080"}).status_code != 403, path
    assert ask(state, "GET", "/v1/models", headers={"host": "10.1.2.3:8080"}).status_code == 403


def test_paths_that_are_no_routes_share_a_label() -> None:
    state = state_of()
    for path in ("/a", "/b", "/v1/models/x"):
        ask(state, "GET", path)
    text = state.metrics.text().decode()
    assert 'embedkit_requests_total{route="other",status="404"} 2.0' in text
    assert 'embedkit_requests_total{route="/v1/models",status="404"} 1.0' in text
    assert 'route="/a"' not in text and "/v1/models/x" not in text
