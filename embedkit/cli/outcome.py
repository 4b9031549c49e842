"""What every way to build an index has in common: its options, what it leaves out, and what it says at the end."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ..documents.errors import OnError
from ..index import BuildError, IndexExistsError, InputError, ModelMismatchError
from ..index.auto.plot import check_plot, plot_choice
from ..index.auto.result import table_of
from .common import EXIT_INTERRUPTED, EXIT_USAGE, CommandError, complain, plural, show

_REPORTED_LINES = 20  # malformed lines shown one by one; further ones are only counted


class Skipped:
    """Malformed lines, told and counted.

    Attributes:
        on_error: what ``--on-error`` says, for `Index.build`.
    """

    def __init__(self, on_error: str) -> None:
        """``on_error``: "stop" or "skip"."""
        self.on_error: OnError = self._skip if on_error == "skip" else "stop"
        self._count = 0

    def _skip(self, error: InputError) -> None:
        self._count += 1
        if self._count <= _REPORTED_LINES:
            complain(f"skipped: {error}")
        if self._count == _REPORTED_LINES:
            complain("further malformed lines are only counted")

    def left_out(self, blank: int) -> str:
        """These and the ``blank`` texts, for the last line."""
        counts = ((blank, "blank text"), (self._count, "malformed line"))
        return "".join(f", {plural(count, what)} skipped" for count, what in counts if count)


@contextlib.contextmanager
def explained(left: Callable[[], str], resumes: str = "") -> Iterator[None]:
    """Say of whatever stops the work what is ``left``, and after Ctrl-C how it ``resumes``."""
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError(EXIT_INTERRUPTED, f"interrupted: {left()}{resumes}") from None
    except InputError as error:
        hint = "" if not error.skippable else " (--on-error skip leaves malformed lines out)"
        raise CommandError(EXIT_USAGE, f"{error}{hint}; {left()}") from None
    except (ModelMismatchError, IndexExistsError, BuildError):
        raise
    except ValueError as error:  # the factory, the model
        raise CommandError(EXIT_USAGE, str(error)) from None


def check_choice(arguments: argparse.Namespace) -> None:
    """Refuse a ``--plot`` that could not be drawn, before any work."""
    if arguments.plot is None:
        return
    if arguments.target_recall is None:
        raise CommandError(EXIT_USAGE, "--plot draws what --target-recall measures: give both")
    try:
        check_plot(arguments.plot)
    except ValueError as error:
        raise CommandError(EXIT_USAGE, str(error)) from None


def show_choice(arguments: argparse.Namespace, info: dict[str, Any]) -> None:
    """Print and draw what ``--target-recall`` chose from."""
    # a resumed build whose vectors were indexed before, without a target, has no table
    if arguments.target_recall is not None and info["tuning"] is not None:
        for line in table_of(info["tuning"]):
            show(line)
        if arguments.plot is not None:
            plot_choice(arguments.plot, info["tuning"])


def index_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of build that `Index.build` has, too."""
    return {
        "factory": arguments.factory,
        "metric": arguments.metric,
        "kept": arguments.keep,
        "target_recall": arguments.target_recall,
        "overwrite": arguments.overwrite,
        "restart": arguments.restart,
        "max_memory": arguments.max_memory,
        "threads": arguments.threads,
    }
