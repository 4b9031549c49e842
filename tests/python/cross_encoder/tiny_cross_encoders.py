"""Tiny random cross-encoders of every architecture, written by transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

WORDS = ["the", "weather", "is", "lovely", "today", "and", "people", "stay", "out", "now", "a", "b", "c"]
_BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_FAIRSEQ = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]

# kind -> (class of the model in transformers, class of the tokenizer, differences from the common shape)
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("Bert", "BertTokenizer", {"hidden_act": "gelu_new"}),
    "bert-312": ("Bert", "BertTokenizer", {"hidden_size": 312, "num_attention_heads": 12, "intermediate_size": 100}),
    "bert-untyped": ("Bert", "PreTrainedTokenizerFast", {}),
    "roberta": ("Roberta", "RobertaTokenizer", {"type_vocab_size": 1, "pad_token_id": 1}),
    "xlm-roberta": ("XLMRoberta", "RobertaTokenizer", {"type_vocab_size": 1, "pad_token_id": 1}),
    "distilbert": (
        "DistilBert",
        "DistilBertTokenizer",
        {"dim": 40, "n_layers": 1, "n_heads": 4, "hidden_dim": 72, "activation": "relu"},
    ),
    "mpnet": ("MPNet", "MPNetTokenizer", {}),
    "electra": ("Electra", "", {"embedding_size": 24}),  # names no class of a tokenizer
    "deberta": (
        "DebertaV2",
        "BertTokenizer",
        {
            "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "type_vocab_size": 0,
        },
    ),
    "ernie": ("Ernie", "", {"use_task_id": True, "type_vocab_size": 4}),
    "roformer": ("RoFormer", "BertTokenizer", {"embedding_size": 24, "hidden_act": "gelu"}),
}  # fmt: skip
_SHARED = {
    "hidden_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 72,
    "max_position_embeddings": 66,
}


def _tokenizer(folder: Path, tokenizer_class: str) -> int:
    """Write a tokenizer with a maximum of 40 tokens; returns the size of its vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from tokenizers.implementations import BertWordPieceTokenizer

    fairseq = tokenizer_class in ("RobertaTokenizer", "MPNetTokenizer")
    special = _FAIRSEQ if fairseq else _BERT
    cls, pad, sep, unknown, mask = special if fairseq else (_BERT[i] for i in (2, 0, 3, 1, 4))
    if tokenizer_class == "RobertaTokenizer":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocabulary = {token: i for i, token in enumerate([*special, *alphabet, "th", "the", "ea"])}
        tokenizer = Tokenizer(models.BPE(vocabulary, [("t", "h"), ("th", "e"), ("e", "a")]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.post_processor = processors.RobertaProcessing((sep, 2), (cls, 0), add_prefix_space=False)
        tokenizer.add_special_tokens(special)
    else:
        vocabulary = {token: i for i, token in enumerate([*special, *WORDS, *(f"##{c}" for c in "etl")])}
        tokenizer = BertWordPieceTokenizer(
            vocabulary, cls_token=cls, sep_token=sep, pad_token=pad, unk_token=unknown, mask_token=mask
        )._tokenizer
        if fairseq:
            tokenizer.post_processor = processors.RobertaProcessing((sep, 2), (cls, 0))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        **({"tokenizer_class": tokenizer_class} if tokenizer_class else {}),
        "model_max_length": 40,
        "cls_token": cls, "sep_token": sep, "pad_token": pad, "unk_token": unknown, "mask_token": mask,
        "bos_token": cls, "eos_token": sep,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return len(vocabulary)


def write_cross_encoder(folder: Path, kind: str, labels: int) -> Path:
    """A random cross-encoder whose every part affects the logits, in the new folder ``folder``."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    name, tokenizer_class, changes = KINDS[kind]
    folder.mkdir(parents=True)
    size = _tokenizer(folder, tokenizer_class)
    options = {**_SHARED, **changes, "vocab_size": size, "num_labels": labels}
    torch.manual_seed(len(kind) + labels)
    config = getattr(transformers, f"{name}Config")(**options)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.requires_grad:  # not RoFormer's sines and cosines
                spread = 0.3 if parameter.ndim == 1 else 2 / parameter.shape[-1] ** 0.5
                parameter.normal_(1.0 if "norm.weight" in parameter_name.lower() else 0.0, spread)
    model.save_pretrained(folder)
    return folder
