"""Vectors of any length, given or encoded, of documents and of queries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit import Encoder
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


@pytest.mark.parametrize("kind", ["fake", "core"])  # only the latter has two steps for a stream
def test_texts_keep_the_length_of_their_vectors_under_dot(
    tmp_path: Path, make_model: Callable[..., Path], kind: str
) -> None:
    encoder = FakeEncoder() if kind == "fake" else Encoder(make_model())
    texts = [" ".join(["weather", "people", "night", "day"][: 1 + n % 4] * (1 + n % 3)) for n in range(12)]
    queries = ["weather", "the people of the night", "day day day"]
    vectors, asked = encoder.encode_document(texts), encoder.encode_query(queries)
    assert all(np.abs(np.linalg.norm(one, axis=1) - 1).min() > 0.005 for one in (vectors, asked))
    with Index.build(tmp_path / "index", texts, encoder, metric="dot") as index:
        for found in (
            index.search(queries, 12, hybrid=False),
            next(index.search_stream([queries], 12, hybrid=False)),
        ):
            scores = np.zeros((3, 12), np.float32)
            for row, hits in enumerate(found):
                for hit in hits:
                    scores[row, int(hit.id)] = hit.score
            np.testing.assert_allclose(scores, asked @ vectors.T, rtol=1e-4, atol=1e-4)
