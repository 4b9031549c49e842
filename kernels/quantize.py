"""Activations and weights in 8 bits with their scales, for `embedkit.kernels.quantized_linear`.

    int8    x ≈ scale · q + shift     scale = (max − min) / 255      shift = min + 128 · scale      a row
    fp8     x ≈ scale · q             scale = max |x| / 448 (the maximum of e4m3)                   a row
    in groups of 128 columns: x ≈ scale · q      scale = max |x| / 127 or / 448             a row and group

Layer norms write rows (`embedkit.kernels.layernorm`), the product before a GELU writes groups. The output of a layer
norm is asymmetric, so 8 bits between minimum and maximum gain nearly one bit over 8 bits around zero, and the shift
costs one multiplication per result. Each group has its own range, which gains more than a shift.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import triton
from torch import Tensor

__all__ = ["GROUP", "TYPES", "Products", "QuantizedRows", "QuantizedWeight", "quantize_weight"]

Products = Literal["fp8", "int8"]
GROUP = 128
"""Columns that share a scale if a row is quantized in groups."""
TYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
_LARGEST = {"fp8": 448.0, "int8": 127.0}


@dataclass(frozen=True)
class QuantizedRows:
    """Activations in 8 bits.

    Attributes:
        products: "fp8" or "int8".
        values: (tokens, K) float8_e4m3fn or int8.
        scale: (tokens,) or, in groups, (tokens, ⌈K / 128⌉), float32.
        shift: (tokens,) float32; None for fp8 and in groups.
    """

    products: Products
    values: Tensor
    scale: Tensor
    shift: Tensor | None

    @classmethod
    def empty(
        cls, tokens: int, size: int, products: Products, device: torch.device, *, groups: bool = False
    ) -> QuantizedRows:
        """Uninitialized memory for a kernel to write."""
        if products not in TYPES:
            raise ValueError(f"unknown products {products!r}; expected one of fp8, int8")
        shape = (tokens, triton.cdiv(size, GROUP)) if groups else (tokens,)
        shifted = products == "int8" and not groups
        return cls(
            products,
            torch.empty(tokens, size, dtype=TYPES[products], device=device),
            torch.empty(shape, dtype=torch.float32, device=device),
            torch.empty(tokens, dtype=torch.float32, device=device) if shifted else None,
        )

    @property
    def groups(self) -> bool:
        """Whether each group of 128 columns has its own scale."""
        return self.scale.ndim == 2


@dataclass(frozen=True)
class QuantizedWeight:
    """The weight matrix of a projection in 8 bits: W ≈ scale · q for each output.

    Attributes:
        products: "fp8" or "int8".
        values: (N, K) float8_e4m3fn or int8.
        scale: (N,) float32.
        sums: (N,) float32, the sum of each row of scale · q, which multiplies the shift of the activations.
    """

    products: Products
    values: Tensor
    scale: Tensor
    sums: Tensor


def quantize_weight(weight: Tensor, products: Products) -> QuantizedWeight:
    """Quantize ``weight`` (N, K); the scale of each output maps its largest magnitude to the largest number."""
    if weight.ndim != 2 or not weight.is_floating_point():
        raise ValueError(f"weight must be floating-point (N, K), not {weight.dtype} {tuple(weight.shape)}")
    if products not in TYPES:
        raise ValueError(f"unknown products {products!r}; expected one of fp8, int8")
    exact = weight.float()
    scale = exact.abs().amax(dim=1) / _LARGEST[products]
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    scaled = exact / scale[:, None]
    values = (scaled.round() if products == "int8" else scaled).to(TYPES[products])
    return QuantizedWeight(products, values, scale, scale * values.float().sum(dim=1))
