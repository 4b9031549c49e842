"""Decoders that embed and rank: Qwen2 and 3, Llama, Mistral, EmbeddingGemma; EuroBERT, made of a decoder's layers."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

from ..architectures import INTEGERS, Architecture, CoreConfig, layer_norm, linear
from .fields import SILU, Config, flag, integer, local_layers, number, refuse, rope, two_ropes

__all__ = ["EUROBERT", "GEMMA3", "LLAMA", "LLAMA_BIDIREC", "MISTRAL", "QWEN2", "QWEN3"]

_DECODER_LAYER = "layers.{}"
_QUERIES, _KEYS = "num_attention_heads*head_size", "num_key_value_heads*head_size"
_DECODER_TENSORS = {
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
}
_LAYERS = {"layers.": "encoder.layer."}  # after the names that begin with a layer's own


def _read_heads(raw: Config, config: CoreConfig, where: str) -> None:
    refuse(raw, where, {"attention_bias": (False,)})
    heads = int(config["num_attention_heads"])
    config["num_key_value_heads"] = integer(raw, "num_key_value_heads", where, 1, heads)
    config["head_size"] = integer(raw, "head_dim", where, 1, int(config["hidden_size"]) // heads)
    if heads % int(config["num_key_value_heads"]):
        raise ValueError(f"{where}: num_attention_heads {heads} is not a multiple of num_key_value_heads")


def _read_decoder(raw: Config, config: CoreConfig, where: str) -> None:
    _read_heads(raw, config, where)
    code = raw.get("auto_map")
    if isinstance(code, dict) and "AutoModel" in code and "is_causal" not in raw:
        warnings.warn(
            f"{where}: auto_map names code of the model's own ({code['AutoModel']!r:.80}), which embedkit does not "
            f"run: it computes what transformers does for {raw['model_type']!r}. If the code attends to both sides, "
            "set is_causal to false",
            stacklevel=2,
        )
    config["causal"] = flag(raw, "is_causal", where, True)
    if config["causal"] and raw.get("model_type") != "gemma3_text":  # others' own code reads it
        refuse(raw, where, {"use_bidirectional_attention": (False, None)})


def _read_qwen3(raw: Config, config: CoreConfig, where: str) -> None:
    _read_decoder(raw, config, where)
    refuse(raw, where, {"use_sliding_window": (False,)})
    if "1" in local_layers(raw, config, where, []):
        raise ValueError(
            f"{where}: layer_types has sliding_attention, which embedkit does not compute for {raw['model_type']}"
        )
    rope(raw, config, where, number(raw, "rope_theta", where, 10000.0))


QWEN3 = Architecture(
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
        **_DECODER_NAMES,
        ".post_attention_layernorm.": ".intermediate.LayerNorm.",
        **_LAYERS,
        "norm.": "norm.",
    },
    keys={"layer_norm_eps": "rms_norm_eps"},
    epsilon=1e-6,
    activation="silu",
    activations=SILU,
    read=_read_qwen3,
    final_norm="norm.weight",
    spans_heads=True,
)  # fmt: skip


_HEAD_NORMS = {f"{_DECODER_LAYER}.self_attn.{name}_norm.weight" for name in "qk"}


def _read_llama(raw: Config, config: CoreConfig, where: str) -> None:
    _read_decoder(raw, config, where)
    refuse(raw, where, {"mlp_bias": (False,)})
    rope(raw, config, where, number(raw, "rope_theta", where, 10000.0))


LLAMA = replace(
    QWEN3,
    family="llama",
    tensors={name: spec for name, spec in _DECODER_TENSORS.items() if name not in _HEAD_NORMS},
    constants={**QWEN3.constants, "query_key_norm": False},
    read=_read_llama,
)


def _read_both_sides(raw: Config, config: CoreConfig, where: str) -> None:
    refuse(raw, where, {"mlp_bias": (False,)})
    _read_heads(raw, config, where)
    rope(raw, config, where, number(raw, "rope_theta", where, 10000.0))


EUROBERT = replace(
    LLAMA,
    family="eurobert",
    constants={**LLAMA.constants, "causal": False},
    classifier=("", None, ""),
    epsilon=1e-5,
    read=_read_both_sides,
)
LLAMA_BIDIREC = replace(EUROBERT, family="llama_bidirec", epsilon=1e-6)


def _read_mistral(raw: Config, config: CoreConfig, where: str) -> None:
    _read_llama(raw, config, where)
    if raw.get("sliding_window", 4096) is not None:
        config["window"] = integer(raw, "sliding_window", where, 2, 4096) - 1 + (not config["causal"])
        # All layers have it, unless layer_types says otherwise, with which transformers reads the file as Ministral's.
        config["local_layers"] = local_layers(raw, config, where, [True] * int(config["num_hidden_layers"]))


MISTRAL = replace(LLAMA, family="mistral", read=_read_mistral)
QWEN2 = replace(
    LLAMA,
    family="qwen2",
    tensors={
        **LLAMA.tensors,
        **linear(f"{_DECODER_LAYER}.self_attn.q_proj", _QUERIES, "hidden_size"),
        **linear(f"{_DECODER_LAYER}.self_attn.k_proj", _KEYS, "hidden_size"),
        **linear(f"{_DECODER_LAYER}.self_attn.v_proj", _KEYS, "hidden_size"),
    },
    read=_read_qwen3,
)


def _read_gemma3(raw: Config, config: CoreConfig, where: str) -> None:
    _read_decoder(raw, config, where)
    scale = {"query_pre_attn_scalar": raw.get("query_pre_attn_scalar", 256)}  # transformers' default
    refuse(scale, where, {"query_pre_attn_scalar": (config["head_size"],)})
    refuse(raw, where, {"attn_logit_softcapping": (None,)})
    both = flag(raw, "use_bidirectional_attention", where, False)
    every = integer(
        raw, "sliding_window_pattern", where, 1, integer(raw, "_sliding_window_pattern", where, 1, 6)
    )
    pattern = [bool((i + 1) % every) for i in range(int(config["num_hidden_layers"]))]
    config["local_layers"] = local_layers(raw, config, where, pattern)
    # With use_bidirectional_attention the file has the whole window. is_causal false adds the token at its edge.
    window = integer(raw, "sliding_window", where, 2, 4096)
    config["window"] = (window // 2 if both else window - 1) + (not config["causal"])
    config["causal"] = bool(config["causal"]) and not both
    config["embedding_scale"] = math.sqrt(int(config["hidden_size"]))
    two_ropes(raw, config, where, ("rope_theta", "rope_local_base_freq"), 1e6)


GEMMA3 = replace(
    QWEN3,
    family="gemma3_text",
    tensors={
        **_DECODER_TENSORS,
        **layer_norm(f"{_DECODER_LAYER}.pre_feedforward_layernorm", bias=False),
        **layer_norm(f"{_DECODER_LAYER}.post_feedforward_layernorm", bias=False),
    },
    constants={**QWEN3.constants, "norm_place": "around", "norm_kind": "rms_plus_one"},
    names={
        **_DECODER_NAMES,
        ".post_attention_layernorm.": ".attention.output.LayerNorm.",
        ".pre_feedforward_layernorm.": ".intermediate.LayerNorm.",
        ".post_feedforward_layernorm.": ".output.LayerNorm.",
        **_LAYERS,
    },
    keys={"layer_norm_eps": "rms_norm_eps", "hidden_act": "hidden_activation"},
    activation="gelu_pytorch_tanh",
    read=_read_gemma3,
)
