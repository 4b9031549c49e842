"""Distill any sentence encoder, or several, into a small student from texts without labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run import DistillOptions, distill

__all__ = ["DistillOptions", "distill"]


def __getattr__(name: str) -> Any:
    """The public names, imported on demand: the command's help needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import run

    return getattr(run, name)
