"""Several segments into one: what `compact` does with all of them, and each addition with the last small ones.

Every addition makes a segment, and each segment costs an open file and a query of its own. So before one more is
made, as many of the last as hold eight times the rows of the largest among them are folded. Of documents added one
at a time, a row is copied four times (and, if stored in codes, rounded so often), and a tail of 8,192 is at most 28
segments.

Larger additions are left as they are, for copying takes 0.1 ms a document and an addition would wait for it, until
there are many segments. Then the neighbors are folded that have the fewest rows and together hold eight times (or, if
none do, twice) the rows of the largest among them. Of 10 million documents added 2,000 at a time each is copied 2.7
times, and there are never more than 49 segments. No fold has more than a million rows, which take two minutes: where
additions are so large that this leaves no neighbors to fold, there is a segment for each half million documents.

Segments of merged indexes whose words are of different languages are never folded together: the bounds are those of
neighbors of one language.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

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
from ..words.languages import NONE
from .publish import dated
from .segment import finish_segment, remove_all_but
from .settings import BuildSettings, Progress, Report

__all__ = ["copy_segments", "fold_segments", "language_of", "languages_of"]

_TIMES = 8
_MOST_ROWS = 8192  # of a fold, which an addition waits for
_MANY = 48  # segments: each takes two files or three, an addition opens them twice, and a process may have 256 files
_LEAST_TIMES = 2
_MOST_ROWS_OF_MANY = 1 << 20


def fold_segments(writer: Writer, live: Manifest, settings: BuildSettings) -> Manifest:
    """Fold segments into one if they are small or many; returns the manifest that is live then."""
    foldable = (
        (slice(run.start + place.start, run.start + place.stop), language)
        for run, language in _languages_of(live)
        if (place := _foldable([entry.rows for entry in live.segments[run]])) is not None
    )
    place, language = next(foldable, (None, ""))
    if place is None:
        return live
    with contextlib.closing(open_generation(writer.root, lambda _: None)) as base:
        chosen = base.segments[place]
        if not all(segment.can_read_back for segment in chosen):
            return live
        rows = sum(segment.entry.documents for segment in chosen)
        settings = replace(
            settings,
            factory=added_factory(live.factory, rows, live.dimension),
            kept=live.kept,
            target_recall=None,
        )
        try:
            entry = copy_segments(writer, chosen, replace(live, language=language), settings, lambda _: None)
        except IndexDamagedError:  # they stay as they are, for `verify` to name; an addition needs no fold
            return live
        segments = (*live.segments[: place.start], entry, *live.segments[place.stop :])
        folded = dated(live.with_segments(segments), writer.generation)
        writer.publish(folded, {entry.name: writer.staged(entry.name)})
        return folded


def _languages_of(manifest: Manifest) -> Iterator[tuple[slice, str]]:
    """Neighbors whose words have one language, with that; those of too little text to tell belong to either."""
    begin, language = 0, None
    for at, entry in enumerate(manifest.segments):
        own = None if entry.words is None else entry.words.language
        if own == NONE != manifest.language:  # not asked for: too little text to tell
            own = None
        if None not in (own, language) and own != language:
            yield slice(begin, at), language or manifest.language
            begin = at
        language = own or language
    yield slice(begin, len(manifest.segments)), language or manifest.language


def languages_of(manifest: Manifest) -> set[str]:
    """The languages of the words of an index."""
    return {language for _, language in _languages_of(manifest)}


def language_of(root: Path, manifest: Manifest, remedy: str) -> str:
    """The language of all words of the index at ``root``; ValueError, with the ``remedy``, if there are several."""
    languages = languages_of(manifest)
    if len(languages) > 1:
        raise ValueError(
            f"{root}: its words are in several languages ({', '.join(sorted(languages))}), and one segment has one: "
            f"{remedy}"
        )
    return languages.pop()


def _foldable(rows: Sequence[int]) -> slice | None:
    """Which segments of so many ``rows`` each are to be folded."""
    if count := _small_last(rows):
        return slice(len(rows) - count, len(rows))
    if len(rows) <= _MANY:
        return None
    return _neighbors(rows, _TIMES) or _neighbors(rows, _LEAST_TIMES)


def _small_last(rows: Sequence[int]) -> int:
    """How many of the last are to be folded, at most `_MOST_ROWS` together."""
    foldable = total = largest = 0
    for count, size in enumerate(reversed(rows), 1):
        total, largest = total + size, max(largest, size)
        if total > _MOST_ROWS:
            break
        if total >= _TIMES * largest:
            foldable = count
    return foldable


def _neighbors(rows: Sequence[int], times: int) -> slice | None:
    """The neighbors with the fewest rows that together hold so many ``times`` the largest among them."""
    found, fewest = None, _MOST_ROWS_OF_MANY + 1
    for begin in range(len(rows)):
        total = largest = 0
        for end, size in enumerate(rows[begin:], begin + 1):
            total, largest = total + size, max(largest, size)
            if total >= fewest:
                break
            if end > begin + 1 and total >= times * largest:
                found, fewest = slice(begin, end), total
                break
    return found


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
                    documents.add(Document(document.text, document.id, document.metadata), stored=True)
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
