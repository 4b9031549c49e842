"""Building an index, adding to it and replacing documents: encode, fill Faiss, publish.

All three write one new segment; they differ in what becomes of the segments that are there.
"""

from __future__ import annotations

import contextlib
import datetime
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...arguments import check_threads
from ...documents.document import Document
from ...documents.errors import InputError, OnError
from ..auto.stored import CHOICE_FILE, check_target, choose_for, read_choice, stored_parameters, write_choice
from ..encoder import TextEncoder, check_encoder, describe_encoder
from ..errors import BuildError, IndexDamagedError, IndexExistsError, ResumeError
from ..storage import faiss_index
from ..storage.durable import fsync
from ..storage.faiss_part import bits_of
from ..storage.generation import Generation, open_generation
from ..storage.ids import Ids
from ..storage.journal import State, read_journal
from ..storage.layout import JOURNAL_FILE, Writer
from ..storage.manifest import IDS_FILE, METRICS, RAW_KINDS, Manifest, Metric, Raw, SegmentEntry
from ..storage.segment import finish_segment, remove_all_but
from ..storage.spool import SPOOL_FILE, Spool
from .ingest import Ingest, InputDigest, Progress
from .memory import faiss_budget

Mode = Literal["build", "add", "upsert"]

_IDS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Written:
    """What was done.

    Attributes:
        documents: new ones.
        replaced: former ones whose id a new one has.
        resumed: of the new ones, those that were encoded before an interruption.
    """

    documents: int
    replaced: int
    resumed: int


def resumable_rows(root: Path) -> int:
    """Documents that an interrupted build at ``root`` has encoded, and that the same command will not again."""
    state = read_journal(root / JOURNAL_FILE)
    return 0 if state is None else state.rows


def build(
    root: Path,
    documents: Iterable[str | Document],
    encoder: TextEncoder,
    *,
    mode: Mode,
    factory: str = faiss_index.AUTO,
    metric: Metric = "cosine",
    kept: Raw = "fp32",
    target_recall: float | None = None,
    overwrite: bool = False,
    restart: bool = False,
    max_memory: int,
    threads: int | None,
    on_error: OnError,
    progress: Callable[[Progress], None] | None,
    read_ahead: bool,
) -> Written:
    """Build, add or upsert, as `Index.build`, `Index.add` and `Index.upsert` say.

    ``factory``, ``metric``, ``kept``, ``target_recall`` and ``overwrite`` are for "build"; ``read_ahead``
    iterates ``documents`` on another thread.
    """
    _check(metric, kept, on_error, threads)
    if target_recall is not None:
        check_target(target_recall, factory)
    report = progress or (lambda _: None)
    dimension = encoder.get_embedding_dimension()
    if factory != faiss_index.AUTO:
        faiss_index.create_index(factory, dimension)  # a bad string fails now, not after hours of encoding
    else:
        faiss_index.import_faiss()
    faiss_budget(max_memory)
    with _disk_errors(root), Writer(root, create=mode == "build") as writer, contextlib.ExitStack() as stack:
        state = _state(writer, restart)
        live = _live(writer, mode, overwrite, state)
        base: Generation | None = None
        if mode == "build":
            manifest = new_manifest(encoder, dimension, factory, metric, kept)
        else:
            assert live is not None
            manifest = live
            check_encoder(root, manifest, encoder)
            base = open_generation(root, lambda _: None)
            stack.callback(base.close)
        header = {
            "mode": mode,
            "fingerprint": manifest.encoder.fingerprint,
            "precision": describe_encoder(encoder).precision,
            "document_prompt": manifest.encoder.document_prompt,
            "dimension": dimension,
            "metric": manifest.metric,
        }
        made = {"factory": manifest.factory, "kept": manifest.kept, "target_recall": target_recall}
        if state is not None and state.segment is not None and live is not None:
            done = next((entry for entry in live.segments if entry.name == state.segment.name), None)
            if done is not None:  # it was published, and the crash came before the journal was removed
                _forget(writer)
                settings, before = {**header, **made}, {**state.header, **state.made}
                if all(before.get(name) == value for name, value in settings.items()):
                    return _finished_before(root, state, done, documents)
                state = None
                _live(writer, mode, overwrite, None)
        _check_header(root, state, header)
        entry = None if state is None else state.segment
        if state is not None and entry is not None:
            _check_made(root, state, made, documents)
        resumed = 0 if state is None else state.rows
        if entry is None:
            entry, resumed = _write_segment(
                writer,
                documents,
                encoder,
                manifest=manifest,
                header=header,
                made=made,
                state=state,
                base=base,
                mode=mode,
                target_recall=target_recall,
                max_memory=max_memory,
                threads=threads,
                on_error=on_error,
                read_ahead=read_ahead,
                report=report,
            )
        if entry is None:
            return Written(0, 0, 0)
        return _publish(writer, manifest, entry, base=base, mode=mode, resumed=resumed)


