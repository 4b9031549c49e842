"""Output types and similarity functions, against sentence-transformers."""

from __future__ import annotations

import numpy as np
import pytest

from embedkit import semantic_search
from embedkit.output import (
    DTYPES,
    checked_ranges,
    convert,
    output_width,
    similarity,
    similarity_pairwise,
    to_torch,
    with_tensors,
)


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((40, 20), dtype=np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dimension", [8, 13, 20])
def test_output_types_equal_sentence_transformers(vectors: np.ndarray, dtype: str, dimension: int) -> None:
    quantize = pytest.importorskip("sentence_transformers").quantize_embeddings
    given = vectors[:, :dimension].copy()
    given[0, 0] = 0.0  # zero is not positive: its bit is 0
    ranges = np.stack([given[:30].min(axis=0), given[:30].max(axis=0)])  # the last 10 rows exceed it
    ranges[:, 3] = 0.25  # a dimension without a range
    expected = quantize(given, precision=dtype, ranges=ranges)
    result = convert(given, dtype, ranges)
    assert result.dtype == expected.dtype
    assert result.shape == (40, output_width(dtype, dimension))
    np.testing.assert_array_equal(result, expected)


def test_ranges_are_not_changed(vectors: np.ndarray) -> None:
    ranges = np.stack([vectors.min(axis=0), vectors.max(axis=0)])
    before = ranges.copy()
    convert(vectors, "int8", ranges)
    np.testing.assert_array_equal(ranges, before)


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        (np.zeros((2, 19)), r"shape \(2, 19\), expected \(2, 20\)"),
        (np.zeros(20), r"shape \(20,\), expected \(2, 20\)"),
        (np.stack([np.ones(20), np.zeros(20)]), "each minimum at most its maximum"),
        (np.full((2, 20), np.nan), "finite"),
    ],
)
def test_wrong_ranges(ranges: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_ranges(ranges, 20)


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities_equal_sentence_transformers(vectors: np.ndarray, name: str) -> None:
    functions = pytest.importorskip("sentence_transformers").SimilarityFunction
    a, b = vectors[:10], vectors[10:31].copy()
    b[0] = 0  # no direction: cosine 0, not NaN
    matrix = functions.to_similarity_fn(name)
    pairwise = functions.to_similarity_pairwise_fn(name)
    np.testing.assert_allclose(similarity(a, b, name), matrix(a, b).numpy(), rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(similarity(a[0], b, name), matrix(a[0], b).numpy(), rtol=1e-5, atol=2e-6)
    pairs = similarity_pairwise(a, b[:10], name)
    assert pairs.dtype == np.float32 and pairs.shape == (10,)
    for one, many in ((a[:1], b), (b, a[:1])):  # one against each
        expected = pairwise(one, many).numpy()
        np.testing.assert_allclose(similarity_pairwise(one, many, name), expected, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(pairs, pairwise(a, b[:10]).numpy(), rtol=1e-5, atol=2e-6)


def test_lists_of_tensors_are_compared(vectors: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    rows = [torch.from_numpy(row) for row in vectors]
    expected = similarity(vectors, vectors, "cosine")
    for given in ((rows, rows), (rows, vectors), ([row.bfloat16() for row in rows], vectors)):
        result = with_tensors(similarity, *given, "cosine")
        assert isinstance(result, torch.Tensor)
        np.testing.assert_allclose(result.numpy(), expected, atol=1e-2)
    assert to_torch(torch.empty(0, 3, device="meta"), one=True).device.type == "meta"


def test_int8_vectors_are_compared_without_overflow() -> None:
    a = np.full((1, 100), 100, np.int8)
    assert similarity(a, a, "dot")[0, 0] == 1_000_000


def test_no_vectors_are_similar_to_none(vectors: np.ndarray) -> None:
    """`encode` returns (0,) for an empty list."""
    none = np.array([])
    assert similarity(none, vectors, "cosine").shape == (0, len(vectors))
    assert similarity(vectors, none, "euclidean").shape == (len(vectors), 0)
    assert similarity(none, none, "dot").shape == (0, 0)
    for name in ("cosine", "euclidean"):
        for other in (none, vectors[:0], vectors[:1]):
            assert similarity_pairwise(none, other, name).shape == (0,)
            assert similarity_pairwise(other, none, name).shape == (0,)
    with pytest.raises(ValueError, match="the same number of vectors"):
        similarity_pairwise(none, vectors, "cosine")


def test_texts_in_place_of_vectors() -> None:
    for call in (
        lambda: similarity(["a text"], ["another"], "cosine"),  # type: ignore[list-item]
        lambda: semantic_search("a text", ["another"]),
    ):
        with pytest.raises(TypeError, match=r"holds texts; pass their vectors: encoder\.encode"):
            call()


def test_unknown_similarity(vectors: np.ndarray) -> None:
    for function in (similarity, similarity_pairwise):
        with pytest.raises(ValueError, match="unknown similarity 'maxsim'; expected one of cosine, dot"):
            function(vectors, vectors, "maxsim")


def test_wrong_shapes() -> None:
    with pytest.raises(ValueError, match="3 and 4 dimensions; use one encoder"):
        similarity(np.ones((1, 3)), np.ones((1, 4)), "dot")
    with pytest.raises(ValueError, match="the same number of vectors"):
        similarity_pairwise(np.ones((2, 3)), np.ones((3, 3)), "dot")
    with pytest.raises(ValueError, match="a has 3 dimensions"):
        similarity(np.ones((1, 1, 3)), np.ones((1, 3)), "dot")
