"""The last step of a build or change: the manifest of the new generation, with tombstones for what it replaces."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import chain, islice

import numpy as np

from ...documents.passages import document_of
from ..auto.stored import CHOICE_FILE, read_choice
from ..encoder import TextEncoder, describe_encoder, own_max_length, own_overflow, refuses_long
from ..errors import ResumeError
from ..storage.faiss_index import AUTO as AUTO_FACTORY
from ..storage.faiss_index import AUTOMATIC, Int64Array, is_codes_alone
from ..storage.faiss_part import bits_of, count_bits
from ..storage.generation import Generation, by_segment
from ..storage.ids import Ids
from ..storage.layout import Writer
from ..storage.manifest import IDS_FILE, Manifest, Raw, ReadingEntry, SegmentEntry
from ..words.languages import AUTO, NONE
from .segment import remove_all_but
from .settings import BuildSettings, Mode

__all__ = [
    "again",
    "dated",
    "in_language_of",
    "kept_as_asked",
    "new_manifest",
    "publish",
    "rows_of_documents",
    "storage_of",
    "tombstone",
]

_IDS_AT_ONCE = 4096


def storage_of(encoder: TextEncoder, settings: BuildSettings) -> tuple[str, Raw]:
    """The factory and what is kept beside its codes.

    As given; otherwise ``auto`` means 8 or 6 bits a column where the model says so, and nothing is kept beside those.
    """
    factory, asked = settings.factory, f"auto-{encoder.describe().get('index_precision')}"
    if factory == AUTO_FACTORY and settings.target_recall is None and asked in AUTOMATIC:
        factory = asked
    return factory, settings.kept or _kept_unasked(factory)


def _kept_unasked(factory: str) -> Raw:
    return "none" if is_codes_alone(factory) else "fp32"


def kept_as_asked(manifest: Manifest) -> bool:
    """Whether its vectors are kept otherwise than its factory has it by default."""
    return manifest.kept != _kept_unasked(manifest.factory)


def new_manifest(encoder: TextEncoder, settings: BuildSettings) -> Manifest:
    """The manifest of an index without documents; `dated` completes it."""
    factory, kept = storage_of(encoder, settings)
    return Manifest(
        generation=0,
        created="",
        embedkit_version="",
        documents=0,
        dimension=encoder.get_embedding_dimension(),
        metric=settings.metric,
        factory=factory,
        kept=kept,
        encoder=describe_encoder(encoder),
        segments=(),
        language=settings.language,
        root=settings.root,
        reading=settings.reading,
        passages=None if settings.passages is None else str(settings.passages),
        max_length=own_max_length(encoder),
        on_overflow=own_overflow(encoder),
        refuses_long=refuses_long(encoder),
        factory_given=settings.factory != AUTO_FACTORY,
    )


def again(manifest: Manifest, encoder: TextEncoder, settings: BuildSettings) -> Manifest:
    """The manifest of the same index with vectors of another ``encoder``; what was measured is dropped."""
    automatic = manifest.factory in AUTOMATIC and not manifest.factory_given
    settings = replace(settings, factory=AUTO_FACTORY if automatic else manifest.factory, kept=None)
    fresh = new_manifest(encoder, settings)
    return replace(
        fresh,
        metric=manifest.metric,
        kept=manifest.kept if kept_as_asked(manifest) or not automatic else fresh.kept,
        root=manifest.root,
        base_names=manifest.base_names,
        reading=_read_again(manifest, fresh),
        passages=manifest.passages,
        language=manifest.language,
        built=manifest.built,
    )


def _read_again(manifest: Manifest, fresh: Manifest) -> ReadingEntry | None:
    """How ``sync`` reads the files of an index that is encoded again: not, if vectors in them are of another model."""
    reading = manifest.reading
    if reading is None or reading.vector_field is None or reading.alone is not None:
        return reading
    if fresh.encoder.fingerprint == manifest.encoder.fingerprint:
        return reading
    return replace(reading, alone="--vector-field, and encoded again with another model")


def dated(manifest: Manifest, generation: int) -> Manifest:
    """``manifest`` as the generation that is written now."""
    return replace(
        manifest,
        generation=generation,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        embedkit_version=version("embedkit"),
    )


def publish(
    writer: Writer,
    manifest: Manifest,
    entry: SegmentEntry,
    base: Generation | None,
    *,
    mode: Mode,
    left_out: Int64Array,
) -> tuple[int, int]:
    """Make the finished segment live, without the rows ``left_out``.

    Returns:
        Its number of documents, and how many of ``base`` they replace.
    """
    folder = writer.finished(entry.name)
    if (tuning := read_choice(folder / CHOICE_FILE)) is not None:
        manifest = replace(manifest, factory=tuning["chosen"]["factory"], tuning=tuning)
    remove_all_but(folder, (*entry.files, CHOICE_FILE))
    ids = Ids(folder / IDS_FILE, entry.rows)
    superseded = np.union1d(ids.empty_rows(), left_out)  # by a later document of the same input; repeated
    if len(superseded):
        dead = bits_of(superseded, entry.rows)
        entry = replace(entry, tombstones=writer.write_tombstones(dead.tobytes(), len(superseded)))
    segments = manifest.segments
    replaced = 0
    if base is not None:
        new = (ids[row] for row in range(len(ids)))
        rows = (
            by_segment(_places_of(base, new, mode))
            if mode == "add" or manifest.passages is None
            else rows_of_documents(base, (document_of(passage) for passage in new if passage))
        )
        replaced = sum(map(len, rows.values()))
        segments = tombstone(writer, base, rows)
    manifest = in_language_of(manifest.with_segments((*segments, entry)), entry)
    if mode == "build":
        manifest = replace(manifest, built=writer.generation)
    writer.publish(dated(manifest, writer.generation), {entry.name: writer.building})
    # not before: a build that is interrupted here reads it again
    with contextlib.suppress(OSError):
        (writer.segments / entry.name / CHOICE_FILE).unlink(missing_ok=True)
    return entry.documents, replaced


def in_language_of(manifest: Manifest, entry: SegmentEntry) -> Manifest:
    """``manifest`` with the language found in the segment ``entry``, unless it has one."""
    if manifest.language != AUTO or entry.words is None or entry.words.language == NONE:
        return manifest
    return replace(manifest, language=entry.words.language)


def _places_of(base: Generation, ids: Iterator[str], mode: Mode) -> Iterator[tuple[int, int]]:
    """Where ``base`` has one of ``ids``; an error unless they are to be replaced."""
    wanted: Iterable[str] = filter(None, ids)
    while block := list(islice(wanted, _IDS_AT_ONCE)):
        found = base.find(block)
        if found and mode == "add":  # added by another command before an interrupted 'add' was resumed
            raise ResumeError(
                f"the id {next(iter(found))!r} is already in the index; delete it, or discard the interrupted "
                "command with --restart (restart=True)"
            )
        yield from found.values()


def rows_of_documents(base: Generation, documents: Iterable[str]) -> dict[int, list[int]]:
    """Rows of ``base`` with passages of ``documents``, by segment number."""
    wanted = iter(dict.fromkeys(documents))
    places: list[tuple[int, int]] = []
    while block := list(islice(wanted, _IDS_AT_ONCE)):
        places += chain.from_iterable(base.find_passages(block).values())
    return by_segment(places)


def tombstone(
    writer: Writer, base: Generation, rows: Mapping[int, Sequence[int] | Int64Array]
) -> tuple[SegmentEntry, ...]:
    """The segments of ``base`` with ``rows`` (by segment number) deleted; a segment left empty is dropped."""
    entries = []
    for number, segment in enumerate(base.segments):
        entry = segment.entry
        if len(rows.get(number, ())):
            dead = bits_of(np.asarray(rows[number], np.int64), entry.rows)
            if segment.dead is not None:
                dead |= segment.dead
            deleted = count_bits(dead)
            if deleted == entry.rows:
                continue
            entry = replace(entry, tombstones=writer.write_tombstones(dead.tobytes(), deleted))
        entries.append(entry)
    return tuple(entries)
