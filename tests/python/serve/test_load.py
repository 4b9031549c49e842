"""Many clients at once: bitwise the same vectors, every request answered once, fairness."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
from running_server import RunningServer

from embedkit import Encoder


def texts_of(count: int, words: int) -> list[str]:
    return [" ".join(f"word{(n * 7 + w) % 97}" for w in range(1 + n % words)) for n in range(count)]


def vectors(response: httpx.Response) -> np.ndarray[Any, np.dtype[np.float32]]:
    assert response.status_code == 200, response.text
    return np.asarray([item["embedding"] for item in response.json()["data"]], np.float32)


def test_vectors_under_load_are_bitwise_those_of_encode(server: RunningServer) -> None:
    texts = texts_of(400, 30)
    expected = Encoder().encode(texts)
    sizes = [1, 1, 1, 3, 17, 40]

    async def client(number: int, http: httpx.AsyncClient) -> int:
        answered = 0
        at = number * 13
        for turn in range(6):
            size = sizes[(number + turn) % len(sizes)]
            chosen = [(at + i) % len(texts) for i in range(size)]
            at += size
            response = await http.post("/v1/embeddings", json={"input": [texts[i] for i in chosen]})
            np.testing.assert_array_equal(vectors(response), expected[chosen])
            answered += 1
        return answered

    async def load() -> int:
        limits = httpx.Limits(max_connections=24)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits, trust_env=False) as http:
            return sum(await asyncio.gather(*(client(number, http) for number in range(24))))

    before = server.metric("embedkit_requests_total", route="/v1/embeddings", status="200")
    assert asyncio.run(load()) == 24 * 6
    assert server.metric("embedkit_requests_total", route="/v1/embeddings", status="200") == before + 24 * 6
    assert server.metric("embedkit_queue_tokens") == 0


def test_a_single_text_does_not_wait_for_ten_thousand(start: Callable[..., RunningServer]) -> None:
    many = texts_of(10_000, 6)

    async def load() -> tuple[float, float, int]:
        async with httpx.AsyncClient(base_url=running.url, timeout=300, trust_env=False) as http:
            begin = time.monotonic()
            body = {"input": many, "encoding_format": "base64"}
            long = asyncio.create_task(http.post("/v1/embeddings", json=body))
            slowest, answered = 0.0, 0
            while not long.done():
                start = time.monotonic()
                (await http.post("/v1/embeddings", json={"input": "a short text"})).raise_for_status()
                if not long.done():
                    slowest, answered = max(slowest, time.monotonic() - start), answered + 1
                await asyncio.sleep(0.05)
            (await long).raise_for_status()
            assert len((await long).json()["data"]) == len(many)
            return time.monotonic() - begin, slowest, answered

    with start("--timeout", "300") as running:  # a busy machine may need longer than the usual minute
        whole, slowest, answered = asyncio.run(load())
    assert answered >= 3
    assert slowest < whole / 3, f"{slowest:.2f} s of {whole:.2f} s"


def test_a_client_that_hangs_up_frees_its_place(server: RunningServer) -> None:
    body = json.dumps({"input": texts_of(8000, 60)}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    computed = server.metric("embedkit_texts_total")
    with server.connect() as connection:
        connection.sendall(head.encode() + body)
        deadline = time.monotonic() + 20
        while server.metric("embedkit_texts_total") == computed and time.monotonic() < deadline:
            time.sleep(0.02)
    deadline = time.monotonic() + 10
    while server.metric("embedkit_queue_tokens") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert server.metric("embedkit_queue_tokens") == 0
    assert server.metric("embedkit_texts_total") < computed + 8000
    server.embed("still here")


def test_a_full_queue_answers_429_and_a_late_request_504(start: Callable[..., RunningServer]) -> None:
    with start("--max-queue", "2", "--threads", "1", "--timeout", "1.5") as running:

        async def load() -> list[httpx.Response]:
            async with httpx.AsyncClient(
                base_url=running.url, timeout=60, limits=httpx.Limits(max_connections=40), trust_env=False
            ) as http:
                body = {"input": texts_of(4000, 60), "encoding_format": "base64"}
                return await asyncio.gather(*(http.post("/v1/embeddings", json=body) for _ in range(10)))

        responses = asyncio.run(load())
        codes = [response.status_code for response in responses]
        assert set(codes) <= {200, 429, 504}
        assert 429 in codes
        assert 504 in codes
        refused = next(response for response in responses if response.status_code == 429)
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "queue_full"
        assert next(one for one in responses if one.status_code == 504).json()["error"]["code"] == "timeout"
        running.embed("it goes on")
        assert running.metric("embedkit_queue_requests") == 0


def test_memory_does_not_grow(server: RunningServer) -> None:
    texts = texts_of(200, 10)

    def load(rounds: int) -> None:
        async def client(http: httpx.AsyncClient) -> None:
            for turn in range(rounds):
                (
                    await http.post("/v1/embeddings", json={"input": texts[turn % 50 :][:40]})
                ).raise_for_status()

        async def all_of_them() -> None:
            async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as http:
                await asyncio.gather(*(client(http) for _ in range(8)))

        asyncio.run(all_of_them())

    load(10)
    before, files = server.memory(), server.files()
    load(20)
    assert server.memory() < before + 32e6
    assert server.files() <= files + 16
