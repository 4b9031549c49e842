"""A stream of queries: blocks are tokenized, encoded, searched and their hits read, each stage on its own thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from ..prefetch import prefetch

__all__ = ["SearchStats", "overlapped"]

Block = TypeVar("Block")
Tokens = TypeVar("Tokens")
Vectors = TypeVar("Vectors")
Found = TypeVar("Found")

STAGES = ("read", "tokenize", "encode", "search", "fetch")


@dataclass
class SearchStats:
    """How busy each stage of a stream of queries was.

    Attributes:
        queries: the number of queries answered.
        wall: total seconds.
        busy: seconds of work per stage: reading queries, tokenizing, encoding, searching vectors, fetching texts.
            Tokenizing counts as encoding for any encoder but `embedkit.Encoder`.
    """

    queries: int = 0
    wall: float = 0.0
    busy: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)  # noqa: TID251 (of one stream)

    def add(self, stage: str, seconds: float) -> None:
        """Count ``seconds`` of work of ``stage``."""
        with self._lock:
            self.busy[stage] += seconds

    @contextmanager
    def timed(self, stage: str) -> Generator[None, None, None]:
        """Count the time inside as work of ``stage``."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - begin)

    def __str__(self) -> str:
        """One line: queries per second, and the share of the time that each stage was busy."""
        wall = max(self.wall, 1e-9)
        shares = ", ".join(f"{stage} {seconds / wall:.0%}" for stage, seconds in self.busy.items())
        what = "query" if self.queries == 1 else "queries"
        return f"{self.queries:,} {what} in {self.wall:.3f} s ({self.queries / wall:,.0f}/s); busy: {shares}"


def overlapped(
    blocks: Iterable[Block],
    tokenize: Callable[[Block], Tokens],
    encode: Callable[[Tokens], tuple[Vectors, float]],
    search: Callable[[Vectors], Found],
    stats: SearchStats,
) -> Generator[Found, None, None]:
    """Yield what ``search`` finds for each of ``blocks``, in order, with each stage on its own thread.

    ``encode`` also returns the seconds that it spent tokenizing.
    """

    def read() -> Generator[Block, None, None]:
        iterator = iter(blocks)
        while True:
            with stats.timed("read"):
                try:
                    block = next(iterator)
                except StopIteration:
                    return
            yield block

    def tokenized() -> Generator[Tokens, None, None]:
        for block in read():
            with stats.timed("tokenize"):
                result = tokenize(block)
            yield result

    def encoded() -> Generator[Vectors, None, None]:
        for tokens in prefetch(tokenized(), 1):
            with stats.timed("encode"):
                result, within = encode(tokens)
            stats.add("encode", -within)
            stats.add("tokenize", within)
            yield result

    def searched() -> Generator[Found, None, None]:
        for vectors in prefetch(encoded(), 1):
            with stats.timed("search"):
                result = search(vectors)
            yield result

    yield from prefetch(searched(), 1)
