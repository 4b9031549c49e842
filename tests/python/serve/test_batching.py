"""The batcher alone, with a function that is told when to go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from running_server import RunningServer  # noqa: F401  (skips where the server's packages are missing)

from embedkit.serve.batching import Batcher, Job
from embedkit.serve.errors import ApiError
from embedkit.serve.metrics import Metrics, ModelMetrics
from embedkit.serve.settings import Limits


class Gate:
    """Computes [len(item)] for each item, one batch each time it is opened; keeps what the batches held."""

    def __init__(self) -> None:
        self.batches: list[tuple[Any, list[str]]] = []
        self.entered = threading.Semaphore(0)
        self._go = threading.Semaphore(0)

    def __call__(self, key: Any, items: list[str]) -> np.ndarray[Any, Any]:
        self.batches.append((key, items))
        self.entered.release()
        self._go.acquire()
        if "bad" in items:
            raise ValueError("a bad text")
        return np.asarray([[len(item)] for item in items], np.float32)

    def open(self, times: int = 1) -> None:
        for _ in range(times):
            self._go.release()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def batcher(gate: Gate, metrics: Metrics) -> Iterator[Batcher]:
    limits = Limits(queue_requests=3, queue_tokens=3000, batch_tokens=512, timeout=5)
    made = Batcher(gate, limits, ModelMetrics(metrics, "m"))
    yield made
    gate.open(1000)
    made.close()
    assert not made.alive


def job(items: list[str], tokens: int = 1, key: str = "k") -> tuple[Job, threading.Event]:
    done = threading.Event()
    return Job(key, items, [tokens] * len(items), lambda _: done.set()), done


def test_a_lone_request_waits_for_nothing(batcher: Batcher, gate: Gate) -> None:
    gate.open()
    assert batcher.run_here("k", ["abc"], [1]).tolist() == [[3.0]]  # within the timeout


def test_what_arrives_meanwhile_shares_the_next_batch(batcher: Batcher, gate: Gate) -> None:
    jobs = [job([text * n for n in (1, 2)]) for text in "abc"]
    batcher.submit(jobs[0][0])
    gate.entered.acquire()
    batcher.submit(jobs[1][0])
    batcher.submit(jobs[2][0])
    gate.open(2)
    for one, done in jobs:
        assert done.wait(5)
        assert one.result.tolist() == [[1.0], [2.0]]
    assert [items for _, items in gate.batches] == [["a", "aa"], ["b", "bb", "c", "cc"]]


def test_texts_of_different_prompts_do_not_share_a_call(batcher: Batcher, gate: Gate) -> None:
    jobs = [job(["x"]), job(["y"], key="a"), job(["z"], key="b")]
    batcher.submit(jobs[0][0])
    gate.entered.acquire()
    for one, _ in jobs[1:]:
        batcher.submit(one)
    gate.open(3)
    assert all(done.wait(5) for _, done in jobs)
    assert gate.batches[1:] == [("a", ["y"]), ("b", ["z"])]


def test_a_long_request_and_a_short_one_are_served_side_by_side(batcher: Batcher, gate: Gate) -> None:
    long, long_done = job([f"{n}" for n in range(100)], tokens=100)  # 10,000 tokens: more than the queue
    batcher.submit(long)
    gate.entered.acquire()
    short, short_done = job(["one"], tokens=100)
    batcher.submit(short)
    gate.open(2)
    assert short_done.wait(5)
    assert not long_done.is_set()
    assert len(gate.batches[0][1]) == 5  # the budget of 512 tokens
    assert "one" in gate.batches[1][1]
    assert len(gate.batches[1][1]) > 1  # and the long one went on beside it
    gate.open(1000)
    assert long_done.wait(5)
    assert long.result[:, 0].tolist() == [float(len(item)) for item in long.items]


def test_a_text_longer_than_the_budget_is_computed_all_the_same(batcher: Batcher, gate: Gate) -> None:
    gate.open(2)
    assert batcher.run_here("k", ["abc", "d"], [2000, 2000]).tolist() == [[3.0], [1.0]]


def test_a_full_queue_refuses_and_says_when_to_come_back(
    batcher: Batcher, gate: Gate, metrics: Metrics
) -> None:
    running, _ = job(["a"])
    batcher.submit(running)
    gate.entered.acquire()
    for _ in range(3):
        batcher.submit(job(["b"])[0])
    with pytest.raises(ApiError) as refused:
        batcher.submit(job(["c"])[0])
    assert refused.value.status == 429
    assert int(refused.value.headers["retry-after"]) >= 1
    assert batcher.queued == (3, 3)


def test_one_large_request_does_not_fill_the_queue(batcher: Batcher, gate: Gate) -> None:
    batcher.submit(job(["a"])[0])
    gate.entered.acquire()
    batcher.submit(job(["b"], tokens=100_000)[0])  # counts for a quarter
    batcher.submit(job(["c"], tokens=700)[0])
    assert batcher.queued == (2, 100_700)


def test_a_queue_full_of_large_requests_refuses(gate: Gate, metrics: Metrics) -> None:
    batcher = Batcher(gate, Limits(queue_tokens=1000), ModelMetrics(metrics, "m"))
    batcher.submit(job(["a"])[0])
    gate.entered.acquire()
    for _ in range(4):
        batcher.submit(job(["b"], tokens=100_000)[0])
    with pytest.raises(ApiError, match="queue is full"):
        batcher.submit(job(["c"])[0])
    gate.open(1000)
    batcher.close()
    assert batcher.queued == (0, 0)


@pytest.mark.parametrize("ends", ["withdrawn", "computed"])
def test_requests_that_are_over_take_no_room_in_the_queue(gate: Gate, metrics: Metrics, ends: str) -> None:
    batcher = Batcher(gate, Limits(queue_tokens=1000), ModelMetrics(metrics, "m"))
    if ends == "computed":
        for _ in range(10):
            gate.open()
            batcher.run_here("k", ["b"], [300])
            gate.entered.acquire()
    batcher.submit(job(["a"])[0])
    gate.entered.acquire()
    if ends == "withdrawn":
        for _ in range(10):
            one, _ = job(["b"], tokens=300)
            batcher.submit(one)
            batcher.withdraw(one)
    for _ in range(4):
        batcher.submit(job(["c"], tokens=200)[0])
    gate.open(1000)
    batcher.close()


def test_a_bad_text_fails_its_own_request_only(batcher: Batcher, gate: Gate) -> None:
    first, good, bad = job(["a"]), job(["good"]), job(["bad"])
    batcher.submit(first[0])
    gate.entered.acquire()
    batcher.submit(good[0])
    batcher.submit(bad[0])
    gate.open(10)
    assert good[1].wait(5)
    assert bad[1].wait(5)
    assert good[0].error is None
    assert good[0].result.tolist() == [[4.0]]
    assert isinstance(bad[0].error, ValueError)


def test_the_deadline_and_a_hang_up_free_the_place(gate: Gate, metrics: Metrics) -> None:
    batcher = Batcher(gate, Limits(timeout=2), ModelMetrics(metrics, "m"))

    async def both() -> None:
        batcher.submit(job(["running"])[0])
        gate.entered.acquire()
        late = asyncio.create_task(batcher.run("k", ["late"], [7]))
        gone = asyncio.create_task(batcher.run("k", ["gone"], [5]))
        await asyncio.sleep(0)
        assert batcher.queued == (2, 12)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert batcher.queued == (1, 7)
        with pytest.raises(ApiError) as error:
            await late
        assert error.value.status == 504
        assert batcher.queued == (0, 0)

    asyncio.run(both())
    gate.open(1000)
    batcher.close()
    assert [items for _, items in gate.batches] == [["running"]]


def test_the_thread_outlives_a_function_that_returns_nonsense(metrics: Metrics) -> None:
    answers: list[Any] = [None, np.zeros((1, 2), np.float32)]
    batcher = Batcher(lambda key, items: answers.pop(0), Limits(), ModelMetrics(metrics, "m"))
    with pytest.raises(TypeError):
        batcher.run_here("k", ["a"], [1])
    assert batcher.run_here("k", ["a"], [1]).tolist() == [[0.0, 0.0]]
    batcher.close()


def test_the_thread_outlives_a_panic(metrics: Metrics) -> None:
    class Panic(BaseException):
        """As pyo3 raises it."""

    def compute(_: Any, items: list[str]) -> np.ndarray[Any, Any]:
        if "bad" in items:
            raise Panic("index out of bounds")
        return np.zeros((len(items), 1), np.float32)

    made = Batcher(compute, Limits(timeout=5), ModelMetrics(metrics, "m"))
    with pytest.raises(RuntimeError, match="the model failed: Panic"):
        made.run_here("k", ["bad"], [1])
    with pytest.raises(RuntimeError, match="the model failed: Panic"):
        asyncio.run(made.run("k", ["bad"], [1]))
    assert made.run_here("k", ["good"], [1]).tolist() == [[0.0]]
    assert made.alive
    made.close()


def test_closing_finishes_what_is_queued_and_refuses_more(gate: Gate, metrics: Metrics) -> None:
    batcher = Batcher(gate, Limits(), ModelMetrics(metrics, "m"))
    one, done = job(["a"])
    batcher.submit(one)
    gate.open(1)
    batcher.close()
    assert done.is_set()
    with pytest.raises(ApiError) as refused:
        batcher.submit(job(["b"])[0])
    assert refused.value.status == 503
