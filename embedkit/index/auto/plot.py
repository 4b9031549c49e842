"""Plots recall against time, a line per kind of index."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..figure import MARKERS, check_plot, save_figure, time_axis
from ..storage.search_parameters import SearchParameters
from .measure import Point, frontier

__all__ = ["plot", "plot_choice"]


def plot_choice(path: str | os.PathLike[str], tuning: dict[str, Any]) -> None:
    """Plot a stored automatic choice: ``info()["tuning"]`` of an index."""
    curves = {
        one["factory"]: [Point.from_json(point) for point in one["points"]]
        for one in tuning["table"]
        if one.get("points")
    }
    chosen = tuning["chosen"]
    ring = None
    if chosen["recall"] is not None and chosen["sample_ms"] is not None:
        ring = Point(SearchParameters(), chosen["recall"], chosen["recall"], chosen["sample_ms"])
    title = f"{tuning['sample_rows']:,} of {tuning['rows']:,} vectors; chosen: {chosen['factory']}"
    plot(path, curves, target=tuning["target_recall"], title=title, chosen=ring)


def plot(
    path: str | os.PathLike[str],
    curves: Mapping[str, Sequence[Point]],
    *,
    target: float | None,
    title: str,
    chosen: Point | None = None,
) -> None:
    """Plot recall@10 against milliseconds per query.

    Args:
        path: the file to write: .png, .svg or .pdf.
        curves: points by name of the index; only their `frontier` is drawn.
        target: the target recall, drawn as a line; ``None`` for none.
        title: of the plot.
        chosen: the point to mark with a ring.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: as `check_plot`.
    """
    check_plot(path)  # again: a build may have made an index in its folder
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for number, (name, points) in enumerate(curves.items()):
        line = frontier(points)
        axes.plot(
            [point.ms for point in line],
            [point.recall for point in line],
            marker=MARKERS[number % len(MARKERS)],
            markersize=5,
            linewidth=1.4,
            label=name,
        )
    if target is not None:
        axes.axhline(target, color="0.4", linewidth=1, linestyle="--")
        axes.annotate(
            f"recall {target:g}",
            (0, target),
            xycoords=("axes fraction", "data"),
            xytext=(4, 3),
            textcoords="offset points",
            color="0.3",
            fontsize=8,
        )
    if chosen is not None:
        axes.plot(
            [chosen.ms], [chosen.recall], "o", markersize=14, fillstyle="none", color="black", label="chosen"
        )
    time_axis(axes, "one thread")
    axes.set_ylabel("recall@10 against exact search")
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8, loc="lower right")
    save_figure(figure, path)
