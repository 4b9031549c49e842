"""Packed batches of token ids, and the weights of a folder on a GPU: shared by the forward passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..model_folder.folder import ModelFolder
from ..model_folder.weights import converted_tensors
from .attention_tiles import attention_tiles
from .blocks import capability_of
from .launch import FLOATS
from .varlen_attention import max_head_size

__all__ = ["PackedBatch", "Packer", "loaded_tensors", "token_positions"]

Integers = npt.NDArray[np.int32]


@dataclass(frozen=True)
class PackedBatch:
    """The input of a forward pass, made by `PackedEncoder.pack`.

    Attributes:
        input_ids: (tokens,) int32; 0 for tokens that fill up the batch.
        positions: (tokens,) int32, rows of the position table; 0 for such tokens.
        cu_seqlens: (sequences + 1,) int32.
        tile_map: (tiles, columns) int32, see `attention_tiles`.
        max_seqlen: tokens of the longest sequence.
    """

    input_ids: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    tile_map: Tensor
    max_seqlen: int


class Packer:
    """What makes batches for a model, and what its forward passes share: vocabulary, positions, heads, device."""

    def __init__(self, folder: ModelFolder, dtype: torch.dtype, device: str | torch.device) -> None:
        """Of the model in ``folder``, for batches on ``device``.

        Raises:
            ValueError: ``dtype`` is none of `FLOATS`, the heads are too large, or the attention is DeBERTa's.
        """
        if dtype not in FLOATS:
            raise ValueError(f"dtype must be float32, float16 or bfloat16, not {dtype}")
        config: dict[str, Any] = folder.config
        if config.get("position_buckets"):
            raise ValueError(
                f"{folder.transformer / 'config.json'}: {folder.architecture.family} models run on the CPU; use "
                "device='cpu'"
            )
        self._dtype = dtype
        self._heads = int(config["num_attention_heads"])
        self._eps = float(config["layer_norm_eps"])
        self._padding = int(config.get("padding_idx", -1))
        self._vocab_size = int(config["vocab_size"])
        self._max_length = folder.positions
        self.device = torch.device(device)
        size = int(config.get("head_size", 0)) or folder.hidden_size // self._heads
        if size > (most := max_head_size(capability_of(self.device))):
            raise ValueError(
                f"{folder.path}: heads of {size} features; this GPU runs up to {most}. Use device='cpu'"
            )

    def pack(
        self,
        texts: Sequence[npt.ArrayLike],
        *,
        tokens: int | None = None,
        sequences: int | None = None,
        tiles: int | None = None,
    ) -> PackedBatch:
        """Concatenate the token ids of ``texts`` on the device.

        Args:
            texts: the ids of each text, special tokens included; may be empty.
            tokens: pad to this number of tokens.
            sequences: pad to this number of sequences with empty ones.
            tiles: as in `attention_tiles`.

        Raises:
            ValueError: an id is outside the vocabulary, a text is too long, or the batch does not fit.
        """
        rows = [np.asarray(text, dtype=np.int64).reshape(-1) for text in texts]
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        longest = int(lengths.max(initial=0))
        if longest > self._max_length:
            raise ValueError(
                f"a text of {longest} tokens is longer than the model's {self._max_length} positions; cut it"
            )
        ids = np.concatenate([np.zeros(0, np.int64), *rows])
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._vocab_size:
            raise ValueError(
                f"token ids from {ids.min()} to {ids.max()}, the vocabulary has 0 to {self._vocab_size - 1}; "
                "the tokenizer belongs to another model"
            )
        tokens = len(ids) if tokens is None else tokens
        sequences = len(rows) if sequences is None else sequences
        if len(ids) > tokens or len(rows) > sequences:
            raise ValueError(
                f"{len(rows)} texts of {len(ids)} tokens do not fit {sequences} sequences of {tokens} tokens"
            )
        filled = np.zeros((2, tokens), dtype=np.int32)
        filled[0, : len(ids)] = ids
        filled[1, : len(ids)] = token_positions(ids, lengths, self._padding)
        bounds = np.full(sequences + 1, len(ids), dtype=np.int32)
        bounds[0] = 0
        bounds[1 : len(rows) + 1] = np.cumsum(lengths)
        tile_map = attention_tiles(lengths, tokens=tokens, tiles=tiles)
        input_ids, positions, cu_seqlens, on_device = (
            torch.from_numpy(array).to(self.device) for array in (filled[0], filled[1], bounds, tile_map)
        )
        return PackedBatch(input_ids, positions, cu_seqlens, on_device, longest)


def token_positions(ids: npt.NDArray[Any], lengths: npt.NDArray[Any], padding: int) -> Integers:
    """The position (tokens,) of each token of sequences of ``lengths``, as in the core.

    With ``padding`` -1 positions count from 0. Otherwise the token ``padding`` has position ``padding``, and the other
    tokens of a sequence count from ``padding`` + 1, as in fairseq.
    """
    counts = ids != padding
    before = np.concatenate([[0], np.cumsum(counts)])  # of each token, and at the end
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    result = before[1:] - before[starts] + padding
    return np.where(counts, result, padding).astype(np.int32)


def loaded_tensors(
    folder: ModelFolder, dtype: torch.dtype, device: torch.device, *, exact_vectors: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """The transformer's tensors by their names in the core, in ``dtype`` on ``device``.

    Args:
        folder: the model; int8 weights are multiplied out.
        dtype: the floating type.
        device: a GPU.
        exact_vectors: keep norms and biases in float32.

    Raises:
        ValueError: values beyond ``dtype``, or as `stored_tensors`.
    """
    for name, array in converted_tensors(folder, "fp32"):
        tensor = torch.tensor(array)
        if tensor.ndim > 1 or not exact_vectors:
            tensor = tensor.to(dtype)
        # The layers add their biases in ``dtype``.
        if not (tensor.to(dtype) if name.endswith(".bias") else tensor).isfinite().all():
            raise ValueError(
                f"{folder.path}: tensor {name!r} holds values beyond {dtype}; open the model in bfloat16 "
                "(precision='bf16') or float32 ('fp32')"
            )
        yield folder.architecture.core_name(name), tensor.to(device)
