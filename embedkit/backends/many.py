"""Several encode stages as one: each has a thread that takes the next batch when its device has room."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from .stage import Batch, Indices, Request, Stage

__all__ = ["ManyStages"]

_Job = tuple[_core.TokenWindow, Indices, Request, "Future[Batch]"]


class ManyStages:
    """A `Stage` made of stages of the same model. Results left on a device are on the first stage's."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        """Start the threads; they end with the last reference to this object."""
        self._stages = list(stages)
        self.dimension = stages[0].dimension
        # One more for each device, so that none runs dry while another is waited for.
        self.ahead = sum(stage.ahead + 2 for stage in stages)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._process = os.getpid()
        for number, stage in enumerate(stages):
            threading.Thread(
                target=_work, args=(stage, self._jobs), name=f"embedkit-device-{number}", daemon=True
            ).start()
        weakref.finalize(self, _end, self._jobs, len(stages))

    def cut(self, lengths: npt.NDArray[np.int32], most_texts: int) -> Sequence[int]:
        """As the first stage; a stage whose budget was halved cuts the batch again."""
        return self._stages[0].cut(lengths, most_texts)

    def submit(self, window: _core.TokenWindow, order: Indices, request: Request) -> Batch:
        """Hand the batch to the first free device; its errors are raised by the batch."""
        if os.getpid() != self._process:  # after a fork the threads exist in the parent only
            return self._stages[0].submit(window, order, request)
        future: Future[Batch] = Future()
        self._jobs.put((window, order, request, future))
        return _Promised(future)

    def warm_up(self) -> None:
        """Warm up every device, one after another: torch captures one graph at a time."""
        for stage in self._stages:
            stage.warm_up()

    def empty(self, texts: int, request: Request) -> Any:
        """As `Stage.empty`."""
        return self._stages[0].empty(texts, request)

    def describe(self) -> dict[str, Any]:
        """The first stage's precision, and all entries of all stages under "devices"."""
        described = [stage.describe() for stage in self._stages]
        return {"precision": described[0]["precision"], "devices": described}


class _Promised:
    """A batch that a device thread has taken or will take."""

    def __init__(self, future: Future[Batch]) -> None:
        self._future = future

    def wait(self) -> float:
        return self._future.result().wait()

    def deliver(self, out: Any, rows: Indices) -> None:
        self._future.result().deliver(out, rows)


def _work(stage: Stage, jobs: queue.SimpleQueue[_Job | None]) -> None:
    """Submit jobs to a stage, keeping at most `Stage.ahead` + 1 in flight."""
    in_flight: deque[Batch] = deque()
    while True:
        while len(in_flight) > stage.ahead:
            with suppress(Exception):  # raised again where the batch is waited for
                in_flight.popleft().wait()
        job = _next(jobs, in_flight)
        if job is None:
            return
        window, order, request, future = job
        try:
            in_flight.append(stage.submit(window, order, request))
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(in_flight[-1])
        del job, window, order, request, future


def _next(jobs: queue.SimpleQueue[_Job | None], in_flight: deque[Batch]) -> _Job | None:
    """The next job. A thread that idles keeps no batch, whose memory nobody else may hold any more."""
    while in_flight:
        with suppress(queue.Empty):
            return jobs.get(timeout=0.1)
        with suppress(Exception):
            in_flight.popleft().wait()
    return jobs.get()


def _end(jobs: queue.SimpleQueue[_Job | None], threads: int) -> None:
    for _ in range(threads):
        jobs.put(None)
