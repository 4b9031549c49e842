"""Terminal output: tables that fit its width, text without control characters, and the progress of a build."""

from __future__ import annotations

import json
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..index.build.settings import Progress


__all__ = ["ProgressBar", "cut", "display_width", "printable", "shown_id", "table"]

_REPLACEMENT = "\ufffd"
_ZERO_WIDTH = frozenset(("Mn", "Me", "Cf"))
# Format characters that reorder the text after them, beyond the end of their own text
_BIDI_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str) -> str:
    """``text`` on one line: whitespace becomes single spaces, other control characters become U+FFFD."""
    return "".join(
        _REPLACEMENT
        if unicodedata.category(character) in ("Cc", "Cs") or character in _BIDI_CONTROLS
        else character
        for character in " ".join(text.split())
    )


def shown_id(document_id: str) -> str:
    """``document_id`` so that no two look alike: as it is, or as a JSON string if it could not be told from another."""
    seen = all(character == " " or character.isprintable() for character in document_id)
    if seen and document_id == printable(document_id) and not document_id.startswith('"'):
        return document_id
    quoted = json.dumps(document_id, ensure_ascii=False)
    return "".join(
        character if character == " " or character.isprintable() else f"\\u{ord(character):04x}"
        for character in quoted
    )


def display_width(text: str) -> int:
    """Columns occupied by ``text``: 2 for wide characters, 0 for combining ones."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(character: str) -> int:
    if unicodedata.category(character) in _ZERO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def cut(text: str, columns: int) -> str:
    """``text``, cut to at most ``columns`` (≥ 1) columns with a final "…" if it is longer."""
    if display_width(text) <= columns:
        return text
    used = 0
    for at, character in enumerate(text):
        used += _width(character)
        if used > columns - 1:
            return text[:at].rstrip() + "…"
    raise AssertionError("a text wider than the columns must exceed them somewhere")


_LEAST = 10  # columns of a table's last one


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None, *, numbers: int = 2
) -> list[str]:
    """The lines of a table, one per row; the last column is cut to fit ``columns``, ``None`` for no limit.

    The first columns (``numbers`` of them) are right-aligned, the others left-aligned. Cells are made `printable`. All
    columns but the last take at most a third of the width.
    """
    cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    *aligned, last = range(len(header))
    if columns is not None:
        for row in cells:
            for at in aligned:
                row[at] = cut(row[at], max(8, columns // 3))
    widths = [max(display_width(row[at]) for row in cells) for at in aligned]
    used = sum(widths) + 2 * len(widths)
    if columns is not None and used + _LEAST > columns and len(aligned) > numbers:
        at = max(aligned[numbers:], key=widths.__getitem__)  # the last column needs some room
        width = max(8, widths[at] - (used + _LEAST - columns))
        for row in cells:
            row[at] = cut(row[at], width)
        used -= widths[at] - width
        widths[at] = width
    lines = []
    for row in cells:
        parts = []
        for at, width in zip(aligned, widths, strict=True):
            padding = " " * (width - display_width(row[at]))
            parts.append(padding + row[at] if at < numbers else row[at] + padding)
        parts.append(row[last] if columns is None else cut(row[last], max(_LEAST, columns - used)))
        lines.append("  ".join(parts).rstrip())
    return lines


_STAGES = {
    "encode": "encoding",
    "choose": "choosing",
    "train": "training",
    "add": "indexing",
    "copy": "copying",
}


_WHAT = {"choose": "candidates", "train": "vectors", "add": "vectors"}
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {unit} [{elapsed}<{remaining}]"
_COUNTED = "{desc}: {unit} [{elapsed}]"
_ONE_STEP = "{desc} [{elapsed}]"


class ProgressBar:
    """Rate and remaining time of a build, shown if stderr is a terminal."""

    def __init__(self, total_bytes: int | None) -> None:
        """``total_bytes``: the size of the input; ``None`` if unknown, to count documents instead."""
        self._total_bytes = total_bytes
        self._stage = ""
        self._done = 0
        self._bar: Any = None

    def __enter__(self) -> ProgressBar:
        """Start the clock."""
        from ..index.build.settings import Progress  # embedkit-model does not load the index package

        self.update(Progress("encode", 0, None))
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the finished bar on the terminal."""
        if self._bar is not None:
            self._bar.close()

    def update(self, progress: Progress) -> None:
        """Show ``progress``."""
        if not sys.stderr.isatty():
            return
        by_bytes = progress.stage == "encode" and bool(self._total_bytes)
        if progress.stage != self._stage:
            self._start(progress, by_bytes)
        if progress.stage == "train":
            self._bar.refresh()
            return
        elapsed = max(self._bar.format_dict["elapsed"], 1e-9)
        rate = f", {(progress.done - self._done) / elapsed:,.0f}/s" if progress.done > self._done else ""
        of_all = f" of {progress.total:,}" if progress.total is not None else ""
        # tqdm begins a postfix with a comma
        self._bar.unit = f"{progress.done:,}{of_all} {_WHAT.get(progress.stage, 'documents')}{rate}"
        self._bar.update((progress.position if by_bytes else progress.done) - self._bar.n)

    def _start(self, progress: Progress, by_bytes: bool) -> None:
        from tqdm import tqdm

        if self._bar is not None:
            self._bar.close()
        self._stage = progress.stage
        self._done = progress.done  # what an interrupted command has done counts for no rate
        # Faiss trains in one step, which says nothing before its end: no bar, rather than one that stays at 0 %
        trains = progress.stage == "train"
        total = self._total_bytes if by_bytes else progress.total
        told = (
            f"training on {progress.total:,} vectors"
            if trains and progress.total
            else _STAGES[progress.stage]
        )
        shape = _ONE_STEP if trains else _COUNTED if total is None else _BAR
        size = shutil.get_terminal_size()  # tqdm takes 0 for a terminal of unknown size
        self._bar = tqdm(
            total=None if trains else total or None,
            desc=told,
            bar_format=shape,
            unit=" ",
            file=sys.stderr,
            ncols=size.columns,
            nrows=size.lines,
        )
