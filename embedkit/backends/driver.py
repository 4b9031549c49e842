"""Texts to embeddings through an encode stage: tokenize ‖ encode ‖ deliver.

While the stage encodes a window of texts, the core tokenizes the next ones on a background thread, without the GIL.
The sequences of a window are sorted by length and cut into batches by the stage. Several batches may be in flight at
once, across windows; results are returned in input order.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from .. import _core
from ..forking import fork_lock
from .stage import Batch, Indices, NotFinite, Request, Stage, combine, finish

__all__ = ["Occupancy", "Tokenize", "encode_windows", "tokenize_ahead"]

WINDOWS_AHEAD = 2
"""Windows that are tokenized, or being tokenized, while an earlier one is encoded."""

Tokenize = Callable[[list[str], int, _core.Cancel | None], _core.TokenWindow]
"""Tokenizes a window of texts, given the index of its first text in the input."""


class Occupancy:
    """The seconds that each stage of the pipeline was busy, and the seconds that calls took; thread-safe."""

    def __init__(self) -> None:
        """Start from zero."""
        self._seconds = dict.fromkeys(("wall", "tokenize", "encode", "deliver"), 0.0)
        self._lock = fork_lock()

    def add(self, stage: str, seconds: float) -> None:
        """Add ``seconds`` to "tokenize", "encode" or "deliver", or to "wall" for the whole call."""
        with self._lock:
            self._seconds[stage] += seconds

    @contextlib.contextmanager
    def busy(self, stage: str) -> Iterator[None]:
        """Add the time that the block takes."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - begin)

    def shares(self) -> dict[str, float]:
        """The ``seconds`` that calls took, and the share of them that each stage was busy.

        Overlapping calls are counted separately. The share of a stage with several devices may exceed 1.
        """
        with self._lock:
            busy = dict(self._seconds)
        wall = busy.pop("wall")
        return {
            "seconds": round(wall, 6),
            **{name: round(seconds / wall, 6) if wall else 0.0 for name, seconds in busy.items()},
        }


class _Window:
    """A tokenized window on its way through the stage."""

    def __init__(
        self,
        tokens: _core.TokenWindow,
        stage: Stage,
        request: Request,
        *,
        batch_size: int,
        out: Any,
        first: int,
        before: int,
    ) -> None:
        self.tokens = tokens
        self._before = before  # texts of the windows before it
        lengths = tokens.lengths
        order = np.argsort(-lengths, kind="stable")
        bounds = stage.cut(lengths[order], batch_size)
        self.batches = [order[begin:end] for begin, end in pairwise(bounds)]
        self.left = len(self.batches)
        self._request = request
        self._out, self._first = out, first
        self.split = len(lengths) != tokens.texts
        if self.split:
            # The windows of a text are averaged before any other processing.
            self.request = request.raw(stage.dimension)
            self._target = np.empty((len(lengths), stage.dimension), dtype=np.float32)
            self._rows = np.arange(len(lengths))
        else:
            self.request, self._target = request, out
            self._rows = tokens.text_of_sequence.astype(np.int64) + first

    def deliver(self, batch: Batch, order: Indices) -> None:
        try:
            batch.deliver(self._target, self._rows[order])
        except NotFinite as error:
            text = self._before + int(self.tokens.text_of_sequence[error.sequence])
            raise ValueError(
                f"texts[{text}]: its embedding is not finite, even in the widest type of the device. Other texts "
                "are not affected; leave it out, or look for weights that are not finite"
            ) from error
        self.left -= 1

    def result(self, *, normalized: bool) -> Any:
        own = self._out[self._first : self._first + self.tokens.texts]
        if self.split:
            vectors = combine(self._target, self.tokens, normalized=normalized)
            done = finish(vectors, self._request)
            own[:] = done if isinstance(own, np.ndarray) else own.new_tensor(done)
        return own


