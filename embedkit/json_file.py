"""Reads the JSON files of a model folder, with an error that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["load_json", "read_json"]


def load_json(path: Path) -> Any:
    """What a JSON file holds; a byte order mark before it is skipped.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not JSON in UTF-8.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing: the model folder is not whole; fetch it again") from None
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
