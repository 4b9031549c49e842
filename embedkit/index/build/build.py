"""The path of a document through a build, from top to bottom.

``Index.build``, ``add`` and ``upsert`` are one function, `build`. It writes one new segment; the three differ in what
becomes of the existing segments. Under the index's lock it goes through these steps, each a module:

=============  ==============================================================================  =====================
read           documents come one at a time from an iterable; files are read by                `documents.readers`
check          a unique id, a vector of the right shape; otherwise ``on_error`` decides        `check`
cut            long texts into passages, if the index has them                                 `documents.passages`
filter         what an upsert need not encode; what repeats an earlier text                    `filter`
store          text and metadata go to SQLite, which checks that they can be stored            `storage.document_store`
encode         texts become vectors, a chunk of up to 2,048 at a time                          `encode`
spool          vectors are appended to a file                                                  `storage.spool`
journal        how many documents and vectors are on disk, after each shard                    `storage.journal`
faiss          the spooled vectors become Faiss files; the segment is hashed                   `segment`, `build_parts`
publish        tombstones for what is replaced, then the manifest, which makes it live         `publish`
=============  ==============================================================================  =====================

Reading, checking and storing run ahead on a background thread if the source allows it; encoding is on the caller's
thread, so that Ctrl-C reaches it. Both release the GIL for most of their work. An interrupted build is resumed
(`resume`, `staging`).
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
import warnings
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ...documents.document import Document, check_document
from ...documents.errors import InputError, reject
from ...documents.passages import PassageCutter, Passages, document_of
from ...files import fsync_files
from ..auto.stored import CHOICE_FILE, choose_for, stored_parameters, write_choice
from ..encoder import (
    TextEncoder,
    check_encoder,
    check_reading,
    describe_encoder,
    own_max_length,
    own_overflow,
)
from ..errors import IndexDamagedError
from ..prefetch import prefetch
from ..several import several_documents
from ..storage import faiss_index
from ..storage.document_store import OtherInputError
from ..storage.factory import check_rows, fitting_factory
from ..storage.generation import Generation, open_generation
from ..storage.journal import Finished, Header, Made, State, read_journal
from ..storage.layout import Writer
from ..storage.manifest import Manifest, SegmentEntry
from ..words.analyzer import analyzer
from ..words.languages import AUTO as AUTO_LANGUAGE
from .check import check_new_id, given_vector, is_blank, length_check, with_id, with_taken
from .duplicates import near_duplicates
from .encode import Chunk, Pace, encode_chunk, truncated_by
from .filter import Filter
from .fold import fold_segments, language_of
from .memory import faiss_budget
from .publish import again, dated, new_manifest, publish
from .resume import (
    InputDigest,
    check_base,
    check_finished,
    check_header,
    check_replaced,
    discard,
    disk_errors,
    forget,
    not_replaced,
    published_before,
    written_before,
)
from .segment import finish_segment
from .settings import BuildSettings, Mode, Progress, Report, Written
from .staging import Staging
from .stored import Stored

__all__ = ["build"]

_CHUNKS_AHEAD = 2
_REPLACING = ("upsert", "sync")
_WHAT: dict[Mode, str] = {
    "build": "the build",
    "add": "adding",
    "upsert": "the upsert",
    "sync": "the sync",
    "reembed": "encoding again",
}


@dataclass(frozen=True, slots=True)
class _Job:
    """One command on one index.

    Attributes:
        writer: holds the lock.
        mode: the command.
        settings: as given.
        encoder: computes the vectors.
        manifest: the live one, or that of a new index.
        base: the live generation; ``None`` for "build".
        header: what the vectors depend on.
        report: called after each step.
        cutter: cuts documents into passages; ``None``: they stay whole.
    """

    writer: Writer
    mode: Mode
    settings: BuildSettings
    encoder: TextEncoder
    manifest: Manifest
    base: Generation | None
    header: Header
    report: Report
    cutter: PassageCutter | None

    @property
    def replaces(self) -> bool:
        """Whether a document replaces the one with its id."""
        return self.mode in _REPLACING

    @property
    def distinct(self) -> bool:
        """Whether a text that repeats an earlier one is left out."""
        return self.mode == "build" and self.settings.dedup is not None

    @property
    def made(self) -> Made:
        """What the journal records of a finished segment, except its input."""
        return Made(
            self.manifest.factory,
            self.manifest.kept,
            self.settings.target_recall,
            language=self.manifest.language if self.mode == "build" else AUTO_LANGUAGE,
            passages=self.manifest.passages if self.mode == "build" else None,
            distinct=self.distinct,
            base=self.header.base,
        )


def build(
    root: Path,
    documents: Iterable[str | Document],
    encoder: TextEncoder,
    *,
    mode: Mode,
    settings: BuildSettings,
    report: Report | None = None,
) -> Written:
    """Build, add or upsert; see `Index.build`, `Index.add` and `Index.upsert`."""
    documents = several_documents(documents)
    _check_call(root, documents, encoder, mode, settings)
    with (
        disk_errors(root, mode, _WHAT[mode]),
        Writer(root, create=mode == "build") as writer,
        contextlib.ExitStack() as stack,
    ):
        state = None if settings.restart else read_journal(writer.journal)
        before = writer.generation
        live = _live(writer, mode, settings, state)
        base = None
        if mode == "build":
            manifest = new_manifest(encoder, settings)
        elif mode == "reembed":
            assert live is not None
            old = stack.enter_context(contextlib.closing(open_generation(root, lambda _: None)))
            remedy = (
                f"choose it first, or none to stem no words: embedkit-index compact {root} --language LANGUAGE "
                "(compact(language=...))"
            )
            as_before = replace(old.manifest, language=language_of(root, old.manifest, remedy))
            manifest, documents = again(as_before, encoder, settings), Stored(old)
            _check_factory_fits(root, manifest)
            _check_passages_fit(root, manifest, encoder)
        else:
            assert live is not None
            check_encoder(root, live, encoder)
            check_reading(root, encoder, live)
            manifest = live
        if state is None:
            discard(writer)  # only now, when nothing is wrong with the command
        if live is not None and mode not in {"build", "reembed"}:
            if state is None:  # else the command is finished on the generation that it began with
                manifest = fold_segments(writer, live, settings)
            base = stack.enter_context(contextlib.closing(open_generation(root, lambda _: None)))
        if manifest.language != AUTO_LANGUAGE:
            analyzer(manifest.language)  # a stemmer that is missing fails now as well
        header = _header(mode, manifest, encoder)
        passages = Passages.of(manifest.passages)
        # what is encoded again was cut before
        cutter = None if passages is None or mode == "reembed" else PassageCutter(encoder, passages)
        job = _Job(
            writer, mode, settings, encoder, manifest, base, header, report or (lambda _: None), cutter
        )

        done = published_before(state, live)
        if done is not None and state is not None and state.finished is not None:
            forget(writer)
            made = replace(
                state.finished.made, input="", base=job.made.base
            )  # it is that generation's successor
            if (state.header, made) == (header, job.made):
                return written_before(root, state, done, documents)
            state = None
            _live(writer, mode, settings, None)
        check_header(root, state, header)
        entry = None if state is None else check_finished(writer, state, job.made, documents)
        if state is not None and entry is not None:
            resumed, filtered = state.rows, Filter(None)
        else:
            try:
                entry, resumed, filtered = _make_segment(job, documents, state)
            except OtherInputError:
                check_base(root, state, header)
                raise
        if filtered.blank:
            warnings.warn(filtered.told_blank(replaces=job.replaces), stacklevel=3)
        count, replaced, near = _go_live(job, entry)
        return Written(
            documents=count,
            replaced=replaced,
            resumed=resumed,
            unchanged=filtered.unchanged,
            repeated=filtered.repeated + near,
            blank=filtered.blank,
            generations=writer.generation - before,
        )


def _check_call(
    root: Path, documents: Iterable[object], encoder: TextEncoder, mode: Mode, settings: BuildSettings
) -> None:
    """Raise what can be told of the arguments alone: a bad string fails now, not after hours of encoding."""
    if not hasattr(encoder, "encode_document"):
        raise TypeError(
            f"encoder must be an encoder such as embedkit.Encoder(...), not {type(encoder).__name__}"
        )
    faiss_index.faiss_name(root)
    if settings.factory not in faiss_index.AUTOMATIC:
        faiss_index.create_index(settings.factory, encoder.get_embedding_dimension())
    else:
        faiss_index.import_faiss()
    if mode == "build" and isinstance(documents, (list, tuple)) and settings.passages is None:
        check_rows(settings.factory, len(documents))
    faiss_budget(settings.max_memory)


def _go_live(job: _Job, entry: SegmentEntry | None) -> tuple[int, int, int]:
    """Make the finished segment live; ``None``: no document was left to store.

    Returns:
        Its number of documents, how many earlier ones they replace, and how many are left out as near duplicates.
    """
    writer, manifest = job.writer, job.manifest
    if entry is None:
        if job.mode == "reembed":  # no documents, another model
            writer.publish(dated(manifest.with_segments(()), writer.generation))
        return 0, 0, 0
    near = near_duplicates(writer, entry, manifest.dimension, job.settings)
    count, replaced = publish(writer, manifest, entry, job.base, mode=job.mode, left_out=near)
    # readers see the change; the next writer removes a journal that is left
    with contextlib.suppress(OSError):
        forget(writer)
    return count, replaced, len(near)


def _live(writer: Writer, mode: Mode, settings: BuildSettings, state: State | None) -> Manifest | None:
    """The live manifest; an error if it is neither to be changed nor replaced, nor made by this very build."""
    try:
        live = writer.live()
    except (FileNotFoundError, IndexDamagedError):
        if mode != "build" or not settings.overwrite:
            raise
        live = None  # a damaged index is replaced
    if mode != "build":
        return live
    check_replaced(writer.root, state, live)
    if live is not None and not settings.overwrite and published_before(state, live) is None:
        raise not_replaced(writer.root)
    return live


def _check_factory_fits(root: Path, manifest: Manifest) -> None:
    """Raise ValueError if an index of this kind cannot hold vectors of a new model's dimension."""
    if manifest.factory in faiss_index.AUTOMATIC:
        return
    try:
        faiss_index.create_index(manifest.factory, manifest.dimension)
    except ValueError as error:
        raise ValueError(
            f"{root}: the vectors of the new model do not fit the index: {error}; change it first: "
            f"embedkit-index compact {root} --factory auto (compact(factory='auto'))"
        ) from None


