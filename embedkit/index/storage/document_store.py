"""Documents of one segment, in ``documents.sqlite``.

The table ``documents(row, key, text, metadata)`` holds the document's row in the segment's vectors, its id (``key``),
its text, and its metadata as a JSON object or NULL; the words of titles and texts are in tables of `storage.words`. A
missing row was replaced before the segment was finished.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ...documents.document import Document, check_document
from ...documents.errors import InputError
from ...documents.passages import document_of
from ...files import check_opens
from ...forking import fork_lock, hold_sqlite, keep_forever, wait_for_fork
from ..errors import IndexDamagedError, ResumeError
from ..words.analyzer import Analyzer, analyzer
from ..words.languages import AUTO, NONE, detect_language
from .ids import write_ids
from .manifest import DOCUMENTS_FILE, IDS_FILE, WORDS_VERSION, WordsEntry
from .where import Field, compile_where
from .words import write_words

__all__ = ["DocumentReader", "DocumentWriter", "OtherInputError", "StoredDocument"]

_T = TypeVar("_T")

_TEXTS_OF_LANGUAGE = 1000

# A condition in one segment is stopped after this many seconds, or as many for each row if that is more: it takes 1 to
# 3 µs a row. The server may be asked for anything, and other conditions wait for this one.
_MOST_SECONDS = 20.0
_MOST_SECONDS_OF_A_ROW = 2e-5
# A process that forks again and again interrupts a condition until this much of its work is lost: it must end.
_MOST_SECONDS_LOST = 5.0
_MATCHES_AT_ONCE = 4096
# Of one step, which nothing can stop: characters by which replace() may lengthen a text, and bytes of a pattern.
_MOST_REPLACED = 1 << 14
_MOST_OF_PATTERN = 1000
_FUNCTION_ACTIONS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION)

_NO_JSON = (TypeError, ValueError, RecursionError)  # what json raises

# What SQLite says of a file that it cannot read now; of a damaged one it says other things.
_DISK_ERRORS = ("disk I/O error", "unable to open database file")

_ALL = "SELECT row, key, text, metadata FROM documents ORDER BY row"
_PASSAGES = (  # CROSS JOIN: a range of the index on the ids for each document, not a scan
    "SELECT d.key, d.row FROM json_each(?) AS j CROSS JOIN documents AS d "
    "ON d.key > j.value || '#' AND d.key < j.value || '$'"
)

_READABLE = ("documents", "json_each")  # what a condition may read


hold_sqlite()


class OtherInputError(ResumeError):
    """The documents are not those that were stored before an interruption."""


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document read back from an index.

    Attributes:
        id: unique in the index.
        text: what was encoded.
        metadata: its other fields; empty if it has none.
    """

    id: str
    text: str
    metadata: dict[str, Any]


