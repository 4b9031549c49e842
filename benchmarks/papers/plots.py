"""Plots of a table: scores with their spread over the seeds, and dev scores against steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["plot", "plot_curves"]

_COLORS = 10  # of matplotlib, which then begins again


def plot(results: Mapping[str, Any], column: str, path: Path) -> None:
    """Plot one column with the standard deviation over the seeds, part by part, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    parts: dict[str, list[Any]] = {}
    for row in results["rows"]:
        if row["scores"].get(column):
            parts.setdefault(row["part"], []).append(row)
    if not parts:
        return
    heights = [len(rows) for rows in parts.values()]
    figure = Figure(figsize=(8, 0.32 * sum(heights) + 0.6 * len(parts) + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(parts), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})[
        :, 0
    ]
    for axis, (part, rows) in zip(axes, parts.items(), strict=True):
        scores = [row["scores"][column] for row in rows]
        axis.errorbar(
            [score["mean"] for score in scores],
            range(len(rows)),
            xerr=[score["sd"] for score in scores],
            fmt="o",
            capsize=3,
        )
        axis.set_yticks(range(len(rows)), [row["name"] for row in rows])
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.grid(axis="x", alpha=0.3)
        axis.set_title(part, fontsize="medium", loc="left")
    axes[-1].set_xlabel(column)
    figure.suptitle(results["title"], fontsize="medium")
    figure.savefig(path, dpi=120)


def plot_curves(results: Mapping[str, Any], score: str, path: Path) -> bool:
    """Plot a dev score of every row against the optimizer step, part by part, as a PNG.

    A line is the mean over the seeds, and the band around it their standard deviation; a row whose seeds were scored
    at other steps than the first is drawn for that one alone.

    Returns:
        Whether any run has the score at two or more steps; otherwise nothing is written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    parts: dict[str, list[tuple[str, Any, Any]]] = {}
    for row in results["rows"]:
        runs = [results["runs"].get(f"{row['run']}-{seed}", {}) for seed in row["seeds"]]
        lines = [_line(run.get("curve") or [], score) for run in runs]
        lines = [line for line in lines if len(line) > 1]
        if lines:
            same = [line[:, 1] for line in lines if np.array_equal(line[:, 0], lines[0][:, 0])]
            parts.setdefault(row["part"], []).append((row["name"], lines[0][:, 0], np.array(same)))
    if not parts:
        return False
    figure = Figure(figsize=(8, 3.6 * len(parts)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(parts), 1, squeeze=False)[:, 0]
    for axis, (part, rows) in zip(axes, parts.items(), strict=True):
        for number, (name, steps, values) in enumerate(rows):
            style = "-" if number < _COLORS else "--"
            (line,) = axis.plot(steps, values.mean(0), label=name, linestyle=style)
            if len(values) > 1:
                low, high = values.mean(0) - values.std(0, ddof=1), values.mean(0) + values.std(0, ddof=1)
                axis.fill_between(steps, low, high, alpha=0.2, color=line.get_color(), linewidth=0)
        axis.set(ylabel=score.replace("_", " "), xlabel="step")
        axis.set_title(part, fontsize="medium", loc="left")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    figure.suptitle(results["title"], fontsize="medium")
    figure.savefig(path, dpi=120)
    return True


def _line(curve: list[dict[str, float]], score: str) -> Any:
    """(points, 2): step and score; a resumed run may have scored a step twice."""
    points = {entry["step"]: entry[score] for entry in curve if score in entry}
    return np.array(sorted(points.items()), np.float64).reshape(-1, 2)
