"""The models of these tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_cross_encoders import write_cross_encoder


@pytest.fixture(scope="session")
def make_cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`write_cross_encoder` in its own folder, once per session for the same arguments."""
    known: dict[tuple[str, int], Path] = {}

    def make(kind: str = "bert", labels: int = 1) -> Path:
        key = kind, labels
        if key not in known:
            known[key] = write_cross_encoder(tmp_path_factory.mktemp("cross") / "model", kind, labels)
        return known[key]

    return make
