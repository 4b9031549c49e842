"""Head norms and rotary positions of the two halves of a head, in place on a projection: one Triton kernel.

`qk_norm_rope_triton` has the formulas; this file checks arguments and launches. Forward only. Beside attention and not
inside it, where every tile of queries would rotate the keys again. (`embedkit.kernels.varlen_attention` rotates
adjacent pairs itself, as RoFormer has them.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from .attention_tiles import HEADER
from .launch import check_tensors, device_of
from .qk_norm_rope_triton import forward

__all__ = ["RotaryTable", "qk_norm_rope"]

_GROUP = 4  # heads of a program, which share its cosines and sines


@dataclass(frozen=True)
class RotaryTable:
    """Rotary positions.

    Attributes:
        cos, sin: (positions, head_size / 2) float32, contiguous: of p θ_d.
        speed: (head_size / 2,) float32: θ_d; read for sequences of more than ``trained`` tokens.
        trained: the tokens up to which ``cos`` and ``sin`` hold; 0: for all.
        stretch: s in the formula.
    """

    cos: Tensor
    sin: Tensor
    speed: Tensor
    trained: int = 0
    stretch: float = 1.0


def qk_norm_rope(
    x: Tensor,
    heads: int,
    key_heads: int,
    size: int,
    tile_map: Tensor,
    *,
    rotary: RotaryTable | None = None,
    norm: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Normalize and rotate the queries and keys of ``x`` in its memory; computed in float32.

    Args:
        x: (tokens, columns), contiguous, float32, float16 or bfloat16: each row has the queries of ``heads`` heads, the
            keys of ``key_heads``, and then the values.
        heads, key_heads: their numbers.
        size: values of a head; even, unless there is nothing to do.
        tile_map: `attention_tiles` on the device; tokens outside the sequences are left as they are.
        rotary: rotary positions; they must reach the longest sequence, which is not checked.
        norm: (2, size) float32, weights of the RMS norms of a query and of a key.
        eps: added to the mean square.

    Raises:
        ValueError: shapes, types or devices do not fit.
    """
    columns = (heads + key_heads) * size
    if x.ndim != 2 or x.shape[1] < columns or not x.is_contiguous():
        raise ValueError(f"x must be contiguous (tokens, {columns} or more), not {tuple(x.shape)}")
    if len(x) == 0 or (rotary is None and norm is None):
        return  # whatever the size of the heads, which may be odd without positions
    if size % 2 or not 2 <= size <= 256:
        raise ValueError(f"heads of {size} values; the kernel supports even sizes from 2 to 256")
    if size == 2 and rotary is not None and rotary.trained:
        raise ValueError("rotary.trained: heads of 2 values cannot be stretched")
    if norm is not None and (norm.shape != (2, size) or norm.dtype != torch.float32):
        raise ValueError(f"norm must be float32 (2, {size}), not {norm.dtype} {tuple(norm.shape)}")
    for name, table in () if rotary is None else (("cos", rotary.cos), ("sin", rotary.sin)):
        if table.dtype != torch.float32 or table.ndim != 2 or table.shape[1] != size // 2:
            raise ValueError(
                f"{name} must be float32 (positions, {size // 2}), not {table.dtype} {tuple(table.shape)}"
            )
    if tile_map.dtype != torch.int32 or tile_map.ndim != 2 or not tile_map.is_contiguous():
        raise ValueError(
            "tile_map must be contiguous int32 as returned by attention_tiles, "
            f"not {tile_map.dtype} {tuple(tile_map.shape)}"
        )
    cos, sin, speed = (None, None, None) if rotary is None else (rotary.cos, rotary.sin, rotary.speed)
    check_tensors(
        x=x, cos=cos, sin=sin, speed=speed, norm=norm, others={"tile_map": tile_map},
        instead="embedkit.kernels.reference",
    )  # fmt: skip
    block = tile_map.shape[1] - HEADER
    if rotary is not None and rotary.trained and rotary.trained < block:
        raise ValueError(f"rotary.trained {rotary.trained} is below a tile of {block} tokens")
    with device_of(x):
        forward[(len(tile_map) * triton.cdiv(heads + key_heads, _GROUP),)](
            x, tile_map, cos, sin, speed, norm, eps, 1.0 if rotary is None else rotary.stretch,
            TOKEN=x.shape[1], HEADS=heads, KEYS=key_heads,
            NORM=norm is not None, ROTARY=rotary is not None, TRAINED=0 if rotary is None else rotary.trained,
            **_options(size, block),
        )  # fmt: skip


def _options(size: int, block: int) -> dict[str, int]:
    """The compile-time arguments of the kernel that follow from the shapes."""
    block_d = max(16, triton.next_power_of_2(size // 2))
    return {
        "D": size, "HEADER": HEADER, "BLOCK_M": block, "HALF": size // 2, "BLOCK_D": block_d, "GROUP": _GROUP,
        "num_warps": 4 if block * block_d <= 2048 else 8 if block * block_d <= 4096 else 16,
    }  # fmt: skip
