"""JSON of responses: orjson, and the pieces that vectors are written in."""

from __future__ import annotations

import asyncio
import binascii
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

__all__ = ["dumps", "float_rows", "join_rows", "rows_as_base64"]

Vectors = npt.NDArray[Any]

_VALUES_AT_ONCE = 65_536  # about 2 ms: between two pieces the event loop serves others


def dumps(value: Any) -> bytes:
    """``value`` as JSON; numpy arrays as lists."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError:
        # metadata with an integer of more than 64 bits, or deeper than orjson goes
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def float_rows(vectors: Vectors) -> list[bytes]:
    """Each row as a JSON array; the numbers are the shortest that give the same float32."""
    return [dumps(row) for row in np.ascontiguousarray(vectors)]


def rows_as_base64(vectors: Vectors) -> list[bytes]:
    """Each row's little-endian float32 as a JSON string of base64, as OpenAI sends them."""
    rows = np.ascontiguousarray(vectors, dtype="<f4")
    return [b'"%b"' % binascii.b2a_base64(row.data, newline=False) for row in rows]


async def join_rows(
    vectors: Vectors,
    written: Callable[[Vectors], list[bytes]],
    item: Callable[[int, bytes], bytes] | None = None,
) -> bytes:
    """All rows, separated by commas; a large array in pieces between which other requests are served."""
    step = max(1, _VALUES_AT_ONCE // max(1, vectors.shape[1] if vectors.ndim > 1 else 1))
    pieces: list[bytes] = []
    for begin in range(0, len(vectors), step):
        if begin:
            await asyncio.sleep(0)
        rows = written(vectors[begin : begin + step])
        pieces += rows if item is None else [item(begin + at, row) for at, row in enumerate(rows)]
    return b",".join(pieces)
