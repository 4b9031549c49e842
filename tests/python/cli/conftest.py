"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_encoder import FakeEncoder


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands encode with `FakeEncoder`, in an empty folder."""
    monkeypatch.setattr("embedkit.Encoder", FakeEncoder, raising=False)
    monkeypatch.chdir(tmp_path)
