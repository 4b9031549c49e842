"""``embedkit-index map``: the documents of an index as a picture."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import Any

from ..arguments import check_positive
from ..index import Index
from ..index.figure import FORMATS, check_file, check_plot
from ..index.picture import make_picture, write_page, write_plot
from ..index.picture.make import LAYOUTS
from ..index.picture.plot import title_of
from .common import EXIT_OK, EXIT_USAGE, CommandError, given, integer, show
from .terminal import printable

__all__ = ["add_commands"]

_DESCRIPTION = """Draw the documents in two dimensions, where those of similar meaning lie close together, in clusters
named by their most telling words. A page (.html) needs nothing else to be opened: hover over a point to read its
text."""


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("map", help="draw the documents as a picture", description=_DESCRIPTION)
    command.set_defaults(run=_map)
    command.add_argument("index", metavar="INDEX", type=given, help="index folder")
    command.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        type=given,
        help=f"file to write: .html, {', '.join(FORMATS)}",
    )
    command.add_argument("--color", type=given, metavar="F", help="color by this field (default: by cluster)")
    command.add_argument(
        "--layout",
        choices=LAYOUTS,
        default="auto",
        help="pca, umap (needs umap-learn), or auto: umap if it is installed (default)",
    )
    command.add_argument(
        "--clusters",
        type=integer(partial(check_positive, "clusters")),
        metavar="N",
        help="number of clusters (default: by the number of documents, at most 12)",
    )
    command.add_argument(
        "--sample",
        type=integer(partial(check_positive, "sample")),
        default=10_000,
        metavar="N",
        help="maximum number of documents to draw (default: 10000)",
    )


def _map(arguments: argparse.Namespace) -> int:
    page = arguments.output.lower().endswith((".html", ".htm"))
    try:
        if page:
            check_file(arguments.output)
        else:
            check_plot(arguments.output)
    except ValueError as error:
        hint = "" if page or arguments.output.endswith(FORMATS) else " (or .html)"
        raise CommandError(EXIT_USAGE, f"{error}{hint}") from None
    with Index.open(arguments.index) as index:
        picture = make_picture(
            index,
            layout=arguments.layout,
            color=arguments.color,
            clusters=arguments.clusters,
            sample=arguments.sample,
        )
    if page:
        write_page(picture, arguments.output, name=Path(os.path.abspath(arguments.index)).name)
    else:
        write_plot(picture, arguments.output)
    show(f"{printable(arguments.output)}: {title_of(picture)}")
    for number, name in enumerate(picture.names):
        show(f"  {int((picture.clusters == number).sum()):>6,}  {printable(name)}")
    return EXIT_OK
