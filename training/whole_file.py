"""Files that appear complete or not at all, also where several runs share a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ..files import write_atomically

__all__ = ["write_array", "write_text", "write_whole"]


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """`write_atomically` of a file that other processes may be writing as well."""
    write_atomically(path, write, path.with_name(f".{path.name}.{os.getpid()}"))


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """`write_whole` of an ``.npy`` file."""
    write_whole(path, lambda file: np.save(file, array))


def write_text(path: Path, text: str) -> None:
    """`write_whole` of a text in UTF-8."""
    write_whole(path, lambda file: file.write(text.encode()))
