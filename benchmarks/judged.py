"""Collections with judgments: folders of ``docs.tsv.gz``, ``queries.tsv.gz`` and ``qrels.tsv.gz``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import common

__all__ = ["Judged", "read_judged"]


@dataclass
class Judged:
    """A collection: titles and texts, the queries with relevant documents, and for each of them the rows with gains."""

    titles: list[str]
    texts: list[str]
    queries: list[str]
    gains: list[dict[int, float]]


def read_judged(*folders: Path) -> dict[str, Judged]:
    """The collections of all ``folders`` by name."""
    docs, queries, qrels = (
        [row for folder in folders for row in common.records(folder / f"{name}.tsv.gz")]
        for name in ("docs", "queries", "qrels")
    )
    found = {}
    for name in dict.fromkeys(row["dataset"] for row in docs):
        documents = [row for row in docs if row["dataset"] == name]
        row_of = {row["doc_id"]: number for number, row in enumerate(documents)}
        gains: dict[str, dict[int, float]] = {}
        for row in qrels:
            if row["dataset"] == name and float(row["rel"]) > 0 and row["doc_id"] in row_of:
                gains.setdefault(row["query_id"], {})[row_of[row["doc_id"]]] = float(row["rel"])
        asked = [row for row in queries if row["dataset"] == name and row["query_id"] in gains]
        found[name] = Judged(
            [row["title"] for row in documents],
            [row["text"] for row in documents],
            [row["text"] for row in asked],
            [gains[row["query_id"]] for row in asked],
        )
    return found
