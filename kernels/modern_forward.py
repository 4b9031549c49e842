"""The forward pass of the families since BERT's, on a packed batch on a GPU.

NomicBERT, GTE and Jina v2 normalize after each sum, as BERT does; ModernBERT, Qwen3 and T5 before each part, and
Gemma 3 before and after it. In the second form, with a stream r and what the products read, h:

    r = the embeddings, h = norm(r)
    per layer:  q, k, v = h W_qkvᵀ;  q, k = qk_norm_rope(q, k)         head norms, rotary positions
                c = varlen_attention(q, k, v)                          window, causal mask, shared keys, biases
                r, h = add_norm(c W_oᵀ, r)
                r, h = add_norm(gated_activation(h W_iᵀ) W_outᵀ, r)    T5 without gates: relu

Matrix products run in torch (cuBLAS). Launches depend only on the shapes of the batch's tensors, as in `forward`.
Norms and biases stay float32 in every type.
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
from .add_norm import add_norm
from .forward import relative_bias
from .gated import gated_activation
from .layernorm import embed_layernorm, residual_layernorm
from .packing import PackedBatch, Packer, loaded_tensors
from .qk_norm_rope import RotaryTable, qk_norm_rope
from .quantize import Products
from .varlen_attention import varlen_attention

__all__ = ["ModernEncoder", "alibi_bias", "rotary_table"]

_Norm = tuple[Tensor, Tensor | None]
_Linear = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class _Layer:
    """The tensors of a layer; norms that it lacks are None."""

    query_key_value: _Linear
    head_norm: Tensor | None
    attention_output: _Linear
    attention_norm: _Norm | None
    """Behind attention."""
    intermediate_norm: _Norm | None
    intermediate: _Linear
    output: _Linear
    output_norm: _Norm | None
    """Behind the feed-forward part."""
    next_norm: _Norm | None
    """Before the next layer's attention, or the final one."""
    local: bool


