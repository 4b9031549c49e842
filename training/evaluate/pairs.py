"""Scored pairs: Spearman's rank correlation of the cosine with human scores or labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .vectors import TextEncoder, encode_distinct

__all__ = ["Pair", "PairSet", "SetScore", "StsResult", "score_pairs", "spearman"]


class Pair(NamedTuple):
    """Two texts and a human similarity score, or a label of 0 or 1 for the same meaning."""

    left: str
    right: str
    score: float


@dataclass(frozen=True)
class PairSet:
    """The pairs of one column of a result, and their source."""

    pairs: Sequence[Pair]
    source: str  # table: task or source, split


@dataclass(frozen=True)
class SetScore:
    """One column of a result."""

    spearman: float  # × 100
    pairs: int
    source: str  # as in PairSet


@dataclass(frozen=True)
class StsResult:
    """Spearman's correlation × 100 of several sets."""

    sets: dict[str, SetScore]  # in the order of the columns

    @property
    def average(self) -> float:
        """The unweighted mean over the sets."""
        return fmean(score.spearman for score in self.sets.values())


def spearman(predicted: npt.ArrayLike, gold: npt.ArrayLike) -> float:
    """Spearman's rank correlation, from -1 to 1; equal values share the mean of their ranks.

    Raises:
        ValueError: a side is not finite, has fewer than two values, or only one distinct value.
        ImportError: scipy is not installed.
    """
    try:
        from scipy.stats import spearmanr
    except ImportError as error:
        raise ImportError("Spearman's correlation needs scipy: pip install 'embedkit[train]'") from error
    sides = {"predicted": np.asarray(predicted, np.float64), "gold": np.asarray(gold, np.float64)}
    shapes = {side.shape for side in sides.values()}
    if len(shapes) > 1 or any(side.ndim != 1 or len(side) < 2 for side in sides.values()):
        raise ValueError(f"expected two or more values on both sides, got shapes {sorted(shapes)}")
    for name, side in sides.items():
        if not np.isfinite(side).all():
            raise ValueError(f"{name}[{int(np.flatnonzero(~np.isfinite(side))[0])}] is not finite")
        if (side == side[0]).all():
            raise ValueError(f"all values of {name} are {side[0]:g}, so there is no order to compare")
    return float(spearmanr(sides["predicted"], sides["gold"]).statistic)


def score_pairs(
    encoder: TextEncoder, sets: Mapping[str, PairSet], encode: Callable[[list[str]], Any] | None = None
) -> StsResult:
    """Score the cosines of ``encoder`` on each set; a text in several sets is encoded once.

    ``encode`` is the method of ``encoder`` to call; None for ``encode``.

    Raises:
        ValueError: a vector is unusable (see `encode_distinct`), or a set cannot be ranked (it is named).
    """
    texts = (text for one in sets.values() for pair in one.pairs for text in (pair.left, pair.right))
    vectors = encode_distinct(encoder, texts, encode)
    scores = {}
    for name, one in sets.items():
        cosines = vectors.cosines([pair.left for pair in one.pairs], [pair.right for pair in one.pairs])
        try:
            correlation = spearman(cosines, [pair.score for pair in one.pairs])
        except ValueError as error:
            raise ValueError(f"{name} ({one.source}): {error}") from error
        scores[name] = SetScore(100 * correlation, len(one.pairs), one.source)
    return StsResult(scores)
