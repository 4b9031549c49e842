"""Files that appear complete or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

__all__ = ["write_array", "write_text", "write_whole"]


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file beside ``path`` and rename it: after a power cut, ``path`` is still either complete or absent."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """`write_whole` of an ``.npy`` file."""
    write_whole(path, lambda file: np.save(file, array))


def write_text(path: Path, text: str) -> None:
    """`write_whole` of a text in UTF-8."""
    write_whole(path, lambda file: file.write(text.encode()))
