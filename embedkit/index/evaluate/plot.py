"""Plots quality against time, a point per way to search."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..figure import MARKERS, plain, save_figure, time_axis

__all__ = ["plot_quality"]


def plot_quality(
    path: str | os.PathLike[str], points: Sequence[tuple[str, str, float, float]], *, title: str
) -> None:
    """Plot nDCG@10 against milliseconds per query.

    Args:
        path: the file to write, which `check_plot` accepts.
        points: of each the index (a color), the search (a marker), milliseconds and nDCG@10.
        title: of the plot.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    indexes = list(dict.fromkeys(index for index, *_ in points))
    searches = list(dict.fromkeys(search for _, search, *_ in points))
    for number, index in enumerate(indexes):
        own = sorted((ms, ndcg, search) for of, search, ms, ndcg in points if of == index)
        axes.plot([ms for ms, *_ in own], [ndcg for _, ndcg, _ in own], color=f"C{number % 10}", alpha=0.4)
        for ms, ndcg, search in own:
            marker = MARKERS[searches.index(search) % len(MARKERS)]
            axes.plot([ms], [ndcg], marker, color=f"C{number % 10}", markersize=8)
    keys = [
        Line2D([], [], color=f"C{number % 10}", linewidth=3, label=plain(name))
        for number, name in enumerate(indexes)
    ]
    keys += [
        Line2D([], [], color="0.3", marker=MARKERS[number % len(MARKERS)], linestyle="", label=name)
        for number, name in enumerate(searches)
    ]
    time_axis(axes, "encoding included")
    axes.set_ylabel("nDCG@10")
    axes.set_title(title, fontsize=10)
    axes.legend(handles=keys, fontsize=8, loc="best")
    save_figure(figure, path)
