"""Files: their names and hashes, and writing that survives a power cut."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO

__all__ = [
    "TEMPORARY_SUFFIX",
    "check_opens",
    "expanded",
    "file_sha256",
    "fsync",
    "fsync_files",
    "link_or_copy",
    "reason_of",
    "write_atomically",
]

TEMPORARY_SUFFIX = ".tmp"


def expanded(path: str | os.PathLike[str]) -> Path:
    """A path in which ``~`` stands for a home folder.

    Raises:
        FileNotFoundError: there is no such home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise FileNotFoundError(f"{os.fspath(path)!r}: no such home folder; give the whole path") from None


def check_opens(path: Path) -> None:
    """Raise the system's `OSError` if ``path`` cannot be opened: libraries that fail to open a file hide why."""
    with path.open("rb"):
        pass


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


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


def link_or_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Make ``target`` the same file as ``source``, which must not change, or a copy where that cannot be."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def write_atomically(
    path: Path, content: bytes | Callable[[IO[bytes]], object], temporary: Path | None = None
) -> None:
    """Write ``path`` so that a reader finds either the old or the new content, complete.

    Args:
        path: the file.
        content: its bytes, or what writes them to an open file.
        temporary: the file that is written first, in the same folder (default: ``path`` and ".tmp"). Processes that
            may write ``path`` at once need one each.
    """
    temporary = temporary or path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        with temporary.open("wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            # Of a write, which knows only an open file. NumPy says how many numbers were written, not why it stopped.
            if error.errno is None:
                raise OSError(f"{path}: cannot be written to the end: {error}") from None
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None
        raise
    fsync(path.parent)


def reason_of(error: OSError) -> str:
    """What the system says, with the remedy where too many files are open."""
    if error.errno == errno.EMFILE:
        return "too many open files: allow this process more (ulimit -n)"
    return error.strerror or str(error)
