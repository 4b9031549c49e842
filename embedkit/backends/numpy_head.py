"""Pooling, Dense and Normalize in numpy, for encode stages that output hidden states.

    mean           sum_t h_t / T              weightedmean   sum_t (t + 1) h_t / sum_t (t + 1)
    mean_sqrt_len  sum_t h_t / sqrt(T)        max            max_t h_t
    cls            the first token's h        lasttoken      the last token's h

over the tokens t, counted from 0, that are neither padding nor excluded; zeros if there are none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..output import unit

__all__ = ["NumpyHead"]

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.integer[Any]]

_erf = np.vectorize(math.erf, otypes=[np.float32])  # numpy does not have it


def _sigmoid(x: Floats) -> Floats:
    half = np.float32(0.5)
    result: Floats = half * (1 + np.tanh(half * x))  # exp(-x) overflows
    return result


_ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "identity": lambda x: x,
    "tanh": np.tanh,
    "gelu": lambda x: x * (np.float32(0.5) * (1 + _erf(x * np.float32(1 / math.sqrt(2))))),
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
}


class NumpyHead:
    """The modules of a model folder after the transformer."""

    def __init__(self, modes: Sequence[str], head: Sequence[dict[str, Any]]) -> None:
        """Keep the modules.

        Args:
            modes: pooling modes, concatenated in this order.
            head: as `embedkit.model_folder.weights.core_head` returns it. Arrays are copied, so that an open model
                does not depend on mapped files.
        """
        self._modes = tuple(modes)
        self._head = [
            {
                key: np.array(value) if isinstance(value, np.ndarray) else value
                for key, value in module.items()
            }
            for module in head
        ]

    def __call__(self, hidden: Floats, lengths: Integers, skip: Integers) -> Floats:
        """Embeddings (texts, dimension) of right-padded texts.

        Args:
            hidden: (texts, tokens, hidden_size).
            lengths: (texts,) tokens of each, at least 1.
            skip: (texts,) leading tokens excluded from pooling.
        """
        pooled = [_pool(mode, hidden, lengths, skip) for mode in self._modes]
        vectors: Floats = np.concatenate(pooled, axis=1) if len(pooled) > 1 else pooled[0]
        for module in self._head:
            if module["type"] == "normalize":
                vectors = unit(vectors)
                continue
            vectors = vectors @ module["weight"].T
            if module["bias"] is not None:
                vectors += module["bias"]
            vectors = _ACTIVATIONS[str(module["activation"])](vectors)
        return vectors


def _pool(mode: str, hidden: Floats, lengths: Integers, skip: Integers) -> Floats:
    texts, tokens, _ = hidden.shape
    some = (skip < lengths)[:, None]
    if mode in ("cls", "lasttoken"):
        place = np.minimum(skip, tokens - 1) if mode == "cls" else lengths - 1
        return np.asarray(np.where(some, hidden[np.arange(texts), place], np.float32(0)))
    position = np.arange(tokens)
    kept = (position >= skip[:, None]) & (position < lengths[:, None])
    if mode == "max":
        highest = np.max(hidden, axis=1, initial=-np.inf, where=kept[:, :, None])
        return np.asarray(np.where(some, highest, np.float32(0)))
    weights = kept.astype(np.float32)
    if mode == "weightedmean":
        weights *= position + np.float32(1)
    total = np.maximum(weights.sum(axis=1, keepdims=True), np.float32(1))
    if mode == "mean_sqrt_len":
        total = np.sqrt(total)
    pooled = np.matmul(weights[:, None, :], hidden)[:, 0]
    return np.asarray(pooled / total, dtype=np.float32)
