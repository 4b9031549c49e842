"""SIGTERM as Ctrl-C: what is done so far is saved, and the same command goes on from there."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

__all__ = ["EXIT_INTERRUPTED", "EXIT_TERMINATED", "Terminated", "exit_code", "sigterm_like_ctrl_c"]

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM."""


def exit_code(error: BaseException) -> int:
    """Of a command that ``error`` has ended: 130 after Ctrl-C, 143 after SIGTERM."""
    return EXIT_TERMINATED if isinstance(error, Terminated) else EXIT_INTERRUPTED


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)  # a second one ends at once, which loses nothing that is on disk
    raise Terminated


@contextlib.contextmanager
def sigterm_like_ctrl_c() -> Iterator[None]:
    """Raise `Terminated` at SIGTERM, unless the process ignores it, or this is not its main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    if before is signal.SIG_IGN or before is None:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
