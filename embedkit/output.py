"""Output types of embeddings, and similarity functions, in numpy; conversion from and to torch tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "DTYPES",
    "NUMPY_DTYPES",
    "checked_ranges",
    "convert",
    "import_torch",
    "output_width",
    "similarity",
    "similarity_pairwise",
    "to_torch",
    "unit",
    "with_tensors",
]

Array = npt.NDArray[Any]

NUMPY_DTYPES: dict[str, npt.DTypeLike] = {
    "float32": np.float32,
    "int8": np.int8,
    "uint8": np.uint8,
    "binary": np.int8,
    "ubinary": np.uint8,
}
DTYPES = tuple(NUMPY_DTYPES)


def checked_ranges(ranges: npt.ArrayLike, dimension: int) -> npt.NDArray[np.float32]:
    """A copy of ranges (2, dimension), minima and maxima, as float32.

    Raises:
        ValueError: the shape is wrong, or a value is not finite or out of order.
    """
    # a copy: a GPU's stage knows by identity that it has them already, and the caller may change an own array
    checked = np.array(ranges, dtype=np.float32)
    if checked.shape != (2, dimension):
        raise ValueError(
            f"ranges have the shape {checked.shape}, expected (2, {dimension}): the minimum and the maximum "
            "of each dimension, e.g. numpy.stack([vectors.min(axis=0), vectors.max(axis=0)])"
        )
    if not np.isfinite(checked).all() or (checked[0] > checked[1]).any():
        raise ValueError("ranges must be finite, with each minimum at most its maximum")
    return checked


def output_width(dtype: str, dimension: int) -> int:
    """Number of columns of the output; packed types hold 8 dimensions per byte."""
    return (dimension + 7) // 8 if dtype in ("binary", "ubinary") else dimension


def convert(vectors: npt.NDArray[np.float32], dtype: str, ranges: npt.NDArray[np.float32] | None) -> Array:
    """Convert float vectors (n, dimension) to ``dtype``.

    int8 and uint8 divide the range of each dimension into 255 steps and clip values outside. binary and ubinary keep
    the signs, 8 dimensions per byte, the first in the highest bit.

    Args:
        vectors: (n, dimension).
        dtype: one of `DTYPES`.
        ranges: (2, dimension), required for int8 and uint8.
    """
    if dtype == "float32":
        return vectors
    if dtype in ("int8", "uint8"):
        if ranges is None:
            raise ValueError(f"{dtype} embeddings need ranges")
        start = ranges[0]
        step = (ranges[1] - start) / np.float32(255)
        step[step == 0] = 1
        levels = np.clip(np.floor((vectors - start) / step), 0, 255)
        return np.asarray(levels - 128 if dtype == "int8" else levels, dtype=NUMPY_DTYPES[dtype])
    packed = np.packbits(vectors > 0, axis=-1)
    # binary is ubinary minus 128: in two's complement, the highest bit flipped
    return packed if dtype == "ubinary" else np.asarray((packed ^ 0x80).view(np.int8))


def similarity(a: npt.ArrayLike, b: npt.ArrayLike, name: str) -> npt.NDArray[np.float32]:
    """Scores (n, m) of each vector of ``a`` (n, d) with each vector of ``b`` (m, d); higher is more similar."""
    x, y = np.atleast_2d(_float(a, "a")), np.atleast_2d(_float(b, "b"))
    if np.shape(a) == (0,):  # as `encode` returns it for no texts
        x = np.empty((0, y.shape[1]), np.float32)
    if np.shape(b) == (0,):
        y = np.empty((0, x.shape[1]), np.float32)
    _check_shapes(x, y, pairwise=False)
    if name == "cosine":
        return np.asarray(_unit32(x) @ _unit32(y).T)
    if name == "dot":
        return np.asarray(x @ y.T)
    order = _order(name)
    scores = np.empty((len(x), len(y)), dtype=np.float32)
    for row, vector in enumerate(x):  # a row at a time: (n, m, d) differences would not fit
        scores[row] = -np.linalg.norm(y - vector, ord=order, axis=1)
    return scores


def similarity_pairwise(a: npt.ArrayLike, b: npt.ArrayLike, name: str) -> npt.NDArray[np.float32]:
    """Scores (n,) of ``a[i]`` with ``b[i]``; both (n, d), or one of them (1, d) for all of the other."""
    x, y = _float(a, "a"), _float(b, "b")
    if x.shape == (0,):  # as `encode` returns it for no texts
        x = x.reshape(0, y.shape[-1])
    if y.shape == (0,):
        y = y.reshape(0, x.shape[-1])
    _check_shapes(x, y, pairwise=True)
    if name in ("cosine", "dot"):
        if name == "cosine":
            x, y = _unit32(x), _unit32(y)
        return np.asarray((x * y).sum(axis=-1), dtype=np.float32)
    order = _order(name)
    return np.asarray(-np.linalg.norm(x - y, ord=order, axis=-1), dtype=np.float32)


def _order(name: str) -> int:
    """The order of the norm behind a distance-based similarity."""
    if name not in ("euclidean", "manhattan"):
        raise ValueError(f"unknown similarity {name!r}; expected one of cosine, dot, euclidean, manhattan")
    return 2 if name == "euclidean" else 1


def holds_texts(value: object) -> bool:
    """Whether a text, or a list of them, is given where vectors are meant."""
    first = value[0] if isinstance(value, list | tuple) and value else value
    return isinstance(first, str)


def _float(value: npt.ArrayLike, name: str) -> npt.NDArray[np.float32]:
    if holds_texts(value):
        raise TypeError(f"{name} holds texts; pass their vectors: encoder.encode({name})")
    array = np.asarray(value, dtype=np.float32)
    if array.ndim not in (1, 2):
        raise ValueError(f"{name} has {array.ndim} dimensions; give one vector (d,) or several (n, d)")
    return array


def _check_shapes(x: Array, y: Array, *, pairwise: bool) -> None:
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"the vectors have {x.shape[-1]} and {y.shape[-1]} dimensions; use one encoder for both"
        )
    if pairwise and x.shape != y.shape and not (x.ndim == y.ndim == 2 and 1 in (len(x), len(y))):
        raise ValueError(
            f"pairwise similarity needs the same number of vectors on both sides, not {x.shape} and {y.shape}"
        )


def unit(vectors: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Vectors (n, d) scaled to length 1; squares are summed in double precision, as in the core."""
    norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
    return np.asarray(vectors / np.maximum(norms, 1e-12)[:, None], dtype=np.float32)


