"""The families of models since BERT's: a table entry and a reader of their positions each.

An entry names the parts of the core's layer that the family is made of (norms, positions, feed-forward layer, masks),
the values of ``config.json`` that must be as the core computes, and the names of the tensors as the Hub has them.
Checkpoints that transformers wrote with its own classes have other names: ``alternatives``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .architectures import (
    ARCHITECTURES,
    INTEGERS,
    LAYER_TENSORS,
    TOKEN_TYPES,
    Architecture,
    CoreConfig,
    layer_norm,
    linear,
)

__all__ = ["architecture_of", "known_types"]

_Tensors = dict[str, tuple[tuple[str, ...], bool]]
_Config = Mapping[str, Any]
_SILU = {"silu": "silu", "swiglu": "silu", "geglu": "gelu"}


def _number(raw: _Config, key: str, where: str, default: float | None = None) -> float:
    """A positive number of ``config.json``."""
    value = raw.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise ValueError(
            f"{where}: {key} must be a positive number, not {value!r:.80}. Fetch the file again."
        )
    return float(value)


def _integer(raw: _Config, key: str, where: str, least: int, default: int | None = None) -> int:
    value = raw.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1_000_000:
        raise ValueError(
            f"{where}: {key} must be an integer from {least}, not {value!r:.80}. Fetch the file again."
        )
    return value


def _rope(raw: _Config, config: CoreConfig, where: str, theta: float, name: str = "rope") -> None:
    """The speeds of rotary positions from ``rope_parameters`` (transformers 5) or ``rope_scaling``.

    Raises:
        ValueError: the type of scaling is none that the core computes; names it.
    """
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise ValueError(f"{where}: {name} must be an object, not {scaling!r:.80}")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    unknown = set(scaling) - {"rope_type", "type", "factor", "rope_theta", "original_max_position_embeddings"}
    odd = sorted(key for key in unknown if scaling[key] not in (None, 1, 1.0))
    if odd:
        raise ValueError(
            f"{where}: {name} has {odd[0]!r:.80} {scaling[odd[0]]!r:.80}, which embedkit does not compute"
        )
    base = _number(scaling, "rope_theta", where, theta)
    if kind in (None, "default"):
        config["rotary_base"] = base
        return
    factor = _number(scaling, "factor", where)
    width = _head_size(config)
    if kind == "linear":
        config.update(rotary_base=base, rotary_divisor=factor)
    elif kind == "ntk":  # of Alibaba's models; equations 6 of Su's "NTK-RoPE mixed"
        config.update(rotary_base=base * factor, rotary_divisor=factor ** (2 / width))
    elif kind == "dynamic":
        trained = int(config["max_position_embeddings"])
        _refuse(scaling, where, {"original_max_position_embeddings": (None, trained)})
        config.update(rotary_base=base, rotary_stretch=factor, rotary_trained=trained)
        # As far as the models that use it were tried: nomic-embed-text, 2,048 to 8,192.
        config["max_position_embeddings"] = max(int(config["max_position_embeddings"]), 4 * trained)
    else:
        raise ValueError(
            f"{where}: {name} type {kind!r:.80} is not supported; embedkit computes default, linear, ntk and dynamic"
        )


def _head_size(config: CoreConfig) -> int:
    return int(config.get("head_size", 0)) or int(config["hidden_size"]) // int(config["num_attention_heads"])


def _refuse(raw: _Config, where: str, wanted: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse values that change the result and that the core does not compute."""
    for key, values in wanted.items():
        value = raw.get(key, values[0])
        if value not in values:
            raise ValueError(
                f"{where}: {key} is {value!r:.80}; embedkit supports only {values[0]!r} for this model. "
                "Use another model, or sentence-transformers for this one."
            )


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


def _refuse_experts(raw: _Config, where: str) -> None:
    if raw.get("num_experts") or raw.get("moe_every_n_layers", -1) > 0:
        raise ValueError(
            f"{where}: the model has experts (num_experts {raw.get('num_experts')!r}), as nomic-embed-text-v2-moe; "
            "embedkit runs nomic-embed-text v1 and v1.5"
        )


