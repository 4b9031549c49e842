"""Pool the tokens of each text, project, normalize and quantize: one Triton launch.

    p_b = mean | max | first of the tokens of text b          (H)
    z_b = activation(p_b W + bias)                            (D)
    y_b = z_b / max(‖z_b‖₂, 1e-12)                            (D)

Projection, normalization and quantization are optional. `pool_project_normalize_triton` explains the algorithm and the
gradients; this file checks arguments, chooses block sizes and launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import triton
from torch import Tensor

from .blocks import blocks, capability_of
from .launch import INTEGERS, check_tensors, device_of, warps
from .pool_project_normalize_triton import backward_head, backward_tokens, forward

__all__ = ["MAX_HIDDEN_SIZE", "Output", "Pooling", "max_dimension", "pool_project_normalize"]

Pooling = Literal["mean", "max", "cls"]
Activation = Literal["identity", "tanh"]
Output = Literal["float32", "int8", "uint8", "binary", "ubinary"]

MAX_HIDDEN_SIZE = 8192
"""A program holds a token's vector in registers."""
MAX_DIMENSION = 1024
"""A program holds 16 projected texts in registers."""

_TILE = 16  # texts in a matrix product: the minimum of tensor cores
_OUTPUTS = {
    "float32": torch.float32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "binary": torch.int8,
    "ubinary": torch.uint8,
}


