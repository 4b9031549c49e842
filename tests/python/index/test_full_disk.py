"""A full disk while an index is changed: an error that names the index, which is as it was."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_encoder import FakeEncoder

from embedkit.index import BuildError, Index
from embedkit.index.build import fold
from embedkit.index.storage import layout
from embedkit.index.storage.manifest import WordsEntry

CHANGES: dict[str, Callable[[Index], object]] = {
    "delete": lambda index: index.delete("1"),
    "compact": lambda index: index.compact(factory="HNSW8"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_change_on_a_full_disk(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(number, os.strerror(number))

    with Index.build(tmp_path / "index", ["a cat", "a dog", "a bird"], encoder) as index:
        monkeypatch.setattr(layout, "write_atomically", full)
        with pytest.raises(BuildError, match=f"index: .* failed and was undone: {os.strerror(number)}"):
            CHANGES[name](index)
        monkeypatch.undo()
        assert len(index) == 3
        index.verify()


def test_compact_where_sqlite_finds_the_disk_full(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(fold.DocumentWriter):
        def finish(self, language: str = "auto") -> WordsEntry | None:
            raise sqlite3.OperationalError("database or disk is full")

    with Index.build(tmp_path / "index", ["a cat", "a dog", "a bird"], encoder) as index:
        index.delete("1")
        monkeypatch.setattr(fold, "DocumentWriter", Full)
        with pytest.raises(BuildError, match=r"compacting failed and was undone: database or disk is full"):
            index.compact()
        assert [item.id for item in index.get(["0", "1", "2"])] == ["0", "2"]
        index.verify()
