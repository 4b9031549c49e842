"""Plots recall against time, a line per kind of index."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..storage.durable import write_atomically
from ..storage.search_parameters import SearchParameters
from .measure import Point, frontier

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "check_file", "check_plot", "plot", "plot_choice", "save_figure"]

FORMATS = (".png", ".svg", ".pdf")


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise ValueError if no file can be written at ``path``: its folder does not exist, or it is a folder itself."""
    file = Path(path)
    if file.is_dir():
        raise ValueError(f"{file} is a folder; name a file in it")
    if not file.parent.is_dir():
        raise ValueError(f"{file}: there is no folder {file.parent}; make it first, or name another file")


def check_plot(path: str | os.PathLike[str]) -> None:
    """Raise what `plot` would raise about ``path``, before the work whose results it draws."""
    if not str(path).endswith(FORMATS):
        raise ValueError(f"a plot's file name must end in {', '.join(FORMATS)}, not {os.fspath(path)!r}")
    check_file(path)
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("a plot needs matplotlib, which is not installed: pip install matplotlib")


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
        ValueError: the file name does not end in one of `FORMATS`, or its folder does not exist.
    """
    check_plot(path)
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    markers = "osD^vP*Xph"
    for number, (name, points) in enumerate(curves.items()):
        line = frontier(points)
        axes.plot(
            [point.ms for point in line],
            [point.recall for point in line],
            marker=markers[number % len(markers)],
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
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("milliseconds per query, one thread")
    axes.set_ylabel("recall@10 against exact search")
    axes.set_title(title, fontsize=10)
    axes.grid(which="both", alpha=0.25)
    axes.legend(fontsize=8, loc="lower right")
    save_figure(figure, path)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write ``figure`` to ``path``, which holds what it held before if that fails."""
    content = BytesIO()
    figure.savefig(content, format=os.fspath(path).rpartition(".")[2])
    write_atomically(Path(path), content.getvalue())
