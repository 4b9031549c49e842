"""``embedkit-index tune``: finds the nprobe or ef that reaches a recall; options that build shares."""

from __future__ import annotations

import argparse
from typing import Any

from ..documents.readers import Corpus
from ..index import Index
from ..index.auto.plot import plot
from ..index.figure import check_plot
from .common import (
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    add_index_model,
    add_threads,
    given,
    load_index_encoder,
    print_json,
    show,
)

__all__ = ["add_commands", "add_plot"]


def add_plot(command: argparse.ArgumentParser) -> None:
    """Add ``--plot``."""
    command.add_argument(
        "--plot", type=given, metavar="FILE", help="plot recall against time (.png, .svg or .pdf)"
    )


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    tune = commands.add_parser("tune", help="find the nprobe or ef that reaches a recall")
    tune.set_defaults(run=_tune)
    tune.add_argument("index", metavar="INDEX", type=given, help="index folder")
    tune.add_argument(
        "--target-recall",
        type=float,
        default=0.95,
        metavar="R",
        help="target recall@10 against exact search (default: 0.95)",
    )
    tune.add_argument(
        "--queries",
        type=given,
        metavar="FILE",
        help="real queries, one per line; - is standard input (default: documents of the index)",
    )
    tune.add_argument("--dry-run", action="store_true", help="measure only, without changing the index")
    add_plot(tune)
    tune.add_argument("--json", action="store_true", help="print a JSON object")
    add_index_model(tune)
    add_threads(tune)


def _tune(arguments: argparse.Namespace) -> int:
    with Index.open(arguments.index, arguments.model, threads=arguments.threads) as index:
        queries = None
        if arguments.queries is not None:
            queries = [document.text for document in Corpus([arguments.queries], format="txt")]
            if not queries:
                raise CommandError(EXIT_USAGE, f"{arguments.queries}: contains no queries")
            load_index_encoder(index)
        if arguments.plot is not None:
            check_plot(arguments.plot)
        tuned = index.tune(arguments.target_recall, queries, store=not arguments.dry_run)
        info = index.info()
        if tuned is not None and arguments.plot is not None:
            name = f"{info['factory']}, {info['documents']:,} × {info['dimension']}"
            plot(
                arguments.plot,
                {name: tuned.points},
                target=arguments.target_recall,
                title=name,
                chosen=tuned.point,
            )
    if tuned is None:
        raise CommandError(
            EXIT_USAGE,
            f"{arguments.index}: {info['factory']} compares every vector: there is nothing to tune",
        )
    if arguments.json:
        print_json(tuned.to_dict(), indent=2)
    else:
        for line in tuned.lines():
            show(line)
    return EXIT_OK
