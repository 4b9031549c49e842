"""What other threads may be at when the process forks.

In the child these threads are gone: a lock that one held would stay locked forever, and what it guards, such as a
connection to SQLite, would be left as it was in the midst of a call. So a fork waits until the locks of encoders and
indexes are free, though not long; one that is not free by then is renewed in the child, and its owner told.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 (a fork takes its lock after ours, whose holders may need it)
import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["cached_property", "fork_lock"]

_T = TypeVar("_T")

_PATIENCE = 1.0  # seconds: most calls take milliseconds, but a condition may take 20 s

_forking = threading.RLock()
_taken: list[threading.RLock] = []  # by the thread that holds `_forking`
_owners: weakref.WeakKeyDictionary[threading.RLock, weakref.WeakMethod[Callable[[], None]] | None] = (
    weakref.WeakKeyDictionary()
)


class cached_property(functools.cached_property[_T]):
    """That of Python 3.12: earlier ones hold a lock of the class while they compute a value."""

    def __init__(self, function: Callable[[Any], _T]) -> None:
        """Cache what ``function`` returns of an object; threads may call it at the same time, and get each its own."""
        super().__init__(function)
        self.lock = contextlib.nullcontext()


def fork_lock(renew: Callable[[], None] | None = None) -> threading.RLock:
    """A lock that a forked child can take, whoever held it in the parent; reentrant, as its holder may fork.

    ``renew`` is a method to call in a child if another thread was still at work behind the lock.
    """
    lock = threading.RLock()
    _owners[lock] = None if renew is None else weakref.WeakMethod(renew)
    return lock


def _before_fork() -> None:
    _forking.acquire()
    until = time.monotonic() + _PATIENCE
    for known in _owners.keyrefs():
        lock = known()
        if lock is not None and lock.acquire(timeout=max(0.0, until - time.monotonic())):
            _taken.append(lock)


def _after_fork() -> None:
    while _taken:
        _taken.pop().release()
    _forking.release()


def _after_fork_in_child() -> None:
    busy = set(_owners).difference(_taken)
    _after_fork()
    for lock in busy:
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library renews its own
    owners = {owner() for lock in busy if (owner := _owners[lock]) is not None}  # one may have several locks
    for renew in filter(None, owners):
        renew()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
