"""What an automatic choice measured: a row per candidate, as an object, as JSON and as a table of text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..storage.search_parameters import SearchParameters
from .measure import Point, frontier

__all__ = ["Choice", "Measured", "table_of"]


@dataclass(frozen=True, slots=True)
class Measured:
    """A candidate and its figures.

    Attributes:
        factory: Faiss factory string for all vectors.
        note: "chosen", or why it was not chosen.
        parameters: those that reach the target (estimated for all vectors unless the sample is all of them), or
            the best ones seen if none does.
        recall: recall@10 on the sample.
        sample_ms: milliseconds per query on the sample.
        ms: milliseconds per query over all vectors, estimated unless the sample is all of them.
        bytes: size of the index of all vectors, likewise.
        build_seconds: CPU seconds to build it of all vectors, likewise.
        points: every measurement on the sample.
    """

    factory: str
    note: str
    parameters: SearchParameters = field(default_factory=SearchParameters)
    recall: float | None = None
    sample_ms: float | None = None
    ms: float | None = None
    bytes: int | None = None
    build_seconds: float | None = None
    points: tuple[Point, ...] = field(default=(), compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The fields without ``points`` as a manifest stores them."""
        return {
            "factory": self.factory,
            "note": self.note,
            "setting": self.parameters.to_json(),
            "recall": self.recall,
            "sample_ms": self.sample_ms,
            "ms": self.ms,
            "bytes": self.bytes,
            "build_seconds": self.build_seconds,
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """What `choose` chose, and the table that it chose from.

    Attributes:
        chosen: the fastest candidate that reaches the target within the memory; see ``reached``.
        reached: whether it reaches the target. If no candidate does, the one with the best recall is chosen.
        target_recall: recall@10 that was asked for.
        max_memory: bytes that the index may take; ``None``: any.
        rows: vectors to index.
        sample_rows: vectors that the candidates were built from.
        queries: the number of queries, vectors held out of the sample.
        table: all candidates, the chosen one among them.
    """

    chosen: Measured
    reached: bool
    target_recall: float
    max_memory: int | None
    rows: int
    sample_rows: int
    queries: int
    table: tuple[Measured, ...]

    def to_dict(self) -> dict[str, Any]:
        """The choice as a manifest stores it, with the `frontier` of each candidate's points."""
        return {
            "chosen": self.chosen.to_json(),
            "reached": self.reached,
            "target_recall": self.target_recall,
            "max_memory": self.max_memory,
            "rows": self.rows,
            "sample_rows": self.sample_rows,
            "queries": self.queries,
            "table": [
                {**one.to_json(), "points": [point.to_json() for point in frontier(one.points)]}
                for one in self.table
            ],
        }


def table_of(choice: Mapping[str, Any]) -> list[str]:
    """A stored choice as text, a line per candidate: ``info()["tuning"]`` of an index."""
    rows, sample_rows, table = choice["rows"], choice["sample_rows"], choice["table"]
    head = f"recall@10 ≥ {choice['target_recall']:g} of {choice['queries']:,} held-out vectors, on "
    if rows > sample_rows:
        head += f"{sample_rows:,} of {rows:,} vectors; ~ marks estimates for all"
    else:
        head += f"all {rows:,} vectors"
    if choice["max_memory"] is not None:
        head += f"; at most {choice['max_memory'] / 1e6:,.0f} MB"
    width = max(len(one["factory"]) for one in table)
    mark = "~" if rows > sample_rows else ""

    def cell(value: float | None, columns: int, form: str, mark: str = mark) -> str:
        return f"{'' if value is None else mark + format(value, form):>{columns}}"

    lines = [head, f"{'index':<{width}}  recall  ms/query      MB  build s  setting"]
    for one in table:
        size = None if one["bytes"] is None else one["bytes"] / 1e6
        cells = (
            cell(one["recall"], 6, ".4f", ""),
            cell(one["ms"], 8, ".4f"),
            cell(size, 6, ",.0f"),
            cell(one["build_seconds"], 7, ",.0f"),
            str(SearchParameters.from_json(one["setting"])),
        )
        note = f"({one['note']})" if one["note"] else ""
        lines.append("  ".join((f"{one['factory']:<{width}}", *cells, note)).rstrip())
    if (tuned := choice.get("tuned")) is not None:
        point = Point.from_json(tuned["point"])
        lines.append(
            f"measured on the index itself: {point.parameters}, recall {point.recall:.4f}, {point.ms:.4f} ms/query"
        )
    return lines
