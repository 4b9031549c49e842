"""Folders with random weights in the shapes of published models since BERT, made by transformers' own classes.

Sizes, windows, positions and activations are the published models'; the vocabulary is that of another folder's
tokenizer, since a row of a table costs no time. EmbeddingGemma's two Dense layers after the pooling are left out, a
thousandth of the operations, so that every package computes the same. The speed of random weights is that of trained
ones; their vectors say nothing.
"""

import json
import shutil
from pathlib import Path
from typing import Any

__all__ = ["GATED", "SHAPES", "build", "flops_per_token"]

_LONG = 8192

#: Model types whose feed-forward layers have gates.
GATED = ("nomic_bert", "modernbert", "gte", "qwen3", "gemma3_text")

#: Name -> (config class of transformers, its options, pooling).
SHAPES: dict[str, tuple[str, dict[str, Any], str]] = {
    "nomic": (
        "NomicBertConfig",
        {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "type_vocab_size": 2,
            "rope_parameters": {
                "rope_type": "dynamic",
                "factor": 2.0,
                "rope_theta": 1000.0,
            },
            "max_position_embeddings": 2048,
        },
        "mean",
    ),
    "modernbert-base": (
        "ModernBertConfig",
        {
            "hidden_size": 768,
            "num_hidden_layers": 22,
            "num_attention_heads": 12,
            "intermediate_size": 1152,
            "local_attention": 128,
            "global_attn_every_n_layers": 3,
            "max_position_embeddings": _LONG,
        },
        "mean",
    ),
    "gte": (
        "GteConfig",
        {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "max_position_embeddings": _LONG,
        },
        "cls",
    ),
    "deberta-v3-base": (
        "DebertaV2Config",
        {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "max_position_embeddings": 512,
            "relative_attention": True,
            "position_buckets": 256,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
        "mean",
    ),
    "qwen3-0.6b": (
        "Qwen3Config",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
            "max_position_embeddings": 32768,
        },
        "lasttoken",
    ),
    "embeddinggemma": (
        "Gemma3TextConfig",
        {
            "hidden_size": 768,
            "num_hidden_layers": 24,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "intermediate_size": 1152,
            "sliding_window": 512,
            "use_bidirectional_attention": True,
            "max_position_embeddings": 2048,
        },
        "mean",
    ),
}

_TOKENIZER = ("tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json")


def build(shape: str, tokenizer_of: Path, folder: Path) -> Path:
    """Write a model folder of a named shape with another folder's tokenizer; return its path.

    Args:
        shape: a name of `SHAPES`.
        tokenizer_of: the folder whose tokenizer and vocabulary size are used.
        folder: where the new folder is made; one that is there already is used again.
    """
    import torch
    import transformers

    kind, options, mode = SHAPES[shape]
    target = folder / f"random-{shape}"
    if (target / "modules.json").exists():
        return target
    vocabulary = json.loads((tokenizer_of / "config.json").read_text())["vocab_size"]
    config = getattr(transformers, kind)(
        vocab_size=vocabulary, pad_token_id=0, bos_token_id=1, eos_token_id=2, **options
    )
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).float().save_pretrained(target, max_shard_size="50GB")
    for name in _TOKENIZER:
        if (tokenizer_of / name).exists():
            shutil.copy(tokenizer_of / name, target / name)
    length = min(_LONG, config.max_position_embeddings * (4 if shape == "nomic" else 1))
    (target / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    for path in kinds:
        (target / path).mkdir(exist_ok=True)
    flag = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}[mode]
    pooling = {"word_embedding_dimension": config.hidden_size, f"pooling_mode_{flag}": True}
    if mode != "mean":
        pooling["pooling_mode_mean_tokens"] = False
    (target / "1_Pooling" / "config.json").write_text(json.dumps(pooling, indent=1))
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(kinds.items())
    ]
    (target / "modules.json").write_text(json.dumps(entries, indent=1))
    return target


def flops_per_token(config: dict[str, Any]) -> float | None:
    """Operations of the matrix products with weights per token; None for a model type without gates."""
    if config.get("model_type") not in GATED:
        return None
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    width = config.get("head_dim") or hidden // heads
    queries, keys = heads * width, (config.get("num_key_value_heads") or heads) * width
    attention = hidden * (2 * queries + 2 * keys)
    return 2.0 * (attention + 3 * hidden * config["intermediate_size"]) * config["num_hidden_layers"]
