"""Examples that are held out of training, to score what a model has learned rather than memorized."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from .checks import normalized
from .readers import Table

__all__ = ["hold_out", "leave_out"]

_SEED = 0  # the same for every run, so that runs with other seeds are comparable


def hold_out(
    tables: Mapping[str, Table], count: int, fields_of: Callable[[str, Table], tuple[str, ...]]
) -> tuple[dict[str, Table], dict[str, Table]]:
    """Draw ``count`` rows of each table; no row left for training, of any table, has a (`normalized`) text of theirs.

    Args:
        tables: the training data by task.
        count: rows to draw from each.
        fields_of: the text columns that the objective reads, by task and table; others, like a source, may be shared.

    Returns:
        The tables without these rows and all that share a text with them, and the drawn rows; deterministic.

    Raises:
        ValueError: a table has too few rows for it, or none of these columns.
    """
    held: dict[str, Table] = {}
    for task, table in tables.items():
        if count >= len(table):
            raise ValueError(
                f"evaluation.holdout {count}: data.{task} has only {len(table)} examples; hold out fewer"
            )
        rows = np.sort(np.random.default_rng(_SEED).choice(len(table), count, replace=False))
        held[task] = table.select(rows)
    return leave_out(tables, held, fields_of), held


def leave_out(
    tables: Mapping[str, Table], held: Mapping[str, Table], fields_of: Callable[[str, Table], tuple[str, ...]]
) -> dict[str, Table]:
    """The tables without the rows that share a (`normalized`) text with a row that is held out.

    Raises:
        ValueError: none is left of a table.
    """
    texts = {
        normalized(text)
        for task, table in held.items()
        for name in fields_of(task, table)
        for text in table.texts(name)
    }
    left = {}
    for task, table in tables.items():
        fields = fields_of(task, table)
        examples = zip(*(table.texts(name) for name in fields), strict=True)
        kept = [number for number, own in enumerate(examples) if texts.isdisjoint(map(normalized, own))]
        if not kept:
            raise ValueError(
                f"evaluation.holdout: every example of data.{task} shares a text ({', '.join(fields)}) with "
                "one that is held out; hold out fewer, or give a dev set in evaluation.dev"
            )
        left[task] = table.select(kept)
    return left
