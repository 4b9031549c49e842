"""How much memory the process uses, and what a limit leaves for Faiss."""

from __future__ import annotations

import os
import sys

from ..errors import BuildError

__all__ = ["DEFAULT_MAX_MEMORY", "faiss_budget", "resident"]

DEFAULT_MAX_MEMORY = 2 << 30
"""Bytes that the process may take during a build by default."""

_OTHER = 64 << 20  # SQLite's cache, texts read ahead, blocks of vectors
_LEAST = 32 << 20
_HEADROOM = 1.2


def resident() -> int:
    """Bytes of memory that the process holds now, without pages of mapped files, which the system may drop."""
    try:
        with open("/proc/self/statm", "rb") as file:
            pages, shared = map(int, file.read().split()[1:3])
        return (pages - shared) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        import resource  # the peak so far, the best figure on other systems

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def faiss_budget(max_memory: int) -> int:
    """Bytes that Faiss may take so that the process stays below ``max_memory``.

    Raises:
        BuildError: the process already takes almost as much.
    """
    used = resident()
    budget = max_memory - used - _OTHER
    if budget < _LEAST:
        # the next process may take some more by then, and a limit in whole megabytes is rounded
        enough = _HEADROOM * (used + _OTHER + _LEAST)
        raise BuildError(
            f"a build within {max_memory / 1e6:,.0f} MB is not possible: Python and the model already take "
            f"{used / 1e6:,.0f} MB; set --max-memory (max_memory=) to at least {enough / 1e6:,.0f} MB"
        )
    return budget
