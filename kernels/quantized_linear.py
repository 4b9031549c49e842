"""A linear layer with 8-bit activations and weights, fused with bias and activation in one Triton kernel.

The formulas are in `quantized_linear_triton`, the 8-bit formats in `quantize`. This file checks arguments, chooses
block sizes and launches. Forward only; "fp8" needs compute capability 8.9, "int8" 8.0.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import triton
from torch import Tensor

from .blocks import blocks, capability_of, multiprocessors
from .launch import FLOATS, check_tensors, device_of
from .quantize import GROUP, TYPES, QuantizedRows, QuantizedWeight
from .quantized_linear_triton import forward

__all__ = ["ACTIVATIONS", "check_products", "quantized_linear", "quantized_linear_groups"]

Activation = Literal["identity", "relu", "gelu", "gelu_new"]
ACTIVATIONS = ("identity", "relu", "gelu", "gelu_new")


def quantized_linear(
    x: QuantizedRows,
    weight: QuantizedWeight,
    bias: Tensor | None = None,
    *,
    activation: Activation = "identity",
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """``activation(x Wᵀ + bias)`` in floating point.

    Args:
        x: (tokens, K), in rows or groups.
        weight: (N, K), for the same ``products``.
        bias: (N,), float32, float16 or bfloat16.
        activation: "identity", "relu", "gelu" (erf) or "gelu_new" (tanh), as in config.json.
        dtype: type of the result.

    Returns:
        (tokens, N) ``dtype``.

    Raises:
        ValueError: shapes, types or devices do not fit.
    """
    if dtype not in FLOATS:
        raise ValueError(f"dtype must be float32, float16 or bfloat16, not {dtype}")
    _check(x, weight, bias, activation)
    tokens, outputs = len(x.values), len(weight.values)
    result = torch.empty(tokens, outputs, dtype=dtype, device=x.values.device)
    _launch(x, weight, bias, activation, result, None)
    return result


def quantized_linear_groups(
    x: QuantizedRows,
    weight: QuantizedWeight,
    bias: Tensor | None = None,
    *,
    activation: Activation = "identity",
) -> QuantizedRows:
    """As `quantized_linear`, with the result (tokens, N) quantized in groups.

    A program computes the columns of one group, so that none waits for a whole row.
    """
    _check(x, weight, bias, activation)
    tokens, outputs = len(x.values), len(weight.values)
    result = QuantizedRows.empty(tokens, outputs, x.products, x.values.device, groups=True)
    _launch(x, weight, bias, activation, result.values, result.scale)
    return result


def check_products(products: str, device: torch.device) -> None:
    """Raise a ValueError if a GPU lacks tensor cores for ``products``."""
    if products not in TYPES:
        raise ValueError(f"unknown products {products!r}; expected one of fp8, int8")
    if triton.knobs.runtime.interpret or device.type != "cuda":
        return
    has, needs = capability_of(device), 89 if products == "fp8" else 80
    if has < needs:
        raise ValueError(
            f"{products} products need compute capability {needs / 10}; {torch.cuda.get_device_name(device)} "
            f"has {has / 10}. " + ("Use int8 or none." if has >= 80 else "Use none.")
        )


def _launch(
    x: QuantizedRows,
    weight: QuantizedWeight,
    bias: Tensor | None,
    activation: str,
    out: Tensor,
    out_scale: Tensor | None,
) -> None:
    """Write ``out``, and ``out_scale`` if the result is quantized."""
    tokens, inputs = x.values.shape
    outputs = len(weight.values)
    if out.numel() == 0:
        return
    device = x.values.device
    options = _options(tokens, outputs, capability_of(device), multiprocessors(device))
    tiles = triton.cdiv(tokens, options["BLOCK_M"]) * triton.cdiv(outputs, options["BLOCK_N"])
    with device_of(x.values):
        forward[(tiles,)](
            x.values, x.scale, x.shift, weight.values, weight.scale, weight.sums, bias, out, out_scale, tokens,
            N=outputs, K=inputs, PRODUCTS=x.products, GROUPS=x.groups, SHIFT=x.shift is not None,
            BIAS=bias is not None, ACTIVATION=activation, QUANTIZE=out_scale is not None, **options,
        )  # fmt: skip


def _options(tokens: int, outputs: int, capability: int, programs: int) -> dict[str, Any]:
    """The block sizes; half as many tokens per program if the batch would leave multiprocessors idle."""
    few = triton.cdiv(tokens, 128) * triton.cdiv(outputs, GROUP) < programs
    computed = {"BLOCK_M": 64, "num_warps": 4} if few else {"BLOCK_M": 128, "num_warps": 8}
    return blocks("quantized_linear", capability, **computed)


def _check(x: QuantizedRows, weight: QuantizedWeight, bias: Tensor | None, activation: str) -> None:
    """Raise a ValueError unless the operands can be multiplied."""
    if x.values.ndim != 2 or weight.values.ndim != 2 or x.values.shape[1] != weight.values.shape[1]:
        raise ValueError(
            f"x must be (tokens, K) and weight (N, K), not {tuple(x.values.shape)} "
            f"and {tuple(weight.values.shape)}"
        )
    for name, rows in (("x", x), ("weight", weight)):
        if rows.products != x.products or rows.values.dtype != TYPES[rows.products]:
            raise ValueError(
                f"{name} is {rows.values.dtype} for {rows.products} products, x is for {x.products}"
            )
        if not rows.values.is_contiguous():
            raise ValueError(f"the values of {name} are not contiguous. Call contiguous() on them.")
    tokens, inputs = x.values.shape
    outputs = len(weight.values)
    expected = (tokens, triton.cdiv(inputs, GROUP)) if x.groups else (tokens,)
    for name, tensor, shape in (
        ("x.scale", x.scale, expected),
        ("x.shift", x.shift, (tokens,)),
        ("weight.scale", weight.scale, (outputs,)),
        ("weight.sums", weight.sums, (outputs,)),
    ):
        if tensor is not None and (
            tensor.shape != shape or tensor.dtype != torch.float32 or not tensor.is_contiguous()
        ):
            raise ValueError(
                f"{name} must be contiguous float32 {shape}, not {tensor.dtype} {tuple(tensor.shape)}"
            )
    if bias is not None and (bias.shape != (outputs,) or not bias.is_contiguous()):
        raise ValueError(f"bias must be contiguous ({outputs},), not {tuple(bias.shape)}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"unknown activation {activation!r}; expected one of {', '.join(ACTIVATIONS)}")
    check_tensors(
        scale=x.scale, bias=bias,
        others={
            "values": x.values, "shift": x.shift, "weight": weight.values,
            "weight.scale": weight.scale, "weight.sums": weight.sums,
        },
        instead="torch.nn.functional.linear",
    )  # fmt: skip
