"""The interface of an encode stage, and what all stages share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .. import _core
from ..output import NUMPY_DTYPES, convert, output_width, unit

__all__ = ["Batch", "HostBatch", "Request", "Stage", "combine", "finish", "host_empty"]

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Request:
    """What is wanted of the texts of a call.

    Attributes:
        width: dimensions kept.
        normalize: scale to length 1 after that.
        dtype: one of `embedkit.output.DTYPES`.
        ranges: (2, width), for int8 and uint8.
        token_embeddings: the last hidden states (tokens, hidden_size) of each text instead of a vector.
        on_device: leave the results where they are made, as torch tensors.
    """

    width: int
    normalize: bool = False
    dtype: str = "float32"
    ranges: Floats | None = None
    token_embeddings: bool = False
    on_device: bool = False

    def raw(self, dimension: int) -> Request:
        """The same call's vectors as the model's head gives them, on the host."""
        return replace(self, width=dimension, normalize=False, dtype="float32", ranges=None, on_device=False)


class Batch(Protocol):
    """A batch that a stage has taken."""

    def wait(self) -> float:
        """Wait until it is encoded; seconds that the device was busy with it. Errors of the device."""

    def deliver(self, out: Any, rows: Indices) -> None:
        """Write the result of sequence i to ``out[rows[i]]``; after `wait`."""


class Stage(Protocol):
    """Encodes batches of sequences. `submit` may be called from several threads at once.

    Copies of an `Encoder` share one stage; what it holds goes with the last reference to it.

    Attributes:
        dimension: of the vectors, after the head.
        ahead: batches to be submitted before the first of them is waited for, less one: 0 for a stage that
            computes within `submit`.
    """

    @property
    def dimension(self) -> int: ...  # noqa: D102
    @property
    def ahead(self) -> int: ...  # noqa: D102

    def cut(self, lengths: npt.NDArray[np.int32], most_texts: int) -> Sequence[int]:
        """Cut sequences into batches.

        Args:
            lengths: (n,) tokens of each, longest first.
            most_texts: of a batch; 0 for no cap.

        Returns:
            Where each batch begins, and n.
        """

    def submit(self, window: _core.TokenWindow, order: Indices, request: Request) -> Batch:
        """Begin to encode the sequences of ``window`` that ``order`` names."""

    def empty(self, texts: int, request: Request) -> Any:
        """What `Batch.deliver` writes to: an array (texts, columns), for token embeddings a list."""

    def place(self, out: Any, first: int, vectors: npt.NDArray[Any]) -> None:
        """Write finished ``vectors`` of the host to the rows of ``out`` from ``first`` on."""

    def describe(self) -> dict[str, Any]:
        """What `Encoder.describe` says of the stage: at least ``precision``."""


class HostBatch:
    """A batch whose result is in the host's memory already."""

    def __init__(self, result: Floats, seconds: float, request: Request, lengths: Sequence[int] = ()) -> None:
        """Keep a result.

        Args:
            result: (sequences, dimension), or the hidden states of all sequences (tokens, hidden_size).
            seconds: that it took.
            request: how it is finished.
            lengths: (sequences,) tokens of each, for token embeddings.
        """
        self._result, self._seconds, self._request, self._lengths = result, seconds, request, lengths

    def wait(self) -> float:
        """Return at once."""
        return self._seconds

    def deliver(self, out: Any, rows: Indices) -> None:
        """Finish and write the result."""
        if self._request.token_embeddings:
            end = 0
            for row, length in zip(rows, self._lengths, strict=True):
                end += length
                out[row] = self._result[end - length : end].copy()  # a view would keep the whole batch
        else:
            out[rows] = finish(self._result, self._request)


def host_empty(texts: int, request: Request) -> Any:
    """`Stage.empty` in the host's memory."""
    if request.token_embeddings:
        return [None] * texts
    shape = (texts, output_width(request.dtype, request.width))
    return np.empty(shape, dtype=NUMPY_DTYPES[request.dtype])


def finish(vectors: Floats, request: Request) -> npt.NDArray[Any]:
    """Truncate, normalize and convert vectors (n, dimension) as ``request`` says."""
    kept = vectors[:, : request.width]
    return convert(unit(kept) if request.normalize else kept, request.dtype, request.ranges)


def combine(parts: Floats, window: _core.TokenWindow, *, normalized: bool) -> Floats:
    """Vectors of texts from those of their windows: means weighted by the tokens that were pooled.

    Args:
        parts: (sequences, dimension) in the order of ``window``.
        window: where the sequences come from.
        normalized: whether the model's last module scales to length 1.

    Returns:
        (texts, dimension). A text of one window has its vector unchanged.
    """
    texts, lengths = window.text_of_sequence, window.lengths
    tokens = (lengths - np.minimum(lengths, window.pool_skip)).astype(np.float64)
    starts = np.flatnonzero(np.diff(texts, prepend=-1))
    sums = np.add.reduceat(parts * tokens[:, None], starts, axis=0)
    weights = np.add.reduceat(tokens, starts)
    means = (sums / np.maximum(weights, 1)[:, None]).astype(np.float32)
    if normalized:
        means = unit(means)
    single = np.diff(starts, append=len(texts)) == 1
    means[single] = parts[starts[single]]
    return means
