"""``embedkit-index``: build, change, query and inspect an index of texts."""

from .main import main

__all__ = ["main"]
