"""Writing that survives a power cut."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["TEMPORARY_SUFFIX", "fsync", "fsync_files", "write_atomically"]

TEMPORARY_SUFFIX = ".tmp"


def fsync(path: Path) -> None:
    """Make the content of a file, or the entries of a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_files(folder: Path) -> None:
    """Make the files in ``folder`` survive a power cut, with their names."""
    for path in folder.iterdir():
        fsync(path)
    fsync(folder)


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``path`` so that a reader finds either the old or the new content, complete."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync(path.parent)
