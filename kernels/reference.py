"""The kernels of the families since BERT's in plain torch, one line of formula each: what the tests hold them against.

They run on any device, in any floating type, on one sequence where sequences matter.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, relu, silu

__all__ = ["add_norm", "attention", "gated_activation", "qk_norm_rope", "rms_norm"]

_FUNCTIONS = {"silu": silu, "gelu": gelu, "gelu_new": lambda x: gelu(x, approximate="tanh"), "relu": relu}


def gated_activation(x: Tensor, function: str, *, second: bool = False) -> Tensor:
    """`gated.gated_activation`: (tokens, 2 I) to (tokens, I)."""
    a, b = x.chunk(2, dim=1)
    if second:
        a, b = b, a
    result: Tensor = _FUNCTIONS[function](a) * b  # type: ignore[operator]
    return result


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / √(mean x² + eps) · weight`` over the last dimension."""
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight


def add_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    *,
    rms: bool = False,
    post_norm: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`add_norm.add_norm`: the sum and its norm."""
    total = residual + (x if post_norm is None else rms_norm(x, post_norm, eps))
    if not rms:
        return total, layer_norm(total, total.shape[-1:], weight, bias, eps)
    return total, rms_norm(total, weight, eps) + (0 if bias is None else bias)


def qk_norm_rope(
    x: Tensor,
    *,
    speed: Tensor | None = None,
    norm: Tensor | None = None,
    eps: float = 0.0,
    trained: int = 0,
    stretch: float = 1.0,
) -> Tensor:
    """`qk_norm_rope.qk_norm_rope` for queries or keys (tokens, heads, D) of one sequence; ``speed``: (D / 2,) θ."""
    if norm is not None:
        x = rms_norm(x, norm, eps)
    if speed is None:
        return x
    tokens, size = len(x), x.shape[-1]
    if trained and tokens > trained:
        grown = stretch * tokens / trained - (stretch - 1)
        speed = speed * grown ** (-2 * torch.arange(size // 2, device=x.device) / (size - 2))
    angle = torch.arange(tokens, device=x.device)[:, None, None] * speed
    a, b = x.chunk(2, dim=2)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=2)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    before: int | None = None,
    after: int | None = None,
    slopes: Tensor | None = None,
) -> Tensor:
    """Attention of one sequence: query (tokens, heads, D); key and value may have fewer heads.

    Token i sees the keys from i − ``before`` to i + ``after``; ALiBi subtracts ``slopes`` (heads,) times |i − j|.
    """
    tokens, heads, size = query.shape
    key, value = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
    distance = torch.arange(tokens, device=query.device) - torch.arange(tokens, device=query.device)[:, None]
    scores = torch.einsum("ihd,jhd->hij", query, key) * (size**-0.5 if scale is None else scale)
    if slopes is not None:
        scores = scores - slopes[:, None, None] * distance.abs()
    hidden = (distance < -(math.inf if before is None else before)) | (
        distance > (math.inf if after is None else after)
    )
    return torch.einsum("hij,jhd->ihd", scores.masked_fill(hidden, -math.inf).softmax(dim=2), value)