def encode_windows(
    stage: Stage,
    ready: Iterable[_core.TokenWindow],
    request: Request,
    occupancy: Occupancy,
    *,
    batch_size: int = 0,
    normalized: bool = False,
    out: Any = None,
) -> Generator[tuple[Any, _core.TokenWindow], None, None]:
    """Encode windows of texts.

    Args:
        stage: encodes the batches.
        ready: the tokenized windows, e.g. from `tokenize_ahead`; read by the calling thread.
        request: the results to produce.
        occupancy: updated.
        batch_size: maximum texts in a batch; 0 lets the stage choose.
        normalized: whether the last module of the model normalizes.
        out: room for all texts, from `Stage.empty`; None allocates an array for each window.

    Yields:
        The results of the next window, in input order, and the window. An error of ``ready`` or of the stage is
        raised after the results of the windows before it. Closing the generator waits for the batches in flight and
        drops them.
    """
    in_flight: deque[tuple[Batch, _Window, Indices]] = deque()
    windows: deque[_Window] = deque()
    begin = time.perf_counter()

    def finish_oldest() -> None:
        batch, window, order = in_flight[0]
        occupancy.add("encode", batch.wait())
        in_flight.popleft()
        with occupancy.busy("deliver"):
            window.deliver(batch, order)

    def finished_windows() -> Iterator[tuple[Any, _core.TokenWindow]]:
        nonlocal begin
        while windows and windows[0].left == 0:
            window = windows.popleft()
            with occupancy.busy("deliver"):
                result = window.result(normalized=normalized)
            occupancy.add("wall", time.perf_counter() - begin)
            try:
                yield result, window.tokens
            finally:
                begin = time.perf_counter()

    first = 0
    failure: Exception | None = None
    try:
        try:
            for tokens in ready:
                window = _Window(
                    tokens,
                    stage,
                    request,
                    batch_size=batch_size,
                    out=stage.empty(tokens.texts, request) if out is None else out,
                    first=0 if out is None else first,
                    before=first,
                )
                first += tokens.texts
                windows.append(window)
                for order in window.batches:
                    while len(in_flight) > stage.ahead:
                        finish_oldest()
                    yield from finished_windows()
                    in_flight.append((stage.submit(tokens, order, window.request), window, order))
        except Exception as error:
            failure = error  # the windows before it are finished or in flight
        while in_flight:
            finish_oldest()
            yield from finished_windows()
        if failure is not None:
            raise failure
    finally:
        for batch, _, _ in in_flight:  # memory that a device still writes to must not be freed
            with contextlib.suppress(Exception):
                batch.wait()
        occupancy.add("wall", time.perf_counter() - begin)


def tokenize_ahead(
    blocks: Iterator[list[str]], tokenize: Tokenize, occupancy: Occupancy
) -> Generator[_core.TokenWindow, None, None]:
    """Tokenize windows of texts ahead of the consumer.

    Args:
        blocks: the texts, in windows of bounded size; read by the calling thread, up to `WINDOWS_AHEAD` + 1
            windows ahead of the one yielded.
        tokenize: called on a background thread, or on this thread if there is only one window.
        occupancy: updated.

    Yields:
        The windows. An error of ``blocks`` or of the tokenization is raised after the windows before it. Closing the
        generator stops the thread.
    """

    def work(block: list[str], first: int, cancel: _core.Cancel | None) -> _core.TokenWindow:
        with occupancy.busy("tokenize"):
            return tokenize(block, first, cancel)

    block = next(blocks, None)
    if block is None:
        return
    first, following = 0, None
    failure: Exception | None = None  # of `blocks`: raised after the windows that were read
    try:
        following = next(blocks, None)
    except Exception as error:
        failure = error
    if following is None:
        yield work(block, first, None)
        if failure is not None:
            raise failure
        return
    cancel = _core.Cancel()
    pool = ThreadPoolExecutor(1, thread_name_prefix="embedkit-tokenize")
    try:
        ready: deque[Future[_core.TokenWindow]] = deque()
        for read in (block, following):
            ready.append(pool.submit(work, read, first, cancel))
            first += len(read)
        while ready:
            tokens = ready.popleft().result()
            while following is not None and len(ready) < WINDOWS_AHEAD:
                try:
                    following = next(blocks, None)
                except Exception as error:
                    failure, following = error, None
                if following is not None:
                    ready.append(pool.submit(work, following, first, cancel))
                    first += len(following)
            yield tokens
        if failure is not None:
            raise failure
    finally:
        cancel.cancel()
        pool.shutdown(wait=True, cancel_futures=True)
