"""Token vectors to text vectors: pooling, projection and normalization, differentiable.

    p_b = mean | max | first of the rows of text b          (H)
    z_b = activation(p_b W + b)                             (D)
    y_b = z_b / max(‖z_b‖₂, 1e-12)                          (D)

On a GPU this is one kernel launch (`embedkit.kernels.pool_project_normalize`), elsewhere torch. The projection and
the normalization are optional. An empty text is pooled to zeros, as by the core. If several tokens have the maximum,
the first of them gets the gradient, as in ``torch.max``.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Activation", "Pooling", "pool_project_normalize"]

Pooling = Literal["mean", "max", "cls"]
Activation = Literal["identity", "tanh"]

_EPSILON = 1e-12  # of torch.nn.functional.normalize


def pool_project_normalize(
    hidden: Tensor,
    cu_seqlens: Tensor,
    *,
    pooling: Pooling = "mean",
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    activation: Activation = "identity",
    normalize: bool = False,
) -> Tensor:
    """Pool the tokens of each text, project, and scale to length 1; differentiable.

    Args:
        hidden: (tokens, H), the concatenated texts of a batch, without padding.
        cu_seqlens: (texts + 1,), int32 or int64 on the same device: text b is ``cu_seqlens[b]`` up to
            ``cu_seqlens[b + 1]``. Rows of ``hidden`` from ``cu_seqlens[-1]`` on are ignored. On a GPU its
            values are not checked: reading them would stall it.
        pooling: "mean", "max" or "cls" (the first token).
        weight: (H, D). For a ``torch.nn.Linear``, pass ``linear.weight.T``.
        bias: (D,), only with ``weight``.
        activation: "identity" or "tanh", after the projection; only with ``weight``.
        normalize: scale each vector to length 1.

    Returns:
        (texts, D), or (texts, H) without ``weight``; float32, or float64 for float64 ``hidden``. All sums are
        taken in that type.

    Raises:
        ValueError: a shape, a type or a boundary is wrong.
    """
    _check(hidden, cu_seqlens, pooling, weight=weight, bias=bias, activation=activation)
    if _has_kernel(hidden, weight, bias):
        from ..kernels import pool_project_normalize as kernel

        result: Tensor = kernel.pool_project_normalize(
            hidden,
            cu_seqlens,
            pooling=pooling,
            weight=weight,
            bias=bias,
            activation=activation,
            normalize=normalize,
        )
        return result
    boundaries = cu_seqlens.long()
    lengths = boundaries.diff()
    if bool((lengths < 0).any()) or bool(boundaries[0] != 0) or bool(boundaries[-1] > len(hidden)):
        raise ValueError(
            f"cu_seqlens must rise from 0 to at most {len(hidden)}, the rows of hidden. "
            "Give the prefix sums of the lengths, beginning with 0."
        )
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    vectors = _pool(hidden.to(dtype), boundaries, lengths, pooling)
    if weight is not None:
        vectors = vectors @ weight.to(dtype)
        if bias is not None:
            vectors = vectors + bias.to(dtype)
        if activation == "tanh":
            vectors = vectors.tanh()
    return _normalized(vectors) if normalize else vectors


def _normalized(vectors: Tensor) -> Tensor:
    """Scaled to length 1. Zeros have no direction, and so no gradient; torch's own is 1e12 times the one before."""
    scaled = torch.nn.functional.normalize(vectors, dim=-1, eps=_EPSILON)
    tiny = vectors.detach().norm(dim=-1, keepdim=True) < _EPSILON
    return torch.where(tiny, scaled.detach(), scaled)


def _has_kernel(hidden: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the Triton kernel takes these tensors: on a GPU, not in double precision, not too wide."""
    if not hidden.is_cuda or find_spec("triton") is None:
        return False
    from ..kernels.blocks import capability_of
    from ..kernels.pool_project_normalize import MAX_HIDDEN_SIZE, max_dimension

    types = {tensor.dtype for tensor in (hidden, weight, bias) if tensor is not None}
    narrow = hidden.shape[1] <= MAX_HIDDEN_SIZE
    if weight is not None:
        narrow &= weight.shape[1] <= max_dimension(weight.dtype, capability_of(weight.device))
    return narrow and hidden.shape[1] > 0 and types <= {torch.float32, torch.float16, torch.bfloat16}


def _pool(hidden: Tensor, boundaries: Tensor, lengths: Tensor, pooling: Pooling) -> Tensor:
    """(texts, H) of ``hidden`` (tokens, H)."""
    texts, width = len(lengths), hidden.shape[1]
    zeros = hidden.new_zeros(texts, width)
    filled = lengths.nonzero()[:, 0]
    if pooling == "cls":
        return zeros.index_copy(0, filled, hidden.index_select(0, boundaries[filled]))
    hidden = hidden[: boundaries[-1]]
    text = torch.repeat_interleave(torch.arange(texts, device=hidden.device), lengths)
    # Expanded, not repeated: torch recognizes a row index and then adds row by row (8 times as fast as
    # segment_reduce on a CPU, forward and backward, and in the order of the tokens).
    index = text[:, None].expand(-1, width)
    if pooling == "mean":
        return zeros.scatter_add(0, index, hidden) / lengths.clamp(min=1)[:, None]
    with torch.no_grad():
        maximum = zeros.scatter_reduce(0, index, hidden, "amax", include_self=False)
        # NaN is the maximum of a text that contains it, so that a broken run is noticed.
        is_maximum = (hidden == maximum.gather(0, index)) | hidden.isnan()
        rows = torch.arange(len(hidden), device=hidden.device)[:, None]
        candidates = rows.where(is_maximum, len(hidden))
        first = torch.full_like(zeros, len(hidden), dtype=torch.long)
        first = first.scatter_reduce(0, index, candidates, "amin")
    return zeros.index_copy(0, filled, hidden.gather(0, first[filled]))


def _check(
    hidden: Tensor,
    cu_seqlens: Tensor,
    pooling: str,
    *,
    weight: Tensor | None,
    bias: Tensor | None,
    activation: str,
) -> None:
    """Raise ValueError for errors that can be detected without reading values."""
    if hidden.ndim != 2 or not hidden.is_floating_point():
        raise ValueError(
            f"hidden must be a float tensor (tokens, H), not {hidden.dtype} {tuple(hidden.shape)}. "
            "Take the rows of a padded batch where its attention mask is 1."
        )
    if cu_seqlens.ndim != 1 or len(cu_seqlens) == 0 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            "cu_seqlens must be an int32 or int64 tensor (texts + 1,), "
            f"not {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}"
        )
    if pooling not in ("mean", "max", "cls"):
        raise ValueError(f"unknown pooling {pooling!r}; expected one of mean, max, cls")
    if activation not in ("identity", "tanh"):
        raise ValueError(f"unknown activation {activation!r}; expected one of identity, tanh")
    if weight is None:
        if bias is not None or activation != "identity":
            raise ValueError("bias and activation belong to a projection. Give weight as well.")
        return
    if weight.ndim != 2 or weight.shape[0] != hidden.shape[1]:
        raise ValueError(
            f"weight must be ({hidden.shape[1]}, D) for hidden {tuple(hidden.shape)}, "
            f"not {tuple(weight.shape)}. Of a torch.nn.Linear give linear.weight.T."
        )
    if bias is not None and bias.shape != weight.shape[1:]:
        raise ValueError(f"bias must be ({weight.shape[1]},) for this weight, not {tuple(bias.shape)}")
