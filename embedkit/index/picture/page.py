"""A picture as a page of HTML that needs nothing else: points to hover over, zoom and filter."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...files import write_atomically
from .plot import groups_in_order, title_of

if TYPE_CHECKING:
    import os

    from .make import Picture

__all__ = ["write_page"]

_PAGE = Path(__file__).with_name("page.html")


def write_page(picture: Picture, path: str | os.PathLike[str], *, name: str) -> None:
    """Write ``picture`` of the index ``name`` to the .html file at ``path``, which stays as it is if that fails."""
    points = picture.points.astype(np.float64)
    low, high = points.min(axis=0), points.max(axis=0)
    unit = (points - (low + high) / 2) / max(float((high - low).max()), 1e-12)  # the longer side is 1
    groups = [] if picture.values is not None else groups_in_order(picture)
    number = {group: at for at, (group, _) in enumerate(groups)}
    scale = None
    if picture.values is not None:
        known = picture.values[np.isfinite(picture.values)]
        scale = [float(known.min()), float(known.max())]
    data = {
        "points": np.round(unit, 5).tolist(),
        "ids": picture.ids,
        "texts": picture.texts,
        "clusters": picture.clusters.tolist(),
        "names": picture.names,
        "groups": [number.get(group, 0) for group in picture.groups],
        "legend": groups,
        "color": picture.color,
        "shown": picture.groups if picture.color is not None else None,
        "scale": scale,
        "values": None
        if picture.values is None
        else [None if not np.isfinite(value) else float(value) for value in picture.values],
    }
    # "<" could end the script element
    content = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    page = _PAGE.read_text(encoding="utf-8")
    parts = {"title": escape(f"{name}: {title_of(picture)}"), "data": content}
    content = re.sub(r"{{(title|data)}}", lambda at: parts[at[1]], page)
    write_atomically(Path(path), content.encode("utf-8"))
