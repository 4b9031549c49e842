"""Several segments into one: what `compact` does with all of them, and each addition with the last small ones.

Every addition makes a segment, and each segment costs an open file and a query of its own. So before one more is
made, as many of the last as hold eight times the rows of the largest among them are folded. Of documents added one
at a time, a row is copied four times (and, if stored in codes, rounded so often), and a tail of 8,192 is at most 28
segments.

Larger additions are left as they are, for copying takes 0.1 ms a document and an addition would wait for it, until
there are many segments. Then as many of the last are folded as hold twice the rows of the largest among them: a row is
in a segment of at least twice the size after each copy, so that it is copied 17 times at most. Of 10 million documents
added 2,000 at a time each is copied 2.3 times, and there are never more than 103 segments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ...documents.document import Document
from ..auto.stored import stored_parameters
from ..errors import IndexDamagedError
from ..storage.document_store import DocumentWriter
from ..storage.faiss_index import added_factory
from ..storage.generation import open_generation
from ..storage.layout import Writer
from ..storage.manifest import Manifest, SegmentEntry, truncated_of
from ..storage.segment import Segment
from ..storage.spool import SPOOL_FILE, Spool, SpoolWriter
from .publish import dated
from .segment import finish_segment, remove_all_but
from .settings import BuildSettings, Progress, Report

__all__ = ["copy_segments", "fold_last"]

_TIMES = 8
_MOST_ROWS = 8192  # of a fold, which an addition waits for
_MANY = 64  # segments: each takes two files or three, and a process may have 1,024, or 256
_TIMES_OF_MANY = 2
_MOST_ROWS_OF_MANY = 131_072


def fold_last(writer: Writer, live: Manifest, settings: BuildSettings) -> Manifest:
    """Fold the last segments into one if they are small and many; returns the manifest that is live then."""
    count = _foldable([entry.rows for entry in live.segments])
    if not count:
        return live
    with contextlib.closing(open_generation(writer.root, lambda _: None)) as base:
        last = base.segments[-count:]
        if not all(segment.can_read_back for segment in last):
            return live
        rows = sum(segment.entry.documents for segment in last)
        settings = replace(
            settings,
            factory=added_factory(live.factory, rows, live.dimension),
            kept=live.kept,
            target_recall=None,
        )
        try:
            entry = copy_segments(writer, last, live, settings, lambda _: None)
        except IndexDamagedError:  # they stay as they are, for `verify` to name; an addition needs no fold
            return live
        folded = dated(live.with_segments((*live.segments[:-count], entry)), writer.generation)
        writer.publish(folded, {entry.name: writer.staged(entry.name)})
        return folded


def _foldable(rows: Sequence[int]) -> int:
    """How many of the last segments, which have so many ``rows``, are to be folded; 0 for none."""
    few = _last_of(rows, _TIMES, _MOST_ROWS)
    return few if few or len(rows) <= _MANY else _last_of(rows, _TIMES_OF_MANY, _MOST_ROWS_OF_MANY)


def _last_of(rows: Sequence[int], times: int, most: int) -> int:
    """How many of the last hold at least so many ``times`` the largest among them, and ``most`` rows at most."""
    foldable = total = largest = 0
    for count, size in enumerate(reversed(rows), 1):
        total, largest = total + size, max(largest, size)
        if total > most:
            break
        if total >= times * largest:
            foldable = count
    return foldable


def copy_segments(
    writer: Writer, segments: Sequence[Segment], manifest: Manifest, settings: BuildSettings, report: Report
) -> SegmentEntry:
    """Write the documents of ``segments`` to one new staged segment, with their vectors as they are kept.

    Raises:
        IndexDamagedError: a file of theirs was altered; nothing is written.
    """
    for segment in segments:
        segment.check_rows()
    name = writer.new_name()
    folder = writer.stage(name)
    total = sum(segment.entry.documents for segment in segments)
    documents = DocumentWriter(folder)
    spool = SpoolWriter(folder / SPOOL_FILE, manifest.dimension)
    with contextlib.closing(documents), contextlib.closing(spool):
        for segment in segments:
            for stored, vectors in segment.scan():
                for document in stored:
                    documents.add(Document(document.text, document.id, document.metadata))
                spool.add(vectors)
                report(Progress("copy", spool.rows, total))
        entry = finish_segment(
            folder,
            name,
            Spool(spool.path, spool.rows, manifest.dimension),
            partial(documents.finish, manifest.language),
            settings=settings,
            parameters=stored_parameters(manifest.tuning),
            report=report,
        )
    remove_all_but(folder, entry.files)
    # whether the deleted ones were among those that the model cut is not stored
    known = not any(segment.entry.tombstones and segment.entry.truncated for segment in segments)
    return replace(entry, truncated=truncated_of(segment.entry for segment in segments) if known else None)
