"""Many queries: encoding a block, searching for the one before, and reading texts of hits, all at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from embedkit.index.prefetch import prefetch

__all__ = ["SearchStats", "overlapped"]

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")

STAGES = ("read", "encode", "search", "fetch")


@dataclass
class SearchStats:
    """How busy each stage of a stream of queries was.

    Attributes:
        queries: answered.
        wall: seconds in all.
        busy: seconds of work by stage: reading queries, encoding them, searching vectors, fetching texts.
    """

    queries: int = 0
    wall: float = 0.0
    busy: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextmanager
    def timed(self, stage: str) -> Generator[None, None, None]:
        """Count what happens inside as work of ``stage``."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.busy[stage] += time.perf_counter() - begin

    def __str__(self) -> str:
        """One line: queries a second, and the share of the time that each stage worked."""
        wall = max(self.wall, 1e-9)
        shares = ", ".join(f"{stage} {seconds / wall:.0%}" for stage, seconds in self.busy.items())
        return f"{self.queries:,} queries in {self.wall:.3f} s ({self.queries / wall:,.0f}/s); busy: {shares}"


def overlapped(
    blocks: Iterable[T], encode: Callable[[T], U], search: Callable[[U], V], stats: SearchStats
) -> Generator[V, None, None]:
    """``search(encode(block))`` of each of ``blocks``, in order, with the stages on threads of their own."""

    def read() -> Generator[T, None, None]:
        iterator = iter(blocks)
        while True:
            with stats.timed("read"):
                try:
                    block = next(iterator)
                except StopIteration:
                    return
            yield block

    def encoded() -> Generator[U, None, None]:
        for block in read():
            with stats.timed("encode"):
                result = encode(block)
            yield result

    def searched() -> Generator[V, None, None]:
        for vectors in prefetch(encoded(), 1):
            with stats.timed("search"):
                result = search(vectors)
            yield result

    yield from prefetch(searched(), 1)