def _check(metric: str, kept: str, on_error: object, threads: int | None) -> None:
    if metric not in METRICS:
        raise ValueError(f"metric must be 'cosine' or 'dot', not {metric!r}")
    if kept not in RAW_KINDS or kept == "none":
        raise ValueError(f"kept must be 'fp32' or 'int8', not {kept!r}")
    if isinstance(on_error, str) and on_error not in ("stop", "skip"):
        raise ValueError(f"on_error must be 'stop', 'skip' or a callable, not {on_error!r}")
    if threads is not None:
        check_threads(threads)


def _state(writer: Writer, restart: bool) -> State | None:
    """What an interrupted build has left, if it is to go on; else nothing of it stays."""
    state = None if restart else read_journal(writer.journal)
    if state is None:
        writer.journal.unlink(missing_ok=True)
        shutil.rmtree(writer.building, ignore_errors=True)
    return state


def _live(writer: Writer, mode: Mode, overwrite: bool, state: State | None) -> Manifest | None:
    try:
        live = writer.live()
    except (FileNotFoundError, IndexDamagedError):
        if mode != "build" or not overwrite:
            raise
        return None  # what is damaged is replaced
    if mode == "build" and live is not None and not overwrite:
        finished = None if state is None or state.segment is None else state.segment.name
        if finished in {entry.name for entry in live.segments}:
            return live
        raise IndexExistsError(
            f"{writer.root}: an index exists there; pass --overwrite (overwrite=True) to replace it"
        )
    return live


def new_manifest(encoder: TextEncoder, dimension: int, factory: str, metric: Metric, kept: Raw) -> Manifest:
    """The manifest of an index without documents; `dated` completes it."""
    return Manifest(
        generation=0,
        created="",
        embedkit_version="",
        documents=0,
        dimension=dimension,
        metric=metric,
        factory=factory,
        kept=kept,
        encoder=describe_encoder(encoder),
        segments=(),
    )


def dated(manifest: Manifest, generation: int) -> Manifest:
    """``manifest`` as the generation that is written now."""
    return replace(
        manifest,
        generation=generation,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        embedkit_version=version("embedkit"),
    )


_SETTINGS = {
    "mode": "command",
    "fingerprint": "model",
    "precision": "precision",
    "document_prompt": "document prompt",
    "dimension": "dimension",
    "metric": "metric",
}
_MADE = {"factory": "factory", "kept": "kind of kept vectors", "target_recall": "target recall"}


def _digest(documents: Iterable[str | Document]) -> str:
    digest = InputDigest()
    for _ in digest.watch(documents):
        pass
    return digest.hexdigest()


def _check_made(
    root: Path, state: State, made: Mapping[str, Any], documents: Iterable[str | Document]
) -> None:
    """Refuse a finished segment that is not the one that would be made now."""
    for name, what in _MADE.items():
        if state.made.get(name) != made[name]:
            raise ResumeError(
                f"{root}: an interrupted '{state.header.get('mode')}' was finished with another {what} "
                f"({state.made.get(name)}, now {made[name]}); run that command again, or discard it with "
                "--restart (restart=True)"
            )
    if _digest(documents) != state.made.get("input"):
        raise ResumeError(
            f"{root}: these are not the documents that an interrupted '{state.header.get('mode')}' has encoded; give "
            "the same input, or begin anew with --restart (restart=True)"
        )


