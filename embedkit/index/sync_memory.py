"""What a sync remembers of the files of a folder: ``sync.sqlite`` in the index folder (see `sync`)."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..documents.errors import InputError
from .errors import BuildError

__all__ = ["SyncMemory", "SyncedFile", "ids_of", "remembering"]


@dataclass(slots=True)
class SyncedFile:
    """A file of the folder as it was read, and the ids of its documents."""

    size: int
    mtime: int
    sha256: str
    ids: list[str] | None  # None: one document of the file's name


class SyncMemory:
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

    def files(self, names: Iterable[str]) -> dict[str, SyncedFile]:
        """What is known of ``names``."""
        found = self._db.execute(
            "SELECT * FROM files WHERE name IN (SELECT value FROM json_each(?))",
            (json.dumps([_key(name) for name in names]),),
        )
        return {
            _name(key): SyncedFile(size, mtime, sha256, None if ids is None else json.loads(ids))
            for key, size, mtime, sha256, ids in found
        }

    def others(self, names: Set[str]) -> Iterator[tuple[str, list[str]]]:
        """The files that are not among ``names``, each with the ids of its documents."""
        for key, ids in self._db.execute("SELECT name, ids FROM files"):
            if (name := _name(key)) not in names:
                yield name, [name] if ids is None else json.loads(ids)

    def pending(self) -> set[str]:
        """The ids that syncs which did not finish were about to write."""
        return {key for (ids,) in self._db.execute("SELECT ids FROM pending") for key in json.loads(ids)}

    def announce(self, ids: list[str]) -> None:
        """Record that a sync is about to write ``ids``."""
        self._db.execute("INSERT INTO pending VALUES (?)", (json.dumps(ids),))

    def finish(
        self, changed: dict[str, SyncedFile], gone: Iterable[str], generation: int, settings: str
    ) -> None:
        """Record the files of a finished sync, and of which generation and settings they are."""
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
        """Close the file."""
        self._db.close()


@contextmanager
def remembering(path: Path, built: int | None) -> Iterator[SyncMemory]:
    """The memory at ``path``; errors of it name it."""
    try:
        with closing(SyncMemory(path, built)) as memory:
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


def ids_of(files: dict[str, SyncedFile], names: Iterable[str]) -> set[str]:
    """The ids of the documents of ``names``."""
    result: set[str] = set()
    for name in names:
        ids = files[name].ids
        result.update([name] if ids is None else ids)
    return result
