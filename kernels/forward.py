"""The forward pass of BERT and its kin on a packed batch on a GPU; `modern_forward` has the families since.

    h = embed_layernorm(ids, positions), projected where the embeddings are narrower
    per layer:  c = varlen_attention(h W_qkvᵀ + b_qkv)
                h = residual_layernorm(c W_oᵀ, h, b_o)
                h = residual_layernorm(linear_gelu(h, W_i, b_i) W_outᵀ, h, b_out)

Matrix products run in torch (cuBLAS); one kernel does everything between two products, and in 16 bits GELU is part of
the product before it. With ``products`` "fp8" or "int8" the products with W_qkv, W_i and W_out run in
`quantized_linear` (11 of the 12 H² weights of a usual layer): the kernel that writes a row quantizes it, and the GELU
is applied before the tile of a product leaves the registers. The product with W_o stays in ``dtype``: its rows come
from several programs, one per head, and would have to be read and written once more.

Launches depend only on the shapes of the batch's tensors: with ``tokens``, ``sequences`` and ``tiles`` of `pack`
fixed, a CUDA graph of one call can be replayed with other texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import linear

from ..model_folder.folder import ModelFolder
from .bias_gelu import linear_gelu
from .layernorm import embed_layernorm, residual_layernorm
from .packing import PackedBatch, Packer, loaded_tensors, token_positions
from .quantize import Products, QuantizedRows, QuantizedWeight, quantize_weight
from .quantized_linear import check_products, quantized_linear, quantized_linear_groups
from .varlen_attention import varlen_attention

__all__ = ["PackedBatch", "PackedEncoder", "relative_bias", "rotary_tables", "token_positions"]


@dataclass(frozen=True)
class _Layer:
    """The tensors of a layer; matrices are (out, in), three of them in 8 bits with ``products``."""

    query_key_value: tuple[Tensor | QuantizedWeight, Tensor]
    attention_output: tuple[Tensor, Tensor]
    attention_norm: tuple[Tensor, Tensor]
    intermediate: tuple[Tensor | QuantizedWeight, Tensor]
    output: tuple[Tensor | QuantizedWeight, Tensor]
    output_norm: tuple[Tensor, Tensor]


class PackedEncoder(Packer):
    """The transformer of a model folder on a GPU, without gradients."""

    def __init__(
        self,
        folder: ModelFolder,
        *,
        dtype: torch.dtype = torch.float32,
        products: Products | None = None,
        device: str | torch.device = "cuda",
    ) -> None:
        """Load the weights; int8 weights are multiplied out.

        Args:
            folder: the model.
            dtype: the floating type.
            products: "fp8" (compute capability 8.9 and later) or "int8" (8.0 and later) for the large matrix
                products in 8 bits. Mean cosine to fp32 for all-MiniLM-L6-v2, simulated: about 0.998 and 0.999.
            device: a GPU.

        Raises:
            FileNotFoundError: the folder has no safetensors weights.
            ValueError: a tensor is missing or has the wrong shape or type, or does not fit ``dtype``; the GPU does not
                support ``products``; or the model is of a later family (`modern_forward`) or DeBERTa.
        """
        if folder.config.keys() & {"gate", "norm_place"}:
            raise ValueError(
                f"{folder.transformer / 'config.json'}: {folder.architecture.family} models have another forward "
                "pass: modern_forward.ModernEncoder"
            )
        super().__init__(folder, dtype, device)
        config: dict[str, Any] = folder.config
        self._hidden_size = folder.hidden_size
        self._activation = config["hidden_act"]
        self._rotary_value = bool(config.get("rotary_value", False))
        self._products = products
        if products is not None:
            check_products(products, self.device)
        tensors = dict(loaded_tensors(folder, dtype, self.device))

        def pair(name: str) -> tuple[Tensor, Tensor]:
            """Taken out, so that what is joined or rounded below does not stay in memory beside the result."""
            return tensors.pop(f"{name}.weight"), tensors.pop(f"{name}.bias")

        self._word = tensors["embeddings.word_embeddings.weight"]
        self._position = tensors.get("embeddings.position_embeddings.weight")
        self._type = tensors.get("embeddings.token_type_embeddings.weight")
        tasks = tensors.get("embeddings.task_type_embeddings.weight")
        if self._type is not None and tasks is not None:
            self._type = self._type + tasks[0]
        self._embedding_norm = pair("embeddings.LayerNorm")
        projected = "embeddings_project.weight" in tensors
        self._projection = pair("embeddings_project") if projected else None
        self._bias: Tensor | None = None
        self._rotary: tuple[Tensor, Tensor] | None = None
        buckets = tensors.get("encoder.relative_attention_bias.weight")
        if buckets is not None:
            table = relative_bias(buckets.float().cpu().numpy(), self._max_length)
            self._bias = torch.from_numpy(table).to(self.device)
        if config.get("rotary"):
            cos, sin = rotary_tables(self._max_length, self._hidden_size // self._heads)
            self._rotary = torch.from_numpy(cos).to(self.device), torch.from_numpy(sin).to(self.device)
        self._layers = []
        count = int(config["num_hidden_layers"])
        stored = int(config.get("num_hidden_groups", count))  # layers with weights of their own
        for number in range(stored):
            layer = f"encoder.layer.{number}"
            parts = [pair(f"{layer}.attention.self.{name}") for name in ("query", "key", "value")]
            weights, biases = zip(*parts, strict=True)
            query_key_value = torch.cat(weights), torch.cat(biases)
            # Projected embeddings do not come from a layer norm, which would quantize them.
            keep = number == 0 and projected
            self._layers.append(
                _Layer(
                    query_key_value if keep else self._in_8_bits(query_key_value),
                    pair(f"{layer}.attention.output.dense"),
                    pair(f"{layer}.attention.output.LayerNorm"),
                    self._in_8_bits(pair(f"{layer}.intermediate.dense")),
                    self._in_8_bits(pair(f"{layer}.output.dense")),
                    pair(f"{layer}.output.LayerNorm"),
                )
            )
        self._layers = [self._layers[number * stored // count] for number in range(count)]

    def _in_8_bits(self, projection: tuple[Tensor, Tensor]) -> tuple[Tensor | QuantizedWeight, Tensor]:
        """Weight and bias; the weight in 8 bits if the products are."""
        weight, bias = projection
        return (weight if self._products is None else quantize_weight(weight, self._products)), bias

    @torch.inference_mode()
    def __call__(self, batch: PackedBatch) -> Tensor:
        """The last hidden states (tokens, hidden_size); finite for tokens of no sequence."""
        quantized = self._rows(len(batch.input_ids))
        hidden = embed_layernorm(
            batch.input_ids,
            None if self._position is None else batch.positions,
            None,
            self._word,
            self._position,
            self._type,
            *self._embedding_norm,
            self._eps,
            quantized=None if self._projection is not None else quantized,
        )
        if self._projection is not None:
            hidden = linear(hidden, *self._projection)
        for layer in self._layers:
            hidden = self._run(layer, hidden, quantized, batch)
        return hidden

    def _rows(self, tokens: int) -> QuantizedRows | None:
        """Memory for the hidden states in 8 bits, overwritten by each layer norm."""
        if self._products is None:
            return None
        return QuantizedRows.empty(tokens, self._hidden_size, self._products, self.device)

    def _project(
        self, hidden: Tensor, quantized: QuantizedRows | None, weight: Tensor | QuantizedWeight, bias: Tensor
    ) -> Tensor:
        """``hidden Wᵀ + bias``, from the 8 bits of ``hidden`` where the weight has 8."""
        if isinstance(weight, Tensor):
            return linear(hidden, weight, bias)
        assert quantized is not None
        return quantized_linear(quantized, weight, bias, dtype=self._dtype)

    def _run(
        self, layer: _Layer, hidden: Tensor, quantized: QuantizedRows | None, batch: PackedBatch
    ) -> Tensor:
        """One layer: (tokens, hidden_size) to the same; ``quantized`` is what the last layer norm wrote."""
        shape = (len(hidden), 3, self._heads, self._hidden_size // self._heads)
        query, key, value = self._project(hidden, quantized, *layer.query_key_value).view(shape).unbind(dim=1)
        context = varlen_attention(
            query,
            key,
            value,
            batch.cu_seqlens,
            batch.max_seqlen,
            bias=self._bias,
            rotary=self._rotary,
            rotary_value=self._rotary_value,
            tile_map=batch.tile_map,
        ).view(hidden.shape)
        weight, bias = layer.attention_output
        hidden = residual_layernorm(
            linear(context, weight), hidden, *layer.attention_norm, self._eps, bias, quantized=quantized
        )
        inner = self._feed_forward(layer, hidden, quantized)
        return residual_layernorm(
            inner, hidden, *layer.output_norm, self._eps, layer.output[1], quantized=quantized
        )

    def _feed_forward(self, layer: _Layer, hidden: Tensor, quantized: QuantizedRows | None) -> Tensor:
        """Both products of the feed-forward part and the activation between them, without the last bias."""
        (first, bias), (second, _) = layer.intermediate, layer.output
        if isinstance(first, QuantizedWeight) and isinstance(second, QuantizedWeight):
            assert quantized is not None
            inner = quantized_linear_groups(quantized, first, bias, activation=self._activation)
            return quantized_linear(inner, second, dtype=self._dtype)
        assert isinstance(first, Tensor) and isinstance(second, Tensor)
        if self._activation == "relu":
            return linear(linear(hidden, first, bias).relu_(), second)
        return linear(linear_gelu(hidden, first, bias, activation=self._activation), second)


def relative_bias(buckets: npt.NDArray[np.float32], positions: int) -> npt.NDArray[np.float32]:
    """The bias (heads, 2 positions - 1) of each head and distance, from T5's 32 buckets (32, heads).

    Keys after the query have buckets 16 to 31. Within each half, distances below 8 have buckets of their own; beyond,
    the distance doubles every two buckets.
    """
    distance = np.arange(1 - positions, positions)
    n = np.abs(distance)
    # Integers throughout: 2 log2(n / 8) rounded down is the width in bits of n² / 64, less one.
    steps = np.frexp((n * n // 64).astype(np.float64))[1] - 1
    bucket = np.where(n < 8, n, np.minimum(8 + steps, 15)) + 16 * (distance > 0)
    return np.ascontiguousarray(buckets[bucket].T)


def rotary_tables(positions: int, head_size: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Cosines and sines (positions, head_size / 2) of RoFormer: pair d rotates by p · 10000^(−2d / head_size)."""
    speed = 10000.0 ** (-np.arange(0, head_size, 2) / head_size)
    angle = np.arange(positions)[:, None] * speed
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
