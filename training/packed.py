"""Attention over packed sequences, so that a training batch holds no padding.

A packed batch is one row of token ids, ``input_ids (tokens,)``, with ``cu_seqlens (n + 1,)``, the prefix sums of
the lengths. Everything in a transformer but the attention works on single tokens and needs no change; the attention
spreads its queries, keys and values over a padded ``(n, heads, longest, head_size)`` grid and collects the result
again. It is registered with transformers as an attention implementation and reads the grid from the keyword
arguments that the model hands through to it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["NAME", "Grid", "grid_of", "pad", "register", "supports"]

NAME = "embedkit_packed"


class Grid(NamedTuple):
    """Where the tokens of a packed batch lie in its padded form.

    Attributes:
        cells: (tokens,) index of each token in the flattened (n * longest) grid.
        shape: (n, longest).
        mask: (n, 1, 1, longest) bool, True for a token; None when all texts have the same length.
    """

    cells: Tensor
    shape: tuple[int, int]
    mask: Tensor | None


def grid_of(cu_seqlens: Tensor) -> Grid:
    """The grid of a packed batch; ``cu_seqlens (n + 1,)``."""
    lengths = cu_seqlens.diff()
    n, longest = len(lengths), int(lengths.max()) if len(lengths) else 0
    offsets = torch.arange(n, device=cu_seqlens.device) * longest - cu_seqlens[:-1]
    cells = torch.arange(int(cu_seqlens[-1]), device=cu_seqlens.device) + offsets.repeat_interleave(lengths)
    mask = torch.arange(longest, device=cu_seqlens.device) < lengths[:, None]
    return Grid(cells, (n, longest), None if bool(mask.all()) else mask[:, None, None, :])


def pad(x: Tensor, grid: Grid, value: int) -> Tensor:
    """``x (tokens,)`` to ``(n, longest)``, ``value`` where a text has ended: for models that take no packed batch."""
    n, longest = grid.shape
    return x.new_full((n * longest,), value).index_copy_(0, grid.cells, x).view(n, longest)


class _Spread(torch.autograd.Function):
    """``x (tokens, d)`` to the grid ``(cells, d)``, zeros between; its gradient is `_Collect`.

    A plain index would add up gradients in its backward pass. Each token has a cell of its own, so copying is
    enough, and several times faster on a CPU.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cells: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(cells)
        return x.new_zeros((size, x.shape[1])).index_copy_(0, cells, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (cells,) = ctx.saved_tensors
        return grads[0].index_select(0, cells), None, None


class _Collect(torch.autograd.Function):
    """The grid ``(cells, d)`` to ``(tokens, d)``; its gradient is `_Spread`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cells: Tensor) -> Tensor:
        ctx.save_for_backward(cells)
        ctx.size = x.shape[0]
        return x.index_select(0, cells)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (cells,) = ctx.saved_tensors
        return grads[0].new_zeros((ctx.size, grads[0].shape[1])).index_copy_(0, cells, grads[0]), None


def spread(x: Tensor, grid: Grid) -> Tensor:
    """``x (tokens, d)`` to ``(n, longest, d)``, zeros where a text has ended."""
    n, longest = grid.shape
    return _Spread.apply(x, grid.cells, n * longest).view(n, longest, -1)


def collect(x: Tensor, grid: Grid) -> Tensor:
    """``x (n, longest, d)`` to the tokens that are there: (tokens, d)."""
    return _Collect.apply(x.flatten(0, 1), grid.cells)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    grid: Grid | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers calls: ``query``, ``key``, ``value`` are (1, heads, tokens, head_size)."""
    if grid is None:
        raise ValueError(
            f"attention {NAME!r} was called without its grid; call SentenceModel, not its backbone"
        )
    heads, tokens, size = query.shape[1:]

    def grid_form(x: Tensor) -> Tensor:
        rows = x[0].transpose(0, 1)[: len(grid.cells)].flatten(1)
        return spread(rows, grid).view(*grid.shape, heads, size).transpose(1, 2)

    mixed = torch.nn.functional.scaled_dot_product_attention(
        grid_form(query),
        grid_form(key),
        grid_form(value),
        attn_mask=grid.mask,
        dropout_p=dropout,
        scale=scaling,
    )
    found = collect(mixed.transpose(1, 2).flatten(2), grid)
    idle = tokens - len(grid.cells)
    return torch.nn.functional.pad(found, (0, 0, 0, idle)).view(1, tokens, heads, size), None


def _no_mask(*_: Any, **__: Any) -> None:
    """The mask that transformers would build over the whole row; the grid holds the real one."""


def supports(model: Any) -> bool:
    """Whether a transformers model lets its attention be replaced (4.48's BERT, MPNet and RoFormer do not)."""
    return bool(getattr(model, "_supports_attention_backend", False)) and _registry() is not None


def register() -> None:
    """Make the implementation known to transformers under `NAME`."""
    registry = _registry()
    if registry is None:
        raise RuntimeError("this transformers has no attention interface; call supports() first")
    attention, masks = registry
    attention.register(NAME, _attention)
    masks.register(NAME, _no_mask)


def _registry() -> tuple[Any, Any] | None:
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface
    except ImportError:
        return None
    return AttentionInterface, AttentionMaskInterface