class DocumentWriter:
    """Writes the documents of one segment, one at a time, in bounded memory.

    Not thread-safe, but may be handed from one thread to another; `commit` and `close` may be called during an `add`,
    and wait for its end. What `commit` has committed survives a crash: opened again, the writer holds it.
    """

    def __init__(self, folder: Path, *, replace: bool = False, passages: bool = False) -> None:
        """Open ``documents.sqlite`` in ``folder``, new or as a crash left it.

        Args:
            folder: of the segment.
            replace: a repeated id replaces the earlier document; else it is an error.
            passages: the first passage of a document replaces all passages of an earlier one.
        """
        self._folder = folder
        self._replace = replace
        self._passages = passages
        self._replay: Iterator[tuple[int, str, str, str | None]] | None = None
        self._replay_rows = 0
        self._superseded: dict[str, str] = {}  # id: where it was read
        self._stored: tuple[int, str, str, str | None] | None = None
        # A build that is interrupted closes this while its reading thread may be in `add`, and sqlite3 crashes if a
        # connection is closed under a running statement.
        self._lock = threading.Lock()  # noqa: TID251 (no forked child goes on with a build)
        uri = (folder / DOCUMENTS_FILE).absolute().as_uri()
        self._db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        with _undamaged(folder):
            self._open()

    def _open(self) -> None:
        for pragma in (
            "journal_mode=TRUNCATE",
            "synchronous=NORMAL",
            "locking_mode=EXCLUSIVE",
            "cache_size=-16384",
        ):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS documents "
            "(row INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, text TEXT NOT NULL, metadata TEXT)"
        )
        last = self._db.execute("SELECT max(row) FROM documents").fetchone()[0]
        self.rows = 0 if last is None else last + 1
        self._db.execute("BEGIN")

    def rewind(self, rows: int) -> None:
        """Keep the first ``rows`` documents; `add` expects them again, and only compares them."""
        with _undamaged(self._folder):
            self._db.execute("DELETE FROM documents WHERE row >= ?", (rows,))
            self.commit()
            self.rows = 0
            if not rows:
                return
            self._replay_rows = rows
            self._replay = self._scan()
            self._stored = next(self._replay, None)

    def _scan(self) -> Iterator[tuple[int, str, str, str | None]]:
        last = -1
        # few at a time, as texts may be long; no open cursor, which would keep the file locked after `close`
        while block := self._db.execute(
            "SELECT row, key, text, metadata FROM documents WHERE row > ? ORDER BY row LIMIT 4", (last,)
        ).fetchall():
            yield from block
            last = block[-1][0]

    @property
    def replaying(self) -> bool:
        """Whether `add` still expects documents that were stored before a crash."""
        return self._replay is not None

    def add(self, document: Document, *, stored: bool = False, first: bool = False) -> None:
        """Append one document.

        Args:
            document: with its id; a passage has its own.
            stored: it is of another segment, where earlier versions let metadata hold a NUL.
            first: it is the first passage that is stored of its document, whatever its number: some repeat others.

        Raises:
            InputError: the text, id or metadata cannot be stored, or the id is taken; nothing was written.
            OtherInputError: another document was stored here before the crash.
        """
        document_id = check_document(document)
        metadata = _dump_metadata(document, stored=stored)
        with self._lock, _undamaged(self._folder):
            if first and self._passages and not self._replace:
                self._check_new(document, document_of(document_id))
            if self._replay is None:
                self._insert(document, document_id, metadata)
            else:
                self._compare(document, document_id, metadata)

    def _check_new(self, passage: Document, document_id: str) -> None:
        """Refuse the first ``passage`` of a document if passages of another one have its id, under other numbers."""
        if any(row < self.rows for row in self._rows_of(document_id)):
            raise _used_before(passage, document_id)

    def _rows_of(self, document: str) -> list[int]:
        """The rows of the passages of ``document``."""
        found = self._db.execute(_PASSAGES, (json.dumps([document]),))
        return [row for _, row in _of_documents(found, [document])]

    def _insert(self, document: Document, document_id: str, metadata: str | None) -> None:
        if self._replace and self._passages and document_id.endswith("#1"):
            before = self._rows_of(document_of(document_id))
            self._db.executemany("DELETE FROM documents WHERE row = ?", ((row,) for row in before))
        values = (self.rows, document_id, document.text, metadata)
        inserted = self._db.execute("INSERT OR IGNORE INTO documents VALUES (?, ?, ?, ?)", values).rowcount
        if not inserted:
            if not self._replace:
                raise _used_before(document, document_id)
            self._db.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?)", values)
        self.rows += 1

    def _compare(self, document: Document, document_id: str, metadata: str | None) -> None:
        """Check that ``document`` is the next of those that were stored."""
        stored = self._stored
        superseded = self._replace and (stored is None or stored[0] > self.rows)
        if superseded:
            self._superseded.setdefault(
                document_of(document_id) if self._passages else document_id, document.origin
            )
        if not superseded and (stored is None or stored[1:] != (document_id, document.text, metadata)):
            row = self._db.execute("SELECT row FROM documents WHERE key = ?", (document_id,)).fetchone()
            if row is not None and row[0] < self.rows and not self._replace:
                raise _used_before(document, document_id)
            raise _other_input(document.origin)
        self.rows += 1
        if not superseded and self._replay is not None:
            self._stored = next(self._replay, None)
        if self.rows == self._replay_rows:
            self._replay = None

    def check_superseded(self) -> None:
        """Raise `OtherInputError` unless what took the place of each replaced row came again, after all documents."""
        with self._lock:
            for document_id, origin in self._superseded.items():
                key = f"{document_id}#1" if self._passages else document_id
                if self._db.execute("SELECT 1 FROM documents WHERE key = ?", (key,)).fetchone() is None:
                    raise _other_input(origin)

    def commit(self) -> None:
        """Make the documents added so far survive a crash."""
        with self._lock:
            self._db.execute("COMMIT")
            self._db.execute("BEGIN")

    def finish(self, language: str = AUTO) -> WordsEntry | None:
        """Write the words and ``keys``, and close the files (not yet fsynced).

        Args:
            language: of the words; "auto": the one that the texts are in.

        Returns:
            How the words were made; ``None`` if SQLite lacks FTS5.

        Raises:
            ImportError: the language needs a stemmer that is not installed.
        """
        words = self._analyzer() if language == AUTO else analyzer(language)
        self._db.execute("COMMIT")
        self._db.execute("PRAGMA synchronous=OFF")  # a crash here only repeats this step
        with _undamaged(self._folder):
            written = write_words(self._db, self._folder, self.rows, words)
            (self._folder / IDS_FILE).unlink(missing_ok=True)
            write_ids(self._folder / IDS_FILE, self._ids())
        self._db.execute("PRAGMA journal_mode=DELETE")
        self._db.close()
        return WordsEntry(WORDS_VERSION, words.language) if written else None

    def _analyzer(self) -> Analyzer:
        """That of the language of some texts from all over the segment; that of none if it cannot be told."""
        rows = json.dumps(list(range(0, self.rows, max(1, self.rows // _TEXTS_OF_LANGUAGE))))
        texts = self._db.execute(
            "SELECT substr(text, 1, 1000) FROM documents WHERE row IN (SELECT value FROM json_each(?))",
            (rows,),
        )
        language = detect_language(text for (text,) in texts)
        if language == AUTO:
            return analyzer(NONE)
        try:
            return analyzer(language)
        except ImportError as error:
            warnings.warn(
                f"the texts are {language}: {error}; until then their words are found in the same form only "
                f"(embedkit-index compact --language {language} mends it)",
                stacklevel=2,
            )
            return analyzer(NONE)

    def _ids(self) -> Iterator[str]:
        """The ids in row order, an empty one for each replaced row."""
        row = 0
        for found, document_id in self._db.execute("SELECT row, key FROM documents ORDER BY row"):
            while row < found:
                row += 1
                yield ""
            row += 1
            yield document_id

    def close(self) -> None:
        """Close the files, finished or not; uncommitted documents are lost."""
        with self._lock:
            self._db.close()


def _of_documents(found: Iterable[tuple[str, int]], documents: Iterable[str]) -> list[tuple[str, int]]:
    """The ids and rows that `_PASSAGES` has ``found``, but for those of other documents.

    "a#1" may also be a document, whose passages "a#1#1" lie in the range of those of "a".
    """
    known = set(documents)
    return [
        (key, row) for key, row in found if key[key.rfind("#") + 1 :].isdigit() and document_of(key) in known
    ]


def _replace(text: object, old: object, new: object) -> str | None:
    """SQLite's ``replace``, but for results that would fill the memory."""
    if text is None or old is None or new is None:
        return None
    text, old, new = str(text), str(old), str(new)
    if not old:
        return text
    if len(new) > len(old) and text.count(old) * (len(new) - len(old)) > _MOST_REPLACED:
        raise ValueError("the result of replace is too long")
    return text.replace(old, new)


@contextlib.contextmanager
def _undamaged(folder: Path) -> Iterator[None]:
    """Raise `ResumeError` where pages of the file were lost, as in a power cut."""
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.ProgrammingError):  # the disk's, or it was closed meanwhile
        raise
    except sqlite3.DatabaseError as error:
        raise ResumeError(
            f"{folder / DOCUMENTS_FILE}: what an interrupted command left there is damaged ({error}); "
            "start over with --restart (restart=True)"
        ) from error


def _other_input(origin: str) -> OtherInputError:
    return OtherInputError(
        f"{origin}: the input is not the one that was encoded before the interruption; "
        "give the same input, or start over with --restart (restart=True)"
    )


def _used_before(document: Document, document_id: str) -> InputError:
    return InputError(
        document.origin, f"the id {document_id!r} was used before; ids must be unique", skippable=True
    )


def _dump_metadata(document: Document, *, stored: bool) -> str | None:
    if not document.metadata:
        return None
    try:
        text = _json(document.metadata)
    except _NO_JSON as error:
        raise InputError(document.origin, _why_no_json(document.metadata, error), skippable=True) from None
    if not stored and _holds_nul(text):  # conditions would read a text no further
        name = next(name for name, value in document.metadata.items() if _holds_nul(_json({name: value})))
        raise InputError(
            document.origin, f"the metadata field {name!r} holds a NUL character", skippable=True
        )
    return text


def _holds_nul(text: str) -> bool:
    """Whether a string in the JSON ``text`` has a NUL, and not a backslash before "u0000"."""
    return "\\u0000" in text.replace("\\\\", "")


def _json(metadata: Mapping[str, Any]) -> str:
    text = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text.encode("utf-8")
    return text


def _why_no_json(metadata: Mapping[str, Any], error: Exception) -> str:
    """Which field of ``metadata`` cannot be stored, and why."""
    for name, value in metadata.items():
        try:
            _json({name: value})
        except UnicodeEncodeError:
            return f"the metadata field {name!r} holds a lone surrogate"
        except _NO_JSON as own:
            if isinstance(value, float) and not math.isfinite(value):
                return f"the metadata field {name!r} holds {value}, which JSON does not have; leave it out, or use None"
            return f"the metadata field {name!r} cannot be written as JSON: {own}"
    return f"the metadata cannot be written as JSON: {error}"


def _stored(document_id: object, text: object, metadata: object) -> StoredDocument:
    # SQLite columns hold any type, whatever the table says
    fields = {} if metadata is None else json.loads(str(metadata))
    if not isinstance(document_id, str) or not isinstance(text, str) or not isinstance(fields, dict):
        raise ValueError("a row does not hold an id, a text and a JSON object")
    return StoredDocument(document_id, text, fields)


_NOT_JSON = "SELECT 1 FROM documents WHERE NOT json_valid(metadata) LIMIT 1"


def _authorize(action: int, name: str | None, *_: str | None) -> int:
    """Allow a condition to read this one table and nothing else."""
    allowed = action in _FUNCTION_ACTIONS and (action != sqlite3.SQLITE_READ or name in _READABLE)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _is_of_the_disk(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and str(error) in _DISK_ERRORS


class DocumentReader:
    """Reads ``documents.sqlite`` of a finished segment, from any thread.

    It has one connection behind a lock rather than one per thread: an open file outlives its name, so a reader
    keeps its generation after a rebuild has removed the files, which a later thread could not open. Conditions, which
    may take long, have a second one, so that other searches need not wait for them.

    A forked child goes on with the connections, which lock no file. If another thread was still at work with one, they
    are lost, and it opens the file again when it reads. So that this is rare, a fork interrupts a condition, which then
    begins again.
    """

    def __init__(self, path: Path, rows: int) -> None:
        """Open ``path``, which must hold ``rows`` documents (raises `IndexDamagedError` otherwise)."""
        self._path = path
        self._rows = rows
        self._closed = self._lost = False
        self._yields = True  # whether a fork may interrupt the condition that is being looked up
        self._closing: list[weakref.finalize[..., DocumentReader]] = []
        self._lock = fork_lock(lose=self._lose)
        self._condition_lock = fork_lock(self._hurry, self._lose)
        with self._lock:
            self._open()

    def _open(self) -> None:
        try:
            self._db = self._connect()
            self._conditions = self._connect()
            last = self._db.execute("SELECT max(row) FROM documents").fetchone()[0]
            found = 0 if last is None else last + 1
            if found != self._rows:
                raise self.damaged(f"holds {found} documents where the manifest says {self._rows}")
            # SQLite declares this table when it is first used, which a condition may not do
            self._conditions.execute("SELECT value FROM json_each('[]')")
            # The connection keeps these where the garbage collector does not look: they must not hold the reader,
            # or one that is dropped unclosed would keep its file open forever.
            self._conditions.create_function("replace", 3, _replace, deterministic=True)
            if sys.version_info >= (3, 11):
                self._conditions.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, _MOST_OF_PATTERN)
            self._conditions.set_authorizer(_authorize)
        except (OSError, sqlite3.Error, ValueError, IndexDamagedError) as error:
            # ValueError: text that is not UTF-8
            while self._closing:
                self._closing.pop()()
            raise error if isinstance(error, (OSError, IndexDamagedError)) else self._failed(error) from None

    def _hurry(self) -> None:
        """Have a condition that is being looked up begin again after the fork that waits for it."""
        if self._yields:
            with contextlib.suppress(sqlite3.Error):  # it is closed
                self._conditions.interrupt()

    def _lose(self) -> None:
        """In a forked child: give up the connections, which a thread that is gone was using."""
        self._lost = True
        while self._closing:
            detached = self._closing.pop().detach()
            if detached is not None:
                keep_forever(detached[1])

    def _ready(self) -> None:
        """Open the file again in a child that has lost the connections; `ValueError` if it was closed."""
        with self._lock:
            if self._closed:
                raise self._is_closed()
            if self._lost:
                try:
                    self._open()
                except FileNotFoundError:
                    raise IndexDamagedError(
                        f"{self._path}: gone since this process was forked; open the index again"
                    ) from None
                self._lost = False

    def _connect(self) -> sqlite3.Connection:
        # immutable: no locks, no journal, so that an index on a read-only medium opens
        uri = f"{self._path.absolute().as_uri()}?mode=ro&immutable=1"
        try:
            made = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            check_opens(self._path)
            raise self._failed(error) from None
        # a connection is in a cycle with its cache of statements: unclosed, it would wait for the garbage collector
        closing = weakref.finalize(self, made.close)
        closing.atexit = False
        self._closing.append(closing)
        return made

    def damaged(self, reason: str) -> IndexDamagedError:
        """The error that says what is wrong with this file."""
        return IndexDamagedError(f"{self._path}: {reason}; build the index again")

    def _is_closed(self) -> ValueError:
        return ValueError(f"{self._path}: the index is closed")

    def _failed(self, error: Exception) -> Exception:
        """What ``error`` of a query means: that the index was closed meanwhile, or that its disk or content fails."""
        if isinstance(error, sqlite3.ProgrammingError):
            return self._is_closed()
        if _is_of_the_disk(error):
            return OSError(f"{self._path}: {error}; check the disk, and try again")
        return self.damaged(str(error))

    def query(self, sql: str, *values: object) -> list[Any]:
        """The rows that ``sql`` selects (`IndexDamagedError` if the file cannot be read)."""
        self._ready()
        try:
            with self._lock:
                return self._db.execute(sql, values).fetchall()
        except (sqlite3.DatabaseError, ValueError) as error:
            raise self._failed(error) from None

    def fetch(self, rows: Iterable[int]) -> dict[int, StoredDocument]:
        """The documents of ``rows``, in one query; repeated rows are read once.

        Raises:
            IndexDamagedError: a row is missing or unreadable.
        """
        wanted = sorted(set(rows))
        # json_each takes any number of rows through one variable; "IN (?, ?, …)" has a limit
        found = self.query(
            "SELECT row, key, text, metadata FROM documents WHERE row IN (SELECT value FROM json_each(?))",
            json.dumps(wanted),
        )
        try:
            documents = {row: _stored(*columns) for row, *columns in found}
        except ValueError as error:
            raise self.damaged(str(error)) from None
        if len(documents) != len(wanted):
            missing = next(row for row in wanted if row not in documents)
            raise self.damaged(f"row {missing} is missing")
        return documents

    def find(self, ids: Iterable[str]) -> dict[str, int]:
        """The rows of those ``ids`` that this segment holds, deleted ones included."""
        found = self.query(
            "SELECT key, row FROM documents WHERE key IN (SELECT value FROM json_each(?))",
            json.dumps(list(ids)),
        )
        return dict(found)

    def find_passages(self, documents: Iterable[str]) -> dict[str, int]:
        """The ids and rows of the passages of ``documents``, deleted ones included."""
        wanted = list(documents)
        return dict(_of_documents(self.query(_PASSAGES, json.dumps(wanted)), wanted))

    def scan(self) -> Iterator[tuple[int, StoredDocument, int]]:
        """All rows in order, deleted ones included, one at a time: a text or a field may have 64 MiB.

        Each is a row, its document, and the characters of its text and metadata.
        """
        self._ready()
        try:
            with self._lock:
                rows = self._db.execute(_ALL)
            while True:
                with self._lock:
                    found = rows.fetchone()
                if found is None:
                    return
                row, *columns = found
                yield row, _stored(*columns), len(found[2]) + len(found[3] or "")
        except (sqlite3.DatabaseError, ValueError) as error:
            raise self._failed(error) from None

    def select(self, where: str, *, passages: bool = False, limited: bool = True) -> npt.NDArray[np.bool_]:
        """Whether each row, deleted ones included, matches the condition ``where`` (see `compile_where`).

        Args:
            where: the condition.
            passages: the rows are those of passages.
            limited: stop it when it takes too long.

        Raises:
            ValueError: the condition is invalid, or was stopped.
        """

        def matches(cursor: sqlite3.Cursor) -> npt.NDArray[np.bool_]:
            flags = np.zeros(self._rows, np.bool_)
            while block := cursor.fetchmany(_MATCHES_AT_ONCE):
                flags[[row for (row,) in block]] = True
            return flags

        sql = f"SELECT row FROM documents WHERE ({compile_where(where, passages=passages)})"
        return self._selected(sql, where, matches, limited=limited)

    def lacks(self, field: Field) -> bool:
        """Whether no document has a value in ``field`` of a condition (`ValueError` if that takes too long)."""
        sql = f"SELECT 1 FROM documents WHERE {field.sql} IS NOT NULL LIMIT 1"
        return self._selected(sql, field.name, lambda cursor: cursor.fetchone() is None)

    def _selected(
        self, sql: str, where: str, read: Callable[[sqlite3.Cursor], _T], *, limited: bool = True
    ) -> _T:
        """What ``read`` makes of the result of ``sql``, made from the condition ``where``: it reads documents only."""
        most = max(_MOST_SECONDS, self._rows * _MOST_SECONDS_OF_A_ROW)
        try:
            return self._looked_up(sql, read, most if limited else None)
        except TimeoutError:
            raise ValueError(
                f"the condition {where[:200]!r} was stopped after {most:.0f} s; compare fields with values instead "
                "of using functions and patterns, or name the documents that may match (id in (…) and …)"
            ) from None
        except (sqlite3.OperationalError, sqlite3.DatabaseError) as error:
            if "malformed JSON" in str(error) and self.query(_NOT_JSON):
                raise self.damaged("the fields of a document are not JSON") from None
            # A damaged file and a denied table are both a plain DatabaseError; the latter is the condition's.
            denied = "prohibited" in str(error) or "not authorized" in str(error)
            if not denied and (not isinstance(error, sqlite3.OperationalError) or _is_of_the_disk(error)):
                raise self._failed(error) from None
            if self._closed:
                raise self._is_closed() from None
            # SQLite speaks of the parenthesis that closes its statement
            problem = str(error).replace('near ")": syntax error', "it is incomplete")
            raise ValueError(f"invalid condition {where[:200]!r}: {problem}") from None

    def _looked_up(self, sql: str, read: Callable[[sqlite3.Cursor], _T], seconds: float | None) -> _T:
        """What ``read`` makes of the result of ``sql``, on a thread that this one can stop: when late, or at Ctrl-C.

        A progress handler would wait for the interpreter every few rows where other threads are at work.

        Raises:
            TimeoutError: it took more than ``seconds`` (``None``: it may take any time).
        """

        def run() -> _T:
            # an error keeps the cursor, whose statement must not end when the lock is given up: a fork may be under way
            with contextlib.closing(self._conditions.execute(sql)) as cursor:
                return read(cursor)

        lost = 0.0
        while True:
            self._ready()
            with self._condition_lock, ThreadPoolExecutor(1) as pool:
                begin = time.monotonic()
                self._yields = lost < _MOST_SECONDS_LOST
                found = pool.submit(run)
                try:
                    wait([found], seconds)
                    if not found.done():
                        raise TimeoutError
                    return found.result()
                except sqlite3.OperationalError as error:
                    if self._closed or str(error) != "interrupted":
                        raise
                finally:
                    while not found.done():
                        with contextlib.suppress(sqlite3.Error):  # it is closed
                            self._conditions.interrupt()
                        wait([found], 0.02)
            lost += time.monotonic() - begin
            wait_for_fork()

    def close(self) -> None:
        """Close the file; a condition that is being looked up ends with a `ValueError`."""
        self._closed = True
        if self._lost:
            return
        with contextlib.suppress(sqlite3.Error):
            self._conditions.interrupt()
        for lock, connection in ((self._condition_lock, self._conditions), (self._lock, self._db)):
            with contextlib.suppress(sqlite3.Error), lock:
                connection.close()
