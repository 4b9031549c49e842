"""Measuring searches with one's own queries and judgments."""

from .judgments import Judgments, read_judgments, read_pairs
from .metrics import mrr, ndcg, recall
from .run import Measured, Search, evaluate

__all__ = [
    "Judgments",
    "Measured",
    "Search",
    "evaluate",
    "mrr",
    "ndcg",
    "read_judgments",
    "read_pairs",
    "recall",
]
