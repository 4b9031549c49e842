"""What plots share: where they can be written, names in them, an axis of milliseconds, and the writing."""

from __future__ import annotations

import importlib.util
import os
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from ..documents.folders import index_around
from ..files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "MARKERS", "check_file", "check_plot", "plain", "save_figure", "time_axis"]

FORMATS = (".png", ".svg", ".pdf")
MARKERS = "osD^vP*Xph"


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise ValueError if no file can be written at ``path``.

    Its folder does not exist or is an index's, or it is a folder itself.
    """
    file = Path(path)
    if file.is_dir():
        raise ValueError(f"{file} is a folder; name a file in it")
    if not file.parent.is_dir():
        raise ValueError(f"{file}: there is no folder {file.parent}; make it first, or name another file")
    if (index := index_around(file)) is not None:
        raise ValueError(f"{file} lies in the folder of the index {index}; name a file elsewhere")


def check_plot(path: str | os.PathLike[str]) -> None:
    """Raise what a plot would raise about ``path``, before the work whose results it draws.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: the file name does not end in one of `FORMATS`, or its folder does not exist or is an index's.
    """
    if not str(path).endswith(FORMATS):
        raise ValueError(f"a plot's file name must end in {', '.join(FORMATS)}, not {os.fspath(path)!r}")
    check_file(path)
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("a plot needs matplotlib, which is not installed: pip install matplotlib")


def plain(text: str) -> str:
    """``text`` that matplotlib shows as it is.

    It takes what is between two "$" for a formula, and leaves what begins with "_" out of a legend.
    """
    text = text.replace("$", r"\$")
    return f"\u200b{text}" if text.startswith("_") else text


def time_axis(axes: Axes, label: str) -> None:
    """Make x a logarithmic axis of milliseconds per query."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"milliseconds per query, {label}")
    axes.grid(which="both", alpha=0.25)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write ``figure`` to ``path``, which holds what it held before if that fails."""
    content = BytesIO()
    figure.savefig(content, format=os.fspath(path).rpartition(".")[2])
    write_atomically(Path(path), content.getvalue())
