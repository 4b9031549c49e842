"""Continuous batching: a thread for each model, which takes what waits whenever it is free."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from .errors import ApiError, busy
from .metrics import ModelMetrics
from .settings import Limits

__all__ = ["Batcher", "Job", "too_late"]

Compute = Callable[[Any, list[Any]], Any]

_ROUND_SECONDS = 0.05  # what a short request waits for at most while a long one runs
_LEAST_TOKENS = 512  # of a round: enough for the core to be fast


class Job:
    """The texts of one request, some of which may have been computed already.

    Attributes:
        key: what texts of one call of the encoder must share, such as the prompt.
        items: texts, or pairs of texts.
        tokens: of each item.
        result: an array whose rows are in the order of the items, when all are done.
        error: what went wrong instead.
    """

    __slots__ = ("_settled", "began", "charge", "error", "items", "key", "left", "next", "result", "tokens")

    def __init__(
        self, key: Hashable, items: list[Any], tokens: list[int], settled: Callable[[Job], None]
    ) -> None:
        """``settled`` is called by the worker thread when there is a result or an error."""
        self.key = key
        self.items = items
        self.tokens = tokens
        self.next = 0  # the first item that no batch has taken
        self.left = len(items)
        self.result: Any = None
        self.error: Exception | None = None
        self.began = time.monotonic()
        self.charge = 0  # tokens that it counts for while it waits
        self._settled = settled

    def settle(self) -> None:
        """Tell who waits."""
        with suppress(RuntimeError):  # the event loop has ended: nobody waits
            self._settled(self)

    def put(self, start: int, rows: Any) -> None:
        """Keep the results of the items from ``start`` on."""
        if len(rows) == len(self.items):
            self.result = rows
        else:
            if self.result is None:
                self.result = np.empty((len(self.items), *rows.shape[1:]), rows.dtype)
            self.result[start : start + len(rows)] = rows
        self.left -= len(rows)


Slice = tuple[Job, int, int]


class Batcher:
    """A bounded queue in front of a function that computes batches.

    A batch starts as soon as the worker is free, with what waits then, up to a budget of tokens. The budget is as
    many tokens as take `_ROUND_SECONDS`, and the waiting requests share it in turn: one of 10,000 texts and one of
    a single text are served side by side.
    """

    def __init__(self, compute: Compute, limits: Limits, metrics: ModelMetrics) -> None:
        """``compute(key, items)`` returns an array with a row an item; it is called by one thread at a time."""
        self._compute = compute
        self._limits = limits
        self._metrics = metrics
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._queued_tokens = 0
        self._charged = 0
        self._closed = False
        self._rate = 20_000.0  # tokens a second, as measured
        self._thread = threading.Thread(target=self._work, name="embedkit-batcher", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the worker thread runs."""
        return self._thread.is_alive()

    @property
    def queued(self) -> tuple[int, int]:
        """Requests and tokens that no batch has taken yet."""
        return len(self._waiting), self._queued_tokens

    def submit(self, job: Job) -> None:
        """Queue a job.

        Raises:
            ApiError: 429, the queue is full; 503, the server stops.
        """
        tokens = sum(job.tokens)
        with self._changed:
            if self._closed:
                raise busy("the server is stopping", 1, 503, "stopping")
            waiting, limits = len(self._waiting), self._limits
            # A request counts for a quarter of the queue at most, so that a single large one does not keep all
            # others out.
            job.charge = min(tokens, limits.queue_tokens // 4)
            full = self._charged + job.charge > limits.queue_tokens
            if waiting >= limits.queue_requests or (waiting and full):
                raise busy(
                    f"the queue is full: {waiting} requests with {self._queued_tokens} tokens wait; try again later",
                    min(60.0, self._queued_tokens / self._rate),
                )
            self._waiting.append(job)
            self._queued_tokens += tokens
            self._charged += job.charge
            self._changed.notify()

    def withdraw(self, job: Job) -> None:
        """Take back what no batch has taken of a job that nobody waits for any more."""
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                self._queued_tokens -= sum(job.tokens[job.next :])
                self._charged -= job.charge

    async def run(self, key: Hashable, items: list[Any], tokens: list[int]) -> Any:
        """The rows of ``items``, in their order.

        Args:
            key: goes to ``compute``; only items of one key share a call.
            items: at least one.
            tokens: of each item.

        Raises:
            ApiError: 429, the queue is full; 504, the deadline has passed.
            ValueError: of ``compute``.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settled(job: Job) -> None:
            loop.call_soon_threadsafe(resolve, job)

        def resolve(job: Job) -> None:
            if not future.done():
                if job.error is None:
                    future.set_result(job.result)
                else:
                    future.set_exception(job.error)

        def fail(error: ApiError) -> None:
            if not future.done():
                future.set_exception(error)

        job = Job(key, items, tokens, settled)
        self.submit(job)
        timer = loop.call_later(self._limits.timeout, fail, too_late(self._limits.timeout))
        try:
            return await future
        finally:
            timer.cancel()
            if job.left:
                self.withdraw(job)

    def run_here(self, key: Hashable, items: list[Any], tokens: list[int]) -> Any:
        """`run` for a thread that is not the event loop's."""
        done = threading.Event()
        job = Job(key, items, tokens, lambda _: done.set())
        self.submit(job)
        if not done.wait(self._limits.timeout):
            self.withdraw(job)
            raise too_late(self._limits.timeout)
        if job.error is not None:
            raise job.error
        return job.result

    def close(self) -> None:
        """Finish what is queued, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closed:
                        return
                    self._changed.wait()
                batch = self._take()
            try:
                self._run(batch)
            except BaseException as error:  # a panic of a library, too: requests to come need the thread
                for job, _, _ in batch:
                    self._fail(job, error)

    def _take(self) -> list[Slice]:
        """The next batch: from each waiting job in turn, until the budget is spent. The lock is held."""
        waiting = self._waiting
        budget = min(self._limits.batch_tokens, max(_LEAST_TOKENS, int(self._rate * _ROUND_SECONDS)))
        share = max(_LEAST_TOKENS // 4, budget // len(waiting))
        batch: list[Slice] = []
        while waiting and budget > 0:
            job = waiting[0]
            if batch and job.tokens[job.next] > budget:
                break  # it is the first of the next batch
            allowed = min(share, budget)
            start = stop = job.next
            end = len(job.items)
            taken = 0
            while stop < end and (taken == 0 or taken + job.tokens[stop] <= allowed):
                taken += job.tokens[stop]
                stop += 1
            waiting.popleft()
            job.next = stop
            self._queued_tokens -= taken
            budget -= max(taken, 1)
            batch.append((job, start, stop))
            if stop < end:
                waiting.append(job)  # after those that have had nothing yet
            else:
                self._charged -= job.charge
        return batch

    def _run(self, batch: list[Slice]) -> None:
        begin = time.monotonic()
        calls: dict[Hashable, list[Slice]] = {}
        for part in batch:
            if part[0].error is None:
                calls.setdefault(part[0].key, []).append(part)
            if part[1] == 0:
                self._metrics.waited.observe(begin - part[0].began)
        for key, parts in calls.items():
            self._call(key, parts)
        seconds = time.monotonic() - begin
        tokens = sum(sum(job.tokens[start:stop]) for job, start, stop in batch)
        if seconds > 0 and tokens:
            self._rate += 0.2 * (tokens / seconds - self._rate)
        self._metrics.observe(sum(stop - start for _, start, stop in batch), tokens, seconds)

    def _call(self, key: Hashable, parts: Sequence[Slice]) -> None:
        if len(parts) == 1:
            job, start, stop = parts[0]
            items = job.items if stop - start == len(job.items) else job.items[start:stop]
        else:
            items = [item for job, start, stop in parts for item in job.items[start:stop]]
        try:
            rows = self._compute(key, items)
        except BaseException as error:
            if len(parts) > 1:  # only the job whose text it is should fail
                for part in parts:
                    self._call(key, [part])
                return
            self._fail(parts[0][0], error)
            return
        at = 0
        for job, start, stop in parts:
            job.put(start, rows[at : at + stop - start])
            at += stop - start
            if job.left == 0:
                job.settle()

    def _fail(self, job: Job, error: BaseException) -> None:
        self.withdraw(job)
        if job.error is None:
            if not isinstance(error, Exception):  # which would end whoever waits for the job
                failed = RuntimeError(f"the model failed: {error!r}")
                failed.__cause__ = error
                error = failed
            job.error = error
            job.settle()


def too_late(seconds: float) -> ApiError:
    """The time of a request is over."""
    return ApiError(504, f"the request was not done within {seconds:g} seconds", code="timeout")