def _blocks(width: int, pooling: str = "mean", capability: int = 80) -> dict[str, int]:
    """BLOCK_T and BLOCK_H for rows of ``width``; half as many values per program if each has an index."""
    block = max(16, triton.next_power_of_2(width))
    values = blocks("pool_project_normalize", capability)["VALUES"] // (1 if pooling == "mean" else 2)
    return {"BLOCK_T": max(1, min(16, values // block)), "BLOCK_H": block}


def pool_project_normalize(
    hidden: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    pooling: Pooling = "mean",
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    activation: Activation = "identity",
    normalize: bool = False,
    output: Output = "float32",
    ranges: Tensor | None = None,
) -> Tensor:
    """Pool the tokens of each text, project, scale to length 1 and quantize; float32 inside and out.

    Args:
        hidden: (tokens, H) with ``cu_seqlens``, or (texts, T, H) with ``mask`` or ``lengths``; float32,
            float16 or bfloat16 on a GPU. Texts that are not adjacent in memory are copied first.
        cu_seqlens: (texts + 1,), int32 or int64: text b is the rows ``cu_seqlens[b]`` up to
            ``cu_seqlens[b + 1]``. It must start with 0, not decrease and end within ``hidden``; this is not
            checked, as reading it would stall the GPU. Rows from ``cu_seqlens[-1]`` on are ignored.
        mask: (texts, T), of any type; tokens with 0 are excluded.
        lengths: (texts,), int32 or int64; the number of leading tokens of each text that count.
        pooling: "mean", "max" or "cls" (the first token that counts). The first of equal maxima gets the
            gradient.
        weight: (H, D), with any strides; for a ``torch.nn.Linear`` pass ``linear.weight.T``. If it has 16 bits,
            the pooled row enters the product as the sum of two 16-bit rows, in whose range its values must be; sums are
            float32.
        bias: (D,), only with ``weight``.
        activation: "identity" or "tanh", after the projection; only with ``weight``.
        normalize: scale each vector to length 1. A text without tokens is pooled to zeros.
        output: "float32" (differentiable), or the types of `Encoder.encode`: "int8" and "uint8" (the ``ranges``
            in 255 steps), "binary" and "ubinary" (signs, 8 dimensions per byte).
        ranges: (2, D) float32, minimum and maximum of each dimension; for int8 and uint8.

    Returns:
        (texts, D), without ``weight`` (texts, H), packed (texts, ⌈D / 8⌉).

    Raises:
        ValueError: shapes, types or devices do not fit.
    """
    layout = _layout(hidden, cu_seqlens, mask, lengths)
    padded = 0 if layout == "packed" else hidden.shape[1]
    settings = _Settings(layout, padded, pooling, activation, normalize, output)
    _check(settings, hidden, cu_seqlens, mask, lengths, weight, bias, ranges)
    if layout != "packed":
        hidden = hidden.reshape(-1, hidden.shape[2])
    if hidden.stride(1) != 1 and hidden.numel() > 0:
        hidden = hidden.contiguous()
    if mask is not None:
        mask = mask.contiguous()
        mask = mask.view(torch.uint8) if mask.dtype == torch.bool else mask
    bounds = lengths if cu_seqlens is None else cu_seqlens
    bounds = None if bounds is None else bounds.contiguous()
    wanted = [t is not None and t.requires_grad for t in (hidden, weight, bias)]
    if torch.is_grad_enabled() and any(wanted):
        if output != "float32":
            raise ValueError(f"output {output!r} has no gradient. Use torch.no_grad() or output='float32'.")
        apply: Any = _Fused.apply
        result: Tensor = apply(hidden, weight, bias, bounds, mask, settings)
        return result
    return _launch(settings, hidden, weight, bias, bounds, mask, ranges, save=False)[0]


@dataclass(frozen=True)
class _Settings:
    """What a launch does; ``padded`` is T, or 0 for packed texts."""

    layout: str
    padded: int
    pooling: str
    activation: str
    normalize: bool
    output: str = "float32"


def _launch(
    settings: _Settings,
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    bounds: Tensor | None,
    mask: Tensor | None,
    ranges: Tensor | None,
    *,
    save: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The result, and those of the kernel's pooled, count, index and norm that are needed."""
    output, pooling = settings.output, settings.pooling
    size = hidden.shape[1]
    texts = _texts(bounds, mask, settings.layout)
    dimension = size if weight is None else weight.shape[1]
    columns = (dimension + 7) // 8 if "binary" in output else dimension

    def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=hidden.device)

    result = new(texts, columns, dtype=_OUTPUTS[output])
    project = weight is not None
    pooled = new(texts, size) if project else None
    count = new(texts, dtype=torch.int32) if save else None
    norm = new(texts) if save and settings.normalize else None
    index = None
    if save and pooling != "mean":
        index = new(*(texts, size)[: 2 if pooling == "max" else 1], dtype=torch.int32)
    if texts == 0:
        return result, pooled, count, index, norm
    # Allocated for every call: launches on different streams must not share tickets.
    tickets = None
    if project:
        tickets = torch.zeros(triton.cdiv(texts, _TILE), dtype=torch.int32, device=hidden.device)
    with device_of(hidden):
        forward[(texts,)](
            hidden, bounds, mask, weight, bias, None if ranges is None else ranges.contiguous(),
            result, pooled, count, index, norm, tickets, texts, settings.padded,
            STRIDE_TOKEN=hidden.stride(0),
            **_options(settings, size, dimension, weight, capability_of(hidden.device)),
            BIAS=bias is not None, SAVE=save,
        )  # fmt: skip
    return result, pooled, count, index, norm


def max_dimension(weight: torch.dtype, capability: int) -> int:
    """The most output dimensions whose slices of W fit the shared memory of a GPU of ten times this capability."""
    return MAX_DIMENSION if capability >= 80 or weight.itemsize <= 2 else 512


def _options(
    settings: _Settings, size: int, dimension: int, weight: Tensor | None, capability: int = 80
) -> dict[str, Any]:
    """The compile-time arguments of `forward` but STRIDE_TOKEN, BIAS and SAVE."""
    block = max(16, triton.next_power_of_2(dimension))
    # Two 32 KiB slices of W (for pipelining) fit the shared memory of every GPU from sm_80 on.
    width = 4 if weight is None else weight.element_size()
    return {
        "H": size,
        "D": dimension,
        "STRIDE_WH": 0 if weight is None else weight.stride(0),
        "STRIDE_WD": 0 if weight is None else weight.stride(1),
        "LAYOUT": settings.layout,
        "POOLING": settings.pooling,
        "ACTIVATION": settings.activation,
        "NORMALIZE": settings.normalize,
        "OUTPUT": settings.output,
        "PROJECT": weight is not None,
        "BLOCK_D": block,
        "BLOCK_K": max(16, min(64, 32768 // (block * width))),
        "TILE": _TILE,
        "WIDEN": bool(triton.knobs.runtime.interpret),
        "num_warps": warps(max(size, 4 * block if weight is not None else 0)),
        "num_stages": 2,
        **_blocks(size, settings.pooling, capability),
    }


def _texts(bounds: Tensor | None, mask: Tensor | None, layout: str) -> int:
    """The number of texts in the batch."""
    if bounds is None:
        return 0 if mask is None else len(mask)
    return len(bounds) - (layout == "packed")


class _Fused(torch.autograd.Function):
    """The launch with its gradients; not differentiable twice."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        bounds: Tensor | None,
        mask: Tensor | None,
        settings: _Settings,
    ) -> Tensor:
        result, pooled, count, index, norm = _launch(
            settings, hidden, weight, bias, bounds, mask, None, save=True
        )
        ctx.save_for_backward(weight, bounds, mask, result, pooled, count, index, norm)
        ctx.settings = settings
        ctx.hidden = hidden.shape, hidden.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, bounds, mask, result, pooled, count, index, norm = ctx.saved_tensors
        settings: _Settings = ctx.settings
        normalize = settings.normalize
        texts = len(result)
        grad_hidden = grad_weight = grad_bias = None
        # Under autocast the matrix products would run in 16 bits.
        with device_of(result), torch.autocast(result.device.type, enabled=False):
            grad = grad.contiguous()
            if normalize or weight is not None:
                grad = _head_gradient(grad, result, norm, settings.activation == "tanh", normalize)
            if weight is not None:
                if ctx.needs_input_grad[1]:
                    grad_weight = (pooled.T @ grad).to(weight.dtype)
                if ctx.needs_input_grad[2]:
                    grad_bias = grad.sum(dim=0).to(ctx.bias_dtype)
                if ctx.needs_input_grad[0]:
                    grad = grad @ weight.float().T
            if ctx.needs_input_grad[0]:
                shape, dtype = ctx.hidden
                grad_hidden = torch.empty(shape, dtype=dtype, device=grad.device)
                # One more program for the rows that belong to no text.
                programs = texts + (settings.layout == "packed")
                if grad_hidden.numel() > 0:
                    backward_tokens[(programs,)](
                        grad, bounds, mask, count, index, grad_hidden, texts, settings.padded, shape[0],
                        H=shape[1], LAYOUT=settings.layout, POOLING=settings.pooling,
                        **_blocks(shape[1], capability=capability_of(grad.device)),
                        num_warps=warps(shape[1]),
                    )  # fmt: skip
        return grad_hidden, grad_weight, grad_bias, None, None, None


def _head_gradient(grad: Tensor, result: Tensor, norm: Tensor | None, tanh: bool, normalize: bool) -> Tensor:
    """∂L/∂a (texts, D) from ∂L/∂y (texts, D)."""
    texts, dimension = result.shape
    before = torch.empty_like(result)
    block = triton.next_power_of_2(dimension)
    rows = max(1, 1024 // block)
    if texts > 0:
        backward_head[(triton.cdiv(texts, rows),)](
            grad, result, norm, before, texts,
            D=dimension, TANH=tanh, NORMALIZE=normalize, ROWS=rows, BLOCK_D=block, num_warps=warps(block),
        )  # fmt: skip
    return before


def _layout(hidden: Tensor, cu_seqlens: Tensor | None, mask: Tensor | None, lengths: Tensor | None) -> str:
    """The layout of ``hidden``: "packed", "mask" or "lengths"."""
    if [cu_seqlens, mask, lengths].count(None) != 2:
        raise ValueError("give one of cu_seqlens, mask and lengths")
    layout = "packed" if cu_seqlens is not None else "mask" if mask is not None else "lengths"
    if hidden.ndim != (2 if layout == "packed" else 3):
        shape = "(tokens, H)" if layout == "packed" else "(texts, T, H)"
        raise ValueError(f"hidden must be {shape}, not {tuple(hidden.shape)}, with {layout!r} texts")
    return layout


def _check(
    settings: _Settings,
    hidden: Tensor,
    cu_seqlens: Tensor | None,
    mask: Tensor | None,
    lengths: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    ranges: Tensor | None,
) -> None:
    """Raise a ValueError for anything wrong that can be seen without reading GPU memory."""
    output = settings.output
    for name, choice, known in (
        ("pooling", settings.pooling, ("mean", "max", "cls")),
        ("activation", settings.activation, ("identity", "tanh")),
        ("output", output, tuple(_OUTPUTS)),
    ):
        if choice not in known:
            raise ValueError(f"unknown {name} {choice!r}; expected one of {', '.join(known)}")
    _check_bounds(hidden, cu_seqlens, mask, lengths)
    size = hidden.shape[-1]
    _check_head(size, weight, bias, settings.activation)
    dimension = size if weight is None else weight.shape[1]
    if not 1 <= size <= MAX_HIDDEN_SIZE:
        raise ValueError(f"hidden has rows of {size} values; the kernel supports 1 to {MAX_HIDDEN_SIZE}")
    quantized = output in ("int8", "uint8")
    if quantized != (ranges is not None):
        raise ValueError(f"output {output!r} {'needs' if quantized else 'takes no'} ranges")
    if ranges is not None and (ranges.shape != (2, dimension) or ranges.dtype != torch.float32):
        raise ValueError(f"ranges must be float32 (2, {dimension}), not {ranges.dtype} {tuple(ranges.shape)}")
    check_tensors(
        hidden=hidden, weight=weight, bias=bias,
        others={"cu_seqlens": cu_seqlens, "mask": mask, "lengths": lengths, "ranges": ranges},
        instead="embedkit.training.pooling",
    )  # fmt: skip


def _check_bounds(
    hidden: Tensor, cu_seqlens: Tensor | None, mask: Tensor | None, lengths: Tensor | None
) -> None:
    """Raise a ValueError for cu_seqlens, mask or lengths that do not fit ``hidden``."""
    if cu_seqlens is not None and (
        cu_seqlens.ndim != 1 or len(cu_seqlens) == 0 or cu_seqlens.dtype not in INTEGERS
    ):
        raise ValueError(
            "cu_seqlens must be int32 or int64 (texts + 1,), "
            f"not {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}"
        )
    if mask is not None and mask.shape != hidden.shape[:2]:
        raise ValueError(f"mask must be {tuple(hidden.shape[:2])} as hidden has it, not {tuple(mask.shape)}")
    if lengths is not None and (lengths.shape != hidden.shape[:1] or lengths.dtype not in INTEGERS):
        raise ValueError(
            f"lengths must be int32 or int64 ({hidden.shape[0]},), not {lengths.dtype} {tuple(lengths.shape)}"
        )


def _check_head(size: int, weight: Tensor | None, bias: Tensor | None, activation: str) -> None:
    """Raise a ValueError for a projection that does not fit rows of ``size``."""
    if weight is None:
        if bias is not None or activation != "identity":
            raise ValueError("bias and activation belong to a projection. Give weight as well.")
        return
    if weight.ndim != 2 or weight.shape[0] != size:
        raise ValueError(
            f"weight must be ({size}, D), not {tuple(weight.shape)}. "
            "For a torch.nn.Linear pass linear.weight.T."
        )
    most = max_dimension(weight.dtype, capability_of(weight.device))
    if not 1 <= weight.shape[1] <= most:
        raise ValueError(
            f"weight has {weight.shape[1]} output dimensions; the kernel supports 1 to {most}. "
            "Project with torch.nn.functional.linear."
        )
    if bias is not None and bias.shape != weight.shape[1:]:
        raise ValueError(f"bias must be ({weight.shape[1]},) for this weight, not {tuple(bias.shape)}")
