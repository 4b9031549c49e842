"""`InputError`: an input that cannot be used, and how to fix it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

__all__ = ["InputError", "OnError", "UnreadableError", "reject"]


class InputError(ValueError):
    """An input file, a line of it, or a document cannot be used.

    Attributes:
        origin: where the input came from, as ``file:line`` or a name; empty if unknown.
        reason: what is wrong with it.
        skippable: only one line or document is concerned, which can be skipped.
        document_id: the id of a document that was read and cannot be stored; else ``None``.
    """

    document_id: str | None = None

    def __init__(self, origin: str, reason: str, *, skippable: bool = False) -> None:
        """Join ``origin`` and ``reason`` into the message."""
        super().__init__(origin, reason)  # of which a copy in another process is made
        self.origin = origin
        self.reason = reason
        self.skippable = skippable

    def __str__(self) -> str:
        return f"{self.origin}: {self.reason}" if self.origin else self.reason


class UnreadableError(Exception):
    """A file of one document is damaged or protected; the message says how."""


OnError = Literal["stop", "skip"] | Callable[[InputError], None]
"""What to do with an unusable document: raise, skip it, or call a function (and skip it if that returns)."""


def reject(error: InputError, on_error: OnError) -> None:
    """Raise ``error``, ignore it, or pass it on, as ``on_error`` says."""
    if on_error == "stop":
        raise error
    if on_error != "skip":
        on_error(error)
