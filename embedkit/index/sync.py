"""Making an index hold what a folder holds: new and changed files are read, what is gone is deleted.

``sync.sqlite`` in the index folder remembers each file's size, time and hash, and the ids of its documents. It is
only a memory: it is used if it is of the live generation and of the same settings, and otherwise all files are read
and compared with the stored texts, so a kill at any point, or a change by another process meanwhile, costs time and
nothing else. The ids that are about to be written are recorded there before they become live, so that what a killed
command wrote is known to be the folder's.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..documents.document import Document
from ..documents.errors import InputError, OnError, reject
from ..documents.folders import Patterns, walk
from ..documents.passages import document_of
from ..documents.readers import Corpus, Names
from ..documents.sources import Format
from ..files import file_sha256
from .build.change import set_root
from .build.memory import DEFAULT_MAX_MEMORY
from .build.settings import BuildSettings, Report, Written
from .errors import ResumeError
from .index import Index
from .storage.journal import read_journal
from .storage.layout import JOURNAL_FILE, SYNC_FILE
from .storage.manifest import Manifest
from .sync_memory import SyncedFile, SyncMemory, ids_of, remembering

__all__ = ["FolderSettings", "Synced", "sync"]

_GRAIN = 2_000_000_000
"""Nanoseconds: the coarsest clock of a common file system (FAT)."""

_NO_TIME = -1

_Stamp = tuple[int, int]  # size in bytes and time of change in nanoseconds


@dataclass(frozen=True, slots=True)
class FolderSettings:
    """How the files of a folder are read; as for `embedkit.documents.readers.Corpus`.

    ``whole_text`` ``None``: a ``.txt`` file is one text in an index of passages, else one text per line.
    """

    patterns: Patterns = field(default_factory=Patterns)
    whole_text: bool | None = None
    text_field: str = "text"
    id_field: str | None = None
    vector_field: str | None = None
    format: Format | None = None
    on_error: OnError = "stop"


@dataclass(frozen=True, slots=True)
class Synced:
    """What a sync did.

    Attributes:
        files: files in the folder that are read.
        read: files that were read, because they are new or may have changed; with ``checksum`` all of them.
        written: documents (or passages) that were encoded or whose fields have changed.
        replaced: earlier documents that these replace.
        deleted: documents whose file, line or record is gone.
        blank: texts that are empty or white space.
        left_out: paths below the folder that are not read.
    """

    files: int
    read: int
    written: int
    replaced: int
    deleted: int
    blank: int
    left_out: list[str]


def sync(
    index: Index,
    folder: str | os.PathLike[str],
    settings: FolderSettings | None = None,
    *,
    restart: bool = False,
    checksum: bool = False,
    moved: bool = False,
    max_memory: int = DEFAULT_MAX_MEMORY,
    progress: Report | None = None,
) -> Synced:
    """Make ``index`` hold what ``folder`` holds. Only texts that are new or changed are encoded.

    A file is read if its size or time differs from what is remembered, and its documents are compared if its hash does.
    ``checksum``: all files are read, for file systems whose times cannot be trusted. Of two documents with one id, that
    of the later file counts, in the order of their names.

    The index must have been built of this folder (its ``root``); ``moved``: it was, and the folder has been moved or
    renamed since. Documents that come from elsewhere stay, once a sync has been made; the first one takes all documents
    for the folder's.

    Raises:
        InputError: the folder does not exist, the index is of another one, or a file cannot be used; or the folder has
            no file that is read, and everything would be deleted, as of a disk that is not mounted.
        BuildError: the index cannot be written: the disk is full, or another sync is at work.
        (and what `Index.upsert` raises)
    """
    settings = settings or FolderSettings()
    root = os.path.realpath(folder)
    index.refresh()  # another process may have changed it since it was opened
    if not os.path.exists(root):
        raise InputError(os.fspath(folder), "no such folder")
    left_out: list[str] = []
    young = time.time_ns() - _GRAIN
    found = _walk(root, settings, left_out)
    _check_root(index, folder, root, empty=not found, moved=moved)
    manifest = index.generation.manifest
    if settings.whole_text is None:
        settings = replace(settings, whole_text=manifest.passages is not None)
    told = _told(manifest, settings)
    with remembering(index.path / SYNC_FILE, manifest.built) as memory:
        valid = memory.state == (manifest.generation, told)
        changes = _compare(root, found, memory, valid=valid, checksum=checksum, young=young)
        first = memory.state is None and not memory.stamps()
        owned = _all_ids(index) if first else memory.pending() | changes.ids
        if not found and not _all_ids(index).isdisjoint(owned):
            raise InputError(
                os.fspath(folder),
                "holds no files that are read, so that all its documents would be deleted: is its disk mounted? To "
                "delete every document of the index, also those from elsewhere: embedkit-index delete "
                f"{index.path} --where true",
            )
        changed = changes.changed
        reader = _Reader(root, changed, found.keys(), settings, memory)
        written = replaced = made = 0
        if changed:
            done = _upsert(index, reader, restart=restart, max_memory=max_memory, progress=progress)
            reader.forget_refused()
            written, replaced, made = done.documents, done.replaced, done.generations
        gone = owned - ids_of(changed, changed.keys())
        if gone:  # a document may have moved to another file
            for _, ids in memory.others(changed.keys() | changes.gone):
                gone.difference_update(ids)
        if manifest.passages is not None:  # what is no document now may be the id of another one's passage
            gone = set(index.generation.find_passages(gone))
        deleted = index.delete(sorted(gone), missing_ok=True) if gone else 0
        if changed or changes.touched or changes.gone or not valid:
            generation = manifest.generation + made + bool(deleted)
            if index.generation.manifest.generation != generation:
                # another process has changed it meanwhile; of a generation that is past, all files are read again
                generation = manifest.generation
            memory.finish({**changes.touched, **changed}, changes.gone, generation, told)
    return Synced(len(found), changes.read, written, replaced, deleted, reader.blank, left_out)


def _walk(root: str, settings: FolderSettings, left_out: list[str]) -> dict[str, _Stamp]:
    """Size and time of the files below ``root`` that are read, in the order in which they are read."""
    found = {}
    begin = len(root) + 1
    for entry in walk(root, settings.patterns, left_out, any_type=settings.format is not None):
        status = entry.stat()
        found[entry.path[begin:]] = (status.st_size, status.st_mtime_ns)
    return found


def _check_root(index: Index, folder: str | os.PathLike[str], root: str, *, empty: bool, moved: bool) -> None:
    """Check that ``index`` is of this folder; ``moved``: from now on it is."""
    known = index.generation.manifest.root
    if moved and empty:
        raise InputError(os.fspath(folder), "holds no files that are read; is it where the folder was moved?")
    if moved and known not in (None, root):  # ids are relative to it
        set_root(index.path, root)
        index.refresh()
        known = index.generation.manifest.root
    if known != root:
        hint = "" if known is None else "if that was moved here, pass --moved (moved=True); otherwise "
        raise InputError(
            os.fspath(folder),
            f"{index.path} was not built of this folder but of {known or 'documents without one'}; {hint}"
            f"build an index of this one: embedkit-index build {os.fspath(folder)} -o INDEX",
        )


def _told(manifest: Manifest, settings: FolderSettings) -> str:
    """What the stored documents depend on besides the files: with another, all are read and compared again."""
    encoder = manifest.encoder
    return json.dumps(
        [
            encoder.fingerprint,
            encoder.document_prompt,
            manifest.passages,
            settings.whole_text,
            settings.text_field,
            settings.id_field,
            settings.vector_field,
            settings.format,
        ]
    )


@dataclass(frozen=True, slots=True)
class _Changes:
    """How a folder differs from what is remembered.

    Attributes:
        changed: the files whose documents are compared with the stored ones, in the order in which they are read.
        touched: files with another time and the same content.
        gone: names of files that are no more.
        ids: of the documents that the changed files had, and the files that are gone.
        read: how many files were read.
    """

    changed: dict[str, SyncedFile]
    touched: dict[str, SyncedFile]
    gone: Set[str]
    ids: set[str]
    read: int


def _compare(
    root: str, found: dict[str, _Stamp], memory: SyncMemory, *, valid: bool, checksum: bool, young: int
) -> _Changes:
    """Compare a folder with the memory; ``valid``: it is of this index, as it is, and of the same settings."""
    stamps = memory.stamps()
    suspects = {
        name: stamp for name, stamp in found.items() if checksum or not valid or stamps.get(name) != stamp
    }
    gone = stamps.keys() - found.keys()
    known = memory.files((suspects.keys() & stamps.keys()) | gone)
    changed: dict[str, SyncedFile] = {}
    touched: dict[str, SyncedFile] = {}
    for name, (size, mtime) in suspects.items():
        before = known.get(name)
        # a file may change again within the grain of its file system's clock, as git has it ("racy")
        stamp = (size, mtime if mtime < young else _NO_TIME)
        digest = _hash(os.path.join(root, name))
        if valid and before is not None and before.sha256 == digest:
            touched[name] = SyncedFile(*stamp, digest, before.ids)
        else:
            changed[name] = SyncedFile(*stamp, digest, [])
    ids = ids_of(known, (known.keys() & changed.keys()) | gone)
    if valid and ids:  # a file with one of these ids is read again: its text may count now
        shared = [name for name, own in memory.others(changed.keys() | gone) if not ids.isdisjoint(own)]
        for name, file in memory.files(shared).items():
            changed[name] = SyncedFile(file.size, file.mtime, file.sha256, [])
            touched.pop(name, None)
        changed = {name: changed[name] for name in found if name in changed}
    return _Changes(changed, touched, gone, ids, len(suspects.keys() | changed.keys()))


def _upsert(
    index: Index,
    reader: _Reader,
    *,
    restart: bool,
    max_memory: int,
    progress: Report | None,
) -> Written:
    """Write what ``reader`` gives."""

    def upsert(restart: bool) -> Written:
        settings = BuildSettings(
            restart=restart, max_memory=max_memory, threads=index._threads, on_error=reader.on_error
        )
        return index._write("sync", reader, settings, progress)

    try:
        return upsert(restart)
    except ResumeError:
        left = read_journal(index.path / JOURNAL_FILE)
        if restart or (left is not None and left.header.mode != "sync"):
            raise
        # an interrupted sync, and a file or the index has changed since, if only by that sync's last step
        return upsert(True)


def _all_ids(index: Index) -> set[str]:
    generation = index.generation
    ids = generation.ids(generation.living_rows())
    return set(ids) if generation.manifest.passages is None else {document_of(passage) for passage in ids}


class _Reader:
    """The documents of the changed files; notes each file's ids, and announces them before the last step."""

    def __init__(
        self,
        root: str,
        files: dict[str, SyncedFile],
        found: Set[str],
        settings: FolderSettings,
        memory: SyncMemory,
    ) -> None:
        """Read ``files`` of those ``found`` in the folder, both in the order in which they are read."""
        self.blank = 0
        self._root = root
        self._files = files
        self._found = found
        self._settings = settings
        self._memory = memory
        self._refused: dict[str, str] = {}

    @property
    def on_error(self) -> OnError:
        """What to do with a document that cannot be stored; one that is skipped is noted, and told once."""
        return "stop" if self._settings.on_error == "stop" else self._refuse

    def _refuse(self, error: InputError) -> None:
        if error.origin not in self._refused:
            reject(error, self._settings.on_error)
        if error.document_id is not None:
            self._refused[error.origin] = error.document_id

    def forget_refused(self) -> None:
        """Take the ids of the documents that were not stored from those of their files."""
        refused: dict[str, Counter[str]] = {}
        for origin, document_id in self._refused.items():
            refused.setdefault(self._file_of(origin), Counter())[document_id] += 1
        for name, ids in refused.items():
            if (file := self._files.get(name)) is not None:
                file.ids = list((Counter([name] if file.ids is None else file.ids) - ids).elements())

    def __iter__(self) -> Iterator[Document]:
        for file in self._files.values():
            file.ids = []
        corpus = self._corpus(self._files, self._settings.on_error)
        for document in corpus:
            ids = self._files[self._file_of(document.origin)].ids
            if document.id is not None and ids is not None:
                ids.append(document.id)
            yield document
        self.blank = corpus.blank
        # the last of several documents with one id counts, so these come again, in the order of their files
        if contested := self._contested():
            told_already: OnError = "stop" if self._settings.on_error == "stop" else "skip"
            yield from self._corpus(contested, told_already)
        self._memory.announce(sorted(ids_of(self._files, self._files)))
        for name, file in self._files.items():
            if file.ids == [name]:
                file.ids = None

    def _corpus(self, names: Iterable[str], on_error: OnError) -> Corpus:
        return Corpus(
            [os.path.join(self._root, name) for name in names],
            text_field=self._settings.text_field,
            id_field=self._settings.id_field,
            vector_field=self._settings.vector_field,
            format=self._settings.format,
            on_error=on_error,
            names=Names(self._root, whole_text=bool(self._settings.whole_text)),
            options=("--text-field", "--id-field"),
        )

    def _file_of(self, origin: str) -> str:
        return origin.rpartition(":")[0][len(self._root) + 1 :]

    def _contested(self) -> list[str]:
        """The files that share ids with each other, if some of them were read now and some were not."""
        ids = ids_of(self._files, self._files)
        shared: set[str] = set()
        for name, own in self._held():
            if name not in self._files and not ids.isdisjoint(own):
                shared.update(own)
        contested: set[str] = set()
        more = bool(shared)
        while more:
            more = False
            for name, own in self._held():
                if name not in contested and not shared.isdisjoint(own):
                    contested.add(name)
                    shared.update(own)
                    more = True
        return [name for name in self._found if name in contested]

    def _held(self) -> Iterator[tuple[str, list[str]]]:
        """The files of the folder, each with the ids of its documents."""
        for name, file in self._files.items():
            yield name, file.ids or []
        for name, ids in self._memory.others(self._files.keys()):
            if name in self._found:
                yield name, ids


def _hash(path: str) -> str:
    try:
        return file_sha256(Path(path))
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror or error}") from None
