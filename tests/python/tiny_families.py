"""Tiny random models of all families but BERT's, of transformers' own classes, with a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

__all__ = [
    "DECODER",
    "DYNAMIC",
    "KINDS",
    "LLAMA3",
    "SHAPE",
    "SPECIAL",
    "WORDS",
    "auto_class",
    "randomize",
    "tiny",
    "write_tokenizer",
]

SHAPE = {
    "hidden_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 72,
    "max_position_embeddings": 9000,
}
DECODER = {**SHAPE, "head_dim": 14, "num_key_value_heads": 2, "num_attention_heads": 6, "hidden_size": 42}
T5 = {"d_model": 40, "num_layers": 4, "num_heads": 4, "d_ff": 72, "d_kv": 10}
DEBERTA = {
    "relative_attention": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "type_vocab_size": 0,
    "max_position_embeddings": 800,
}  # fmt: skip
TWO_LAYERS = {**SHAPE, "num_hidden_layers": 2}
ROBERTA = {**SHAPE, "type_vocab_size": 1, "pad_token_id": 1, "max_position_embeddings": 802}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0}
# Config class of transformers, its options, and keys of config.json that only the Hub has.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "nomic": ("NomicBertConfig", SHAPE),
    "nomic-odd": (
        "NomicBertConfig",
        {**SHAPE, "hidden_size": 54, "num_attention_heads": 3, "intermediate_size": 71},
    ),
    "nomic-ntk": (
        "NomicBertConfig",
        {**SHAPE, "max_position_embeddings": 180, "rope_parameters": DYNAMIC},
    ),
    "modernbert": ("ModernBertConfig", {**SHAPE, "local_attention": 14}),
    "modernbert-silu": (
        "ModernBertConfig",
        {
            **SHAPE,
            "hidden_activation": "silu",
            "hidden_size": 54,
            "num_attention_heads": 3,
            "intermediate_size": 37,
        },
    ),
    "gte": ("GteConfig", SHAPE),
    "gte-linear": (
        "GteConfig",
        {
            **SHAPE,
            "type_vocab_size": 0,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 1.5},
        },
    ),
    "qwen3": ("Qwen3Config", DECODER),
    "qwen2": ("Qwen2Config", DECODER),
    "llama": ("LlamaConfig", DECODER),
    "llama3": ("LlamaConfig", {**DECODER, "rope_parameters": LLAMA3}),
    "mistral": ("MistralConfig", {**DECODER, "sliding_window": 9}),
    "gemma": (
        "Gemma3TextConfig",
        {
            **DECODER,
            "query_pre_attn_scalar": 14,
            "num_key_value_heads": 1,
            "use_bidirectional_attention": True,
            "sliding_window": 18,
            "sliding_window_pattern": 3,
        },
    ),
    "gemma-causal": ("Gemma3TextConfig", {**DECODER, "query_pre_attn_scalar": 14, "sliding_window": 9}),
    "mpnet": ("MPNetConfig", {**TWO_LAYERS, "max_position_embeddings": 802}),
    "roformer": ("RoFormerConfig", {**TWO_LAYERS, "embedding_size": 40}),
    "roformer-projected": ("RoFormerConfig", {**TWO_LAYERS, "embedding_size": 24, "rotary_value": True}),
    "roformer-odd": (
        "RoFormerConfig",
        {**TWO_LAYERS, "embedding_size": 17, "hidden_size": 36, "num_attention_heads": 6},
    ),
    "roberta": ("RobertaConfig", {**ROBERTA, "num_hidden_layers": 2}),
    "xlm-roberta": ("XLMRobertaConfig", {**ROBERTA, "num_hidden_layers": 2}),
    "distilbert": (
        "DistilBertConfig",
        {"dim": 40, "n_layers": 2, "n_heads": 4, "hidden_dim": 72, "max_position_embeddings": 800},
    ),
    "camembert": ("CamembertConfig", ROBERTA),
    "electra": ("ElectraConfig", {**SHAPE, "embedding_size": 24, "max_position_embeddings": 800}),
    "data2vec": ("Data2VecTextConfig", ROBERTA),
    "ernie": ("ErnieConfig", {**SHAPE, "max_position_embeddings": 800}),
    "ernie-tasks": ("ErnieConfig", {**SHAPE, "max_position_embeddings": 800, "use_task_id": True}),
    "eurobert": ("EuroBertConfig", DECODER),
    "t5": ("T5Config", T5),
    "t5-gated": ("T5Config", {**T5, "feed_forward_proj": "gated-gelu"}),
    "mt5": ("MT5Config", {**T5, "d_kv": 14}),
    "deberta": ("DebertaV2Config", {**SHAPE, **DEBERTA}),
    "deberta-typed": ("DebertaV2Config", {**SHAPE, **DEBERTA, "type_vocab_size": 2, "position_buckets": 256}),
    "albert": ("AlbertConfig", {**SHAPE, "embedding_size": 24, "max_position_embeddings": 800}),
    "albert-groups": (
        "AlbertConfig",
        {**SHAPE, "embedding_size": 17, "num_hidden_groups": 2, "max_position_embeddings": 800},
    ),
}
WORDS = ["the", "weather", "is", "lovely", "today", "and", "people", "stay", "out", "now", "a", "b", "c"]
SPECIAL = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]


def write_tokenizer(folder: Path) -> None:
    """A WordPiece tokenizer of `WORDS`, as transformers saves it."""
    transformers = pytest.importorskip("transformers")
    from tokenizers.implementations import BertWordPieceTokenizer

    wordpiece = BertWordPieceTokenizer(
        {word: i for i, word in enumerate([*SPECIAL, *WORDS])},
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        mask_token="<mask>",
    )
    names = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=wordpiece._tokenizer,
        model_max_length=9000,
        **dict(zip(names, SPECIAL, strict=True)),
    ).save_pretrained(folder)


def randomize(model: Any) -> Any:
    """Weights as large as trained ones, some features of which stand out."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(len(str(type(model))))
    gemma = "Gemma" in type(model).__name__
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue  # RoFormer's sines and cosines
            spread = 0.3 if parameter.ndim == 1 else 1.2 / parameter.shape[-1] ** 0.5
            if name.endswith("SelfAttention.q.weight"):  # T5 does not divide the scores
                spread /= model.config.d_kv**0.5
            around = 1.0 if "norm" in name.lower() and "weight" in name and not gemma else 0.0
            parameter.normal_(around, spread)
            if parameter.ndim == 1 and "norm" in name.lower():
                parameter[3] += 2
    return model.eval()


def auto_class(model_type: str) -> Any:
    """The class of transformers that computes a text's hidden states."""
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForTextEncoding if "t5" in model_type else transformers.AutoModel


def tiny(path: Path, kind: str, **changes: Any) -> Path:
    """Write a random model of this kind to the folder ``path``."""
    transformers = pytest.importorskip("transformers")
    cls, options = KINDS[kind]
    if not hasattr(transformers, cls):
        pytest.skip(f"this transformers has no {cls}")
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    config = getattr(transformers, cls)(vocab_size=len(SPECIAL) + len(WORDS), **{**ids, **options, **changes})
    randomize(auto_class(config.model_type).from_config(config)).save_pretrained(path)
    write_tokenizer(path)
    return path
