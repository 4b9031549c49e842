"""Attention over packed sequences, so that a training batch has no padding.

A packed batch is one row of token ids, ``input_ids (tokens,)``, with ``cu_seqlens (n + 1,)``, the prefix sums of
the lengths. Everything in a transformer except attention works on single tokens and needs no change; the attention
spreads its queries, keys and values over padded ``(n, heads, longest, head_size)`` blocks, one for each range of
lengths, and collects the result again. It is registered with transformers as an attention implementation and reads
the blocks from the keyword arguments that the model passes to it. A model whose attention cannot be replaced is called
with padded ids, once for each block of `passes_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .dropout import dropout as drop

__all__ = [
    "FAMILIES",
    "NAME",
    "Block",
    "Grid",
    "blocks_of",
    "grid_of",
    "pad",
    "passes_of",
    "register",
    "supports",
]

NAME = "embedkit_packed"
# Families whose token vectors were compared with those of single texts. In others, more than the attention may see
# neighboring tokens: MobileBERT joins the embeddings of neighbors, ESM counts positions from its padding id.
FAMILIES = frozenset(
    {
        *(
            "albert",
            "bert",
            "bert-generation",
            "camembert",
            "data2vec-text",
            "distilbert",
            "electra",
            "ernie",
        ),
        *("eurobert", "jina_embeddings_v3", "nomic_bert", "roberta", "roberta-prelayernorm", "xlm-roberta"),
        "xlm-roberta-xl",
    }
)
_PLAIN = 256  # tokens up to which products and a softmax are the faster attention in bfloat16 on a CPU
_PASS = 256  # tokens of padding that cost a CPU more than what a pass costs besides its tokens

Lengths = npt.NDArray[np.integer[Any]]


class Block(NamedTuple):
    """Texts padded to the longest of them.

    Attributes:
        shape: (n, longest).
        mask: (n, 1, 1, longest) bool, True for a token; None when all texts have the same length.
    """

    shape: tuple[int, int]
    mask: Tensor | None


class Grid(NamedTuple):
    """The positions of the tokens of a packed batch in its padded form.

    Attributes:
        cells: (tokens,) index of each token in the concatenated, flattened blocks.
        blocks: each text is in one block.
    """

    cells: Tensor
    blocks: tuple[Block, ...]


def grid_of(cu_seqlens: Tensor) -> Grid:
    """All texts of a packed batch in one block, in order; ``cu_seqlens (n + 1,)``."""
    return _grid(cu_seqlens, np.zeros_like)


def blocks_of(cu_seqlens: Tensor) -> Grid:
    """One block per range of lengths, half an octave wide; ``cu_seqlens (n + 1,)``.

    Attention scores take the square of a block's longest text for each of its texts: in a single block, one long
    text would make a hundred short ones expensive.
    """
    return _grid(cu_seqlens, lambda lengths: np.ceil(2 * np.log2(np.maximum(lengths, 8))))


def passes_of(cu_seqlens: Tensor) -> Grid:
    """As few blocks as save padding: for models that take no packed batch, and are called once for each block.

    A block is cut in two where that saves most cells, if those cost more than another call. On a GPU, where a call
    takes as long as thousands of tokens, there is one block.
    """
    return _grid(cu_seqlens, _worth_a_pass) if cu_seqlens.device.type == "cpu" else grid_of(cu_seqlens)


def _worth_a_pass(lengths: Lengths) -> Lengths:
    """The longest of each text's block, for `passes_of`."""
    tops, parts = [], [np.sort(lengths)[::-1]]
    while parts:
        part = parts.pop()
        saved = (part[:1] - part) * np.arange(len(part), 0, -1)
        if len(part) and saved.max() > _PASS:
            cut = int(saved.argmax())
            parts += [part[:cut], part[cut:]]
        else:
            tops += part[:1].tolist()
    tops.sort()
    return np.asarray(tops, lengths.dtype)[np.searchsorted(tops, lengths)]


def _grid(cu_seqlens: Tensor, kind: Callable[[Lengths], Any]) -> Grid:
    """The grid in which texts of one ``kind(lengths)`` share a block."""
    device, ends = cu_seqlens.device, cu_seqlens.cpu().numpy()
    lengths = np.diff(ends)
    kinds, starts = kind(lengths), np.empty_like(lengths)
    blocks, offset = [], 0
    for one in np.unique(kinds):
        texts = np.flatnonzero(kinds == one)
        n, longest = len(texts), int(lengths[texts].max())
        starts[texts] = offset + np.arange(n) * longest
        offset += n * longest
        mask = np.arange(longest) < lengths[texts, None]
        block_mask = None if mask.all() else torch.from_numpy(mask[:, None, None, :]).to(device)
        blocks.append(Block((n, longest), block_mask))
    cells = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths)
    return Grid(torch.from_numpy(cells).to(device), tuple(blocks))


