"""The evaluations of recipes as flat scores, and the pairs that training data must not contain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import evaluate
from .evaluate import PairSet, StsResult, TextEncoder

__all__ = ["EVALUATIONS", "evaluation_pairs", "test_scores"]


def _sts(result: StsResult) -> dict[str, float]:
    return {**{name: score.spearman for name, score in result.sets.items()}, "average": result.average}


def _nested(results: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{name} {key}": value for name, result in results.items() for key, value in asdict(result).items()
    }


EVALUATIONS: dict[str, Callable[[TextEncoder, Path | None], dict[str, float]]] = {
    "sts": lambda encoder, root: _sts(evaluate.sts(encoder, root)),
    "chinese": lambda encoder, root: _sts(evaluate.chinese(encoder, root)),
    "retrieval": lambda encoder, root: _nested(evaluate.retrieval(encoder, root)),
    "minimal_pairs": lambda encoder, root: {
        key: value
        for language, categories in evaluate.minimal_pairs(encoder).languages.items()
        for key, value in _nested({f"{language} {name}": score for name, score in categories.items()}).items()
    },
}
"""Name in a recipe's ``evaluation.test`` -> function that computes its scores."""


def test_scores(encoder: TextEncoder, names: list[str], root: Path | None) -> dict[str, dict[str, float]]:
    """The scores of the named evaluations."""
    return {name: EVALUATIONS[name](encoder, root) for name in names}


def evaluation_pairs(names: list[str], sts_dev: bool, root: Path | None) -> dict[str, list[tuple[str, str]]]:
    """The pairs of the named evaluations, by set."""
    sets: dict[str, PairSet] = {}
    if "sts" in names:
        sets |= evaluate.sts_sets(root)
    if "chinese" in names:
        sets |= evaluate.chinese_sets(root)
    if sts_dev:
        sets |= evaluate.sts_dev_sets(root)
    pairs = {name: [(pair.left, pair.right) for pair in one.pairs] for name, one in sets.items()}
    return pairs | (evaluate.retrieval_pairs(root) if "retrieval" in names else {})
