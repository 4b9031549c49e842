"""Shared by the cases of `forward` and `modern_forward`: texts, and how an encoder is compared with transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from embedkit.kernels.attention_tiles import max_attention_tiles
from embedkit.kernels.packing import PackedBatch
from embedkit.kernels.pool_project_normalize import pool_project_normalize
from torch import Tensor
from torch.nn.functional import cosine_similarity
from triton_harness import DEVICE

# Texts of one token, several in a tile, ends of windows, and one of more than a tile and than the trained length.
LENGTHS = [1, 5, 9, 70, 20]


def texts() -> list[Any]:
    """Token ids of texts of `LENGTHS`, and a text of no tokens as the second."""
    random = np.random.default_rng(0)
    rows = [random.integers(4, 50, size=length) for length in LENGTHS]
    return [rows[0], [], *rows[1:]]


def expected(model: Any, rows: list[Any]) -> Tensor:
    """The hidden states of transformers."""
    parts = [torch.as_tensor(row)[None] for row in rows if len(row)]
    with torch.no_grad():
        return torch.cat([model(input_ids=ids).last_hidden_state[0] for ids in parts])


def of_fixed_size(encoder: Any, rows: list[Any]) -> tuple[PackedBatch, Tensor]:
    """A batch and its hidden states, as in a CUDA graph: fixed numbers of tokens, sequences and tiles."""
    total = sum(LENGTHS) + 9
    batch = encoder.pack(rows, tokens=total, sequences=10, tiles=max_attention_tiles(total))
    hidden = encoder(batch)
    assert hidden.shape == (total, 40)
    assert hidden.isfinite().all()
    return batch, hidden


def check_pooled(encoder: Any, model: Any, rows: list[Any], least: float) -> None:
    """The cosine of every text with tokens is more than ``least``."""
    batch = encoder.pack(rows)
    pooled = pool_project_normalize(encoder(batch), batch.cu_seqlens)
    wanted = pool_project_normalize(expected(model, rows).to(DEVICE), batch.cu_seqlens)
    assert cosine_similarity(pooled, wanted)[torch.tensor([0, 2, 3, 4, 5])].min() > least


def check_alone(encoder: Any, rows: list[Any], tolerance: float) -> None:
    """A text alone has the hidden states that it has among others; no texts have none."""
    together = encoder(encoder.pack(rows)).split([len(row) for row in rows])
    for row, hidden in zip(rows, together, strict=True):
        torch.testing.assert_close(encoder(encoder.pack([row])), hidden, rtol=0, atol=tolerance)
    assert encoder(encoder.pack([])).shape == (0, 40)