def _unit32(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """As `unit`, summed in float32: twice as fast, and enough for a score."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, np.float32(1e-12)), dtype=np.float32)


def _is_tensor(value: Any) -> bool:
    """Whether it is torch's, without importing that."""
    return type(value).__module__.partition(".")[0] == "torch"


def _stacked(value: Any) -> Any:
    """A list of vectors of torch, such as ``encode(convert_to_numpy=False)`` returns, as one tensor."""
    if isinstance(value, list | tuple) and value and all(map(_is_tensor, value)):
        import torch

        return torch.stack(list(value))
    return value


def with_tensors(score: Callable[[Any, Any, str], npt.NDArray[np.float32]], a: Any, b: Any, name: str) -> Any:
    """``score(a, b, name)``; a torch tensor on the first tensor's device if one, or a list of them, was given."""
    a, b = map(_stacked, (a, b))
    tensors = list(filter(_is_tensor, (a, b)))
    if not tensors:
        return score(a, b, name)
    import torch

    a, b = (value.detach().cpu().float() if isinstance(value, torch.Tensor) else value for value in (a, b))
    return torch.from_numpy(score(a, b, name)).to(tensors[0].device)


def to_torch(result: Any, *, one: bool) -> Any:
    """Results as torch tensors, ``one`` or a list: of numpy arrays on the CPU, tensors where they are.

    Raises:
        ImportError: as `import_torch`.
    """
    torch = import_torch()
    if one and not isinstance(result, list):
        return (
            torch.as_tensor(result)
            if len(result)
            else torch.tensor([], device=getattr(result, "device", None))
        )
    return [torch.as_tensor(row) for row in result]


def import_torch() -> Any:
    """The module, for results that are requested as its tensors.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import torch
    except ImportError:
        raise ImportError(
            "torch is not installed, and torch tensors were requested: pip install torch, "
            "or leave convert_to_numpy=True and convert_to_tensor=False for numpy arrays"
        ) from None
    return torch
