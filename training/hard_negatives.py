"""Hard negatives for pairs: texts that a model finds near an anchor and that are none of its positives.

For each anchor, the candidates are the ``range_max`` texts of the corpus nearest to it by cosine, without its
positives. With s a candidate's score (the cosine, or that of a cross-encoder) and p the lowest score of the anchor's
positives, those stay for which

    s <= p - margin,    s <= p - relative_margin |p|,    min_score <= s <= max_score

Of these, by falling score, the first ``range_min`` are skipped, and the next ones (or, with ``random``, a draw of the
rest) are the negatives. The options are those of sentence-transformers' ``mine_hard_negatives``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .data.checks import normalized
from .evaluate.vectors import TextEncoder, encode_distinct, highest

__all__ = ["MineOptions", "Mined", "PairScorer", "mine_negatives"]

_BLOCK = 256  # anchors whose similarities to the whole corpus are in memory at once
_SPARE = 10  # candidates per negative by default if some may be filtered out

Scores = npt.NDArray[np.float64]


class PairScorer(Protocol):
    """A cross-encoder, such as `embedkit.CrossEncoder`."""

    def predict(self, sentences: list[tuple[str, str]], /) -> Any:
        """A score for each pair: (n,)."""
        ...


@dataclass(frozen=True)
class MineOptions:
    """Options of `mine_negatives`; see the module.

    Attributes:
        negatives: of each anchor.
        range_min: nearest negatives to skip.
        range_max: candidates; None for ``range_min`` plus ``negatives``, or ten times as many if some may be filtered
            out.
        margin, relative_margin, min_score, max_score: None for no such limit.
        random: draw the negatives instead of taking the nearest.
        seed: of the draw.
    """

    negatives: int = 1
    range_min: int = 0
    range_max: int | None = None
    margin: float | None = None
    relative_margin: float | None = None
    min_score: float | None = None
    max_score: float | None = None
    random: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("margin", "relative_margin", "min_score", "max_score"):
            limit = getattr(self, name)
            if limit is not None and math.isnan(limit):
                raise ValueError(f"{name} is {limit}; give a number")
        if self.negatives < 1:
            raise ValueError(f"negatives={self.negatives}: give 1 or more")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: give 0 or more")
        if self.range_min < 0:
            raise ValueError(f"range_min={self.range_min}: give 0 or more")
        if self.candidates - self.range_min < self.negatives:
            raise ValueError(
                f"range_max={self.range_max} leaves {self.candidates - self.range_min} candidates after "
                f"range_min={self.range_min}, and negatives={self.negatives} are wanted; give a larger range_max"
            )

    @property
    def filters(self) -> bool:
        """Whether a score can exclude a candidate."""
        limits = (self.margin, self.relative_margin, self.min_score, self.max_score)
        return any(limit is not None for limit in limits)

    @property
    def candidates(self) -> int:
        """``range_max``, or its default."""
        if self.range_max is not None:
            return self.range_max
        return self.range_min + self.negatives * (_SPARE if self.filters or self.random else 1)


@dataclass(frozen=True)
class Mined:
    """The result of `mine_negatives`.

    Attributes:
        rows: the pairs of anchors with enough negatives: anchor, positive, negatives.
        scores: (rows, 1 + negatives): of the positive and the negatives, by the cosine or the cross-encoder.
        left_out: pairs whose anchor has too few.
    """

    rows: list[tuple[str, ...]]
    scores: Scores
    left_out: int

    def columns(self) -> dict[str, list[str]]:
        """The rows by column: anchor, positive, and negative or negative_1, negative_2, ..."""
        from .objectives.vector_loss import negative_fields

        count = len(self.rows[0]) - 2 if self.rows else 1
        names = ("anchor", "positive", *negative_fields(count))
        return {name: [row[i] for row in self.rows] for i, name in enumerate(names)}

    def triplets(self) -> dict[str, list[str]]:
        """A row for each negative: anchor, positive, negative."""
        rows = [(row[0], row[1], negative) for row in self.rows for negative in row[2:]]
        return {name: [row[i] for row in rows] for i, name in enumerate(("anchor", "positive", "negative"))}


def mine_negatives(
    pairs: Sequence[tuple[str, str]],
    encoder: TextEncoder,
    options: MineOptions,
    *,
    corpus: Sequence[str] = (),
    cross_encoder: PairScorer | None = None,
) -> Mined:
    """Find hard negatives for pairs by exact search.

    Args:
        pairs: anchor and positive. A text's negatives are neither itself nor a positive of one of its pairs, in any
            spelling that `normalized` takes for the same (case, white space, Unicode's forms).
        encoder: encodes anchors with ``encode_query`` and the corpus with ``encode_document`` if it has them.
        options: see `MineOptions`.
        corpus: further texts that may be negatives; the positives of all pairs always are.
        cross_encoder: scores the candidates again; None takes the cosine.

    Raises:
        ValueError: there is no pair, or a vector is unusable.
    """
    if not pairs:
        raise ValueError("there are no pairs to mine negatives for")
    texts = list(dict.fromkeys([*corpus, *(positive for _, positive in pairs)]))
    number = {text: i for i, text in enumerate(texts)}
    alike: dict[str, list[int]] = {}
    for i, text in enumerate(texts):
        alike.setdefault(normalized(text), []).append(i)
    positives: dict[str, dict[int, None]] = {}
    # An anchor in its normal form: what is no negative of it, the anchor itself among them.
    answers: dict[str, set[str]] = {}
    for anchor, positive in pairs:
        positives.setdefault(anchor, {})[number[positive]] = None
        same = normalized(anchor)
        answers.setdefault(same, {same}).add(normalized(positive))
    anchors = list(positives)
    queries = encode_distinct(encoder, anchors, getattr(encoder, "encode_query", None)).unit
    documents = encode_distinct(encoder, texts, getattr(encoder, "encode_document", None)).unit
    random = np.random.default_rng(options.seed)
    chosen: dict[str, list[int]] = {}
    scored: dict[str, dict[int, float]] = {}
    for start in range(0, len(anchors), _BLOCK):
        similarity = queries[start : start + _BLOCK] @ documents.T
        for anchor, row in zip(anchors[start : start + _BLOCK], similarity, strict=True):
            own = np.fromiter(positives[anchor], np.int64)
            known = {int(i): float(row[i]) for i in own}
            row[[i for text in answers[normalized(anchor)] for i in alike.get(text, [])]] = -np.inf
            near = _nearest(row, options.candidates)
            scores = {int(i): float(row[i]) for i in near}
            if cross_encoder is not None and scores:
                known, scores = _rescored(anchor, (known, scores), texts, cross_encoder)
            chosen[anchor] = _choose(known, scores, options, random)
            scored[anchor] = known | scores
    rows, values = [], []
    for anchor, positive in pairs:
        found = chosen[anchor]
        if len(found) == options.negatives:
            rows.append((anchor, positive, *(texts[i] for i in found)))
            values.append([scored[anchor][i] for i in (number[positive], *found)])
    table = np.array(values, np.float64).reshape(-1, 1 + options.negatives)
    return Mined(rows, table, len(pairs) - len(rows))


def _nearest(similarity: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.int64]:
    """The rows of the highest finite similarities, at most ``count``, the highest first, ties in order."""
    best = highest(similarity, count)
    return best[np.isfinite(similarity[best])]


def _rescored(
    anchor: str, scores: tuple[dict[int, float], dict[int, float]], texts: Sequence[str], model: PairScorer
) -> tuple[dict[int, float], dict[int, float]]:
    """The cross-encoder's scores in place of both."""
    first, second = scores
    order = [*first, *second]
    found = np.asarray(model.predict([(anchor, texts[i]) for i in order]), np.float64)
    if found.shape != (len(order),):
        raise ValueError(
            f"the cross-encoder returned scores of shape {found.shape} for {len(order)} pairs; "
            "use one with a single score"
        )
    both = dict(zip(order, found.tolist(), strict=True))
    return {i: both[i] for i in first}, {i: both[i] for i in second}


def _choose(
    positives: Mapping[int, float],
    scores: Mapping[int, float],
    options: MineOptions,
    random: np.random.Generator,
) -> list[int]:
    """The negatives of an anchor, the highest score first."""
    top = options.max_score if options.max_score is not None else np.inf
    low = options.min_score if options.min_score is not None else -np.inf
    least = min(positives.values())
    if options.margin is not None:
        top = min(top, least - options.margin)
    if options.relative_margin is not None:
        top = min(top, least - options.relative_margin * abs(least))
    order = sorted(scores, key=lambda i: -scores[i])
    left = [i for i in order if low <= scores[i] <= top][options.range_min :]
    if not options.random or len(left) <= options.negatives:
        return left[: options.negatives]
    drawn = random.choice(len(left), options.negatives, replace=False)
    return [left[i] for i in np.sort(drawn)]
