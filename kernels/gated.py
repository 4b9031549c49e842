"""The activation of gated feed-forward layers (SwiGLU, GeGLU, ReGLU) in one Triton kernel: y = f(a) · b.

The formulas are in `gated_triton`; this file checks arguments and launches. Forward only. Source: Shazeer 2020, "GLU
Variants Improve Transformer".
"""

from __future__ import annotations

from typing import Literal

import torch
import triton
from torch import Tensor

from .blocks import blocks, capability_of
from .gated_triton import forward
from .launch import check_tensors, device_of

__all__ = ["FUNCTIONS", "Function", "gated_activation"]

Function = Literal["silu", "gelu", "gelu_new", "relu"]
FUNCTIONS = ("silu", "gelu", "gelu_new", "relu")


def gated_activation(x: Tensor, *, function: Function, second: bool = False) -> Tensor:
    """``f(a) * b`` of the halves ``a`` and ``b`` of each row, computed in float32.

    Args:
        x: (tokens, 2 I), float32, float16 or bfloat16.
        function: f, as the core names it.
        second: apply f to the second half and not to the first.

    Returns:
        (tokens, I), with the type of ``x``.

    Raises:
        ValueError: the shape, the type or the device does not fit.
    """
    if x.ndim != 2 or x.shape[1] % 2:
        raise ValueError(f"x must be (tokens, 2 I), not {tuple(x.shape)}")
    if function not in FUNCTIONS:
        raise ValueError(f"unknown function {function!r}; expected one of {', '.join(FUNCTIONS)}")
    check_tensors(x=x, instead="torch.nn.functional")
    tokens, size = x.shape[0], x.shape[1] // 2
    result = torch.empty(tokens, size, dtype=x.dtype, device=x.device)
    if result.numel() > 0:
        options = blocks("bias_gelu", capability_of(x.device))
        strips = triton.cdiv(size, options["BLOCK_I"])
        with device_of(x):
            forward[(triton.cdiv(tokens, options["BLOCK_T"]) * strips,)](
                x.contiguous(), result, tokens, SIZE=size, FUNCTION=function, SECOND=second, **options
            )
    return result
