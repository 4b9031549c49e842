"""Examples that are held out of training, to score what a model has learned rather than memorized."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .readers import Table

__all__ = ["hold_out"]

_SEED = 0  # the same for every run, so that runs with other seeds are comparable


def hold_out(tables: Mapping[str, Table], count: int) -> tuple[dict[str, Table], dict[str, Table]]:
    """Draw ``count`` rows of each table; no row left for training, of any table, has a text of theirs.

    Args:
        tables: the training data by task.
        count: rows to draw from each.

    Returns:
        The tables without these rows and all that share a text with them, and the drawn rows; deterministic.

    Raises:
        ValueError: a table has too few rows for it.
    """
    held: dict[str, Table] = {}
    texts: set[str] = set()
    for task, table in tables.items():
        if count >= len(table):
            raise ValueError(
                f"evaluation.holdout {count}: data.{task} has only {len(table)} examples; hold out fewer"
            )
        rows = np.sort(np.random.default_rng(_SEED).choice(len(table), count, replace=False))
        held[task] = table.select(rows)
        texts.update(text for name in table.text_names for text in held[task].texts(name))
    left = {}
    for task, table in tables.items():
        examples = zip(*(table.texts(name) for name in table.text_names), strict=True)
        kept = [number for number, own in enumerate(examples) if texts.isdisjoint(own)]
        if not kept:
            raise ValueError(
                f"evaluation.holdout {count}: every example of data.{task} shares a text with one that is held out; "
                "hold out fewer"
            )
        left[task] = table.select(kept)
    return left, held
