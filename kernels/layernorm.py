"""Layer norm with what stands before it, one Triton launch each: the embeddings, and the residual connection.

    embed_layernorm      y_t = norm(word[id_t] + position[p_t] + type[τ_t])
    residual_layernorm   y_t = norm(x_t + x_bias + residual_t)

Both write the row in 8 bits as well where a `quantized_linear` comes next. How it is done stands above the
kernels in `layernorm_triton`. This file checks, chooses block shapes and launches. Forward only.
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
"""A row is held in the registers of one program."""


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
        input_ids: (tokens,), int32 or int64. An id that a table does not have cannot be seen here without
            stalling the GPU, so the caller answers for it; the tokens that fill up a batch take any valid id.
        positions: (tokens,), int32 or int64; with ``position`` only.
        token_types: (tokens,), int32 or int64; None: all tokens have type 0.
        word: (vocab_size, H), float32, float16 or bfloat16.
        position: (positions, H); None for models whose positions are elsewhere (rotary).
        type: (types, H); None for models without token types.
        weight, bias: (H,), of the layer norm.
        eps: added to the variance.
        quantized: (tokens, H), in rows; takes the result in 8 bits.

    Returns:
        (tokens, H), of the type of ``word``.

    Raises:
        ValueError: for shapes, types and devices that do not fit.
    """
    if word.ndim != 2:
        raise ValueError(f"word must be (vocab_size, H), not {tuple(word.shape)}")
    if input_ids.ndim != 1:
        raise ValueError(f"input_ids must be (tokens,), not {tuple(input_ids.shape)}")
    if (positions is None) != (position is None):
        raise ValueError("positions are rows of position. Give both or none.")
    if token_types is not None and type is None:
        raise ValueError("token_types are rows of type. Give type as well.")
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
        weight, bias: (H,), of the layer norm.
        eps: added to the variance.
        x_bias: (H,), of the projection that ``x`` comes from.
        quantized: (tokens, H), in rows; takes the result in 8 bits.

    Returns:
        (tokens, H), of the type of ``x``.

    Raises:
        ValueError: for shapes, types and devices that do not fit.
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
    """BLOCK_T rows of BLOCK_H values a program, and its warps."""
    block = max(16, triton.next_power_of_2(width))
    table = blocks("layernorm", capability, num_warps=warps(block))
    return {"BLOCK_T": max(1, table.pop("VALUES") // block), "BLOCK_H": block, **table}


def _tensors_of(quantized: QuantizedRows | None) -> dict[str, Tensor | None]:
    """The three tensors that a kernel fills, or none."""
    if quantized is None:
        return dict.fromkeys(("quantized.values", "quantized.scale", "quantized.shift"))
    return {
        "quantized.values": quantized.values,
        "quantized.scale": quantized.scale,
        "quantized.shift": quantized.shift,
    }


def _products(quantized: QuantizedRows | None) -> str:
    """How the kernel names what it writes besides."""
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
        raise ValueError(f"rows of {size} values; the kernel takes 1 to {MAX_HIDDEN_SIZE}")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor.shape != (size,):
            raise ValueError(f"{name} must be ({size},), not {tuple(tensor.shape)}")
    if not 0 <= eps < 1:
        raise ValueError(f"eps must be from 0 to 1, not {eps}")
