"""A picture as an image."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..figure import plain, save_figure
from .make import OTHER

if TYPE_CHECKING:
    from .make import Picture

__all__ = ["PALETTE", "groups_in_order", "title_of", "write_plot"]

# Twelve colors that differ in lightness as well, after Paul Tol's "muted" and "bright" schemes
PALETTE = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377",
    "#ee7733", "#332288", "#999933", "#882255", "#44aa99", "#cc6677",
)  # fmt: skip
_REST = "#b0b0b0"


def title_of(picture: Picture) -> str:
    """What is drawn: how many documents, or passages of how many, and how."""
    shown = len(picture.ids)
    what = "documents"
    if picture.whole is not None:
        what = f"passages of {picture.whole:,} document{'' if picture.whole == 1 else 's'}"
    count = f"{shown:,} {what}" if shown == picture.total else f"{shown:,} of {picture.total:,} {what}"
    return f"{count}; {picture.layout}; color: {picture.color or 'clusters'}"


def groups_in_order(picture: Picture) -> list[tuple[str, str]]:
    """The groups and their colors: clusters by number, values by frequency, and the rest last."""
    if picture.color is None:
        names = picture.names
    else:
        counts = Counter(picture.groups)
        names = sorted(counts, key=lambda name: (name in (OTHER, "none"), -counts[name]))
    return [
        (name, _REST if picture.color is not None and name in (OTHER, "none") else PALETTE[at % len(PALETTE)])
        for at, name in enumerate(names)
    ]


def write_plot(picture: Picture, path: str | os.PathLike[str]) -> None:
    """Draw ``picture`` to ``path``, which `check_plot` accepts."""
    import matplotlib.patheffects as effects
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    count = len(picture.ids)
    dots: dict[str, Any] = {
        "s": float(np.clip(40_000 / count, 7, 60)),
        "alpha": 0.75 if count < 3000 else 0.5,
        "linewidths": 0,
    }
    if picture.values is not None:
        known = np.isfinite(picture.values)
        axes.scatter(picture.points[~known, 0], picture.points[~known, 1], color=_REST, **dots)
        x, y = picture.points[known].T
        drawn = axes.scatter(x, y, c=picture.values[known], cmap="viridis", **dots)
        figure.colorbar(drawn, ax=axes, shrink=0.6, label=plain(picture.color or ""))
    else:
        groups = np.array(picture.groups, object)
        for name, color in groups_in_order(picture):
            mine = groups == name
            axes.scatter(
                *picture.points[mine].T, color=color, label=f"{plain(name)} ({mine.sum():,})", **dots
            )
        legend = axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
        for handle in filter(None, legend.legend_handles):
            handle.set(alpha=1, sizes=[40])
    for number, name in enumerate(picture.names):
        mine = picture.points[picture.clusters == number]
        if len(mine):
            x, y = np.median(mine, axis=0)
            text = axes.text(x, y, plain(name), fontsize=8.5, ha="center", va="center", weight="bold")
            text.set_path_effects([effects.withStroke(linewidth=3, foreground="white")])
    axes.set_title(plain(title_of(picture)), fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal", "datalim")
    for side in axes.spines.values():
        side.set_visible(False)
    save_figure(figure, path)
