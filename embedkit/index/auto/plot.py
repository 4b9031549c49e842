"""The picture of what was measured: recall against time, a line for each kind of index."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

from .measure import Point, Setting

FORMATS = (".png", ".svg", ".pdf")


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other one beats in both recall and time, by growing time."""
    best: list[Point] = []
    for point in sorted(points, key=lambda one: (one.ms, -one.recall)):
        if not best or point.recall > best[-1].recall:
            best.append(point)
    return best


def check_plot(path: str | os.PathLike[str]) -> None:
    """What keeps `plot` from writing ``path``, before hours of work; the errors are those of `plot`."""
    if not str(path).endswith(FORMATS):
        raise ValueError(f"a plot is written as {', '.join(FORMATS)}, and not as {os.fspath(path)!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("a plot needs matplotlib, which is not installed: pip install matplotlib")


def plot_choice(path: str | os.PathLike[str], tuning: dict[str, Any]) -> None:
    """`plot` of what an automatic choice measured on its sample: ``info()["tuning"]`` of a built index."""
    curves = {
        one["factory"]: [
            Point(Setting(**point["setting"]), point["recall"], point["sure_recall"], point["ms"])
            for point in one["points"]
        ]
        for one in tuning["table"]
        if one.get("points")
    }
    chosen = tuning["chosen"]
    ring = None
    if chosen["recall"] is not None and chosen["sample_ms"] is not None:
        ring = Point(Setting(), chosen["recall"], chosen["recall"], chosen["sample_ms"])
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
    """Draw recall@10 against milliseconds a query, and write it to ``path`` (.png, .svg or .pdf).

    Args:
        path: the picture's file.
        curves: name to the points measured; only their `frontier` is drawn.
        target: recall that was asked for, drawn as a line; ``None`` for none.
        title: what was measured.
        chosen: gets a ring.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: the file's ending is none of `FORMATS`.
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
    axes.set_xlabel("milliseconds a query, one thread")
    axes.set_ylabel("recall@10 against exact search")
    axes.set_title(title, fontsize=10)
    axes.grid(which="both", alpha=0.25)
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(path)