def _read_nomic(raw: _Config, config: CoreConfig, where: str) -> None:
    _refuse_experts(raw, where)
    _refuse(
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
    config["rotary_base"] = _number(raw, "rotary_emb_base", where, 10000)
    if raw.get("rotary_scaling_factor") is not None:
        config["rotary_stretch"] = _number(raw, "rotary_scaling_factor", where)
        config["rotary_trained"] = _integer(raw, "max_trained_positions", where, 1, 2048)


_GATED_POST: dict[str, Any] = {"gate": "second", "biases": False}
_NOMIC = Architecture(
    family="nomic_bert",
    prefix="bert.",
    prefixes=("nomic_bert.",),
    integers=(*INTEGERS, "type_vocab_size"),
    fixed={},
    layers="encoder.layers.",
    tensors={
        "embeddings.word_embeddings.weight": (("vocab_size", "hidden_size"), True),
        **TOKEN_TYPES,
        **layer_norm("emb_ln"),
        **linear(f"{_NOMIC_LAYER}.attn.Wqkv", "3*hidden_size", "hidden_size", bias=False),
        **linear(f"{_NOMIC_LAYER}.attn.out_proj", "hidden_size", "hidden_size", bias=False),
        **layer_norm(f"{_NOMIC_LAYER}.norm1"),
        **linear(f"{_NOMIC_LAYER}.mlp.fc11", "intermediate_size", "hidden_size", bias=False),
        **linear(f"{_NOMIC_LAYER}.mlp.fc12", "intermediate_size", "hidden_size", bias=False),
        **linear(f"{_NOMIC_LAYER}.mlp.fc2", "hidden_size", "intermediate_size", bias=False),
        **layer_norm(f"{_NOMIC_LAYER}.norm2"),
    },
    classifier=("pooler.dense", "tanh", "classifier"),
    constants=_GATED_POST,
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
    activations=_SILU,
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


def _read_native_nomic(raw: _Config, config: CoreConfig, where: str) -> None:
    _refuse_experts(raw, where)
    _refuse(raw, where, {"head_dim": (None, _head_size(config))})
    _rope(raw, config, where, 1000.0)


_NATIVE_NOMIC = replace(_NOMIC, keys={}, read=_read_native_nomic, activation="silu")

# --- ModernBERT ------------------------------------------------------------------------------------------------------

_MODERN_LAYER = "layers.{}"


def _local_layers(raw: _Config, config: CoreConfig, where: str, default: list[bool]) -> str:
    """Which layers attend locally: ``layer_types``, or the pattern."""
    types = raw.get("layer_types")
    if types is None:
        return "".join("1" if local else "0" for local in default)
    known = {"sliding_attention": "1", "full_attention": "0"}
    if not isinstance(types, list) or len(types) != config["num_hidden_layers"]:
        raise ValueError(
            f"{where}: layer_types must name {config['num_hidden_layers']} layers, not {types!r:.80}"
        )
    for name in types:
        if name not in known:
            raise ValueError(f"{where}: unknown layer type {name!r:.80}; expected one of {', '.join(known)}")
    return "".join(known[name] for name in types)


def _two_ropes(raw: _Config, config: CoreConfig, where: str, keys: tuple[str, str], theta: float) -> None:
    """The speeds of a model whose local layers turn faster: ``rope_parameters`` of both kinds, or two keys."""
    both = raw.get("rope_parameters")
    if not isinstance(both, dict):
        base, local = (
            _number(raw, key, where, value) for key, value in zip(keys, (theta, 10000.0), strict=True)
        )
        _rope({"rope_scaling": raw.get("rope_scaling")}, config, where, base)
        config["rotary_local_base"] = local
        return
    unknown = sorted(set(both) - {"full_attention", "sliding_attention"})
    if unknown:
        raise ValueError(f"{where}: rope_parameters has {unknown[0]!r:.80}, which embedkit does not compute")
    _rope({"rope_parameters": both.get("sliding_attention")}, config, where, 10000.0, "rope_parameters")
    if set(config) & {"rotary_divisor", "rotary_trained"}:
        raise ValueError(f"{where}: rope_parameters scale the local layers, which embedkit does not compute")
    config["rotary_local_base"] = config["rotary_base"]
    _rope({"rope_parameters": both.get("full_attention")}, config, where, theta, "rope_parameters")


def _read_modernbert(raw: _Config, config: CoreConfig, where: str) -> None:
    _refuse(
        raw, where, dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), (False,))
    )
    every = _integer(raw, "global_attn_every_n_layers", where, 1, 3)
    pattern = [bool(i % every) for i in range(int(config["num_hidden_layers"]))]
    config["local_layers"] = _local_layers(raw, config, where, pattern)
    config["window"] = _integer(raw, "local_attention", where, 1, 128) // 2
    _two_ropes(raw, config, where, ("global_rope_theta", "local_rope_theta"), 160_000.0)