def _forget(writer: Writer) -> None:
    """Remove the journal, for good."""
    writer.journal.unlink(missing_ok=True)
    fsync(writer.root)


def _finished_before(
    root: Path, state: State, done: SegmentEntry, documents: Iterable[str | Document]
) -> Written:
    """What a command that was killed after its last step has written, if it was of ``documents``."""
    if _digest(documents) != state.made.get("input"):
        raise ResumeError(
            f"{root}: an interrupted '{state.header.get('mode')}' of other documents was finished, and nothing of "
            "these is in the index; run the command again"
        )
    return Written(done.documents, 0, state.rows)


def _check_header(root: Path, state: State | None, header: dict[str, Any]) -> None:
    for name, what in _SETTINGS.items():
        if state is not None and state.header.get(name) != header[name]:
            raise ResumeError(
                f"{root}: an interrupted '{state.header.get('mode')}' has encoded {state.rows} documents with "
                f"another {what} ({state.header.get(name)}, now {header[name]}); run that command again, or "
                "discard them with --restart (restart=True)"
            )


def _write_segment(
    writer: Writer,
    documents: Iterable[str | Document],
    encoder: TextEncoder,
    *,
    manifest: Manifest,
    header: dict[str, Any],
    made: dict[str, Any],
    state: State | None,
    base: Generation | None,
    mode: Mode,
    target_recall: float | None,
    max_memory: int,
    threads: int | None,
    on_error: OnError,
    read_ahead: bool,
    report: Callable[[Progress], None],
) -> tuple[SegmentEntry | None, int]:
    """Encode and finish the new segment in ``segments/.building``; the entry is ``None`` for no document."""
    folder = writer.building
    folder.mkdir(exist_ok=True)
    ingest = Ingest(
        folder, writer.journal, header, state, dimension=manifest.dimension, replace=mode == "upsert"
    )

    def taken(document_id: str) -> bool:
        return mode == "add" and base is not None and bool(base.find([document_id]))

    digest = InputDigest()
    with contextlib.closing(ingest):
        ingest.run(
            digest.watch(documents),
            encoder,
            normalize=manifest.metric == "cosine",
            ids_needed=mode != "build",
            taken=taken,
            on_error=on_error,
            read_ahead=read_ahead,
            report=report,
        )
        rows = ingest.documents.rows
        if ingest.spool.rows != rows:
            raise AssertionError(f"{rows} documents, {ingest.spool.rows} vectors")
        if rows == 0:
            if mode == "build":
                raise InputError("", "no document to index: the input is empty, or every line was skipped")
            return None, 0
        factory = manifest.factory
        if mode != "build":
            factory = added_factory(factory, rows, manifest.dimension)
        # where parameters were measured, what is added later searches as hard as the rest
        setting = stored_parameters(manifest.tuning)
        (folder / CHOICE_FILE).unlink(missing_ok=True)
        if target_recall is not None:
            spool = Spool(folder / SPOOL_FILE, rows, manifest.dimension)
            choice = choose_for(
                spool,
                target_recall,
                budget=faiss_budget(max_memory),
                threads=threads,
                progress=lambda done, total: report(Progress("choose", done, total)),
            )
            factory, setting = choice.chosen.factory, choice.chosen.parameters
            # with the files of the segment, as a crash may come before the manifest
            write_choice(folder / CHOICE_FILE, choice)
        entry = finish_segment(
            folder,
            writer.new_name(),
            ingest.documents.finish,
            rows=rows,
            dimension=manifest.dimension,
            factory=factory,
            setting=setting,
            kept=manifest.kept,
            budget=faiss_budget(max_memory),
            threads=threads,
            progress=lambda stage, done, total: report(Progress(stage, done, total)),
        )
        ingest.journal.finished(entry, {**made, "input": digest.hexdigest()})
        return entry, ingest.resumed


