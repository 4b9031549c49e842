"""Layer norm fused with the sum before it, of embeddings or of a residual connection: one Triton kernel each.

    embed_layernorm      y_t = norm(word[id_t] + position[p_t] + type[τ_t])
    residual_layernorm   y_t = norm(x_t + x_bias + residual_t)

Both also write the row in 8 bits if a `quantized_linear` follows. `layernorm_triton` explains the algorithm; this file
checks arguments, chooses block sizes and launches. Forward only.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from .blocks import blocks, capability_of
from .launch import INTEGERS, check_tensors, device_of, warps
from .layernorm_triton import embed
from .layernorm_triton import residual as residual_kernel
from .quantize import QuantizedRows

__all__ = ["MAX_HIDDEN_SIZE", "embed_layernorm", "residual_layernorm", "row_blocks"]

MAX_HIDDEN_SIZE = 8192
"""A program holds a row in registers."""


def embed_layernorm(
    input_ids: Tensor,
    positions: Tensor | None,
    token_types: Tensor | None,
    word: Tensor,
    position: Tensor | None,
    type: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    *,
    quantized: QuantizedRows | None = None,
) -> Tensor:
    """The sum of each token's embeddings, and its layer norm; sums are float32.

    Args:
        input_ids: (tokens,), int32 or int64. Ids outside the tables are not checked, as that would stall the GPU;
            tokens that fill up a batch also need a valid id.
        positions: (tokens,), int32 or int64; only with ``position``.
        token_types: (tokens,), int32 or int64; None if all tokens have type 0.
        word: (vocab_size, H), float32, float16 or bfloat16.
        position: (positions, H); None for models without position embeddings (rotary).
        type: (types, H); None for models without token types.
        weight, bias: (H,), parameters of the layer norm.
        eps: added to the variance.
        quantized: (tokens, H), in rows; receives the result in 8 bits.

    Returns:
        (tokens, H), with the type of ``word``.

    Raises:
        ValueError: shapes, types or devices do not fit.
    """
    if word.ndim != 2:
        raise ValueError(f"word must be (vocab_size, H), not {tuple(word.shape)}")
    if input_ids.ndim != 1:
        raise ValueError(f"input_ids must be (tokens,), not {tuple(input_ids.shape)}")
    if (positions is None) != (position is None):
        raise ValueError("positions are rows of position; pass both or neither.")
    if token_types is not None and type is None:
        raise ValueError("token_types are rows of type; pass type as well.")
    for name, ids in (("input_ids", input_ids), ("positions", positions), ("token_types", token_types)):
        if ids is not None and (ids.shape != input_ids.shape or ids.dtype not in INTEGERS):
            raise ValueError(
                f"{name} must be int32 or int64 ({len(input_ids)},), not {ids.dtype} {tuple(ids.shape)}"
            )
    tokens, size = len(input_ids), word.shape[1]
    for name, table in (("position", position), ("type", type)):
        if table is not None and (table.ndim != 2 or table.shape[1] != size):
            raise ValueError(f"{name} must be (rows, {size}) as word has it, not {tuple(table.shape)}")
    _check_norm(size, weight, bias, eps)
    _check_quantized(tokens, size, quantized)
    check_tensors(
        word=word, position=position, type=type, weight=weight, bias=bias,
        others={
            "input_ids": input_ids, "positions": positions, "token_types": token_types,
            **_tensors_of(quantized),
        },
        instead="torch.nn.functional",
    )  # fmt: skip
    result = torch.empty(tokens, size, dtype=word.dtype, device=word.device)
    options = row_blocks(size, capability_of(word.device))
    if tokens > 0:
        with device_of(word):
            embed[(triton.cdiv(tokens, options["BLOCK_T"]),)](
                *(
                    None if x is None else x.contiguous()
                    for x in (input_ids, positions, token_types, word, position, type, weight, bias)
                ),
                result, *_tensors_of(quantized).values(), tokens, eps,
                H=size, POSITION=position is not None, TYPE=type is not None,
                TYPE_IDS=token_types is not None, QUANTIZE=_products(quantized), **options,
            )  # fmt: skip
    return result


def residual_layernorm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    x_bias: Tensor | None = None,
    *,
    quantized: QuantizedRows | None = None,
) -> Tensor:
    """The layer norm of ``x + x_bias + residual``; sums are float32.

    Args:
        x: (tokens, H), float32, float16 or bfloat16.
        residual: (tokens, H).
        weight, bias: (H,), parameters of the layer norm.
        eps: added to the variance.
        x_bias: (H,), the bias of the projection that computes ``x``.
        quantized: (tokens, H), in rows; receives the result in 8 bits.

    Returns:
        (tokens, H), with the type of ``x``.

    Raises:
        ValueError: shapes, types or devices do not fit.
    """
    if x.ndim != 2 or residual.shape != x.shape:
        raise ValueError(
            f"x and residual must both be (tokens, H), not {tuple(x.shape)} and {tuple(residual.shape)}"
        )
    tokens, size = x.shape
    _check_norm(size, weight, bias, eps)
    if x_bias is not None and x_bias.shape != (size,):
        raise ValueError(f"x_bias must be ({size},), not {tuple(x_bias.shape)}")
    _check_quantized(tokens, size, quantized)
    check_tensors(
        x=x, residual=residual, weight=weight, bias=bias, x_bias=x_bias,
        others=_tensors_of(quantized), instead="torch.nn.functional",
    )  # fmt: skip
    result = torch.empty(tokens, size, dtype=x.dtype, device=x.device)
    options = row_blocks(size, capability_of(x.device))
    if tokens > 0:
        with device_of(x):
            residual_kernel[(triton.cdiv(tokens, options["BLOCK_T"]),)](
                x.contiguous(), residual.contiguous(), None if x_bias is None else x_bias.contiguous(),
                weight.contiguous(), bias.contiguous(), result, *_tensors_of(quantized).values(), tokens, eps,
                H=size, X_BIAS=x_bias is not None, QUANTIZE=_products(quantized), **options,
            )  # fmt: skip
    return result


def row_blocks(width: int, capability: int) -> dict[str, int]:
    """BLOCK_T rows of BLOCK_H values per program, and its warps."""
    block = max(16, triton.next_power_of_2(width))
    table = blocks("layernorm", capability, num_warps=warps(block))
    return {"BLOCK_T": max(1, table.pop("VALUES") // block), "BLOCK_H": block, **table}


def _tensors_of(quantized: QuantizedRows | None) -> dict[str, Tensor | None]:
    """The three tensors that a kernel writes, or None for each."""
    if quantized is None:
        return dict.fromkeys(("quantized.values", "quantized.scale", "quantized.shift"))
    return {
        "quantized.values": quantized.values,
        "quantized.scale": quantized.scale,
        "quantized.shift": quantized.shift,
    }


def _products(quantized: QuantizedRows | None) -> str:
    """The kernel's argument QUANTIZE."""
    return "" if quantized is None else quantized.products


def _check_quantized(tokens: int, size: int, quantized: QuantizedRows | None) -> None:
    """Raise a ValueError for memory that does not fit (tokens, size)."""
    if quantized is not None and (quantized.values.shape != (tokens, size) or quantized.groups):
        raise ValueError(
            f"quantized must be rows ({tokens}, {size}), not {tuple(quantized.values.shape)}"
            + (" in groups" if quantized.groups else "")
        )


def _check_norm(size: int, weight: Tensor, bias: Tensor, eps: float) -> None:
    """Raise a ValueError for a layer norm that does not fit rows of ``size``."""
    if not 1 <= size <= MAX_HIDDEN_SIZE:
        raise ValueError(f"rows of {size} values; the kernel supports 1 to {MAX_HIDDEN_SIZE}")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor.shape != (size,):
            raise ValueError(f"{name} must be ({size},), not {tuple(tensor.shape)}")
    if not 0 <= eps < 1:
        raise ValueError(f"eps must be from 0 to 1, not {eps}")
