"""Runs an iterator ahead of its consumer, on a background thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from typing import Generic, TypeVar

__all__ = ["prefetch"]

T = TypeVar("T")


class _End(Generic[T]):
    """Marks the end of the queue, and carries what ended it."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def prefetch(items: Iterable[T], depth: int) -> Generator[T, None, None]:
    """Yield ``items`` in order, read up to ``depth`` ahead by a daemon thread.

    An exception in ``items`` is raised after the items before it. Closing this generator stops the thread, but
    does not wait for one blocked in a read (from a terminal, say), which cannot be interrupted.
    """
    ready: queue.Queue[T | _End[T]] = queue.Queue(depth)
    stop = threading.Event()
    ended = threading.Event()

    def offer(item: T | _End[T]) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.05)
                return True
            except queue.Full:
                pass
        return False

    def work() -> None:
        try:
            for item in items:
                if not offer(item):
                    return
        except BaseException as error:
            offer(_End(error))
        else:
            offer(_End(None))
        finally:
            ended.set()

    thread = threading.Thread(target=work, name="embedkit-prefetch", daemon=True)
    try:
        thread.start()  # within the try: Ctrl-C may come here, when the thread already runs
        while True:
            item = ready.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        stop.set()
        if ended.wait(1.0):  # not join() alone: it refuses a thread whose start() was interrupted
            thread.join()
