"""The lock of the one writer."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedkit.index import Index, IndexNotFoundError
from embedkit.index.storage.layout import Writer

fcntl = pytest.importorskip("fcntl")


def test_a_lock_file_that_is_removed_meanwhile_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer before removes it, with an index that it did not finish, between our opening and our locking it."""
    root, flock = tmp_path / "index", fcntl.flock
    root.mkdir()

    def removed(descriptor: int, how: int) -> None:
        flock(descriptor, how)
        if how & fcntl.LOCK_EX:
            monkeypatch.setattr(fcntl, "flock", flock)
            (root / "LOCK").unlink()

    monkeypatch.setattr(fcntl, "flock", removed)
    with Writer(root, create=True), pytest.raises(BlockingIOError):
        Writer(root, create=True)


def test_a_first_build_that_is_at_work_is_told_from_one_that_has_ended(tmp_path: Path) -> None:
    root = tmp_path / "index"
    writer = Writer(root, create=True)
    (root / "segments").mkdir(exist_ok=True)
    with pytest.raises(IndexNotFoundError, match="by this process is not finished; wait for it"):
        Index.open(root)
    writer._lock.release()  # as of a process that was killed
    with pytest.raises(IndexNotFoundError, match="has ended before it was finished; run it again"):
        Index.open(root)
    with Writer(root, create=True):  # who asked has left no lock
        pass
