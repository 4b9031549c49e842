"""Fields of config.json as published models have them, and what the core computes for them.

The weights of most of these models cannot be had without the Hub; their files' fields are facts found in public
repositories that read them (a field that is left out sets a size alone, or nothing that inference reads).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from embedkit.model_folder.folder import read_config

BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
MODERN = {
    "architectures": ["ModernBertModel"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 50281,
    "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0, "classifier_pooling": "mean",
    "cls_token_id": 50281, "decoder_bias": True, "deterministic_flash_attn": False, "embedding_dropout": 0.0,
    "eos_token_id": 50282, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
    "gradient_checkpointing": False, "hidden_activation": "gelu", "hidden_size": 768, "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02, "intermediate_size": 1152, "layer_norm_eps": 1e-05, "local_attention": 128,
    "local_rope_theta": 10000.0, "max_position_embeddings": 8192, "mlp_bias": False, "mlp_dropout": 0.0,
    "model_type": "modernbert", "norm_bias": False, "norm_eps": 1e-05, "num_attention_heads": 12,
    "num_hidden_layers": 22, "pad_token_id": 50283, "position_embedding_type": "absolute", "reference_compile": False,
    "repad_logits_with_grad": False, "sep_token_id": 50282, "sparse_pred_ignore_index": -100,
    "sparse_prediction": False, "torch_dtype": "float32", "vocab_size": 50368,
}  # fmt: skip
THIRDS = "".join("0" if layer % 3 == 0 else "1" for layer in range(22))
LOCAL = {"window": 64, "rotary_base": 160000.0, "rotary_local_base": 10000.0, "local_layers": THIRDS}
GTE = {
    "attention_probs_dropout_prob": 0.0, "classifier_dropout": None, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "initializer_range": 0.02, "layer_norm_eps": 1e-12, "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False, "logn_attention_scale": False, "max_position_embeddings": 8192, "pack_qkv": True,
    "position_embedding_type": "rope", "unpad_inputs": False, "use_memory_efficient_attention": False, **BASE,
}  # fmt: skip
GEMMA = {
    "_sliding_window_pattern": 6, "architectures": ["Gemma3TextModel"], "attention_bias": False,
    "attention_dropout": 0.0, "attn_logit_softcapping": None, "bos_token_id": 2, "dtype": "float32",
    "eos_token_id": 1, "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 1152,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 4, "max_position_embeddings": 2048,
    "model_type": "gemma3_text", "num_attention_heads": 3, "num_hidden_layers": 24, "num_key_value_heads": 1,
    "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0,
    "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 512, "use_bidirectional_attention": True,
    "use_cache": True, "vocab_size": 262144,
}  # fmt: skip

#: Model -> its config.json, and what the core is told of it.
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nomic-ai/nomic-embed-text-v1.5": (
        {
            "activation_function": "swiglu", "architectures": ["NomicBertModel"], "attn_pdrop": 0.0, "causal": False,
            "dense_seq_output": True, "embd_pdrop": 0.0, "fused_bias_fc": True, "fused_dropout_add_ln": True,
            "initializer_range": 0.02, "layer_norm_epsilon": 1e-12, "max_position_embeddings": 2048,
            "max_trained_positions": 2048, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "model_type": "nomic_bert",
            "n_embd": 768, "n_head": 12, "n_inner": 3072, "n_layer": 12, "n_positions": 8192,
            "pad_vocab_size_multiple": 64, "parallel_block": False, "parallel_block_tied_norm": False,
            "prenorm": False, "qkv_proj_bias": False, "reorder_and_upcast_attn": False, "resid_pdrop": 0.0,
            "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"}, "rotary_emb_base": 1000,
            "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
            "rotary_scaling_factor": None, "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True,
            "type_vocab_size": 2, "use_cache": True, "use_flash_attn": True, "use_rms_norm": False,
            "use_xentropy": True, "vocab_size": 30528,
        },
        {"rotary_base": 1000.0, "max_position_embeddings": 8192, "gate": "second", "hidden_act": "silu"},
    ),
    "nomic-ai/modernbert-embed-base": (MODERN, LOCAL),
    "Alibaba-NLP/gte-modernbert-base": ({**MODERN, "classifier_pooling": "cls"}, LOCAL),
    "ibm-granite/granite-embedding-english-r2": (
        {**MODERN, "global_rope_theta": 80000.0, "classifier_pooling": "cls"},
        {**LOCAL, "rotary_base": 80000.0},
    ),
    "jhu-clsp/mmBERT-base": (
        {**MODERN, "local_rope_theta": 160000.0, "vocab_size": 256000, "pad_token_id": 0},
        {**LOCAL, "rotary_local_base": 160000.0},
    ),
    "a ModernBERT that transformers 5 has written": (
        {
            **{key: value for key, value in MODERN.items() if "rope_theta" not in key and "layer_norm" not in key},
            "rope_parameters": {
                "full_attention": {"rope_theta": 160000.0, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
            },
            "layer_types": ["sliding_attention" if one == "1" else "full_attention" for one in THIRDS],
        },
        LOCAL,
    ),
    "granite of the time between: types in rope_parameters, speeds in the older keys": (
        {
            **MODERN,
            "global_rope_theta": 80000.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"},
            },
        },
        {**LOCAL, "rotary_base": 80000.0},
    ),
    "Alibaba-NLP/gte-base-en-v1.5": (
        {
            **GTE, "architectures": ["NewModel"], "model_type": "new", "pad_token_id": 0,
            "rope_scaling": {"factor": 2.0, "type": "ntk"}, "rope_theta": 500000, "type_vocab_size": 0,
            "vocab_size": 30528,
        },
        {"rotary_base": 1000000.0, "rotary_divisor": 2.0 ** (2 / 64), "gate": "second", "type_vocab_size": 0},
    ),
    "Alibaba-NLP/gte-multilingual-base": (
        {
            **GTE, "architectures": ["NewModel"], "model_type": "new", "pad_token_id": 1,
            "rope_scaling": {"factor": 8.0, "type": "ntk"}, "rope_theta": 20000, "type_vocab_size": 1,
            "vocab_size": 250048,
        },
        {"rotary_base": 160000.0, "rotary_divisor": 8.0 ** (2 / 64), "type_vocab_size": 1},
    ),
    "Snowflake/snowflake-arctic-embed-m-v2.0": (
        {
            **GTE, "architectures": ["GteModel"], "model_type": "gte", "pad_token_id": 1, "rope_scaling": None,
            "rope_theta": 160000, "type_vocab_size": 1, "vocab_size": 250048,
        },
        {"rotary_base": 160000.0, "max_position_embeddings": 8192},
    ),
    "Qwen/Qwen3-Embedding-0.6B": (
        {
            "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 151643, "eos_token_id": 151643, "head_dim": 128, "hidden_act": "silu",
            "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
            "max_position_embeddings": 32768, "max_window_layers": 28, "model_type": "qwen3",
            "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
            "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
            "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False, "vocab_size": 151669,
        },
        {
            "rotary_base": 1000000.0, "num_key_value_heads": 8, "head_size": 128, "causal": True, "gate": "first",
            "query_key_norm": True, "norm_kind": "rms", "norm_place": "pre",
        },
    ),
    "intfloat/e5-mistral-7b-instruct": (
        {
            "architectures": ["MistralModel"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
            "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
            "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
            "num_hidden_layers": 32, "num_key_value_heads": 8, "pad_token_id": 2, "rms_norm_eps": 1e-05,
            "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "float16",
            "use_cache": False, "vocab_size": 32000,
        },
        {
            "rotary_base": 10000.0, "num_key_value_heads": 8, "head_size": 128, "causal": True, "window": 4095,
            "local_layers": "1" * 32, "query_key_norm": False, "norm_kind": "rms",
        },
    ),
    "meta-llama/Llama-3.2-1B": (
        {
            "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu",
            "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
            "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
            "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1,
            "rms_norm_eps": 1e-05, "rope_scaling": {
                "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            }, "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
            "vocab_size": 128256,
        },
        {
            "rotary_base": 500000.0, "rotary_divisor": 32.0, "rotary_short_wave": 2048.0,
            "rotary_long_wave": 8192.0, "num_key_value_heads": 8, "head_size": 64, "causal": True,
        },
    ),
    "michaelfeil/mxbai-rerank-base-v2-seq": (
        {
            "architectures": ["Qwen2ForSequenceClassification"], "attention_dropout": 0.0, "bos_token_id": 151643,
            "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
            "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 21,
            "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
            "pad_token_id": 151643, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
            "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "float16", "use_cache": True,
            "use_sliding_window": False, "vocab_size": 151936,
        },
        {
            "rotary_base": 1000000.0, "num_key_value_heads": 2, "head_size": 64, "causal": True, "gate": "first",
            "query_key_norm": False, "norm_kind": "rms",
        },
    ),
    "google/embeddinggemma-300m": (
        GEMMA,
        {
            "window": 256, "causal": False, "rotary_base": 1000000.0, "rotary_local_base": 10000.0,
            "local_layers": "111110" * 4, "norm_kind": "rms_plus_one", "norm_place": "around", "head_size": 256,
            "embedding_scale": 768**0.5, "hidden_act": "gelu_new",
        },
    ),
    "a Gemma 3 of the time between": (
        {
            **{key: value for key, value in GEMMA.items() if key not in ("layer_types", "use_bidirectional_attention")},
            "rope_theta": 500000.0,
            "rope_parameters": {
                "full_attention": {"factor": 8.0, "rope_type": "linear"}, "sliding_attention": {"rope_type": "default"},
            },
        },
        {
            "window": 511, "causal": True, "rotary_base": 500000.0, "rotary_divisor": 8.0,
            "rotary_local_base": 10000.0, "local_layers": "111110" * 4,
        },
    ),
    "jinaai/jina-embeddings-v2-base-en": (
        {
            **BASE, "attn_implementation": None, "attention_probs_dropout_prob": 0.0,
            "architectures": ["JinaBertForMaskedLM"], "classifier_dropout": None, "emb_pooler": "mean",
            "feed_forward_type": "geglu", "gradient_checkpointing": False, "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1, "initializer_range": 0.02, "layer_norm_eps": 1e-12,
            "max_position_embeddings": 8192, "model_max_length": 8192, "model_type": "bert", "pad_token_id": 0,
            "position_embedding_type": "alibi", "torch_dtype": "float32", "type_vocab_size": 2, "use_cache": True,
            "vocab_size": 30528,
        },
        {"alibi": True, "gate": "first", "hidden_act": "gelu", "max_position_embeddings": 8192},
    ),
    "sentence-transformers/sentence-t5-base": (
        {
            "architectures": ["T5EncoderModel"], "d_ff": 3072, "d_kv": 64, "d_model": 768, "decoder_start_token_id": 0,
            "dropout_rate": 0.1, "eos_token_id": 1, "feed_forward_proj": "relu", "initializer_factor": 1.0,
            "is_encoder_decoder": True, "layer_norm_epsilon": 1e-06, "model_type": "t5", "n_positions": 512,
            "num_decoder_layers": 12, "num_heads": 12, "num_layers": 12, "output_past": True, "pad_token_id": 0,
            "relative_attention_num_buckets": 32, "torch_dtype": "float16", "use_cache": True, "vocab_size": 32128,
        },
        {
            "head_size": 64, "hidden_act": "relu", "gate": None, "norm_kind": "rms", "norm_place": "pre",
            "score_terms": 0, "position_table": False, "relative_attention_num_buckets": 32,
            "max_position_embeddings": 8192,
        },
    ),
    "a T5 1.1": (
        {
            "architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64, "d_model": 768,
            "dropout_rate": 0.1, "feed_forward_proj": "gated-gelu", "is_encoder_decoder": True,
            "layer_norm_epsilon": 1e-06, "model_type": "t5", "num_heads": 12, "num_layers": 12,
            "relative_attention_max_distance": 128, "relative_attention_num_buckets": 32, "vocab_size": 32128,
        },
        {"head_size": 64, "hidden_act": "gelu_new", "gate": "first", "layer_norm_eps": 1e-06},
    ),
    "EuroBERT/EuroBERT-210m": (
        {
            "architectures": ["EuroBertForMaskedLM"], "attention_bias": False, "attention_dropout": 0.0,
            "auto_map": {"AutoModel": "modeling_eurobert.EuroBertModel"}, "bos_token_id": 128000,
            "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 768, "intermediate_size": 3072,
            "max_position_embeddings": 8192, "mlp_bias": False, "model_type": "eurobert", "num_attention_heads": 12,
            "num_hidden_layers": 12, "num_key_value_heads": 12, "rms_norm_eps": 1e-05, "rope_theta": 250000,
            "vocab_size": 128256,
        },
        {"rotary_base": 250000.0, "causal": False, "head_size": 64, "layer_norm_eps": 1e-05},
    ),
    "microsoft/deberta-v3-base": (
        {
            "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
            "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-07,
            "max_position_embeddings": 512, "max_relative_positions": -1, "model_type": "deberta-v2",
            "norm_rel_ebd": "layer_norm", "num_attention_heads": 12, "num_hidden_layers": 12,
            "pos_att_type": "p2c|c2p", "position_biased_input": False, "position_buckets": 256,
            "relative_attention": True, "share_att_key": True, "type_vocab_size": 0, "vocab_size": 128100,
        },
        {
            "position_buckets": 256, "max_relative_positions": 512, "score_terms": 3, "position_table": False,
            "type_vocab_size": 0, "layer_norm_eps": 1e-07,
        },
    ),
    "BAAI/bge-m3": (
        {
            "architectures": ["XLMRobertaModel"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0,
            "classifier_dropout": None, "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
            "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 4096, "layer_norm_eps": 1e-05,
            "max_position_embeddings": 8194, "model_type": "xlm-roberta", "num_attention_heads": 16,
            "num_hidden_layers": 24, "output_past": True, "pad_token_id": 1, "position_embedding_type": "absolute",
            "torch_dtype": "float32", "type_vocab_size": 1, "use_cache": True, "vocab_size": 250002,
        },
        {"max_position_embeddings": 8194, "padding_idx": 1, "layer_norm_eps": 1e-05},
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", PUBLISHED)
def test_architectures_of_published_configs(model: str, tmp_path: Path) -> None:
    raw, told = PUBLISHED[model]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    _, config, _ = read_config(tmp_path, tmp_path)
    assert {key: config.get(key) for key in told} == pytest.approx(told)
