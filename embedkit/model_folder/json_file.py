"""Files of a model folder: whether one is there and what a JSON file holds, with errors that name it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

__all__ = ["load_json", "present", "read_json"]


def present(path: Path) -> bool:
    """Whether a file of a folder is there.

    Raises:
        ValueError: something of that name is there and is no regular file. Taking it for absent would change
            the vectors without a word: without ``modules.json`` a model has no Normalize, say.
    """
    try:
        if stat.S_ISREG(os.stat(path).st_mode):
            return True
        place, problem = path, "is not a regular file"
    except (FileNotFoundError, NotADirectoryError):
        if os.path.lexists(path):
            place, problem = path, "is a symbolic link to nothing"
        elif os.path.lexists(path.parent) and not path.parent.is_dir():
            place, problem = path.parent, "is not a folder"
        else:
            return False
    except (OSError, ValueError) as error:  # ValueError: NUL or half a surrogate pair in the name
        place, problem = path, f"cannot be opened ({getattr(error, 'strerror', error)})"
    raise ValueError(f"{place} {problem}: the model folder is damaged; fetch it again")


def load_json(path: Path) -> Any:
    """What a JSON file holds; a byte order mark before it is skipped.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not JSON in UTF-8.
    """
    if not present(path):
        raise FileNotFoundError(f"{path} is missing: the model folder is not whole; fetch it again")
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({error}). Fetch the file again.") from None


def read_json(path: Path) -> dict[str, Any]:
    """`load_json` of a file that holds an object."""
    value = load_json(path)
    if not isinstance(value, dict):
        raise ValueError(
            f"{path}: expected a JSON object, found {type(value).__name__}. Fetch the file again."
        )
    return value