def added_factory(factory: str, rows: int, dimension: int) -> str:
    """The factory of a segment of ``rows`` documents that were added: exact search while they are few."""
    if factory == faiss_index.AUTO:
        return factory
    nlist = faiss_index.inverted_lists(faiss_index.create_index(factory, dimension)) or 0
    few = max(faiss_index.AUTO_IVF_ROWS, faiss_index.MIN_POINTS_PER_LIST * nlist)
    return "Flat" if rows < few else factory


def _publish(
    writer: Writer,
    manifest: Manifest,
    entry: SegmentEntry,
    *,
    base: Generation | None,
    mode: Mode,
    resumed: int,
) -> Written:
    """Make the finished segment live, with tombstones for what it replaces."""
    folder = writer.building if writer.building.exists() else writer.segments / entry.name
    if (tuning := read_choice(folder / CHOICE_FILE)) is not None:
        manifest = replace(manifest, factory=tuning["chosen"]["factory"], tuning=tuning)
    remove_all_but(folder, entry.files)
    ids = Ids(folder / IDS_FILE, entry.rows)
    gone = ids.empty_rows()  # replaced by a later document of the same input
    if len(gone):
        dead = bits_of(gone, entry.rows)
        entry = replace(entry, tombstones=writer.write_tombstones(dead.tobytes(), len(gone)))
    old = manifest.segments
    replaced = 0
    if base is not None:
        rows = _rows_of_ids(base, (ids[row] for row in range(len(ids))), mode)
        replaced = sum(map(len, rows.values()))
        old = bury(writer, base, rows)
    writer.publish(
        dated(manifest.with_segments((*old, entry)), writer.generation), {entry.name: writer.building}
    )
    _forget(writer)
    return Written(entry.documents, replaced, resumed)


def _rows_of_ids(base: Generation, ids: Iterator[str], mode: Mode) -> dict[int, list[int]]:
    """Rows by segment number that have one of ``ids`` in ``base``; an error unless they are to be replaced."""
    rows: dict[int, list[int]] = {}
    block: list[str] = []

    def look_up() -> None:
        for document_id, (number, row) in base.find(block).items():
            if mode == "add":  # it came while an interrupted 'add' waited to be resumed
                raise ResumeError(
                    f"the id {document_id!r} is in the index already; delete it, or discard the interrupted command "
                    "with --restart (restart=True)"
                )
            rows.setdefault(number, []).append(row)
        block.clear()

    for document_id in ids:
        if document_id:
            block.append(document_id)
        if len(block) == _IDS_AT_ONCE:
            look_up()
    look_up()
    return rows


def bury(
    writer: Writer, base: Generation, rows: dict[int, list[int]] | dict[int, Any]
) -> tuple[SegmentEntry, ...]:
    """The segments of ``base`` with ``rows`` (by segment number) deleted; one without documents goes."""
    entries = []
    for number, segment in enumerate(base.segments):
        entry = segment.entry
        if number in rows and len(rows[number]):
            dead = bits_of(np.asarray(rows[number], np.int64), entry.rows)
            if segment.dead is not None:
                dead |= segment.dead
            deleted = int(np.unpackbits(dead).sum())
            if deleted == entry.rows:
                continue
            entry = replace(entry, tombstones=writer.write_tombstones(dead.tobytes(), deleted))
        entries.append(entry)
    return tuple(entries)


@contextlib.contextmanager
def _disk_errors(root: Path) -> Iterator[None]:
    """Say which index could not be written, and what was left of it."""

    def failed(reason: object) -> BuildError:
        rows = resumable_rows(root)
        if rows:
            return BuildError(
                f"{root}: the build failed: {reason}; {rows:,} documents are encoded, and the same command "
                "goes on from there"
            )
        return BuildError(f"{root}: the build failed and was undone: {reason}")

    try:
        yield
    except ResumeError:
        raise
    except (sqlite3.OperationalError, BuildError) as error:
        raise failed(error) from error
    except OSError as error:
        # those that are ours have a message of their own
        if error.errno is None or isinstance(error, BlockingIOError):
            raise
        raise failed(error.strerror) from error
