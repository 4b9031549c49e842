"""The lock of the one writer."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from embedkit.index import Index, IndexNotFoundError
from embedkit.index.storage import layout, writer_lock
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


def test_a_reader_who_asks_does_not_disturb_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, flock = tmp_path / "index", fcntl.flock
    root.mkdir()
    with (root / "LOCK").open("w+b") as asked:
        flock(asked, fcntl.LOCK_SH)

        def answered(descriptor: int, how: int) -> None:
            try:
                flock(descriptor, how)
            except BlockingIOError:
                flock(asked, fcntl.LOCK_UN)
                raise

        monkeypatch.setattr(fcntl, "flock", answered)
        with Writer(root, create=True), pytest.raises(BlockingIOError, match="this process is writing"):
            Writer(root, create=True)


def test_a_lock_that_readers_keep_is_not_waited_for_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_lock, "_ASKING", 0.05)
    with (tmp_path / "LOCK").open("w+b") as asked:
        fcntl.flock(asked, fcntl.LOCK_SH)
        with pytest.raises(BlockingIOError, match="another process is writing"):
            Writer(tmp_path, create=True)


def test_a_build_may_publish_while_a_reader_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "index"
    (root / "segments").mkdir(parents=True)

    def published(_: Path) -> None:
        (root / "CURRENT").write_text("000001.json\n")

    monkeypatch.setattr(layout, "writer_of", published)
    assert layout.current_name(root) == "000001.json"


def test_whether_a_build_has_ended_cannot_be_told_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "index"
    (root / "segments").mkdir(parents=True)
    (root / "LOCK").touch()

    def unsupported(*_: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(IndexNotFoundError, match="is not finished; wait for it, or run it again"):
        Index.open(root)