def _check_passages_fit(root: Path, manifest: Manifest, encoder: TextEncoder) -> None:
    """Raise ValueError if a new model cannot read the index's passages: nothing could be added afterwards."""
    passages = Passages.of(manifest.passages)
    if passages is None:
        return
    try:
        PassageCutter(encoder, passages)
    except ValueError as error:
        raise ValueError(f"{root}: the new model does not fit the index: {error}") from None


def _header(mode: Mode, manifest: Manifest, encoder: TextEncoder) -> Header:
    return Header(
        mode=mode,
        fingerprint=manifest.encoder.fingerprint,
        precision=describe_encoder(encoder).precision,
        document_prompt=manifest.encoder.document_prompt,
        dimension=manifest.dimension,
        metric=manifest.metric,
        max_length=own_max_length(encoder),
        on_overflow=own_overflow(encoder),
        base=manifest.generation if mode in _REPLACING else None,
    )


def _make_segment(
    job: _Job, documents: Iterable[str | Document], state: State | None
) -> tuple[SegmentEntry | None, int, Filter]:
    """Documents to a finished segment in ``segments/.building``; the entry is ``None`` for no document.

    Also returns how many documents were encoded before an interruption. Those are compared and not encoded again.
    """
    folder = job.writer.building
    folder.mkdir(exist_ok=True)
    staging = Staging(
        folder,
        job.writer.journal,
        job.header,
        state,
        replace=job.replaces,
        passages=job.cutter is not None,
    )
    filtered = Filter(
        job.base if job.replaces else None,
        passages=job.cutter is not None,
        repeated=job.distinct,
    )
    digest = InputDigest()
    with contextlib.closing(staging):
        pace = Pace()
        chunks = _stored(job, digest.watch(documents), staging, filtered, pace)
        if _may_read_ahead(documents):
            chunks = prefetch(chunks, _CHUNKS_AHEAD)
        _encode(job, chunks, staging, pace)
        if (rows := staging.spool.rows) != staging.documents.rows:
            raise AssertionError(f"{staging.documents.rows} documents, {rows} vectors")
        if rows == 0 and job.mode == "build":
            raise InputError("", "no documents to index: the input is empty, or every line was skipped")
        if rows == 0:
            return None, 0, filtered
        entry = replace(_index(job, staging), truncated=None if filtered.unsure else staging.truncated)
        made = replace(job.made, input=digest.hexdigest())
        fsync_files(folder)  # before the journal says that they are complete
        staging.journal.finished(Finished(entry, made))
        return entry, staging.resumed, filtered


