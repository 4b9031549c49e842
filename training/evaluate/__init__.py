"""Evaluation of an encoder's vectors: STS in two languages, retrieval, and minimal pairs.

Every function takes an object with ``encode(list[str])``: an `embedkit.Encoder`, a ``SentenceTransformer``,
or anything else that turns texts into vectors. Spearman's correlation needs scipy (extra ``train``).
"""

from __future__ import annotations

from .minimal_pairs import MinimalPairsResult, MinimalPairsScore, minimal_pairs
from .pairs import Pair, PairSet, SetScore, StsResult, score_pairs, spearman
from .retrieval import RetrievalResult, cranfield, quora_duplicates, retrieval, retrieval_pairs
from .sts import (
    chinese,
    chinese_sets,
    sts,
    sts_dev,
    sts_dev_sets,
    sts_sets,
    sts_unseen_sets,
    sts_wide_dev_sets,
)
from .tables import DATA_VARIABLE, data_folder
from .vectors import TextEncoder

__all__ = [
    "DATA_VARIABLE",
    "MinimalPairsResult",
    "MinimalPairsScore",
    "Pair",
    "PairSet",
    "RetrievalResult",
    "SetScore",
    "StsResult",
    "TextEncoder",
    "chinese",
    "chinese_sets",
    "cranfield",
    "data_folder",
    "minimal_pairs",
    "quora_duplicates",
    "retrieval",
    "retrieval_pairs",
    "score_pairs",
    "spearman",
    "sts",
    "sts_dev",
    "sts_dev_sets",
    "sts_sets",
    "sts_unseen_sets",
    "sts_wide_dev_sets",
]
