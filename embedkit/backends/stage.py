"""The interface of an encode stage, and functions that all stages share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .. import _core
from ..output import NUMPY_DTYPES, convert, output_width, unit

__all__ = ["Batch", "HostBatch", "NotFinite", "Request", "Stage", "combine", "finish", "host_empty"]

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Request:
    """The results that a call requests.

    Attributes:
        width: number of dimensions kept.
        normalize: scale to length 1 after truncation.
        dtype: one of `embedkit.output.DTYPES`.
        ranges: (2, width), for int8 and uint8.
        token_embeddings: the last hidden states (tokens, hidden_size) of each text instead of its embedding.
        on_device: leave the results on the device, as torch tensors.
    """

    width: int
    normalize: bool = False
    dtype: str = "float32"
    ranges: Floats | None = None
    token_embeddings: bool = False
    on_device: bool = False

    def raw(self, dimension: int) -> Request:
        """The same request for the unprocessed output of the model's head, on the host."""
        return replace(self, width=dimension, normalize=False, dtype="float32", ranges=None, on_device=False)


class NotFinite(ValueError):
    """A sequence whose result is not finite in any of the stage's types.

    Attributes:
        sequence: its index in the window.
    """

    def __init__(self, sequence: int) -> None:
        """Keep the index."""
        super().__init__(sequence)
        self.sequence = sequence

    def __str__(self) -> str:
        return f"sequence {self.sequence} of the window overflows"


class Batch(Protocol):
    """A batch submitted to a stage."""

    def wait(self) -> float:
        """Wait for the batch, raising errors of the device; returns the seconds that the device was busy with it."""

    def deliver(self, out: Any, rows: Indices) -> None:
        """Write the result of sequence i to ``out[rows[i]]``; after `wait`.

        Raises:
            NotFinite: a result is not finite, and the stage has no wider type.
        """


class Stage(Protocol):
    """Encodes batches of sequences. `submit` may be called from several threads at once.

    Copies of an `Encoder` share one stage; it frees its resources with the last reference to it.

    Attributes:
        dimension: of the embeddings, after the head.
        ahead: how many batches to submit beyond the one that is waited for; 0 for a stage that computes within
            `submit`.
    """

    @property
    def dimension(self) -> int: ...  # noqa: D102
    @property
    def ahead(self) -> int: ...  # noqa: D102

    def cut(self, lengths: npt.NDArray[np.int32], most_texts: int) -> Sequence[int]:
        """Cut sequences into batches.

        Args:
            lengths: (n,) tokens of each, longest first.
            most_texts: maximum texts in a batch; 0 for no limit.

        Returns:
            The start of each batch, and n.
        """

    def submit(self, window: _core.TokenWindow, order: Indices, request: Request) -> Batch:
        """Start encoding the sequences of ``window`` at the indices ``order``."""

    def warm_up(self) -> None:
        """Prepare what the first batches would have to wait for."""

    def empty(self, texts: int, request: Request) -> Any:
        """Room for the results: an array (texts, columns), or a list for token embeddings."""

    def describe(self) -> dict[str, Any]:
        """The stage's entries of `Encoder.describe`: at least ``precision``."""


class HostBatch:
    """A batch whose result is already in host memory."""

    def __init__(self, result: Floats, seconds: float, request: Request, lengths: Sequence[int]) -> None:
        """Keep a result.

        Args:
            result: (sequences, dimension), or the hidden states of all sequences (tokens, hidden_size).
            seconds: the time it took.
            request: how to finish it.
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
    """`Stage.empty` in host memory."""
    if request.token_embeddings:
        return [None] * texts
    shape = (texts, output_width(request.dtype, request.width))
    return np.empty(shape, dtype=NUMPY_DTYPES[request.dtype])


def finish(vectors: Floats, request: Request) -> npt.NDArray[Any]:
    """Truncate, normalize and convert vectors (n, dimension) as requested."""
    kept = vectors[:, : request.width]
    return convert(unit(kept) if request.normalize else kept, request.dtype, request.ranges)


def combine(parts: Floats, window: _core.TokenWindow, *, normalized: bool) -> Floats:
    """Embeddings of texts from those of their windows: means weighted by the number of pooled tokens.

    Args:
        parts: (sequences, dimension) in the order of ``window``.
        window: the window of texts that the sequences belong to.
        normalized: whether the last module of the model normalizes.

    Returns:
        (texts, dimension). The embedding of a text with one window is unchanged.
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
