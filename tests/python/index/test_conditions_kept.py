"""The rows that conditions chose are kept for the next search, those of a few conditions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from fake_encoder import FakeEncoder

from embedkit.index import Document, Index
from embedkit.index.storage.generation import _CONDITIONS_KEPT


def test_few_conditions_are_kept(tmp_path: Path) -> None:
    documents = [Document(f"text {number}", metadata={"n": number}) for number in range(20)]
    with Index.build(tmp_path / "index", documents, FakeEncoder()) as index:
        for number in range(3 * _CONDITIONS_KEPT):
            index.search_vectors(np.ones(32), 3, where=f"n > {number}")
        assert len(index.generation._chosen) == _CONDITIONS_KEPT
