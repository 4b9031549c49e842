"""Given vectors of any length, of documents and of queries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit.index import Document, Index


def test_given_vectors_keep_their_length_under_dot(tmp_path: Path) -> None:
    vectors = np.arange(64, dtype=np.float32).reshape(2, 32)
    documents = [Document(f"text {number}", vector=vector) for number, vector in enumerate(vectors)]
    with Index.build(tmp_path / "index", [*documents, "no vector"], FakeEncoder(), metric="dot") as index:
        np.testing.assert_array_equal(index.generation.vectors(np.arange(2)), vectors)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-25, 1e25])  # whose squares float32 has not
@pytest.mark.parametrize("count", [1, 3])
def test_queries_of_any_length_have_cosines(tmp_path: Path, scale: float, count: int) -> None:
    vectors = np.eye(32, dtype=np.float32)[:4]
    documents = [Document(f"text {number}", vector=vector) for number, vector in enumerate(vectors)]
    with Index.build(tmp_path / "index", documents, FakeEncoder()) as index:
        scores, rows = index.search_vectors(vectors[:count] * np.float32(scale), 1)
        assert rows[:, 0].tolist() == list(range(count))
        np.testing.assert_allclose(scores[:, 0], 1, rtol=1e-5)
