"""``embedkit-index``: build an index of texts, change it, query it, and look at it."""

from .main import main

__all__ = ["main"]
