"""The families of models since BERT's: a table entry and a reader of their fields each.

An entry names the parts of the core's layer that the family is made of (norms, positions, feed-forward layer, masks),
the values of ``config.json`` that must be as the core computes, and the names of the tensors as the Hub has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..architectures import ARCHITECTURES, Architecture
from .decoders import GEMMA3, LLAMA, MISTRAL, QWEN2, QWEN3
from .gated import GTE, MODERNBERT, NATIVE_NOMIC, NOMIC
from .kin import ALBERT, ELECTRA, JINA

__all__ = ["REFUSED", "architecture_of", "known_types"]

REFUSED = dict.fromkeys(
    ("deberta", "deberta-v2"),
    "disentangled attention (content to position and back), which the core does not compute",
)
"""Model types that are asked for and do not run -> what they have."""

_FAMILIES: dict[str, Architecture] = {
    "albert": ALBERT,
    "camembert": ARCHITECTURES["roberta"],
    "electra": ELECTRA,
    "gemma3_text": GEMMA3,
    "gte": GTE,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "modernbert": MODERNBERT,
    "new": GTE,
    "nomic_bert": NATIVE_NOMIC,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
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
        return JINA
    if name == "nomic_bert" and "n_embd" in raw:
        return NOMIC
    return ARCHITECTURES.get(name) or _FAMILIES.get(name)
