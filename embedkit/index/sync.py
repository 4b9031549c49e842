"""Making an index hold what a folder holds: new and changed files are read, what is gone is deleted.

``sync.sqlite`` in the index folder remembers each file's size, time and hash, and the ids of its documents. It is
only a memory: it is used if it is of the live generation and of the same settings, and otherwise all files are read
and compared with the stored texts, so a kill at any point costs time and nothing else. The ids that are about to be
written are recorded there before they become live, so that what a killed command wrote is known to be the folder's.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..documents.document import Document
from ..documents.errors import InputError, OnError, reject
from ..documents.folders import Patterns, walk
from ..documents.passages import document_of
from ..documents.readers import Corpus, Names
from ..documents.sources import Format
from .build.change import set_root
from .build.memory import DEFAULT_MAX_MEMORY
from .build.settings import Report
from .errors import BuildError, ResumeError
from .index import Index
from .storage.journal import read_journal
from .storage.layout import JOURNAL_FILE, SYNC_FILE
from .storage.manifest import hash_file

__all__ = ["FolderSettings", "Synced", "sync"]

_GRAIN = 2_000_000_000
"""Nanoseconds: the coarsest clock of a common file system (FAT)."""

_NO_TIME = -1


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


@dataclass(slots=True)
class _File:
    size: int
    mtime: int
    sha256: str
    ids: list[str] | None  # None: one document of the file's name


class _Memory:
    """``sync.sqlite``. A name of a file is stored as its bytes, each as the character of that number."""

    def __init__(self, path: Path, built: int | None) -> None:
        """Open ``path``; what it holds of an index before the generation ``built`` is forgotten."""
        self._db = sqlite3.connect(path, isolation_level=None)
        try:
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS files "
                "(name TEXT PRIMARY KEY, size INTEGER, mtime INTEGER, sha256 TEXT, ids TEXT)"
            )
            self._db.execute("CREATE TABLE IF NOT EXISTS pending (ids TEXT)")
            self._db.execute("CREATE TABLE IF NOT EXISTS state (generation INTEGER, settings TEXT)")
            self.state = self._db.execute("SELECT generation, settings FROM state").fetchone()
            if self.state is not None and built is not None and self.state[0] < built:
                self._forget()
        except BaseException:
            self._db.close()
            raise

    def _forget(self) -> None:
        self._db.execute("BEGIN")
        for table in ("files", "pending", "state"):
            self._db.execute(f"DELETE FROM {table}")
        self._db.execute("COMMIT")
        self.state = None

    def stamps(self) -> dict[str, tuple[int, int]]:
        """Size and time of all files."""
        found = self._db.execute("SELECT name, size, mtime FROM files").fetchall()
        return {_name(key): (size, mtime) for key, size, mtime in found}

    def files(self, names: Iterable[str]) -> dict[str, _File]:
        """What is known of ``names``."""
        found = self._db.execute(
            "SELECT * FROM files WHERE name IN (SELECT value FROM json_each(?))",
            (json.dumps([_key(name) for name in names]),),
        )
        return {
            _name(key): _File(size, mtime, sha256, None if ids is None else json.loads(ids))
            for key, size, mtime, sha256, ids in found
        }

    def others(self, names: Set[str]) -> Iterator[tuple[str, list[str]]]:
        """The files that are not among ``names``, each with the ids of its documents."""
        for key, ids in self._db.execute("SELECT name, ids FROM files"):
            if (name := _name(key)) not in names:
                yield name, [name] if ids is None else json.loads(ids)

    @property
    def begun(self) -> bool:
        """Whether a sync has begun to encode and has not finished."""
        return self._db.execute("SELECT 1 FROM pending").fetchone() is not None

    def pending(self) -> set[str]:
        """The ids that such a sync was about to write."""
        return {key for (ids,) in self._db.execute("SELECT ids FROM pending") for key in json.loads(ids)}

    def announce(self, ids: list[str]) -> None:
        """Record that a sync begins, or is about to write ``ids``."""
        self._db.execute("INSERT INTO pending VALUES (?)", (json.dumps(ids),))

    def finish(self, changed: dict[str, _File], gone: Iterable[str], generation: int, settings: str) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("DELETE FROM files WHERE name = ?", ((_key(name),) for name in gone))
        self._db.executemany(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)",
            (
                (
                    _key(name),
                    file.size,
                    file.mtime,
                    file.sha256,
                    None if file.ids is None else json.dumps(file.ids),
                )
                for name, file in changed.items()
            ),
        )
        self._db.execute("DELETE FROM pending")
        self._db.execute("DELETE FROM state")
        self._db.execute("INSERT INTO state VALUES (?, ?)", (generation, settings))
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


@contextmanager
def _remembering(path: Path, built: int | None) -> Iterator[_Memory]:
    """The memory at ``path``; errors of it name it."""
    try:
        with closing(_Memory(path, built)) as memory:
            yield memory
    except sqlite3.OperationalError as error:
        raise BuildError(
            f"{path}: the sync cannot note what it does: {error}; what it has indexed stays, and the same command goes "
            "on from there"
        ) from error
    except sqlite3.DatabaseError as error:
        raise InputError(
            os.fspath(path),
            f"is damaged ({error}); remove it: the next sync then reads all files, and takes all documents of "
            "the index for the folder's",
        ) from None


def _key(name: str) -> str:
    return os.fsencode(name).decode("latin-1")


def _name(key: str) -> str:
    return os.fsdecode(key.encode("latin-1"))


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
    manifest = index.generation.manifest
    if not os.path.exists(root):
        raise InputError(os.fspath(folder), "no such folder")
    left_out: list[str] = []
    young = time.time_ns() - _GRAIN
    found: dict[str, tuple[int, int]] = {}
    begin = len(root) + 1
    for entry in walk(root, settings.patterns, left_out):
        status = entry.stat()
        found[entry.path[begin:]] = (status.st_size, status.st_mtime_ns)
    if moved and not found:
        raise InputError(os.fspath(folder), "holds no files that are read; is it where the folder was moved?")
    if moved and manifest.root not in (None, root):  # ids are relative to it
        set_root(index.path, root)
        index.refresh()
        manifest = index.generation.manifest
    if manifest.root != root:
        hint = (
            "" if manifest.root is None else "if that was moved here, pass --moved (moved=True); otherwise "
        )
        raise InputError(
            os.fspath(folder),
            f"{index.path} was not built of this folder but of {manifest.root or 'documents without one'}; {hint}"
            f"build an index of this one: embedkit-index build {os.fspath(folder)} -o INDEX",
        )
    whole = settings.whole_text if settings.whole_text is not None else manifest.passages is not None
    encoder = manifest.encoder
    of_vectors = (encoder.fingerprint, encoder.document_prompt, manifest.passages)
    fields = (settings.text_field, settings.id_field, settings.vector_field, settings.format)
    told = json.dumps([*of_vectors, whole, *fields])
    with _remembering(index.path / SYNC_FILE, manifest.built) as memory:
        stamps = memory.stamps()
        valid = memory.state == (manifest.generation, told)
        suspects = {
            name: stamp for name, stamp in found.items() if checksum or not valid or stamps.get(name) != stamp
        }
        gone_files = stamps.keys() - found.keys()
        known = memory.files((suspects.keys() & stamps.keys()) | gone_files)
        changed: dict[str, _File] = {}
        touched: dict[str, _File] = {}
        for name, (size, mtime) in suspects.items():
            before = known.get(name)
            # a file may change again within the grain of its file system's clock, as git has it ("racy")
            stamp = (size, mtime if mtime < young else _NO_TIME)
            digest = _hash(os.path.join(root, name))
            if valid and before is not None and before.sha256 == digest:
                touched[name] = _File(*stamp, digest, before.ids)
            else:
                changed[name] = _File(*stamp, digest, [])
        before_now = _ids(known, (known.keys() & changed.keys()) | gone_files)
        first = memory.state is None and not stamps
        owned = _all_ids(index) if first else memory.pending() | before_now
        if not found and not _all_ids(index).isdisjoint(owned):
            raise InputError(
                os.fspath(folder),
                "holds no files that are read, so that all its documents would be deleted: is its disk mounted? To "
                "delete every document of the index, also those from elsewhere: embedkit-index delete "
                f"{index.path} --where true",
            )
        if valid and before_now:  # a file with one of these ids is read again: its text may count now
            shared = [
                name
                for name, ids in memory.others(changed.keys() | gone_files)
                if not before_now.isdisjoint(ids)
            ]
            for name, file in memory.files(shared).items():
                changed[name] = _File(file.size, file.mtime, file.sha256, [])
                touched.pop(name, None)
            changed = {name: changed[name] for name in found if name in changed}
        reader = _Reader(root, changed, found.keys(), replace(settings, whole_text=whole), memory)
        written = replaced = 0
        if changed:
            begun = memory.begun
            memory.announce([])
            try:
                done = index.upsert(
                    reader,
                    restart=restart,
                    max_memory=max_memory,
                    on_error=reader.on_error,
                    progress=progress,
                )
            except ResumeError:
                left = read_journal(index.path / JOURNAL_FILE)
                if restart or not begun or left is None or left.header.mode != "upsert":
                    raise
                # an interrupted sync, and a file has changed since
                done = index.upsert(
                    reader, restart=True, max_memory=max_memory, on_error=reader.on_error, progress=progress
                )
            reader.forget_refused()
            written, replaced = done.documents, done.replaced
        gone = owned - _ids(changed, changed.keys())
        if gone:  # a document may have moved to another file
            elsewhere = changed.keys() | gone_files
            for _, ids in memory.others(elsewhere):
                gone.difference_update(ids)
        deleted = index.delete(sorted(gone), missing_ok=True) if gone else 0
        generation = index.generation.manifest.generation
        if changed or touched or gone_files or not valid:
            memory.finish({**touched, **changed}, gone_files, generation, told)
    return Synced(
        len(found), len(suspects.keys() | changed.keys()), written, replaced, deleted, reader.blank, left_out
    )


def _ids(files: dict[str, _File], names: Iterable[str]) -> set[str]:
    result: set[str] = set()
    for name in names:
        ids = files[name].ids
        result.update([name] if ids is None else ids)
    return result


def _all_ids(index: Index) -> set[str]:
    generation = index.generation
    ids = generation.ids(generation.living_rows())
    return set(ids) if generation.manifest.passages is None else {document_of(passage) for passage in ids}


class _Reader:
    """The documents of the changed files; notes each file's ids, and announces them before the last step."""

    def __init__(
        self,
        root: str,
        files: dict[str, _File],
        found: Set[str],
        settings: FolderSettings,
        memory: _Memory,
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
        self._memory.announce(sorted(_ids(self._files, self._files)))
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
        )

    def _file_of(self, origin: str) -> str:
        return origin.rpartition(":")[0][len(self._root) + 1 :]

    def _contested(self) -> list[str]:
        """The files that share ids with each other, if some of them were read now and some were not."""
        ids = _ids(self._files, self._files)
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
        return hash_file(Path(path)).sha256
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror or error}") from None
