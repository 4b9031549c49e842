"""What a power cut leaves: all that ``CURRENT`` leads to is on disk before it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_encoder import FakeEncoder

from embedkit.index import Document, Index
from embedkit.index.storage import layout
from embedkit.index.storage.journal import Journal
from embedkit.index.storage.layout import Writer


class OnDisk:
    """The files and folders that `os.fsync` was called for, as they were then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seen: set[tuple[int, int]] = set()
        fsync = os.fsync

        def noted(descriptor: int) -> None:
            fsync(descriptor)
            status = os.fstat(descriptor)
            self._seen.add((status.st_ino, status.st_mtime_ns))

        monkeypatch.setattr(os, "fsync", noted)

    def __contains__(self, path: Path) -> bool:
        status = path.stat()
        return (status.st_ino, status.st_mtime_ns) in self._seen


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> OnDisk:
    return OnDisk(monkeypatch)


def led_to(root: Path, current: Path) -> list[Path]:
    """What the generation that ``current`` names consists of, with the folders that hold its names."""
    manifest = layout.manifest_at(root, current.read_text().strip())
    found = [root / "manifests", root / "manifests" / manifest.filename, root / "segments"]
    for segment in manifest.segments:
        folder = root / "segments" / segment.name
        found += [folder, *folder.iterdir()]
        if segment.tombstones:
            found += [root / "tombstones", root / "tombstones" / segment.tombstones.file]
    return found


@pytest.fixture
def lost(on_disk: OnDisk, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What a power cut right after ``CURRENT`` is replaced would lose."""
    replace, lost = Path.replace, list[Path]()

    def replaced(self: Path, target: Path) -> Path:
        wanted = [self]
        if target.name == "CURRENT":
            wanted += led_to(target.parent, self)
        lost.extend(path for path in wanted if path not in on_disk)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", replaced)
    return lost


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.add([Document("text b", "b")]),
        lambda index: index.upsert([Document("text b", "a")]),
        lambda index: index.delete(["a"]),
        lambda index: index.compact(factory="HNSW8"),
    ],
    ids=["add", "upsert", "delete", "compact"],
)
def test_what_current_leads_to_is_on_disk_before_it(
    tmp_path: Path, on_disk: OnDisk, lost: list[Path], change: Callable[[Index], object]
) -> None:
    documents = [Document("text a", "a"), Document("text c", "c")]
    with Index.build(tmp_path / "index", documents, FakeEncoder()) as index:
        change(index)
    assert not lost
    assert index.path in on_disk  # with the name CURRENT, and without the journal


def test_what_the_journal_counts_is_on_disk_before_it(
    tmp_path: Path, on_disk: OnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, encoded = [], Journal.encoded

    def checked(self: Journal, *arguments: Any) -> None:
        assert tmp_path / "index" / "segments" / ".building" / "vectors.f32" in on_disk
        encoded(self, *arguments)
        assert tmp_path / "index" / "build.journal" in on_disk
        counted.append(arguments[0])

    monkeypatch.setattr(Journal, "encoded", checked)
    Index.build(tmp_path / "index", ["text a", "text b"], FakeEncoder()).close()
    assert counted == [2]


class Killed(BaseException):
    pass


def test_a_segment_that_was_renamed_before_a_kill_is_on_disk_before_current(
    tmp_path: Path, lost: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Index.build(tmp_path / "index", [Document("text a", "a")], FakeEncoder()) as index:
        fsync = layout.fsync

        def dies(path: Path) -> None:
            if path.name == "segments":
                raise Killed
            fsync(path)

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(layout, "fsync", dies)
            patch.setattr(Writer, "_discard", lambda self: None)
            index.add([Document("text b", "b")])
        index.add([Document("text b", "b")])
        assert index.get("b")
    assert not lost
