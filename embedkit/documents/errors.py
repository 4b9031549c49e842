"""An input that cannot be used, and what to do with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal


class InputError(ValueError):
    """An input file, a line of it, or a document cannot be used.

    Attributes:
        origin: where it came from, as ``file:line`` or a name; empty when unknown.
        reason: what is wrong with it.
        skippable: it is about one line or document, which can be left out.
    """

    def __init__(self, origin: str, reason: str, *, skippable: bool = False) -> None:
        """Join ``origin`` and ``reason`` into the message."""
        super().__init__(f"{origin}: {reason}" if origin else reason)
        self.origin = origin
        self.reason = reason
        self.skippable = skippable


OnError = Literal["stop", "skip"] | Callable[[InputError], None]
"""What to do with a document that cannot be used: raise, skip it, or call (and skip it if that returns)."""


def reject(error: InputError, on_error: OnError) -> None:
    """Treat ``error`` as ``on_error`` says."""
    if on_error == "stop":
        raise error
    if on_error != "skip":
        on_error(error)
