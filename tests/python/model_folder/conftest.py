"""The folder of these tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def folder(make_model: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy to damage: Transformer, Pooling, Dense, Normalize."""
    source = make_model(dense=((24, "Tanh", True),), normalize=True, prompts={"query": "query: "})
    return Path(shutil.copytree(source, tmp_path / "copy"))
