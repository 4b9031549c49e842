"""What sentence-transformers' evaluators leave with a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["ModelCardData"]


class ModelCardData:
    """The part of sentence-transformers' model card that its evaluators and utilities use on any model.

    Attributes:
        base_model: the name that the encoder was opened by.
        eval_results_dict: evaluator -> metrics, those of its last run.
    """

    def __init__(self, base_model: str) -> None:
        """Start without results."""
        self.base_model = base_model
        self.eval_results_dict: dict[Any, dict[str, float]] = {}

    def set_evaluation_metrics(
        self, evaluator: Any, metrics: Mapping[str, float], epoch: int = 0, step: int = 0
    ) -> None:
        """Keep the metrics of ``evaluator``; ``epoch`` and ``step`` are of a training, which none is here."""
        self.eval_results_dict[evaluator] = dict(metrics)
