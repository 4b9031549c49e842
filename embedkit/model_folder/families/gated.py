"""Encoders with rotary positions and gated feed-forward layers: NomicBERT, ModernBERT, GTE ("new").

Checkpoints that transformers wrote with its own classes have other names of tensors than those on the Hub:
``alternatives``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..architectures import INTEGERS, TOKEN_TYPES, Architecture, CoreConfig, layer_norm, linear
from .fields import (
    SILU,
    Config,
    head_size,
    integer,
    local_layers,
    number,
    refuse,
    rope,
    rotary_base,
    two_ropes,
)

__all__ = ["GTE", "MODERNBERT", "NATIVE_NOMIC", "NOMIC"]

_EMBEDDINGS = {"embeddings.word_embeddings.weight": (("vocab_size", "hidden_size"), True), **TOKEN_TYPES}
_GATED: dict[str, Any] = {
    "fixed": {},
    "classifier": ("pooler.dense", "tanh", "classifier"),
    "constants": {"gate": "second", "biases": False},
    "activations": SILU,
}

# --- NomicBERT -------------------------------------------------------------------------------------------------------

_NOMIC_NAMES = {
    "emb_ln.": "embeddings.LayerNorm.",
    "encoder.layers.": "encoder.layer.",
    ".attn.Wqkv.": ".attention.self.query_key_value.",
    ".attn.out_proj.": ".attention.output.dense.",
    ".norm1.": ".attention.output.LayerNorm.",
    ".mlp.fc12.": ".intermediate.gate.",
    ".mlp.fc11.": ".intermediate.up.",
    ".mlp.fc2.": ".output.dense.",
    ".norm2.": ".output.LayerNorm.",
}
_NOMIC_LAYER = "encoder.layers.{}"


def _refuse_experts(raw: Config, where: str) -> None:
    if raw.get("num_experts") or raw.get("moe_every_n_layers") not in (None, -1, 0):
        raise ValueError(
            f"{where}: the model has experts (num_experts {raw.get('num_experts')!r:.80}), as nomic-embed-text-v2-moe; "
            "embedkit runs nomic-embed-text v1 and v1.5"
        )


def _read_nomic(raw: Config, config: CoreConfig, where: str) -> None:
    _refuse_experts(raw, where)
    refuse(
        raw,
        where,
        {
            **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "causal"), (False,)),
            **dict.fromkeys(("parallel_block", "use_rms_norm", "rotary_emb_interleaved"), (False,)),
            "scale_attn_by_inverse_layer_idx": (False,),
            "scale_attn_weights": (True,),
            "rotary_emb_scale_base": (None,),
            "rotary_emb_fraction": (1.0,),
            "activation_function": ("swiglu",),
            "norm_before_mlp": (None,),
        },
    )
    config["rotary_base"] = rotary_base(raw, "rotary_emb_base", where, 10000)
    if isinstance(raw.get("rope_parameters"), dict):  # beside the old keys, of which they must be a copy
        refuse(
            raw["rope_parameters"], where, {"rope_theta": (config["rotary_base"],), "rope_type": ("default",)}
        )
    if raw.get("rotary_scaling_factor") is not None:
        config["rotary_stretch"] = number(raw, "rotary_scaling_factor", where)
        config["rotary_trained"] = integer(raw, "max_trained_positions", where, 1, 2048)


NOMIC = Architecture(
    family="nomic_bert",
    prefix="bert.",
    prefixes=("nomic_bert.",),
    integers=(*INTEGERS, "type_vocab_size"),
    layers="encoder.layers.",
    tensors={
        **_EMBEDDINGS,
        **layer_norm("emb_ln"),
        **linear(f"{_NOMIC_LAYER}.attn.Wqkv", "3*hidden_size", "hidden_size", bias=False),
        **linear(f"{_NOMIC_LAYER}.attn.out_proj", "hidden_size", "hidden_size", bias=False),
        **layer_norm(f"{_NOMIC_LAYER}.norm1"),
        **linear(f"{_NOMIC_LAYER}.mlp.fc11", "intermediate_size", "hidden_size", bias=False),
        **linear(f"{_NOMIC_LAYER}.mlp.fc12", "intermediate_size", "hidden_size", bias=False),
        **linear(f"{_NOMIC_LAYER}.mlp.fc2", "hidden_size", "intermediate_size", bias=False),
        **layer_norm(f"{_NOMIC_LAYER}.norm2"),
    },
    **_GATED,
    names=_NOMIC_NAMES,
    keys={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "layer_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function",
    },
    read=_read_nomic,
    alternatives={
        "emb_ln.": ("embeddings.LayerNorm.",),
        "encoder.layers.": ("layers.",),
        ".attn.Wqkv.": (".self_attn.q_proj.", ".self_attn.k_proj.", ".self_attn.v_proj."),
        ".attn.out_proj.": (".self_attn.o_proj.",),
        ".mlp.fc11.": (".mlp.up_proj.",),
        ".mlp.fc12.": (".mlp.gate_proj.",),
        ".mlp.fc2.": (".mlp.down_proj.",),
        ".norm1.": (".post_attention_layernorm.",),
        ".norm2.": (".post_mlp_layernorm.",),
    },
)


def _read_native_nomic(raw: Config, config: CoreConfig, where: str) -> None:
    _refuse_experts(raw, where)
    refuse(raw, where, {"head_dim": (None, head_size(config))})
    rope(raw, config, where, 1000.0)


NATIVE_NOMIC = replace(NOMIC, keys={}, read=_read_native_nomic, activation="silu")
# --- ModernBERT ------------------------------------------------------------------------------------------------------

_MODERN_LAYER = "layers.{}"


def _read_modernbert(raw: Config, config: CoreConfig, where: str) -> None:
    refuse(
        raw, where, dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), (False,))
    )
    every = integer(raw, "global_attn_every_n_layers", where, 1, 3)
    pattern = [bool(i % every) for i in range(int(config["num_hidden_layers"]))]
    config["local_layers"] = local_layers(raw, config, where, pattern)
    half = integer(raw, "local_attention", where, 1, 128) // 2
    # transformers takes it for another name of half of local_attention, which it replaces.
    config["window"] = integer(raw, "sliding_window", where, 0, half)
    two_ropes(raw, config, where, ("global_rope_theta", "local_rope_theta"), 160_000.0)


MODERNBERT = Architecture(
    family="modernbert",
    prefix="model.",
    integers=INTEGERS,
    fixed={},
    layers="layers.",
    tensors={
        "embeddings.tok_embeddings.weight": (("vocab_size", "hidden_size"), True),
        **layer_norm("embeddings.norm", bias=False),
        **layer_norm(f"{_MODERN_LAYER}.attn_norm", bias=False),
        **linear(f"{_MODERN_LAYER}.attn.Wqkv", "3*hidden_size", "hidden_size", bias=False),
        **linear(f"{_MODERN_LAYER}.attn.Wo", "hidden_size", "hidden_size", bias=False),
        **layer_norm(f"{_MODERN_LAYER}.mlp_norm", bias=False),
        **linear(f"{_MODERN_LAYER}.mlp.Wi", "2*intermediate_size", "hidden_size", bias=False),
        **linear(f"{_MODERN_LAYER}.mlp.Wo", "hidden_size", "intermediate_size", bias=False),
        **layer_norm("final_norm", bias=False),
    },
    absent=frozenset({"layers.0.attn_norm.weight"}),
    classifier=("head.dense", None, "classifier"),
    classifier_norm="head.norm",
    constants={"gate": "first", "biases": False, "norm_place": "pre"},
    names={
        "embeddings.tok_embeddings.": "embeddings.word_embeddings.",
        "embeddings.norm.": "embeddings.LayerNorm.",
        "final_norm.": "encoder.norm.",
        "layers.": "encoder.layer.",
        ".attn_norm.": ".attention.LayerNorm.",
        ".attn.Wqkv.": ".attention.self.query_key_value.",
        ".attn.Wo.": ".attention.output.dense.",
        ".mlp_norm.": ".intermediate.LayerNorm.",
        ".mlp.Wi.": ".intermediate.dense.",
        ".mlp.Wo.": ".output.dense.",
    },
    keys={"hidden_act": "hidden_activation", "layer_norm_eps": "norm_eps"},
    epsilon=1e-5,
    activations=SILU,
    read=_read_modernbert,
)

# --- GTE of Alibaba ("new"), Snowflake Arctic m v2 -------------------------------------------------------------------

_GTE_LAYER = "encoder.layer.{}"


def _read_gte(raw: Config, config: CoreConfig, where: str) -> None:
    refuse(
        raw,
        where,
        {
            "position_embedding_type": ("rope",),
            "layer_norm_type": ("layer_norm",),
            "logn_attention_scale": (False,),
            "pack_qkv": (True,),
        },
    )
    config["type_vocab_size"] = integer(raw, "type_vocab_size", where, 0, 0 if "pack_qkv" in raw else 1)
    rope(raw, config, where, number(raw, "rope_theta", where, 10000.0 if "pack_qkv" in raw else 160_000.0))


GTE = Architecture(
    family="gte",
    prefix="new.",
    prefixes=("gte.",),
    integers=INTEGERS,
    layers="encoder.layer.",
    tensors={
        **_EMBEDDINGS,
        **layer_norm("embeddings.LayerNorm"),
        **linear(f"{_GTE_LAYER}.attention.qkv_proj", "3*hidden_size", "hidden_size"),
        **linear(f"{_GTE_LAYER}.attention.o_proj", "hidden_size", "hidden_size"),
        **layer_norm(f"{_GTE_LAYER}.attn_ln"),
        **linear(f"{_GTE_LAYER}.mlp.up_gate_proj", "2*intermediate_size", "hidden_size", bias=False),
        **linear(f"{_GTE_LAYER}.mlp.down_proj", "hidden_size", "intermediate_size"),
        **layer_norm(f"{_GTE_LAYER}.mlp_ln"),
    },
    **_GATED,
    names={
        ".attention.qkv_proj.": ".attention.self.query_key_value.",
        ".attention.o_proj.": ".attention.output.dense.",
        ".attn_ln.": ".attention.output.LayerNorm.",
        ".mlp.up_gate_proj.": ".intermediate.dense.",
        ".mlp.down_proj.": ".output.dense.",
        ".mlp_ln.": ".output.LayerNorm.",
    },
    read=_read_gte,
    alternatives={
        "encoder.layer.": ("layers.",),
        ".attention.qkv_proj.": (".self_attn.q_proj.", ".self_attn.k_proj.", ".self_attn.v_proj."),
        ".attention.o_proj.": (".self_attn.o_proj.",),
        ".attn_ln.": (".post_attention_layernorm.",),
        ".mlp.up_gate_proj.": (".mlp.up_proj.", ".mlp.gate_proj."),
        ".mlp_ln.": (".post_mlp_layernorm.",),
    },
)