class ModernEncoder(Packer):
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

        Raises:
            FileNotFoundError: the folder has no safetensors weights.
            ValueError: a tensor is missing or has the wrong shape or type, or does not fit ``dtype``; or ``products``
                is given, for which these families have no kernels.
        """
        if products is not None:
            raise ValueError(
                f"{folder.transformer / 'config.json'}: {folder.architecture.family} models have no {products} "
                "products on a GPU; use precision='bf16', 'fp16' or 'fp32'"
            )
        super().__init__(folder, dtype, device)
        config: dict[str, Any] = folder.config
        hidden = folder.hidden_size
        self._key_heads = int(config.get("num_key_value_heads", 0)) or self._heads
        self._size = int(config.get("head_size", 0)) or hidden // self._heads
        self._function = config["hidden_act"]
        self._gated, self._second = "gate" in config, config.get("gate") == "second"
        place = config.get("norm_place", "post")
        self._before, self._around = place != "post", place == "around"
        self._kind = config.get("norm_kind", "layer")
        self._window = int(config.get("window", 0))
        self._causal = bool(config.get("causal", False))
        self._scale = float(config.get("embedding_scale", 1.0))
        self._score_scale = 1.0 if config.get("score_terms") == 0 else None
        tensors = dict(loaded_tensors(folder, dtype, self.device, exact_vectors=True))
        self._tensors = tensors
        self._word = tensors["embeddings.word_embeddings.weight"]
        self._type = tensors.get("embeddings.token_type_embeddings.weight")
        self._embedding_norm = (
            self._norm("embeddings.LayerNorm") if config.get("embedding_norm", True) else None
        )
        self._bias = None
        if config.get("alibi"):
            self._bias = torch.from_numpy(alibi_bias(self._heads, self._max_length)).to(self.device)
        buckets = tensors.get("encoder.relative_attention_bias.weight")
        if buckets is not None:
            table = relative_bias(buckets.float().cpu().numpy(), self._max_length)
            self._bias = torch.from_numpy(table).to(self.device)
        self._global_rotary, self._local_rotary = self._rotary(config)
        self._layers = self._read_layers(config)
        self._first_norm = self._norm("encoder.layer.0.attention.LayerNorm") if self._before else None
        del self._tensors

    def _rotary(self, config: dict[str, Any]) -> tuple[RotaryTable | None, RotaryTable | None]:
        """The positions of global and of local layers."""
        base = float(config.get("rotary_base", 0))
        if not base:
            return None, None
        rotary = rotary_table(
            self._max_length, self._size, base, float(config.get("rotary_divisor", 1)), self.device,
            waves=(float(config.get("rotary_short_wave", 0)), float(config.get("rotary_long_wave", 0))),
            trained=int(config.get("rotary_trained", 0)), stretch=float(config.get("rotary_stretch", 1)),
        )  # fmt: skip
        local = float(config.get("rotary_local_base", 0))
        return rotary, rotary_table(
            self._max_length, self._size, local, 1.0, self.device
        ) if local else rotary

    def _norm(self, name: str) -> _Norm | None:
        weight = self._tensors.get(f"{name}.weight")
        if weight is None:
            return None
        bias = self._tensors.get(f"{name}.bias")
        if self._kind == "rms_plus_one":
            return weight + 1, bias
        # `layernorm` always adds one.
        return weight, torch.zeros_like(weight) if bias is None and not self._before else bias

    def _linear(self, *names: str) -> _Linear:
        """One layer, from the rows of several, which are taken out; a bias that some of them lack is zero there."""
        weights = [self._tensors.pop(f"{name}.weight") for name in names]
        biases = [self._tensors.pop(f"{name}.bias", None) for name in names]
        bias = None
        if any(b is not None for b in biases):
            parts = zip(weights, biases, strict=True)
            bias = torch.cat([w.new_zeros(len(w)) if b is None else b.to(w.dtype) for w, b in parts])
        return (weights[0] if len(weights) == 1 else torch.cat(weights)), bias

    def _has(self, name: str) -> bool:
        return f"{name}.weight" in self._tensors

    def _read_layers(self, config: dict[str, Any]) -> list[_Layer]:
        count = int(config["num_hidden_layers"])
        local = str(config.get("local_layers", "")).ljust(count, "0")
        layers = []
        for number in range(count):
            layer = f"encoder.layer.{number}"
            inside = f"{layer}.attention.self"
            packed = self._has(f"{inside}.query_key_value")
            one = self._has(f"{layer}.intermediate.dense")
            halves = ("up", "gate") if self._second else ("gate", "up")
            norms = [self._norm(f"{inside}.{name}_norm") for name in ("query", "key")]
            last = number + 1 == count
            layers.append(
                _Layer(
                    self._linear(f"{inside}.query_key_value")
                    if packed
                    else self._linear(*(f"{inside}.{name}" for name in ("query", "key", "value"))),
                    torch.stack([norm[0] for norm in norms if norm is not None])
                    if norms[0] is not None
                    else None,
                    self._linear(f"{layer}.attention.output.dense"),
                    self._norm(f"{layer}.attention.output.LayerNorm"),
                    self._norm(f"{layer}.intermediate.LayerNorm"),
                    self._linear(f"{layer}.intermediate.dense")
                    if one
                    else self._linear(*(f"{layer}.intermediate.{half}" for half in halves)),
                    self._linear(f"{layer}.output.dense"),
                    self._norm(f"{layer}.output.LayerNorm"),
                    self._norm("encoder.norm" if last else f"encoder.layer.{number + 1}.attention.LayerNorm"),
                    local[number] == "1",
                )
            )
        return layers

    @torch.inference_mode()
    def __call__(self, batch: PackedBatch) -> Tensor:
        """The last hidden states (tokens, hidden_size); finite for tokens of no sequence."""
        stream = self._embed(batch)
        hidden = stream if self._first_norm is None else self._add_norm(stream, None, self._first_norm)
        for layer in self._layers:
            context = self._attend(layer, hidden, batch)
            if self._before:
                attended = linear(context, *layer.attention_output)
                hidden = self._add_norm(attended, stream, layer.intermediate_norm, layer.attention_norm)
                fed = linear(self._inner(layer, hidden), *layer.output)
                hidden = self._add_norm(fed, stream, layer.next_norm, layer.output_norm)
            else:
                hidden = self._post_normed(context, hidden, layer.attention_output, layer.attention_norm)
                hidden = self._post_normed(
                    self._inner(layer, hidden), hidden, layer.output, layer.output_norm
                )
        return hidden

    def _embed(self, batch: PackedBatch) -> Tensor:
        if self._embedding_norm is None:
            words = self._word.index_select(0, batch.input_ids)
            return words if self._scale == 1 else words.mul_(self._scale)
        weight, bias = self._embedding_norm
        bias = torch.zeros_like(weight) if bias is None else bias
        return embed_layernorm(
            batch.input_ids, None, None, self._word, None, self._type, weight, bias, self._eps
        )

    def _add_norm(
        self, x: Tensor, stream: Tensor | None, norm: _Norm | None, post_norm: _Norm | None = None
    ) -> Tensor:
        assert norm is not None
        return add_norm(
            x, stream, *norm, self._eps,
            rms=self._kind != "layer", post_norm=post_norm[0] if self._around and post_norm is not None else None,
        )  # fmt: skip

    def _post_normed(self, x: Tensor, hidden: Tensor, projection: _Linear, norm: _Norm | None) -> Tensor:
        """The norm of ``hidden`` and the projection of ``x``."""
        assert norm is not None and norm[1] is not None
        weight, bias = projection
        return residual_layernorm(linear(x, weight), hidden, norm[0], norm[1], self._eps, bias)

    def _inner(self, layer: _Layer, hidden: Tensor) -> Tensor:
        inner = linear(hidden, *layer.intermediate)
        if not self._gated:
            return inner.relu_()
        return gated_activation(inner, function=self._function, second=self._second)

    def _attend(self, layer: _Layer, hidden: Tensor, batch: PackedBatch) -> Tensor:
        heads, shared, size = self._heads, self._key_heads, self._size
        projected = linear(hidden, *layer.query_key_value)
        rotary = self._local_rotary if layer.local else self._global_rotary
        qk_norm_rope(
            projected, heads, shared, size, batch.tile_map, rotary=rotary, norm=layer.head_norm, eps=self._eps
        )
        split = projected.view(len(hidden), heads + 2 * shared, size)
        query, key, value = split[:, :heads], split[:, heads : heads + shared], split[:, heads + shared :]
        window = self._window if layer.local else None
        context = varlen_attention(
            query, key, value, batch.cu_seqlens, batch.max_seqlen,
            scale=self._score_scale, bias=self._bias,
            before=window, after=0 if self._causal else window, tile_map=batch.tile_map,
        )  # fmt: skip
        return context.view(len(hidden), heads * size)


def alibi_bias(heads: int, positions: int) -> npt.NDArray[np.float32]:
    """The bias (heads, 2 positions - 1) of each head and distance: −slope · |distance|.

    The slopes are 2^(−8 i / n) for i = 1 to n, the largest power of two within the heads; those of the other heads lie
    between them (Press et al. 2022, and its code).
    """
    whole = 1 << (heads.bit_length() - 1)
    head = np.arange(heads)
    power = np.where(head < whole, 8.0 * (head + 1) / whole, 4.0 * (2 * (head - whole) + 1) / whole)
    distance = np.abs(np.arange(1 - positions, positions))
    return (-np.exp2(-power)[:, None] * distance).astype(np.float32)


def rotary_table(
    positions: int,
    size: int,
    base: float,
    divisor: float,
    device: torch.device,
    *,
    waves: tuple[float, float] = (0, 0),
    trained: int = 0,
    stretch: float = 1.0,
) -> RotaryTable:
    """Rotary positions of heads of ``size`` values: θ_d = base^(−2d / size) / divisor.

    Speeds and angles are rounded to float32, as transformers and the core do. With ``waves``, in positions, speeds are
    divided as in Llama 3: those of waves below the first are not, those above the second are, and between them
    1 / wave tells how far.
    """
    whole = np.float32(1) / (base ** (np.arange(0, size, 2) / size)).astype(np.float32)
    speed = whole / np.float32(divisor)
    if waves[1]:
        slow, fast = 1 / waves[1], 1 / waves[0]
        kept = ((whole.astype(np.float64) / (2 * np.pi) - slow) / (fast - slow)).clip(0, 1)
        speed = ((1 - kept) * speed + kept * whole).astype(np.float32)
    reach = min(positions, trained) if trained else positions
    angle = (np.arange(reach, dtype=np.float32)[:, None] * speed).astype(np.float64)
    cos, sin, speeds = (
        torch.from_numpy(x.astype(np.float32)).to(device) for x in (np.cos(angle), np.sin(angle), speed)
    )
    return RotaryTable(cos, sin, speeds, trained=trained if positions > trained else 0, stretch=stretch)
