"""The lock of an index folder: one writer at a time, among all processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

__all__ = ["WriterLock", "writer_of"]


class WriterLock:
    """An exclusive lock on a file, which holds the process id of its owner; a killed process loses it."""

    def __init__(self, path: Path) -> None:
        """Create the file if it is missing, and lock it.

        Raises:
            BlockingIOError: another writer is at work; the message names its process.
        """
        self.descriptor = _locked(path)
        _held.add(self)
        try:
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        except BaseException:
            self.release()
            raise

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock: not after `release`, nor in a forked child."""
        return self in _held

    def release(self) -> None:
        """Give the lock back; without effect if it is not held."""
        if not self.is_held:
            return
        _held.remove(self)
        try:
            # a process forked by other means than Python's may hold the file open
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        finally:
            os.close(self.descriptor)

    def leave(self) -> None:
        """In a forked child: close the file, which would keep it locked when the parent has gone."""
        os.close(self.descriptor)


_held: set[WriterLock] = set()
_ASKING = 1.0  # seconds that those who only ask may hold the lock


def _after_fork() -> None:
    for lock in _held:
        lock.leave()
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)


def _is_ours(descriptor: int) -> bool:
    """Whether this process holds the lock of the file; process ids of other containers may equal its own."""
    held = [lock.descriptor for lock in list(_held)]
    with contextlib.suppress(OSError):  # one is released meanwhile
        return any(os.path.samestat(os.fstat(one), os.fstat(descriptor)) for one in held)
    return False


def _owner(descriptor: int) -> str:
    """Who holds the lock of the file, for a message."""
    if _is_ours(descriptor):
        return "this process"
    owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    return f"process {owner}" if owner.isdigit() else "another process"


def writer_of(path: Path) -> str | None:
    """Who holds the lock of the file at ``path``, for a message; ``None`` if nobody does.

    Raises:
        OSError: it cannot be told, as where the file may not be read.
    """
    try:
        with path.open("rb") as file:
            return _writer(file.fileno())
    except FileNotFoundError:
        return None


def _writer(descriptor: int) -> str | None:
    """Who holds the lock of the file, for a message; ``None`` if nobody does, but others may ask, as this does."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner(descriptor)
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return None


def _locked(path: Path) -> int:
    """The descriptor of the file, locked."""
    until = time.monotonic() + _ASKING
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = _writer(descriptor)
            os.close(descriptor)
            if who is None and time.monotonic() < until:
                time.sleep(0.001)
                continue  # another only asked who writes, which locks the file for a moment
            raise BlockingIOError(
                f"{path.parent}: {who or 'another process'} is writing to this index; wait for it, or name another "
                "folder"
            ) from None
        # the writer before may have removed the file between our two calls: then lock the new one
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)
