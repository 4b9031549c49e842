"""Texts to unit vectors: each distinct text is encoded once, and the vectors are checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["TextEncoder", "Vectors", "encode_distinct", "highest"]


class TextEncoder(Protocol):
    """Anything that turns texts into vectors."""

    def encode(self, sentences: list[str], /) -> Any:
        """The vectors of ``sentences``: (n, dim), a numpy array or convertible by ``numpy.asarray``."""
        ...


class Vectors:
    """Unit vectors of distinct texts.

    Attributes:
        unit: (distinct texts, dim), float32, each row of length 1, unless it was asked for as it is.
        row: text -> row of ``unit``.
    """

    def __init__(self, row: dict[str, int], unit: npt.NDArray[np.float32]) -> None:
        """Wrap both."""
        self.row = row
        self.unit = unit

    def of(self, texts: Iterable[str]) -> npt.NDArray[np.float32]:
        """(n, dim): the vectors of ``texts``, which may repeat."""
        return self.unit[[self.row[text] for text in texts]]

    def cosines(self, left: Sequence[str], right: Sequence[str]) -> npt.NDArray[np.float64]:
        """(n,): the cosine of each pair, summed in double precision so that rounding does not affect the order."""
        cosines: npt.NDArray[np.float64] = np.einsum(
            "ij,ij->i", self.of(left), self.of(right), dtype=np.float64
        )
        return cosines


def highest(values: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.int64]:
    """The places of the ``count`` highest values, the highest first, equal ones in order; NaN counts as the lowest."""
    count = min(count, len(values))
    if count < 1:
        return np.empty(0, np.int64)
    values = np.where(np.isnan(values), -np.inf, values)
    least = np.partition(values, len(values) - count)[len(values) - count]
    places = np.flatnonzero(values >= least)
    return places[np.argsort(-values[places], kind="stable")[:count]]


def encode_distinct(
    encoder: TextEncoder,
    texts: Iterable[str],
    encode: Callable[[list[str]], Any] | None = None,
    *,
    unit: bool = True,
) -> Vectors:
    """Encode every distinct text once, all in one call.

    Args:
        encoder: named in messages.
        texts: may repeat.
        encode: the method of ``encoder`` to call; None for ``encode``.
        unit: give the vectors length 1; else they stay as they are.

    Raises:
        ValueError: the encoder returned another shape than (n, dim), or a vector that is zero or contains NaN or
            infinity; names the model, the index of the text and the text.
    """
    row = {text: index for index, text in enumerate(dict.fromkeys(texts))}
    distinct = list(row)
    if not distinct:
        raise ValueError("there are no texts to encode")
    vectors = np.asarray((encode or encoder.encode)(distinct))
    if vectors.ndim != 2 or len(vectors) != len(distinct) or not vectors.shape[1]:
        raise ValueError(
            f"{_name(encoder)} returned an array of shape {vectors.shape} for {len(distinct)} texts; "
            f"expected ({len(distinct)}, dimension)"
        )
    if not np.issubdtype(vectors.dtype, np.floating):
        raise ValueError(
            f"{_name(encoder)} returned vectors of {vectors.dtype}; evaluate its floating-point vectors"
        )
    found = vectors.astype(np.float32)
    norms = np.linalg.norm(found, axis=1, keepdims=True)
    for wrong, what in ((~np.isfinite(norms), "holds NaN or infinity"), (norms == 0, "is zero")):
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            raise ValueError(
                f"{_name(encoder)}: the vector of texts[{first}] {what} "
                f"({int(wrong.sum())} of {len(distinct)} are so); the text is {distinct[first][:80]!r}"
            )
    if unit:
        found /= norms
    return Vectors(row, found)


def _name(encoder: TextEncoder) -> str:
    describe = getattr(encoder, "describe", None)
    if callable(describe):
        return f"{type(encoder).__name__} {describe()['model']!r}"
    return type(encoder).__name__
