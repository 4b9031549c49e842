"""The JSON files of a model folder: read with errors that name the file, and written."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

__all__ = ["load_json", "present", "read_json", "write_json"]


def present(path: Path) -> bool:
    """Whether a file of a folder exists.

    Raises:
        ValueError: the path exists and is not a regular file. Treating it as absent would silently change the
            vectors: without ``modules.json``, for example, a model has no Normalize.
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
    """The content of a JSON file; a byte order mark is skipped.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is not JSON in UTF-8.
    """
    if not present(path):
        raise FileNotFoundError(f"{path} is missing: the model folder is incomplete; fetch it again")
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({error}). Fetch the file again.") from None


def read_json(path: Path) -> dict[str, Any]:
    """`load_json` of a file that must hold an object."""
    value = load_json(path)
    if not isinstance(value, dict):
        raise ValueError(
            f"{path}: expected a JSON object, found {type(value).__name__}. Fetch the file again."
        )
    return value


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, indented, and create the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
