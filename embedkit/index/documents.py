"""Documents of one segment: texts and metadata in SQLite, keys in a mapped file.

``documents.sqlite`` holds one table, ``documents(row, key, text, metadata)``, where ``row`` is the document's
row in the segment's ``vectors.faiss`` and ``metadata`` is a JSON object or NULL.

``keys`` answers "which key has row 17" without SQLite, from a memory map. Little endian: the magic number (8
bytes), the number of keys and the position of the offset table (u64 each), the keys in UTF-8 one after the
other, zeros up to a multiple of 8, then ``rows + 1`` offsets (u64) into the keys.
"""

from __future__ import annotations

import array
import contextlib
import json
import mmap
import sqlite3
import struct
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.index.errors import IndexDamagedError, InputError

DOCUMENTS_FILE = "documents.sqlite"
KEYS_FILE = "keys"

_KEYS_MAGIC = b"EKKEYS\x00\x01"
_KEYS_HEADER = struct.Struct("<8sQQ")


@dataclass(frozen=True, slots=True)
class Document:
    """One text to index.

    Attributes:
        text: what is encoded and returned by a search.
        key: the user's own id, unique in the index; ``None``: the document's position among those given,
            counted from 0.
        metadata: what else to keep; must be representable as JSON.
        origin: where it was read (``file:line``), for error messages.
        position: bytes of input consumed up to and including this document, for progress.
    """

    text: str
    key: str | None = None
    metadata: Mapping[str, Any] | None = None
    origin: str = ""
    position: int = 0


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document as it was stored."""

    key: str
    text: str
    metadata: dict[str, Any]


def check_text(text: object, what: str) -> str | None:
    """Say what keeps ``text`` from being stored as UTF-8 text, or ``None`` if nothing does."""
    if not isinstance(text, str):
        return f"{what} is {json_type(text)}, not a string"
    if "\x00" in text:
        return f"{what} holds a NUL character"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"{what} holds a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}"
    return None


def json_type(value: object) -> str:
    """What a JSON user would call the type of ``value``."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", list: "an array", dict: "an object"}
    return names.get(type(value), type(value).__name__)


class DocumentWriter:
    """Writes ``documents.sqlite`` and ``keys`` of one segment, a document at a time.

    Memory is bounded but for 8 bytes a document (the offsets of the keys). Not thread-safe, but may be handed
    from one thread to another.
    """

    def __init__(self, folder: Path) -> None:
        """Create both files in ``folder``, which must not hold them yet."""
        self.rows = 0
        self._keys = (folder / KEYS_FILE).open("xb")
        self._keys.write(_KEYS_HEADER.pack(_KEYS_MAGIC, 0, 0))
        self._offsets = array.array("Q", [0])
        # The segment is staged, fsynced and renamed as a whole, so SQLite's own journal would only cost time.
        self._db = sqlite3.connect(folder / DOCUMENTS_FILE, isolation_level=None, check_same_thread=False)
        for pragma in (
            "journal_mode=MEMORY",
            "synchronous=OFF",
            "locking_mode=EXCLUSIVE",
            "cache_size=-65536",
        ):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute(
            "CREATE TABLE documents "
            "(row INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, text TEXT NOT NULL, metadata TEXT)"
        )
        self._db.execute("BEGIN")

    def add(self, document: Document) -> None:
        """Append one document.

        Raises:
            InputError: the text, key or metadata cannot be stored, or the key is taken; nothing was written.
        """
        key = document.key
        problem = check_text(document.text, "the text") or check_text(key, "the id")
        if problem is not None or not key:
            raise InputError(document.origin, problem or "the id is empty", skippable=True)
        metadata = _dump_metadata(document)
        inserted = self._db.execute(
            "INSERT OR IGNORE INTO documents VALUES (?, ?, ?, ?)", (self.rows, key, document.text, metadata)
        ).rowcount
        if not inserted:
            raise InputError(
                document.origin, f"the id {key!r} was used before; ids must be unique", skippable=True
            )
        encoded = key.encode("utf-8")
        self._keys.write(encoded)
        self._offsets.append(self._offsets[-1] + len(encoded))
        self.rows += 1

    def finish(self) -> None:
        """Complete both files and close them (not yet fsynced)."""
        self._db.execute("COMMIT")
        self._db.close()
        self._keys.write(bytes(-self._offsets[-1] % 8))
        table = self._keys.tell()
        if sys.byteorder == "big":
            self._offsets.byteswap()
        self._keys.write(self._offsets)
        self._keys.seek(0)
        self._keys.write(_KEYS_HEADER.pack(_KEYS_MAGIC, self.rows, table))
        self._keys.close()

    def close(self) -> None:
        """Let go of the files, finished or not."""
        self._db.close()
        # on a full disk the buffered rest cannot be written; the build has failed already
        with contextlib.suppress(OSError):
            self._keys.close()


