"""What both engines of ``build`` share: settings, unusable documents, error messages and the last lines."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..documents.errors import OnError
from ..index import BuildSettings, IndexNotFoundError, InputError, Progress
from ..index.auto.plot import plot_choice
from ..index.auto.result import table_of
from ..index.errors import IndexDamagedError
from ..index.figure import check_plot
from ..index.storage.layout import current_name
from .common import EXIT_USAGE, CommandError, complain, plural, show
from .interrupts import exit_code

__all__ = [
    "OTHER_INPUTS",
    "Skipped",
    "build_settings",
    "check_choice",
    "check_txt",
    "counted",
    "explained",
    "show_choice",
    "truncated",
]

OTHER_INPUTS = "other inputs than one folder, the root of its file names"
"""What `sync` cannot follow; see `ReadingEntry`."""

_REPORTED = 20  # unusable documents shown one by one; further ones are only counted


class Skipped:
    """Malformed lines and refused documents, reported and counted.

    Attributes:
        on_error: for `Index.build`, as ``--on-error`` says.
    """

    def __init__(self, on_error: str) -> None:
        """``on_error``: "stop" or "skip"."""
        self.on_error: OnError = self._skip if on_error == "skip" else "stop"
        self._count = 0

    def _skip(self, error: InputError) -> None:
        self._count += 1
        if self._count <= _REPORTED:
            complain(f"skipped: {error}")
        if self._count == _REPORTED:
            complain("further documents that cannot be used are only counted")

    def left_out(self, blank: int) -> str:
        """Counts of these and of the ``blank`` texts, for the last line."""
        counts = ((blank, "blank text"), (self._count, "unusable document"))
        return "".join(f", {plural(count, what)} skipped" for count, what in counts if count)


def counted(info: dict[str, Any]) -> str:
    """How many documents an index holds, or passages of how many."""
    if info["passages"] is None:
        return plural(info["documents"], "document")
    return f"{plural(info['documents'], 'passage')} of {plural(info['whole_documents'], 'document')}"


def truncated(info: dict[str, Any]) -> str:
    """How many texts of an index the model cut, for a last line; empty if none or unknown."""
    if not info["truncated"]:
        return ""
    return (
        f"; {plural(info['truncated'], 'text')} longer than the model takes and cut (--passages finds what is in all "
        "of a text)"
    )


@contextlib.contextmanager
def explained(
    path: str, left: Callable[[], str], live: str, *, skips: bool = True
) -> Iterator[Callable[[Progress], None]]:
    """Add to an error, and to what is told after Ctrl-C or SIGTERM, what is on disk.

    Yields what takes the progress of a work that folds earlier segments first, which changes no document.

    Args:
        path: the index that the work writes.
        left: says what there is of the work before readers of the index see it.
        live: says what they see once the index has changed, which Ctrl-C does not undo.
        skips: the command has ``--on-error skip``, which a file of vectors rules out.
    """
    before = _live_generation(path)

    def begun(progress: Progress) -> None:
        nonlocal before
        if progress.stage == "encode":
            before = _live_generation(path)

    def told() -> str:
        return left() if _live_generation(path) == before else live

    try:
        yield begun
    except KeyboardInterrupt as stop:
        raise CommandError(exit_code(stop), f"interrupted: {told()}") from None
    except InputError as error:
        hint = " (--on-error skip leaves it out)" if skips and error.skippable else ""
        raise CommandError(EXIT_USAGE, f"{error}{hint}; {told()}") from None


def _live_generation(path: str) -> str | None:
    """The manifest of the generation that readers see; ``None`` if there is none, or it cannot be told."""
    with contextlib.suppress(IndexNotFoundError, IndexDamagedError, OSError):
        return current_name(Path(path))
    return None


def check_choice(arguments: argparse.Namespace) -> None:
    """Refuse a ``--plot`` that could not be drawn, before doing any work."""
    if arguments.plot is None:
        return
    if arguments.target_recall is None:
        raise CommandError(EXIT_USAGE, "--plot draws what --target-recall measures: it needs both options")
    check_plot(arguments.plot)


def check_txt(txt: str | None, format: str | None) -> None:
    """Refuse ``--txt`` with a ``--format`` that no file can be txt of; text is txt read whole."""
    if txt is not None and format not in (None, "txt") and (txt, format) != ("whole", "text"):
        raise CommandError(EXIT_USAGE, f"--txt is of .txt files: with --format {format} none is read as one")


def show_choice(arguments: argparse.Namespace, info: dict[str, Any]) -> None:
    """Print and draw the candidates that ``--target-recall`` measured."""
    # a resumed build may have finished its segment earlier, without a target: then there is no table
    if arguments.target_recall is not None and info["tuning"] is not None:
        for line in table_of(info["tuning"]):
            show(line)
        if arguments.plot is not None:
            plot_choice(arguments.plot, info["tuning"])


def build_settings(arguments: argparse.Namespace, on_error: OnError) -> BuildSettings:
    """What the options of build say; `ValueError` if one is invalid."""
    return BuildSettings(
        factory=arguments.factory,
        metric=arguments.metric,
        kept=arguments.keep,
        target_recall=arguments.target_recall,
        overwrite=arguments.overwrite,
        restart=arguments.restart,
        max_memory=arguments.max_memory,
        threads=arguments.threads,
        on_error=on_error,
        passages=arguments.passages,
        dedup=arguments.dedup,
        language=arguments.language,
    )
