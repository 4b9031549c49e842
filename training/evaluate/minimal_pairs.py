"""Negation and color: is a paraphrase nearer than an almost identical sentence with another meaning?

Each item of ``minimal_pairs.tsv``, written for this project in English and Chinese, has an anchor, a
paraphrase with other words, and a changed sentence with the same words that negates the anchor or swaps a color.
An encoder that counts words prefers the changed sentence; one that captures the meaning prefers the paraphrase.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from .tables import Row, read_table
from .vectors import TextEncoder, encode_distinct

__all__ = ["MinimalPairsResult", "MinimalPairsScore", "minimal_pairs"]

_ITEMS = Path(__file__).with_name("minimal_pairs.tsv")


@dataclass(frozen=True)
class MinimalPairsScore:
    """One category of one language, or "all" of its categories."""

    items: int
    accuracy: float  # share of items with cos(anchor, paraphrase) > cos(anchor, changed), 0 to 1
    cosine_paraphrase: float  # mean over the items
    cosine_changed: float


@dataclass(frozen=True)
class MinimalPairsResult:
    """Language ("en", "zh") -> category ("negation", "colour", "all") -> score."""

    languages: dict[str, dict[str, MinimalPairsScore]]


def minimal_pairs(encoder: TextEncoder) -> MinimalPairsResult:
    """Score ``encoder`` on the built-in items.

    Raises:
        ValueError: a vector is unusable; the model and the text are named.
    """
    items = list(read_table(_ITEMS, ("language", "category", "anchor", "paraphrase", "changed")))
    roles = ("anchor", "paraphrase", "changed")
    vectors = encode_distinct(encoder, (item.text(role) for item in items for role in roles))
    same = vectors.cosines([item["anchor"] for item in items], [item["paraphrase"] for item in items])
    other = vectors.cosines([item["anchor"] for item in items], [item["changed"] for item in items])
    groups = _groups(items)
    return MinimalPairsResult(
        {
            language: {
                category: MinimalPairsScore(
                    len(rows),
                    float((same[rows] > other[rows]).mean()),
                    float(same[rows].mean()),
                    float(other[rows].mean()),
                )
                for category, rows in categories.items()
            }
            for language, categories in groups.items()
        }
    )


def _groups(items: list[Row]) -> dict[str, dict[str, list[int]]]:
    """Language -> category -> numbers of its items, with "all" last."""
    groups: dict[str, defaultdict[str, list[int]]] = {}
    for number, item in enumerate(items):
        groups.setdefault(item["language"], defaultdict(list))[item["category"]].append(number)
    return {
        language: {**categories, "all": list(chain.from_iterable(categories.values()))}
        for language, categories in groups.items()
    }