def _dump_metadata(document: Document) -> str | None:
    if not document.metadata:
        return None
    try:
        text = json.dumps(document.metadata, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(document.origin, "a metadata field holds a lone surrogate", skippable=True) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            document.origin, f"the metadata cannot be written as JSON: {error}", skippable=True
        ) from None
    return text


class Keys:
    """The keys of a segment, memory-mapped."""

    def __init__(self, path: Path, rows: int) -> None:
        """Map ``path``, which must hold ``rows`` keys (raises `IndexDamagedError` otherwise)."""
        self._path = path
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < _KEYS_HEADER.size:
                raise IndexDamagedError(f"{path}: truncated ({size} bytes); build the index again")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        magic, count, table = _KEYS_HEADER.unpack_from(self._map)
        if magic != _KEYS_MAGIC:
            raise self._damaged("not a keys file")
        if count != rows:
            raise self._damaged(f"holds {count} keys where the manifest says {rows}")
        if table + 8 * (rows + 1) != size:
            raise self._damaged("the offset table does not fit the file")
        self._offsets = np.frombuffer(self._map, "<u8", rows + 1, table)
        self._table = table

    def _damaged(self, reason: str) -> IndexDamagedError:
        return IndexDamagedError(f"{self._path}: {reason}; build the index again")

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> str:
        """The key of ``row`` (0-based)."""
        begin = _KEYS_HEADER.size + int(self._offsets[row])
        end = _KEYS_HEADER.size + int(self._offsets[row + 1])
        if not begin <= end <= self._table:
            raise self._damaged(f"the key of row {row} lies outside the file")
        try:
            return self._map[begin:end].decode("utf-8")
        except UnicodeDecodeError:
            raise self._damaged(f"the key of row {row} is not UTF-8") from None


def _stored(key: object, text: object, metadata: object) -> StoredDocument:
    # SQLite columns hold any type, whatever the table says
    fields = {} if metadata is None else json.loads(str(metadata))
    if not isinstance(key, str) or not isinstance(text, str) or not isinstance(fields, dict):
        raise ValueError("a row does not hold a key, a text and a JSON object")
    return StoredDocument(key, text, fields)


class DocumentReader:
    """Reads ``documents.sqlite`` of a finished segment, from any thread.

    One connection behind a lock, rather than one for each thread: the open file outlives its name, so a
    reader keeps its whole generation after a rebuild removed the files, where a thread that came later could
    not open them.
    """

    def __init__(self, path: Path, rows: int) -> None:
        """Open ``path``, which must hold ``rows`` documents (raises `IndexDamagedError` otherwise)."""
        self._path = path
        self._lock = threading.Lock()
        # immutable: no locks, no journal, so that an index on a read-only medium opens
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        try:
            self._db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._damaged(str(error)) from None
        try:
            last = self._db.execute("SELECT max(row) FROM documents").fetchone()[0]
            found = 0 if last is None else last + 1
            if found != rows:
                raise self._damaged(f"holds {found} documents where the manifest says {rows}")
        except (sqlite3.Error, ValueError, IndexDamagedError) as error:  # ValueError: text that is not UTF-8
            self._db.close()
            raise error if isinstance(error, IndexDamagedError) else self._damaged(str(error)) from None

    def _damaged(self, reason: str) -> IndexDamagedError:
        return IndexDamagedError(f"{self._path}: {reason}; build the index again")

    def fetch(self, rows: Iterable[int]) -> dict[int, StoredDocument]:
        """The documents of ``rows``, in one query; repeated rows are read once.

        Raises:
            IndexDamagedError: a row is missing or unreadable.
        """
        wanted = sorted(set(rows))
        try:
            # json_each takes any number of rows through one variable; "IN (?, ?, …)" has a limit
            with self._lock:
                found = self._db.execute(
                    "SELECT row, key, text, metadata FROM documents "
                    "WHERE row IN (SELECT value FROM json_each(?))",
                    (json.dumps(wanted),),
                ).fetchall()
            documents = {row: _stored(*columns) for row, *columns in found}
        except (sqlite3.DatabaseError, ValueError) as error:
            raise self._damaged(str(error)) from None
        if len(documents) != len(wanted):
            missing = next(row for row in wanted if row not in documents)
            raise self._damaged(f"row {missing} is missing")
        return documents

    def count(self) -> int:
        """The number of documents, counted (reads the whole table)."""
        with self._lock:
            return int(self._db.execute("SELECT count(*) FROM documents").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()
