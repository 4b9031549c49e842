"""The lock of the one writer."""

from __future__ import annotations

from pathlib import Path

import pytest

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
