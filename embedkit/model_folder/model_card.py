"""The model card data that sentence-transformers' evaluators write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["ModelCardData"]


class ModelCardData:
    """The part of sentence-transformers' model card data that its evaluators and utilities use.

    Attributes:
        base_model: the name by which the model was opened.
        eval_results_dict: evaluator -> metrics of its last run.
    """

    def __init__(self, base_model: str) -> None:
        """Start without results."""
        self.base_model = base_model
        self.eval_results_dict: dict[Any, dict[str, float]] = {}

    def set_evaluation_metrics(
        self, evaluator: Any, metrics: Mapping[str, float], epoch: int = 0, step: int = 0
    ) -> None:
        """Keep the metrics of ``evaluator``; ``epoch`` and ``step`` are ignored."""
        self.eval_results_dict[evaluator] = dict(metrics)
