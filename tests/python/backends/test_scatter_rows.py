"""`_core.scatter_rows`: results into the caller's array, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embedkit import _core


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8"])
@pytest.mark.parametrize(("count", "columns"), [(0, 5), (1, 384), (7, 0), (33, 3), (5000, 384)])
def test_as_numpy(dtype: str, count: int, columns: int) -> None:
    random = np.random.default_rng(count)
    values = random.integers(0, 100, (count, columns)).astype(dtype)
    rows = random.permutation(2 * count)[:count]
    expected = np.full((2 * count, columns), 7, dtype=dtype)
    out = expected.copy()
    expected[rows] = values
    _core.scatter_rows(out, rows, values, 3)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": np.array([0, 4])}, "row 4 of an array of 4"),
        ({"rows": np.array([-1, 0])}, "row -1 of an array of 4"),
        ({"rows": np.array([0, 1, 2])}, "values has 2 rows, and there are places for 3"),
        ({"values": np.zeros((2, 5))}, "with the type and the columns"),
        ({"values": np.zeros((2, 6), dtype=np.float32)}, "with the type and the columns"),
        ({"values": np.zeros((5, 2), dtype=np.float32).T}, "contiguous"),
        ({"out": np.broadcast_to(np.float32(0), (4, 5))}, "contiguous"),
        ({"threads": 0}, "at least 1"),
    ],
)
def test_what_does_not_fit(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "out": np.zeros((4, 5), dtype=np.float32),
        "rows": np.array([3, 1]),
        "values": np.ones((2, 5), dtype=np.float32),
        "threads": 2,
    }
    with pytest.raises(ValueError, match=message):
        _core.scatter_rows(**(arguments | change))