def _may_read_ahead(documents: Iterable[object]) -> bool:
    from ...documents.readers import Corpus

    # A caller's generator may be tied to its thread (a database cursor); these are not.
    return isinstance(documents, (list, tuple, Corpus, Stored))


def _stored(
    job: _Job, documents: Iterable[str | Document], staging: Staging, filtered: Filter, pace: Pace
) -> Generator[Chunk, None, None]:
    """Read, check, cut and store: yields the documents to encode, in chunks of bounded size."""
    store = staging.documents
    adding_to = job.base if job.mode == "add" else None
    check_length = length_check(job.encoder, job.mode, refused=job.manifest.refuses_long)
    chunk = Chunk(limit=pace.characters)
    for pieces, taken in with_taken(filtered.pieces(_pieces(job, documents, filtered)), adding_to):
        for number, document in enumerate(pieces):
            known = store.replaying
            try:
                check_new_id(document, taken)
                vector = given_vector(document, job.header.dimension)
                check_length(document)
                store.add(document, stored=job.mode == "reembed", first=number == 0)
            except InputError as error:
                error.document_id = document_of(document.id or "") if job.cutter else document.id
                reject(error, job.settings.on_error)
                filtered.refused(pieces[number:])
                break  # the other passages of a document are refused for the same reason
            if known:
                staging.replay(document, vector)
                continue
            chunk.add(document, vector)
            if chunk.full:
                chunk.committed = staging.commit_if_due()
                yield chunk
                chunk = Chunk(limit=pace.characters)
    if store.replaying:
        raise OtherInputError(
            "the input is shorter than what was encoded before the interruption; "
            "give the same input, or start over with --restart (restart=True)"
        )
    store.check_superseded()
    if chunk.texts:
        yield chunk


