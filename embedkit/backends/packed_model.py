"""A model folder on a GPU: packed transformer, pooling and head, on the Triton kernels.

Launches depend only on the shapes of tensors, so that a CUDA graph can be replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, normalize, pad, silu

from ..kernels.blocks import capability_of
from ..kernels.forward import PackedEncoder
from ..kernels.modern_forward import ModernEncoder
from ..kernels.packing import PackedBatch
from ..kernels.pool_project_normalize import MAX_HIDDEN_SIZE, max_dimension, pool_project_normalize
from ..model_folder.folder import ModelFolder
from ..model_folder.weights import core_head
from .stage import Request

__all__ = ["DTYPES", "PackedModel", "encoder_class", "finish_on_device"]

DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    # Everything but the 8-bit products: rounds less than those, and never overflows.
    "fp8": torch.bfloat16,
    "int8": torch.bfloat16,
}
_FUSED_POOLING = ("mean", "max", "cls")
_FUSED_ACTIVATION = ("identity", "tanh")


def encoder_class(folder: ModelFolder) -> type[PackedEncoder] | type[ModernEncoder]:
    """The forward pass of the folder's family: those since BERT's have gates, or norms before each part."""
    return ModernEncoder if folder.config.keys() & {"gate", "norm_place"} else PackedEncoder


class PackedModel:
    """Packed batches to hidden states and embeddings.

    A single kernel pools, projects and normalizes where it supports the modules; other pooling modes, activations and
    wide projections run in torch, in float32.
    """

    def __init__(self, folder: ModelFolder, precision: str, device: torch.device) -> None:
        """Load the weights in ``precision``, one of `DTYPES`; "fp8" and "int8" apply to the large matrix products.

        Raises:
            FileNotFoundError: the folder has no safetensors weights.
            ValueError: a tensor is missing, or has the wrong shape or values beyond the precision; or the device
                does not support the precision.
        """
        dtype = DTYPES[precision]
        products: Any = precision if precision in ("fp8", "int8") else None
        self.hidden = encoder_class(folder)(folder, dtype=dtype, products=products, device=device)
        self.dimension = folder.dimension
        self._modes = folder.pooling.modes
        self._fused: dict[str, Any] = {}
        rest = [_on_device(module, device) for module in core_head(folder)]
        if len(self._modes) == 1 and self._modes[0] in _FUSED_POOLING:
            self._fused = {"pooling": self._modes[0]}
            if rest and _fits(rest[0], folder.hidden_size, max_dimension(dtype, capability_of(device))):
                dense, *rest = rest
                weight = dense["weight"].to(dtype)
                if not weight.isfinite().all():
                    raise ValueError(
                        f"the projection holds values beyond {precision}; use precision='bf16' or 'fp32'"
                    )
                self._fused |= {
                    "weight": weight.T,
                    "bias": dense["bias"],
                    "activation": dense["activation"],
                }
            if rest and rest[0]["type"] == "normalize":
                rest = rest[1:]
                self._fused["normalize"] = True
        self._rest = rest

    def vectors(self, batch: PackedBatch, *, skips: bool) -> Tensor:
        """Embeddings (sequences, dimension), float32; those of empty sequences are undefined.

        Args:
            batch: with ``skips``, ``cu_seqlens`` has two entries per sequence after the leading 0: the start of its
                pooled tokens, and its end.
            skips: whether leading tokens are excluded from pooling.
        """
        hidden = self.hidden(batch)
        bounds = batch.cu_seqlens
        if self._fused:
            vectors: Tensor = pool_project_normalize(hidden, bounds, **self._fused)
            vectors = vectors[1::2] if skips else vectors
        else:
            vectors = torch.cat([_pool(mode, hidden, bounds, skips) for mode in self._modes], dim=1)
        for module in self._rest:
            if module["type"] == "normalize":
                vectors = normalize(vectors, dim=1)
            else:
                vectors = _ACTIVATIONS[module["activation"]](
                    linear(vectors, module["weight"], module["bias"])
                )
        return vectors


def _on_device(module: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """A module of `core_head` with its arrays as tensors."""
    return {
        key: torch.tensor(value).to(device) if isinstance(value, np.ndarray) else value
        for key, value in module.items()
    }


def _fits(module: dict[str, Any], hidden_size: int, most: int) -> bool:
    """Whether the kernel supports this module after the pooling; ``most``: output dimensions."""
    return (
        module["type"] == "dense"
        and module["activation"] in _FUSED_ACTIVATION
        and len(module["weight"]) <= most
        and hidden_size <= MAX_HIDDEN_SIZE
    )


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "gelu": gelu,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "silu": silu,
    "tanh": torch.tanh,
}


def _pool(mode: str, hidden: Tensor, bounds: Tensor, skips: bool) -> Tensor:
    """One pooling mode of `pool_sequence` in csrc/encoder/pooling.cc: (sequences, hidden_size) float32."""
    step = 2 if skips else 1
    starts, begins, ends = bounds[:-1:step], bounds[step - 1 : -1 : step], bounds[step::step]
    counts = (ends - begins)[:, None]
    if not len(hidden):
        return hidden.new_zeros(len(ends), hidden.shape[1], dtype=torch.float32)

    def fused(values: Tensor, pooling: Any) -> Tensor:
        vectors: Tensor = pool_project_normalize(values, bounds, pooling=pooling)
        return vectors[step - 1 :: step]

    if mode == "lasttoken":
        rows = hidden.index_select(0, (ends - 1).clamp(min=0)).float()
        return torch.where(counts > 0, rows, 0)
    if mode == "mean_sqrt_len":
        return fused(hidden, "mean") * counts.sqrt()
    if mode == "weightedmean":
        tokens = torch.arange(len(hidden), device=hidden.device)
        owner = torch.searchsorted(ends.contiguous(), tokens, right=True).clamp(max=len(ends) - 1)
        weights = (tokens - starts[owner] + 1).float()
        # From the first to the last: the mean of the weighted values, times their number, over the sum of weights.
        first, last = (begins - starts).long() + 1, (ends - starts).long()
        total = ((last * (last + 1) - first * (first - 1)) // 2)[:, None]
        return fused(hidden.float() * weights[:, None], "mean") * counts / total.clamp(min=1)
    return fused(hidden, mode)


def finish_on_device(vectors: Tensor, request: Request, ranges: Tensor | None) -> Tensor:
    """`stage.finish` in torch: truncate, normalize, convert; ``ranges`` are those of the request, on the device."""
    kept = vectors[:, : request.width]
    if request.normalize:
        kept = normalize(kept, dim=1)
    if request.dtype == "float32":
        return kept
    if ranges is not None:
        # by a tensor: CUDA multiplies by the rounded inverse of a number, which gives other codes than numpy
        step = (ranges[1] - ranges[0]) / torch.full_like(ranges[0], 255)
        levels = ((kept - ranges[0]) / torch.where(step == 0, 1, step)).floor().clamp(0, 255)
        return levels.to(torch.uint8) if request.dtype == "uint8" else (levels - 128).to(torch.int8)
    bits = pad((kept > 0).to(torch.uint8), (0, -kept.shape[1] % 8)).view(len(kept), -1, 8)
    shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=kept.device)
    packed = (bits << shifts).sum(dim=2, dtype=torch.uint8)
    return packed if request.dtype == "ubinary" else (packed ^ 0x80).view(torch.int8)
