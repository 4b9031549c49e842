"""Copies of model folders with another ``config.json``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

__all__ = ["changed"]


def changed(source: Path, tmp_path: Path, changes: dict[str, Any]) -> Path:
    """A copy of a model folder whose ``config.json`` has other values."""
    folder = Path(shutil.copytree(source, tmp_path / "copy"))
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
