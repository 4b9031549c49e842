"""Changing an existing index without encoding: delete, compact, merge, and set search defaults."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ...documents.errors import InputError
from ...documents.passages import document_of
from ...files import link_or_copy
from ..auto.tune import Tuned
from ..errors import BuildError, ModelMismatchError, ResumeError
from ..several import several_ids
from ..storage import faiss_index
from ..storage.factory import fitting_factory
from ..storage.filters import Where
from ..storage.generation import Generation, open_generation
from ..storage.ids import shared_id
from ..storage.journal import Journal, read_journal
from ..storage.layout import SEGMENTS_FOLDER, TOMBSTONES_FOLDER, Writer, current_name
from ..storage.manifest import Manifest, ReadingEntry, SegmentEntry
from ..storage.search_parameters import SearchParameters
from ..words.languages import AUTO, check_language
from .fold import copy_segments, language_of, languages_of
from .publish import dated, in_language_of, kept_as_asked, rows_of_documents, tombstone
from .resume import HEADER_NAMES, change_errors, check_new, told
from .settings import BuildSettings, Report
from .transfer import IMPORTED

__all__ = [
    "compact",
    "delete",
    "merge",
    "set_root",
    "set_search_defaults",
    "store_tuned",
]

_AT_ONCE = 4096
_T = TypeVar("_T")


@contextlib.contextmanager
def _changing(
    root: Path, what: str, accept: Callable[[Manifest], None] = lambda _: None
) -> Iterator[tuple[Writer, Generation]]:
    """Lock the index at ``root``, and open its live generation, unless ``accept`` raises for its manifest."""
    with (
        change_errors(root, what),
        Writer(root) as writer,
        contextlib.closing(open_generation(root, accept)) as base,
    ):
        yield writer, base


def delete(
    root: Path,
    ids: str | Iterable[str] | None,
    where: Where | None,
    *,
    missing_ok: bool,
    accept: Callable[[Manifest], None],
) -> int:
    """Delete documents, with all passages of each; see `Index.delete`, and `_changing`. Returns how many."""
    if (ids is None) == (where is None):
        raise ValueError("give either the ids of the documents to delete or a condition (where)")
    with _changing(root, "deleting", accept) as (writer, base):
        rows = (
            _rows_of_ids(base, ids, missing_ok)
            if ids is not None
            else _rows_where(base, "" if where is None else where)
        )
        count = sum(map(len, rows.values()))
        if base.manifest.passages is not None:
            documents = {document_of(passage) for passage in _ids_of(base, rows)}
            rows, count = rows_of_documents(base, documents), len(documents)
        if count:
            _spare_encoded(writer, base, rows)
            manifest = base.manifest.with_segments(tombstone(writer, base, rows))
            writer.publish(dated(manifest, writer.generation))
        return count


def _spare_encoded(writer: Writer, base: Generation, rows: dict[int, Any]) -> None:
    """Refuse to delete ``rows`` that an interrupted reembed has encoded, as it goes on after them.

    It may have failed at a document, which can be deleted: of that one, passages that it has encoded are dropped.
    """
    state = read_journal(writer.journal)
    if state is None or state.header.mode != "reembed":
        return
    starts = np.cumsum([0, *(segment.entry.rows for segment in base.segments)])
    living = base.living_rows()
    gone = np.sort(np.concatenate([starts[number] + np.asarray(several) for number, several in rows.items()]))
    places = np.searchsorted(living, gone)
    encoded = places[places < state.rows]
    if len(encoded) == 0:
        return
    stopped = base.ids(living[state.rows : state.rows + 1])
    if base.manifest.passages is None or {*map(document_of, stopped)} != {
        *map(document_of, base.ids(living[encoded]))
    }:
        raise ResumeError(
            f"{writer.root}: an interrupted 'reembed' has encoded {state.rows} documents and needs them all; run it "
            "again first (--restart, restart=True, discards what it has encoded); the others can be deleted"
        )
    with contextlib.closing(Journal(writer.journal, state.header, resume=True)) as journal:
        journal.encoded(int(encoded[0]), 0 if state.truncated == 0 else None)


def set_root(root: Path, folder: str) -> None:
    """Note that the files of the index at ``root`` are in ``folder`` now."""
    with _changing(root, "the change") as (writer, base):
        writer.publish(dated(replace(base.manifest, root=folder), writer.generation))


def _rows_where(base: Generation, where: Where) -> dict[int, Any]:
    chosen = base.choose(where, limited=False)
    return {
        number: np.flatnonzero(np.unpackbits(bits, count=segment.entry.rows, bitorder="little"))
        for number, (segment, bits) in enumerate(zip(base.segments, chosen, strict=True))
    }


def _ids_of(base: Generation, rows: dict[int, Any]) -> Iterator[str]:
    for number, several in rows.items():
        for begin in range(0, len(several), _AT_ONCE):
            yield from base.segments[number].ids.many(np.asarray(several[begin : begin + _AT_ONCE], np.int64))


def _rows_of_ids(base: Generation, ids: str | Iterable[str], missing_ok: bool) -> dict[int, Any]:
    wanted = list(dict.fromkeys(several_ids(ids)))
    rows: dict[int, set[int]] = {}
    for begin in range(0, len(wanted), _AT_ONCE):
        block = wanted[begin : begin + _AT_ONCE]
        places = base.places(block)
        if len(places) < len(block) and not missing_ok:
            unknown = next(name for name in block if name not in places)
            raise InputError("", f"there is no document with the id {unknown!r}; nothing was deleted")
        for number, row in (place for several in places.values() for place in several):
            rows.setdefault(number, set()).add(row)
    return {number: sorted(several) for number, several in rows.items()}


def compact(
    root: Path,
    factory: str | None,
    settings: BuildSettings,
    report: Report | None = None,
    *,
    language: str | None = None,
    accept: Callable[[Manifest], None],
) -> bool:
    """Fold all segments into one without deleted documents; false if it is one already, of the kind that is asked for.

    ``factory`` and ``language`` are ``None`` for the index's own (ValueError if it has several languages); of
    ``settings``, ``max_memory`` and ``threads`` are used. ``accept`` is as in `_changing`.
    """
    with _changing(root, "compacting", accept) as (writer, base):
        manifest = base.manifest
        if factory == faiss_index.AUTO and manifest.factory in faiss_index.AUTOMATIC:
            factory = manifest.factory  # what `auto` meant for its model
        if factory is not None and factory not in faiss_index.AUTOMATIC:
            faiss_index.create_index(factory, manifest.dimension)
        rows = manifest.documents
        wanted = fitting_factory(manifest.factory, rows) if factory is None else factory
        # documents that were added are another kind than the index while they are few
        kinds = {faiss_index.resolve_factory(wanted, rows), *([IMPORTED] if factory is None else [])}
        whole = (
            len(base.segments) == 1
            and base.segments[0].entry.tombstones is None
            and all(part.factory in kinds for part in base.segments[0].entry.parts)
        )
        if language is not None:
            manifest = replace(manifest, language=check_language(language))
        else:
            remedy = "choose it with --language (language=), or none to stem no words"
            manifest = replace(manifest, language=language_of(root, manifest, remedy))
        current = base.has_words and language in (None, base.manifest.language)
        if whole and current and factory in (None, manifest.factory):
            return False
        if factory is not None and factory != manifest.factory:
            kept = manifest.kept  # vectors that the index has beside its codes, or was asked to have, stay
            beside = any(segment.entry.raw != "none" for segment in base.segments)
            if faiss_index.is_codes_alone(factory) and not (beside or kept_as_asked(manifest)):
                kept = "none"
            manifest = replace(
                manifest, factory=factory, kept=kept, factory_given=factory != faiss_index.AUTO
            )
        if manifest.kept == "none" and not faiss_index.can_read_back(manifest.factory):
            manifest = replace(manifest, kept="int8")
        if factory is not None:  # they were measured on a different kind of index
            manifest = replace(manifest, nprobe=None, ef=None, rescore=None, tuning=None)
        if not base.segments:  # what is added later is made as it says
            if manifest == base.manifest:
                return False
            writer.publish(dated(manifest, writer.generation))
            return True
        manifest = _for_lists(manifest, base, faiss_index.resolve_factory(wanted, rows))
        settings = replace(settings, factory=wanted, kept=manifest.kept)
        entry = copy_segments(writer, base.segments, manifest, settings, report or (lambda _: None))
        name = entry.name
        manifest = in_language_of(manifest.with_segments((entry,)), entry)
        writer.publish(dated(manifest, writer.generation), {name: writer.staged(name)})
        return True


def _for_lists(manifest: Manifest, base: Generation, factory: str) -> Manifest:
    """``manifest`` for ``factory``, if that is automatic and has other lists than ``base``, or ``base`` a graph.

    A search visits the same share of them; what was measured is dropped.
    """
    if manifest.factory not in faiss_index.AUTOMATIC:
        return manifest
    if manifest.ef is not None:  # of an imported HNSW
        manifest = replace(manifest, ef=None, tuning=None)
    if manifest.nprobe is None:
        return manifest
    lists = faiss_index.inverted_lists(faiss_index.create_index(factory, manifest.dimension)) or 0
    before = [part.nlist for part in base.faiss_parts if part.nlist]
    if {*before} == {lists}:
        return manifest
    visited = sum(min(manifest.nprobe, several) for several in before)
    nprobe = math.ceil(visited * lists / sum(before)) if visited else 0
    return replace(manifest, nprobe=nprobe or None, tuning=None)


def merge(target: Path, sources: Sequence[Path]) -> None:
    """Merge several indexes into one; see `Index.merge`."""
    while True:
        names = [current_name(source) for source in sources]
        try:
            _merge(target, sources)
            return
        except FileNotFoundError:  # unless a source has been compacted meanwhile
            if [current_name(source) for source in sources] == names:
                raise


def _merge(target: Path, sources: Sequence[Path]) -> None:
    with change_errors(target, "merging"), contextlib.ExitStack() as stack:
        generations = []
        for source in sources:
            generation = open_generation(source, lambda _: None)
            stack.callback(generation.close)
            generations.append(generation)
        if len(generations) < 2:
            raise ValueError("give at least two indexes to merge")
        first = generations[0].manifest
        for source, generation in zip(sources[1:], generations[1:], strict=True):
            _check_alike(sources[0], first, source, generation.manifest)
        _check_disjoint(sources, generations)
        writer = stack.enter_context(Writer(target, create=True))
        check_new(writer)
        entries = []
        folders = {}
        for source, generation in zip(sources, generations, strict=True):
            for segment in generation.segments:
                entry = _adopt(writer, source, segment.entry)
                entries.append(entry)
                folders[entry.name] = writer.staged(entry.name)
        # what was measured on one of the indexes does not hold for all
        manifest = replace(
            first.with_segments(tuple(entries)),
            nprobe=None,
            ef=None,
            rescore=None,
            tuning=None,
            encoder=replace(
                first.encoder,
                query_prompt=_only(
                    prompt for one in generations if (prompt := one.manifest.encoder.query_prompt) is not None
                ),
            ),
            root=_only(one.manifest.root for one in generations),
            base_names=False,  # of several folders, they would be those of other files, too
            reading=_reading([one.manifest.reading for one in generations]),
            built=None,
            refuses_long=all(one.manifest.refuses_long for one in generations),
            language=_first_language(one.manifest for one in generations),
        )
        writer.publish(dated(manifest, writer.generation), folders)


def _only(values: Iterable[_T]) -> _T | None:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _first_language(manifests: Iterable[Manifest]) -> str:
    """The language of the first index that has one: the others have too little text to tell, or another."""
    for manifest in manifests:
        language = manifest.language
        if language == AUTO:  # of an earlier embedkit: its words may have one
            language = _only(languages_of(manifest)) or AUTO
        if language != AUTO:
            return language
    return AUTO


def _reading(readings: Sequence[ReadingEntry | None]) -> ReadingEntry | None:
    """How ``sync`` reads the files of indexes that are merged: as it did, or not at all."""
    if len(set(readings)) == 1:
        return readings[0]
    return ReadingEntry(alone="merge, of indexes whose files were not read alike")


def _check_alike(first_path: Path, first: Manifest, path: Path, manifest: Manifest) -> None:
    if manifest.encoder.fingerprint != first.encoder.fingerprint:
        raise ModelMismatchError(
            f"{path} was built with {manifest.encoder.model} (fingerprint {manifest.encoder.fingerprint}), and "
            f"{first_path} with {first.encoder.model} (fingerprint {first.encoder.fingerprint}); "
            "only indexes of one model can be merged"
        )
    if manifest.passages != first.passages:
        cuts = [
            "not cut into passages" if passages is None else f"cut into passages ({passages})"
            for passages in (manifest.passages, first.passages)
        ]
        raise ModelMismatchError(f"{path} is {cuts[0]}, and {first_path} is {cuts[1]}; they cannot be merged")
    for name in ("dimension", "metric", "max_length", "on_overflow"):
        if getattr(manifest, name) != getattr(first, name):
            raise ModelMismatchError(
                f"{path} has another {HEADER_NAMES[name]} than {first_path} ({told(manifest, name)}, not "
                f"{told(first, name)}); they cannot be merged"
            )
    for name in ("document_prompt", "precision"):
        mine, theirs = getattr(manifest.encoder, name), getattr(first.encoder, name)
        if mine != theirs:
            raise ModelMismatchError(
                f"{path} was encoded with the {name.replace('_', ' ')} {mine!r}, and {first_path} with "
                f"{theirs!r}; they cannot be merged"
            )


def _check_disjoint(paths: Sequence[Path], generations: Sequence[Generation]) -> None:
    """Refuse indexes of which two share an id, of passages that of a document: its passages may have other numbers."""
    rows = sum(generation.manifest.documents for generation in generations)
    passages = generations[0].manifest.passages is not None
    sources = [
        partial(_document_ids, generation) if passages else generation.living_ids
        for generation in generations
    ]
    shared = shared_id(sources, rows)
    if shared is not None:
        name, one, other = shared
        raise InputError(
            "", f"the id {name!r} is in {paths[one]} and in {paths[other]}; delete it from one of them"
        )


def _document_ids(generation: Generation) -> Iterator[list[str]]:
    """The ids of the documents that its passages are of, in blocks; once for all passages that follow each other."""
    for block in generation.living_ids():
        yield [document_id for document_id, _ in groupby(map(document_of, block))]


def _adopt(writer: Writer, source: Path, entry: SegmentEntry) -> SegmentEntry:
    """Link (or copy) a segment of another index under a new name, and its tombstones."""
    name = writer.new_name()
    folder = writer.stage(name)
    for file in entry.files:
        link_or_copy(source / SEGMENTS_FOLDER / entry.name / file, folder / file)
    tombstones = entry.tombstones
    if tombstones is not None:
        content = (source / TOMBSTONES_FOLDER / tombstones.file).read_bytes()
        tombstones = writer.write_tombstones(content, tombstones.deleted)
    return replace(entry, name=name, tombstones=tombstones)


def set_search_defaults(
    root: Path,
    parameters: SearchParameters,
    tuning: dict[str, Any] | None,
    accept: Callable[[Manifest], None],
) -> None:
    """Store the default search parameters, and the measurements they were chosen from; ``accept``: `_changing`."""
    with _changing(root, "storing the search defaults", accept) as (writer, base):
        _store_defaults(writer, base, parameters, tuning)


def store_tuned(root: Path, tuned: Tuned, measured: Manifest) -> None:
    """Make what `tune` found on the generation ``measured`` the default; the rest stays as it is in the live one."""
    with _changing(root, "storing what was tuned") as (writer, base):
        manifest = base.manifest
        if (manifest.factory, manifest.encoder) != (measured.factory, measured.encoder):
            raise BuildError(
                f"{root}: another process has changed the kind of index or its model since it was measured; nothing "
                "was stored: tune it again"
            )
        tuning = {**(manifest.tuning or {}), "tuned": tuned.to_dict()}
        _store_defaults(writer, base, tuned.point.parameters, tuning)


def _store_defaults(
    writer: Writer, base: Generation, parameters: SearchParameters, tuning: dict[str, Any] | None
) -> None:
    """Store what is not ``None``; the rest stays as it is, but if all is ``None``, nothing is stored any more."""
    base.check(parameters)
    if not base.segments and (parameters.nprobe, parameters.ef) != (None, None):
        raise ValueError("nprobe and ef do not apply: the index has no documents, which decide on its kind")
    none = parameters == SearchParameters() and tuning is None
    complete = parameters if none else base.with_stored(parameters)
    if tuning is None and not none and parameters.nprobe is None and parameters.ef is None:
        tuning = base.manifest.tuning  # else it was measured with other parameters
    manifest = replace(
        base.manifest,
        nprobe=complete.nprobe,
        ef=complete.ef,
        rescore=complete.rescore or None,
        tuning=tuning,
    )
    writer.publish(dated(manifest, writer.generation))