_MODERNBERT = Architecture(
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
    activations=_SILU,
    read=_read_modernbert,
)

# --- GTE of Alibaba ("new"), Snowflake Arctic m v2 -------------------------------------------------------------------

_GTE_LAYER = "encoder.layer.{}"


def _read_gte(raw: _Config, config: CoreConfig, where: str) -> None:
    _refuse(
        raw,
        where,
        {
            "position_embedding_type": ("rope",),
            "layer_norm_type": ("layer_norm",),
            "logn_attention_scale": (False,),
            "pack_qkv": (True,),
        },
    )
    config["type_vocab_size"] = _integer(raw, "type_vocab_size", where, 0, 0 if "pack_qkv" in raw else 1)
    _rope(raw, config, where, _number(raw, "rope_theta", where, 10000.0 if "pack_qkv" in raw else 160_000.0))


_GTE = Architecture(
    family="gte",
    prefix="new.",
    prefixes=("gte.",),
    integers=INTEGERS,
    fixed={},
    layers="encoder.layer.",
    tensors={
        "embeddings.word_embeddings.weight": (("vocab_size", "hidden_size"), True),
        **TOKEN_TYPES,
        **layer_norm("embeddings.LayerNorm"),
        **linear(f"{_GTE_LAYER}.attention.qkv_proj", "3*hidden_size", "hidden_size"),
        **linear(f"{_GTE_LAYER}.attention.o_proj", "hidden_size", "hidden_size"),
        **layer_norm(f"{_GTE_LAYER}.attn_ln"),
        **linear(f"{_GTE_LAYER}.mlp.up_gate_proj", "2*intermediate_size", "hidden_size", bias=False),
        **linear(f"{_GTE_LAYER}.mlp.down_proj", "hidden_size", "intermediate_size"),
        **layer_norm(f"{_GTE_LAYER}.mlp_ln"),
    },
    classifier=("pooler.dense", "tanh", "classifier"),
    constants=_GATED_POST,
    names={
        ".attention.qkv_proj.": ".attention.self.query_key_value.",
        ".attention.o_proj.": ".attention.output.dense.",
        ".attn_ln.": ".attention.output.LayerNorm.",
        ".mlp.up_gate_proj.": ".intermediate.dense.",
        ".mlp.down_proj.": ".output.dense.",
        ".mlp_ln.": ".output.LayerNorm.",
    },
    activations=_SILU,
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

# --- Decoders: Qwen3, EmbeddingGemma ---------------------------------------------------------------------------------

_DECODER_LAYER = "layers.{}"
_QUERIES, _KEYS = "num_attention_heads*head_size", "num_key_value_heads*head_size"
_DECODER_TENSORS: _Tensors = {
    "embed_tokens.weight": (("vocab_size", "hidden_size"), True),
    **layer_norm(f"{_DECODER_LAYER}.input_layernorm", bias=False),
    **linear(f"{_DECODER_LAYER}.self_attn.q_proj", _QUERIES, "hidden_size", bias=False),
    **linear(f"{_DECODER_LAYER}.self_attn.k_proj", _KEYS, "hidden_size", bias=False),
    **linear(f"{_DECODER_LAYER}.self_attn.v_proj", _KEYS, "hidden_size", bias=False),
    **layer_norm(f"{_DECODER_LAYER}.self_attn.q_norm", "head_size", bias=False),
    **layer_norm(f"{_DECODER_LAYER}.self_attn.k_norm", "head_size", bias=False),
    **linear(f"{_DECODER_LAYER}.self_attn.o_proj", "hidden_size", _QUERIES, bias=False),
    **layer_norm(f"{_DECODER_LAYER}.post_attention_layernorm", bias=False),
    **linear(f"{_DECODER_LAYER}.mlp.gate_proj", "intermediate_size", "hidden_size", bias=False),
    **linear(f"{_DECODER_LAYER}.mlp.up_proj", "intermediate_size", "hidden_size", bias=False),
    **linear(f"{_DECODER_LAYER}.mlp.down_proj", "hidden_size", "intermediate_size", bias=False),
    **layer_norm("norm", bias=False),
}
_DECODER_NAMES = {
    "embed_tokens.": "embeddings.word_embeddings.",
    ".input_layernorm.": ".attention.LayerNorm.",
    ".self_attn.q_proj.": ".attention.self.query.",
    ".self_attn.k_proj.": ".attention.self.key.",
    ".self_attn.v_proj.": ".attention.self.value.",
    ".self_attn.q_norm.": ".attention.self.query_norm.",
    ".self_attn.k_norm.": ".attention.self.key_norm.",
    ".self_attn.o_proj.": ".attention.output.dense.",
    ".mlp.gate_proj.": ".intermediate.gate.",
    ".mlp.up_proj.": ".intermediate.up.",
    ".mlp.down_proj.": ".output.dense.",
    "layers.": "encoder.layer.",
}


def _read_decoder(raw: _Config, config: CoreConfig, where: str) -> None:
    _refuse(raw, where, {"attention_bias": (False,)})
    heads = int(config["num_attention_heads"])
    config["num_key_value_heads"] = _integer(raw, "num_key_value_heads", where, 1, heads)
    config["head_size"] = _integer(raw, "head_dim", where, 1, int(config["hidden_size"]) // heads)
    if heads % int(config["num_key_value_heads"]):
        raise ValueError(f"{where}: num_attention_heads {heads} is not a multiple of num_key_value_heads")


def _read_qwen3(raw: _Config, config: CoreConfig, where: str) -> None:
    _read_decoder(raw, config, where)
    _refuse(raw, where, {"use_sliding_window": (False,)})
    if "1" in _local_layers(raw, config, where, []):
        raise ValueError(
            f"{where}: layer_types has sliding_attention, which embedkit does not compute for qwen3"
        )
    _rope(raw, config, where, _number(raw, "rope_theta", where, 10000.0))


_QWEN3 = Architecture(
    family="qwen3",
    prefix="model.",
    integers=INTEGERS,
    fixed={},
    layers="layers.",
    tensors=_DECODER_TENSORS,
    classifier=("", None, "score"),
    constants={
        "gate": "first", "biases": False, "norm_place": "pre", "norm_kind": "rms", "embedding_norm": False,
        "query_key_norm": True, "causal": True,
    },
    names={
        **{key: name for key, name in _DECODER_NAMES.items() if key != "layers."},
        ".post_attention_layernorm.": ".intermediate.LayerNorm.",
        "layers.": "encoder.layer.",
        "norm.": "norm.",
    },
    keys={"layer_norm_eps": "rms_norm_eps"},
    epsilon=1e-6,
    activations=_SILU,
    read=_read_qwen3,
    final_norm="norm.weight",
    spans_heads=True,
)  # fmt: skip


def _read_gemma3(raw: _Config, config: CoreConfig, where: str) -> None:
    _read_decoder(raw, config, where)
    _refuse(
        raw,
        where,
        {
            "query_pre_attn_scalar": (config["head_size"],),
            "attn_logit_softcapping": (None,),
            "rope_scaling": (None,),
        },
    )
    both = raw.get("use_bidirectional_attention", False)
    if not isinstance(both, bool):
        raise ValueError(f"{where}: use_bidirectional_attention must be true or false, not {both!r:.80}")
    every = _integer(
        raw, "sliding_window_pattern", where, 1, _integer(raw, "_sliding_window_pattern", where, 1, 6)
    )
    pattern = [bool((i + 1) % every) for i in range(int(config["num_hidden_layers"]))]
    config["local_layers"] = _local_layers(raw, config, where, pattern)
    # Of a model that sees both sides the file has the whole window.
    window = _integer(raw, "sliding_window", where, 2, 4096)
    config["window"] = window // 2 if both else window - 1
    config["causal"] = not both
    config["embedding_scale"] = math.sqrt(int(config["hidden_size"]))
    _two_ropes(raw, config, where, ("rope_theta", "rope_local_base_freq"), 1e6)


_GEMMA3 = replace(
    _QWEN3,
    family="gemma3_text",
    tensors={
        **_DECODER_TENSORS,
        **layer_norm(f"{_DECODER_LAYER}.pre_feedforward_layernorm", bias=False),
        **layer_norm(f"{_DECODER_LAYER}.post_feedforward_layernorm", bias=False),
    },
    constants={**_QWEN3.constants, "norm_place": "around", "norm_kind": "rms_plus_one"},
    names={
        **{key: name for key, name in _DECODER_NAMES.items() if key != "layers."},
        ".post_attention_layernorm.": ".attention.output.LayerNorm.",
        ".pre_feedforward_layernorm.": ".intermediate.LayerNorm.",
        ".post_feedforward_layernorm.": ".output.LayerNorm.",
        "layers.": "encoder.layer.",
    },
    keys={"layer_norm_eps": "rms_norm_eps", "hidden_act": "hidden_activation"},
    activation="gelu_pytorch_tanh",
    read=_read_gemma3,
)

# --- BERT's kin ------------------------------------------------------------------------------------------------------

_NO_DECODER = {"is_decoder": False, "add_cross_attention": False}
_ROFORMER = ARCHITECTURES["roformer"]
_ELECTRA = replace(
    _ROFORMER,
    family="electra",
    prefix="electra.",
    fixed={"position_embedding_type": "absolute", **_NO_DECODER},
    tensors={
        **_ROFORMER.tensors,
        "embeddings.position_embeddings.weight": (("max_position_embeddings", "embedding_size"), True),
    },
    classifier=("classifier.dense", "gelu", "classifier.out_proj"),
    constants={},
    flags=(),
)

_ALBERT_GROUP = "encoder.albert_layer_groups.{}.albert_layers.0"
_ALBERT_NAMES = {
    "encoder.embedding_hidden_mapping_in.": "embeddings_project.",
    ".albert_layers.0.attention.LayerNorm.": ".attention.output.LayerNorm.",
    ".albert_layers.0.attention.dense.": ".attention.output.dense.",
    ".albert_layers.0.attention.": ".attention.self.",
    ".attention.self.output.": ".attention.output.",
    ".albert_layers.0.full_layer_layer_norm.": ".output.LayerNorm.",
    ".albert_layers.0.ffn_output.": ".output.dense.",
    ".albert_layers.0.ffn.": ".intermediate.dense.",
    "encoder.albert_layer_groups.": "encoder.layer.",
}


def _read_albert(raw: _Config, config: CoreConfig, where: str) -> None:
    _refuse(raw, where, {"inner_group_num": (1,), "position_embedding_type": ("absolute",)})
    layers, groups = int(config["num_hidden_layers"]), int(config["num_hidden_groups"])
    if layers % groups:
        raise ValueError(
            f"{where}: num_hidden_layers {layers} is not a multiple of num_hidden_groups {groups}"
        )
    if config["embedding_size"] == config["hidden_size"]:
        raise ValueError(
            f"{where}: embedding_size is hidden_size; embedkit runs ALBERT with smaller embeddings"
        )


_ALBERT = Architecture(
    family="albert",
    prefix="albert.",
    integers=(*INTEGERS, "type_vocab_size", "embedding_size", "num_hidden_groups"),
    fixed={},
    layers="encoder.albert_layer_groups.",
    layer_count="num_hidden_groups",
    tensors={
        "embeddings.word_embeddings.weight": (("vocab_size", "embedding_size"), True),
        "embeddings.position_embeddings.weight": (("max_position_embeddings", "embedding_size"), True),
        "embeddings.token_type_embeddings.weight": (("type_vocab_size", "embedding_size"), False),
        **layer_norm("embeddings.LayerNorm", "embedding_size"),
        "encoder.embedding_hidden_mapping_in.weight": (("hidden_size", "embedding_size"), False),
        "encoder.embedding_hidden_mapping_in.bias": (("hidden_size",), False),
        **{
            key: value
            for name in ("query", "key", "value", "dense")
            for key, value in linear(
                f"{_ALBERT_GROUP}.attention.{name}", "hidden_size", "hidden_size"
            ).items()
        },
        **layer_norm(f"{_ALBERT_GROUP}.attention.LayerNorm"),
        **linear(f"{_ALBERT_GROUP}.ffn", "intermediate_size", "hidden_size"),
        **linear(f"{_ALBERT_GROUP}.ffn_output", "hidden_size", "intermediate_size"),
        **layer_norm(f"{_ALBERT_GROUP}.full_layer_layer_norm"),
    },
    classifier=("pooler", "tanh", "classifier"),
    names=_ALBERT_NAMES,
    activation="gelu_new",
    read=_read_albert,
)

_JINA_NAMES = {
    ".mlp.gated_layers.": ".intermediate.dense.",
    ".mlp.wo.": ".output.dense.",
    ".mlp.layernorm.": ".output.LayerNorm.",
}
_JINA_ACTIVATIONS = {"geglu": "gelu", "reglu": "relu"}
_JINA = Architecture(
    family="jina_bert",
    prefix="bert.",
    integers=(*INTEGERS, "type_vocab_size"),
    fixed={"position_embedding_type": "alibi", **_NO_DECODER},
    layers="encoder.layer.",
    tensors={
        "embeddings.word_embeddings.weight": (("vocab_size", "hidden_size"), True),
        **TOKEN_TYPES,
        **layer_norm("embeddings.LayerNorm"),
        **{
            name: entry
            for name, entry in LAYER_TENSORS.items()
            if ".attention." in name
        },
        **linear("encoder.layer.{}.mlp.gated_layers", "2*intermediate_size", "hidden_size", bias=False),
        **linear("encoder.layer.{}.mlp.wo", "hidden_size", "intermediate_size"),
        **layer_norm("encoder.layer.{}.mlp.layernorm"),
    },
    classifier=("pooler.dense", "tanh", "classifier"),
    constants={"gate": "first", "biases": False, "alibi": True},
    names=_JINA_NAMES,
    keys={"hidden_act": "feed_forward_type"},
    activations=_JINA_ACTIVATIONS,
)  # fmt: skip

_FAMILIES: dict[str, Architecture] = {
    "albert": _ALBERT,
    "camembert": ARCHITECTURES["roberta"],
    "electra": _ELECTRA,
    "gemma3_text": _GEMMA3,
    "gte": _GTE,
    "modernbert": _MODERNBERT,
    "new": _GTE,
    "nomic_bert": _NATIVE_NOMIC,
    "qwen3": _QWEN3,
}


def known_types() -> list[str]:
    """The values of ``model_type`` that the core runs."""
    return [*ARCHITECTURES, *_FAMILIES]


def architecture_of(raw: Mapping[str, Any]) -> Architecture | None:
    """The entry of a ``config.json``; None if there is none.

    Two files have another model's name: JinaBERT's says ``bert``, and NomicBERT has its own names of keys on the Hub.
    """
    name = raw.get("model_type")
    if not isinstance(name, str):
        return None
    if name == "bert" and raw.get("position_embedding_type") == "alibi":
        return _JINA
    if name == "nomic_bert" and "n_embd" in raw:
        return _NOMIC
    return ARCHITECTURES.get(name) or _FAMILIES.get(name)
