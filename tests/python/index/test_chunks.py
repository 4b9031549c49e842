"""What is computed a chunk at a time is right beyond the first chunk."""

from __future__ import annotations

import numpy as np

from embedkit.index.storage import raw


def test_many_queries_are_rescored_in_chunks() -> None:
    random = np.random.default_rng(0)
    vectors, queries = (random.standard_normal((rows, 512)).astype(np.float32) for rows in (300, 400))
    rows = np.stack([random.choice(300, 64, replace=False) for _ in queries])  # 128 queries a chunk
    scores, found = raw.rescore(queries, rows, 5, vectors.__getitem__)
    exact = np.take_along_axis(queries @ vectors.T, rows, 1)
    best = np.argsort(-exact, axis=1)[:, :5]
    np.testing.assert_array_equal(found, np.take_along_axis(rows, best, 1))
    np.testing.assert_allclose(scores, np.take_along_axis(exact, best, 1), rtol=1e-4, atol=1e-4)


def test_a_filter_of_more_rows_than_a_block_is_exact() -> None:
    vectors = np.random.default_rng(0).standard_normal((50_000, 8)).astype(np.float32)
    rows = np.arange(1, 50_000, 3)  # 16,667, of which 16,384 are compared at once
    queries = vectors[[1, 25_000, 49_999]]
    scores, found = raw.exact_search(queries, 20, rows, vectors.__getitem__)
    exact = queries @ vectors[rows].T
    np.testing.assert_array_equal(found, rows[np.argsort(-exact, axis=1)[:, :20]])
    np.testing.assert_allclose(scores, np.sort(exact, axis=1)[:, ::-1][:, :20], rtol=1e-5)
