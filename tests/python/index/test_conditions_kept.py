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


def test_what_a_field_named_as_a_function_of_time_chooses_is_kept(tmp_path: Path) -> None:
    documents = [Document("a text", metadata={"date": "2024-01-01", "time": 3})]
    with Index.build(tmp_path / "index", documents, FakeEncoder()) as index:
        for where in ("date > '2000'", "time > 2"):
            index.search_vectors(np.ones(32), 1, where=where)
            assert where in index.generation._chosen
        for where in ("date < date('now')", "date < datetime ('now')"):
            index.search_vectors(np.ones(32), 1, where=where)
            assert where not in index.generation._chosen