def _pieces(job: _Job, documents: Iterable[str | Document], filtered: Filter) -> Iterator[list[Document]]:
    """Each document with its id, or its passages."""
    for position, item in enumerate(documents):
        try:
            document = with_id(item, position, required=job.mode != "build")
            if job.mode != "reembed" and is_blank(document):
                filtered.note_blank(document)
                continue
            if job.cutter is None:
                yield [document]
                continue
            check_document(document)
            pieces = job.cutter.cut(document)
        except InputError as error:
            error.document_id = item.id if isinstance(item, Document) else None
            reject(error, job.settings.on_error)
            continue
        yield pieces


def _encode(job: _Job, chunks: Generator[Chunk, None, None], staging: Staging, pace: Pace) -> None:
    """Encode, spool and journal; whatever ends it, what is encoded by then is in the journal."""
    spool = staging.spool
    normalize = job.header.metric == "cosine"
    try:
        with contextlib.closing(chunks):
            job.report(Progress("encode", spool.rows, None))
            for chunk in chunks:
                before, begin = truncated_by(job.encoder), time.monotonic()
                spool.add(encode_chunk(chunk, job.encoder, job.header.dimension, normalize=normalize))
                staging.given += chunk.given
                pace.took(chunk.characters, time.monotonic() - begin)
                if staging.truncated is not None:
                    cut = truncated_by(job.encoder)
                    staging.truncated = (
                        None if cut is None or before is None else staging.truncated + cut - before
                    )
                if chunk.committed:
                    staging.record()
                job.report(Progress("encode", spool.rows, None, chunk.position))
        staging.commit()
    except BaseException:
        if spool.rows > staging.resumed:
            with contextlib.suppress(sqlite3.Error, OSError):
                staging.commit()
        raise


def _index(job: _Job, staging: Staging) -> SegmentEntry:
    """The Faiss step: choose the kind of index, make it, and complete the segment's files."""
    folder, vectors = job.writer.building, staging.vectors
    manifest, settings = job.manifest, job.settings
    factory = manifest.factory
    if job.mode == "reembed":  # documents may have been deleted since it was built
        factory = fitting_factory(factory, vectors.rows)
    elif job.mode != "build":
        factory = faiss_index.added_factory(factory, vectors.rows, vectors.dimension)
    # if search parameters were measured, segments added later are searched with the same ones
    parameters = stored_parameters(manifest.tuning)
    (folder / CHOICE_FILE).unlink(missing_ok=True)
    if settings.target_recall is not None:
        choice = choose_for(
            vectors,
            settings.target_recall,
            budget=faiss_budget(settings.max_memory),
            threads=settings.threads,
            progress=lambda done, total: job.report(Progress("choose", done, total)),
        )
        factory, parameters = choice.chosen.factory, choice.chosen.parameters
        # with the files of the segment, as a crash may come before the manifest
        write_choice(folder / CHOICE_FILE, choice)
    settings = replace(settings, factory=factory, kept=manifest.kept, target_recall=None)
    finish = partial(staging.documents.finish, manifest.language)
    return finish_segment(
        folder,
        job.writer.new_name(),
        vectors,
        finish,
        settings=settings,
        parameters=parameters,
        report=job.report,
    )