def pad(x: Tensor, grid: Grid, value: int) -> tuple[Tensor, ...]:
    """Pad ``x (tokens,)`` to ``(n, longest)`` with ``value`` for each block."""
    sizes = [n * longest for (n, longest), _ in grid.blocks]
    cells = x.new_full((sum(sizes),), value).index_copy_(0, grid.cells, x).split(sizes)
    return tuple(part.view(block.shape) for part, block in zip(cells, grid.blocks, strict=True))


class _Spread(torch.autograd.Function):
    """``x (tokens, d)`` to the grid ``(cells, d)``, zeros between; its gradient is `_Collect`.

    Plain indexing would sum gradients in the backward pass. Each token has its own cell, so copying is enough, and
    several times faster on a CPU.
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


def spread(x: Tensor, grid: Grid) -> tuple[Tensor, ...]:
    """``x (tokens, d)`` to ``(n, longest, d)`` for each block, zeros where a text has ended."""
    sizes = [n * longest for (n, longest), _ in grid.blocks]
    cells = _Spread.apply(x, grid.cells, sum(sizes)).split(sizes)
    return tuple(part.view(*block.shape, -1) for part, block in zip(cells, grid.blocks, strict=True))


def collect(blocks: Sequence[Tensor], grid: Grid) -> Tensor:
    """``(n, longest, d)`` for each block to the tokens without padding: (tokens, d)."""
    cells = [block.flatten(0, 1) for block in blocks]
    return _Collect.apply(cells[0] if len(cells) == 1 else torch.cat(cells), grid.cells)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
) -> Tensor:
    """softmax(query keyᵀ scaling) value of ``(n, heads, longest, head_size)``."""
    if query.device.type != "cpu" or query.dtype != torch.bfloat16 or query.shape[2] > _PLAIN:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling
        )
    # PyTorch's own attention takes 4 to 10 times as long here: most of a training step
    scores = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.transpose(2, 3)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return drop(scores.softmax(3), dropout) @ value


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
    """Called by transformers; ``query``, ``key`` and ``value`` are (1, heads, tokens, head_size)."""
    if grid is None:
        raise ValueError(
            f"attention {NAME!r} was called without its grid; call SentenceModel, not its backbone"
        )
    heads, tokens, size = query.shape[1:]

    def block_form(x: Tensor) -> list[Tensor]:
        rows = x[0].transpose(0, 1)[: len(grid.cells)].flatten(1)
        return [part.unflatten(2, (heads, size)).transpose(1, 2) for part in spread(rows, grid)]

    mixed = [
        _attend(q, k, v, mask=block.mask, dropout=dropout, scaling=scaling).transpose(1, 2).flatten(2)
        for q, k, v, block in zip(*map(block_form, (query, key, value)), grid.blocks, strict=True)
    ]
    found = collect(mixed, grid)
    idle = tokens - len(grid.cells)
    return torch.nn.functional.pad(found, (0, 0, 0, idle)).view(1, tokens, heads, size), None


def _no_mask(*_: Any, **__: Any) -> None:
    """Replaces the mask that transformers would build over the whole row; the grid contains the real one."""


def supports(model: Any) -> bool:
    """Whether a transformers model lets its attention be replaced by this one, and is of one of the `FAMILIES`.

    4.48's BERT, MPNet and RoFormer do not. Those of models with a causal mask, a window or shared keys would be
    replaced by something else: here every token attends to all tokens of its text, each head with its own keys.
    """
    if getattr(model.config, "model_type", None) not in FAMILIES:
        return False
    if not getattr(model, "_supports_attention_backend", False) or _registry() is None:
        return False
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    return kinds == {"full_attention"} and not any(map(_attends_otherwise, model.modules()))


def _attends_otherwise(module: Any) -> bool:
    """Whether an attention of transformers is causal, has a window, or shares keys among heads."""
    return bool(
        getattr(module, "is_causal", False)
        or getattr(module, "sliding_window", None)
        or getattr(module, "num_key_value_groups", 1) > 1
    )


def register() -> None:
    """Register the implementation with transformers under `NAME`."""
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
