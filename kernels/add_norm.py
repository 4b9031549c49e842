"""The sum of a residual stream and its norm, for layers that normalize before their parts: one Triton kernel.

    residual += x, or rms(x) · post_norm;  y = norm(residual)

`add_norm_triton` has the formulas; this file checks arguments and launches. Forward only. Layers that normalize after
the sum (BERT) keep no stream beside the result: `embedkit.kernels.layernorm`. Source of the RMS norm: Zhang and
Sennrich 2019.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from .add_norm_triton import forward
from .blocks import capability_of
from .launch import check_tensors, device_of
from .layernorm import MAX_HIDDEN_SIZE, row_blocks

__all__ = ["add_norm"]


def add_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    *,
    rms: bool = False,
    post_norm: Tensor | None = None,
) -> Tensor:
    """Add ``x`` to ``residual`` in its memory, and return the norm of the sum; everything is computed in float32.

    Args:
        x: (tokens, H), float32, float16 or bfloat16.
        residual: (tokens, H), contiguous; overwritten. None: the result is the norm of ``x``.
        weight, bias: (H,), parameters of the norm; the bias may be None.
        eps: added to the variance or the mean square.
        rms: divide by the root of the mean square, without subtracting the mean.
        post_norm: (H,), the weight of an RMS norm of ``x`` before the sum (Gemma 3).

    Returns:
        (tokens, H), with the type of ``x``.

    Raises:
        ValueError: shapes, types or devices do not fit.
    """
    if x.ndim != 2 or (residual is not None and residual.shape != x.shape):
        of = "" if residual is None else f" and {tuple(residual.shape)}"
        raise ValueError(f"x and residual must both be (tokens, H), not {tuple(x.shape)}{of}")
    tokens, size = x.shape
    if not 1 <= size <= MAX_HIDDEN_SIZE:
        raise ValueError(f"rows of {size} values; the kernel supports 1 to {MAX_HIDDEN_SIZE}")
    for name, vector in (("weight", weight), ("bias", bias), ("post_norm", post_norm)):
        if vector is not None and vector.shape != (size,):
            raise ValueError(f"{name} must be ({size},), not {tuple(vector.shape)}")
    if residual is not None and not residual.is_contiguous():
        raise ValueError("residual is written in place and must be contiguous")
    if not 0 <= eps < 1:
        raise ValueError(f"eps must be from 0 to 1, not {eps}")
    check_tensors(
        x=x, residual=residual, weight=weight, bias=bias, post_norm=post_norm, instead="torch.nn.functional"
    )
    result = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    options = row_blocks(size, capability_of(x.device))
    if tokens > 0:
        with device_of(x):
            forward[(triton.cdiv(tokens, options["BLOCK_T"]),)](
                x.contiguous(), residual, *(None if v is None else v.contiguous() for v in (post_norm, weight, bias)),
                result, tokens, eps,
                H=size, RESIDUAL=residual is not None, POST=post_norm is not None, BIAS=bias is not None, RMS=rms,
                **options,
            )  # fmt: skip
    return result
