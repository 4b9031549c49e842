"""T5's encoder (sentence-t5, gtr-t5, FRIDA): norms before each part, and a bias by distance in place of positions."""

from __future__ import annotations

from dataclasses import replace

from ..architectures import INTEGERS, Architecture, CoreConfig, layer_norm, linear
from .fields import Config, integer, refuse

__all__ = ["T5", "T5_GATED"]

_BLOCK = "encoder.block.{}"
_ATTENTION, _FEED_FORWARD = f"{_BLOCK}.layer.0.SelfAttention", f"{_BLOCK}.layer.1.DenseReluDense"
_HEADS = "num_attention_heads*head_size"
_BIAS = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias."
_TENSORS = {
    "shared.weight": (("vocab_size", "hidden_size"), True),
    f"{_BIAS}weight": (("relative_attention_num_buckets", "num_attention_heads"), False),
    **layer_norm(f"{_BLOCK}.layer.0.layer_norm", bias=False),
    **linear(f"{_ATTENTION}.q", _HEADS, "hidden_size", bias=False),
    **linear(f"{_ATTENTION}.k", _HEADS, "hidden_size", bias=False),
    **linear(f"{_ATTENTION}.v", _HEADS, "hidden_size", bias=False),
    **linear(f"{_ATTENTION}.o", "hidden_size", _HEADS, bias=False),
    **layer_norm(f"{_BLOCK}.layer.1.layer_norm", bias=False),
    **linear(f"{_FEED_FORWARD}.wo", "hidden_size", "intermediate_size", bias=False),
    **layer_norm("encoder.final_layer_norm", bias=False),
}
_GATED_ACTIVATIONS = {"gated-gelu": "gelu_new", "gated-silu": "silu"}  # as transformers reads the names
_LONGEST = 8192
"""Tokens of a text. Distances from 128 on share a bucket: n_positions is what T5 was trained with, and no limit."""


def _read_t5(raw: Config, config: CoreConfig, where: str) -> None:
    function = config["hidden_act"]
    refuse(raw, where, {"dense_act_fn": (function, None), "is_gated_act": ("gate" in config, None)})
    config["head_size"] = integer(raw, "d_kv", where, 1, 64)
    config["max_position_embeddings"] = max(integer(raw, "n_positions", where, 1, 512), _LONGEST)


T5 = Architecture(
    family="t5",
    prefix="transformer.",
    integers=tuple(key for key in INTEGERS if key != "max_position_embeddings"),
    fixed={"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "is_decoder": False},
    layers="encoder.block.",
    tensors={**_TENSORS, **linear(f"{_FEED_FORWARD}.wi", "intermediate_size", "hidden_size", bias=False)},
    classifier=("", None, ""),
    constants={
        "relative_attention_num_buckets": 32, "position_table": False, "score_terms": 0, "biases": False,
        "norm_place": "pre", "norm_kind": "rms", "embedding_norm": False,
    },
    names={
        _BIAS: "encoder.relative_attention_bias.",
        "shared.": "embeddings.word_embeddings.",
        ".layer.0.layer_norm.": ".attention.LayerNorm.",
        ".layer.0.SelfAttention.q.": ".attention.self.query.",
        ".layer.0.SelfAttention.k.": ".attention.self.key.",
        ".layer.0.SelfAttention.v.": ".attention.self.value.",
        ".layer.0.SelfAttention.o.": ".attention.output.dense.",
        ".layer.1.layer_norm.": ".intermediate.LayerNorm.",
        ".layer.1.DenseReluDense.wi.": ".intermediate.dense.",
        ".layer.1.DenseReluDense.wi_0.": ".intermediate.gate.",
        ".layer.1.DenseReluDense.wi_1.": ".intermediate.up.",
        ".layer.1.DenseReluDense.wo.": ".output.dense.",
        "encoder.block.": "encoder.layer.",
    },
    final_norm="encoder.final_layer_norm.weight",
    keys={
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
        "layer_norm_eps": "layer_norm_epsilon",
        "hidden_act": "feed_forward_proj",
    },
    epsilon=1e-6,
    activation="relu",
    activations={"relu": "relu"},
    usual_activations=False,
    alternatives={"shared.": ("encoder.embed_tokens.",)},
    read=_read_t5,
    spans_heads=True,
)  # fmt: skip
T5_GATED = replace(
    T5,
    tensors={
        **_TENSORS,
        **linear(f"{_FEED_FORWARD}.wi_0", "intermediate_size", "hidden_size", bias=False),
        **linear(f"{_FEED_FORWARD}.wi_1", "intermediate_size", "hidden_size", bias=False),
    },
    constants={**T5.constants, "gate": "first"},
    activation="gated-gelu",
    activations=_GATED_ACTIVATIONS,
)
