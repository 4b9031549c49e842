"""What other threads may be at when the process forks.

In the child these threads are gone: a lock that one held would stay locked forever, and what it guards, such as a
connection to SQLite, would be left as it was in the midst of a call. So a fork waits until the locks of encoders and
indexes are free, though not long; one that is not free by then is renewed in the child, and its owner told.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 (a fork takes its lock after ours, whose holders may need it)
import contextlib
import ctypes
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

__all__ = ["cached_property", "fork_lock", "hold_sqlite", "keep_forever", "wait_for_fork"]

_T = TypeVar("_T")

_PATIENCE = 1.0  # seconds: most calls take milliseconds, but a model takes longer to load
_HURRIED_EVERY = 0.1  # seconds
_LEAST = 0.02  # seconds for each lock: one that is held briefly may be asked for after the patience is over


class _Owner(NamedTuple):
    hurry: weakref.WeakMethod[Callable[[], None]] | None
    lose: weakref.WeakMethod[Callable[[], None]] | None


_forking = threading.RLock()
_taken: list[threading.RLock] = []  # by the thread that holds `_forking`
_taken_all = threading.Event()
_owners: weakref.WeakKeyDictionary[threading.RLock, _Owner] = weakref.WeakKeyDictionary()


class cached_property(functools.cached_property[_T]):
    """That of Python 3.12: earlier ones hold a lock of the class while they compute a value."""

    def __init__(self, function: Callable[[Any], _T]) -> None:
        """Cache what ``function`` returns of an object; threads may call it at the same time, and get each its own."""
        super().__init__(function)
        self.lock = contextlib.nullcontext()


def fork_lock(
    hurry: Callable[[], None] | None = None, lose: Callable[[], None] | None = None
) -> threading.RLock:
    """A lock that a forked child can take, whoever held it in the parent; reentrant, as its holder may fork.

    Args:
        hurry: a method that makes the holder release the lock soon; called now and then while a fork waits for it.
        lose: a method to call in a child if another thread was still at work behind the lock; it must not wait for
            what that thread may hold, nor fail: the object may be one that was just being made.
    """
    lock = threading.RLock()
    _owners[lock] = _Owner(hurry and weakref.WeakMethod(hurry), lose and weakref.WeakMethod(lose))
    if _taken_all.is_set():  # a fork that has not seen this one would not wait for its holder
        wait_for_fork()
    return lock


def wait_for_fork() -> None:
    """Return when no fork waits for a lock."""
    with _forking:
        pass


@functools.cache
def hold_sqlite() -> None:
    """Have forks wait for threads in SQLite's global parts, such as its allocator, whatever they do there.

    It has no effect where Python hides the names of the SQLite that it is linked with.
    """
    import _sqlite3

    from ._core import hold_sqlite_over_forks

    library = ctypes.PyDLL(getattr(_sqlite3, "__file__", None))
    names = ("sqlite3_mutex_alloc", "sqlite3_mutex_try", "sqlite3_mutex_leave")
    if all(hasattr(library, name) for name in names):
        hold_sqlite_over_forks(*(ctypes.cast(library[name], ctypes.c_void_p).value or 0 for name in names))


def keep_forever(value: object) -> None:
    """Free ``value`` never, not even at the end of a forked child: that would wait for a thread that is gone."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _call(known: weakref.WeakMethod[Callable[[], None]] | None) -> None:
    if known is not None and (method := known()) is not None:
        method()


def _acquired(lock: threading.RLock, until: float) -> bool:
    while not lock.acquire(timeout=max(_LEAST, min(_HURRIED_EVERY, until - time.monotonic()))):
        _call(_owners[lock].hurry)
        if time.monotonic() >= until:
            return False
    return True


def _take(until: float, asked: set[threading.RLock]) -> None:
    """Take the locks that are not yet in ``asked``, those too that others make meanwhile; add them."""
    while new := {lock for known in _owners.keyrefs() if (lock := known()) is not None} - asked:
        asked |= new
        free = []
        for lock in new:
            if lock.acquire(blocking=False):
                lock.release()  # the holders of others may need it
                free.append(lock)
            elif _acquired(lock, until):
                _taken.append(lock)
        _taken.extend(lock for lock in free if _acquired(lock, until))


def _before_fork() -> None:
    _forking.acquire()
    until = time.monotonic() + _PATIENCE
    asked: set[threading.RLock] = set()
    _take(until, asked)
    _taken_all.set()
    _take(until, asked)  # those that were made before it was set


def _after_fork() -> None:
    _taken_all.clear()
    while _taken:
        _taken.pop().release()
    _forking.release()


def _after_fork_in_child() -> None:
    busy = set(_owners).difference(_taken)
    _after_fork()
    for lock in busy:
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library renews its own
        _call(_owners[lock].lose)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
