"""The families of models since BERT's: a table entry and a reader of their fields each.

An entry names the parts of the core's layer that the family is made of (norms, positions, feed-forward layer, masks),
the values of ``config.json`` that must be as the core computes, and the names of the tensors as the Hub has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..architectures import ARCHITECTURES, Architecture
from .deberta import DEBERTA
from .decoders import EUROBERT, GEMMA3, LLAMA, LLAMA_BIDIREC, MISTRAL, QWEN2, QWEN3
from .gated import GTE, MODERNBERT, NATIVE_NOMIC, NOMIC
from .kin import ALBERT, ELECTRA, ERNIE, JINA
from .t5 import T5, T5_GATED

__all__ = ["REFUSED", "architecture_of", "known_types"]

REFUSED = {
    "deberta": "the attention of DeBERTa's first version; the core computes that of versions 2 and 3",
    "umt5": "a bias by distance in every layer, and the core computes one for all",
}
"""Model types that are asked for and do not run -> what they have."""

_FAMILIES: dict[str, Architecture] = {
    "albert": ALBERT,
    "camembert": ARCHITECTURES["roberta"],
    "data2vec-text": replace(ARCHITECTURES["roberta"], prefix="data2vec_text."),
    "deberta-v2": DEBERTA,
    "electra": ELECTRA,
    "ernie": ERNIE,
    "eurobert": EUROBERT,
    "gemma3_text": GEMMA3,
    "gte": GTE,
    "llama": LLAMA,
    "llama_bidirec": LLAMA_BIDIREC,
    "mistral": MISTRAL,
    "modernbert": MODERNBERT,
    "mt5": T5_GATED,
    "new": GTE,
    "nomic_bert": NATIVE_NOMIC,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "t5": T5,
}


def known_types() -> list[str]:
    """The values of ``model_type`` that the core runs."""
    return [*ARCHITECTURES, *_FAMILIES]


def architecture_of(raw: Mapping[str, Any]) -> Architecture | None:
    """The entry of a ``config.json``; None if there is none.

    Two files have another model's name: JinaBERT's says ``bert``, and NomicBERT has its own names of keys on the Hub.
    T5 has two kinds of feed-forward layer under one name.
    """
    name = raw.get("model_type")
    if not isinstance(name, str):
        return None
    if name == "bert" and raw.get("position_embedding_type") == "alibi":
        return JINA
    if name == "nomic_bert" and "n_embd" in raw:
        return NOMIC
    if name in ("t5", "mt5") and raw.get("feed_forward_proj") is not None:
        return T5_GATED if str(raw["feed_forward_proj"]).startswith("gated-") else T5
    return ARCHITECTURES.get(name) or _FAMILIES.get(name)
