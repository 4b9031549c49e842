"""Vectors as JSON."""

from __future__ import annotations

import asyncio
import json

import numpy as np
from running_server import RunningServer  # noqa: F401  (skips where the server's packages are missing)

from embedkit.serve.rendering import float_rows, join_rows


def test_rows_of_an_answer_in_pieces_keep_their_numbers() -> None:
    vectors = np.arange(600 * 256, dtype=np.float32).reshape(600, 256)  # a piece is 256 rows
    written = asyncio.run(join_rows(vectors, float_rows, lambda index, row: b"[%d,%b]" % (index, row)))
    numbers, rows = zip(*json.loads(b"[" + written + b"]"), strict=True)
    assert numbers == tuple(range(600))
    np.testing.assert_array_equal(rows, vectors)
