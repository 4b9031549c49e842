"""The index folder on disk: where everything is, who may write, and how a generation appears atomically.

```
INDEX/
  CURRENT                  name of the live manifest, replaced atomically and last
  LOCK                     locked by the one writer; holds its process id
  manifests/000007.json    a generation: its segments and their tombstones, with checksums
  segments/000007-…/       immutable: vectors.faiss, keys (the ids), documents.sqlite, maybe vectors.raw
  tombstones/….bits        immutable: the deleted rows of one segment, as of one generation
  build.journal            only while documents are added: what has been encoded (see `journal`)
  segments/.building/      … and where
  sync.sqlite              what a sync remembers of its folder; may be removed
```

A writer works in a folder of a name that no manifest mentions. When all is written and fsynced, that folder
gets its final name, then the manifest is written, and finally ``CURRENT`` is replaced. Until then a reader sees
the previous generation, or no index.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from ...documents.folders import index_around
from ...files import TEMPORARY_SUFFIX, fsync, fsync_files, write_atomically
from ..errors import IndexDamagedError, IndexExistsError, IndexNotFoundError
from .journal import finished_segment
from .manifest import Manifest, TombstonesEntry, parse_manifest, read_manifest
from .writer_lock import WriterLock, writer_of

__all__ = [
    "CURRENT_FILE",
    "JOURNAL_FILE",
    "SEGMENTS_FOLDER",
    "SYNC_FILE",
    "TOMBSTONES_FOLDER",
    "Writer",
    "current_name",
    "manifest_at",
]

CURRENT_FILE = "CURRENT"
LOCK_FILE = "LOCK"
SYNC_FILE = "sync.sqlite"
JOURNAL_FILE = "build.journal"
MANIFESTS_FOLDER = "manifests"
SEGMENTS_FOLDER = "segments"
TOMBSTONES_FOLDER = "tombstones"
BUILDING = ".building"

_WRITING_PREFIX = ".writing-"
_MANIFEST_NAME = re.compile(r"[0-9]{6,12}\.json")
_OURS = {
    CURRENT_FILE,
    CURRENT_FILE + TEMPORARY_SUFFIX,
    LOCK_FILE,
    JOURNAL_FILE,
    JOURNAL_FILE + TEMPORARY_SUFFIX,
    SYNC_FILE,
    f"{SYNC_FILE}-journal",
    MANIFESTS_FOLDER,
    SEGMENTS_FOLDER,
    TOMBSTONES_FOLDER,
}


_WRITTEN = {
    SEGMENTS_FOLDER: re.compile(r"\.building|(\.writing-)?[0-9]{6,}-[0-9a-f]{8}"),
    MANIFESTS_FOLDER: re.compile(r"[0-9]{6,12}\.json(\.tmp)?"),
    TOMBSTONES_FOLDER: re.compile(r"[0-9]{6,}-[0-9a-f]{8}\.bits"),
}
"""The names that a writer gives in each folder; what has another name is not its own to remove."""

_STRAY = frozenset((".DS_Store", "Thumbs.db", "desktop.ini", ".directory", "lost+found"))
"""What file managers and file systems leave in any folder."""


def current_name(root: Path) -> str:
    """The file name of the live manifest of the index at ``root``.

    Raises:
        IndexNotFoundError: there is no finished index.
        IndexDamagedError: ``CURRENT`` does not name a manifest.
    """
    current = root / CURRENT_FILE
    try:
        with current.open("rb") as file:
            name = file.read(64).decode("ascii", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        reason = _not_found(root)
        if current.exists():  # a build has published it meanwhile
            return current_name(root)
        raise IndexNotFoundError(reason) from None
    if not _MANIFEST_NAME.fullmatch(name):
        raise IndexDamagedError(f"{current}: does not name a manifest ({name!r}); build the index again")
    return name


def manifest_at(root: Path, name: str) -> Manifest:
    """The manifest ``name`` (`FileNotFoundError` or `IndexDamagedError` if it cannot be used)."""
    path = root / MANIFESTS_FOLDER / name
    manifest = read_manifest(path)
    if manifest.filename != name:
        raise IndexDamagedError(f"{path}: says it is generation {manifest.generation}; build the index again")
    return manifest


def _not_found(root: Path) -> str:
    if not root.exists():
        return f"{root}: no such index; build one with: embedkit-index build INPUT -o {root}"
    if not root.is_dir():
        return f"{root}: not an index, which is a folder that 'embedkit-index build' writes"
    if (root / SEGMENTS_FOLDER).is_dir():
        try:
            who = writer_of(root / LOCK_FILE)
        except OSError:  # another user's file, or a file system without locks
            return f"{root}: a build of this index is not finished; wait for it, or run it again"
        if who is not None:
            return f"{root}: a build of this index by {who} is not finished; wait for it"
        return f"{root}: a build of this index has ended before it was finished; run it again"
    return f"{root}: not an index (it has no file {CURRENT_FILE})"


def _is_stray(path: Path) -> bool:
    return path.name in _STRAY or path.name.startswith("._")


class Writer:
    """The right to write one index, and the steps that make a generation appear.

    As a context manager it removes on the way out what it began and did not publish, except a build that its
    journal can resume; an index folder that this writer created is also removed if it is empty.
    """

    def __init__(self, root: Path, *, create: bool = False) -> None:
        """Lock ``root``, and remove what a killed writer left there.

        Args:
            root: the index folder.
            create: it may be new or empty; else an index must be there.

        Raises:
            IndexNotFoundError: no index is there, and ``create`` is false.
            IndexExistsError: the folder holds other things, or is to be made in that of another index.
            BlockingIOError: another writer is at work; the message names its process.
        """
        self.root = root
        self.segments = root / SEGMENTS_FOLDER
        self.journal = root / JOURNAL_FILE
        self.building = self.segments / BUILDING
        if not create:
            current_name(root)
        new = create and not any((root / name).exists() for name in (CURRENT_FILE, JOURNAL_FILE))
        if new and (index := index_around(root)) is not None:
            raise IndexExistsError(
                f"{root}: lies in the folder of the index {index}; name a folder elsewhere"
            )
        self._created = create and self._make_root()
        try:
            self._refuse_foreign()
            if new:
                self._refuse_folders_of_others()
            self._lock = WriterLock(self.root / LOCK_FILE)
        except BaseException:
            if self._created:
                with contextlib.suppress(OSError):
                    root.rmdir()
            raise
        try:
            for folder in (self.segments, root / MANIFESTS_FOLDER, root / TOMBSTONES_FOLDER):
                folder.mkdir(exist_ok=True)
            try:
                self._remove_leftovers(self.live())
            except (FileNotFoundError, IndexDamagedError):
                if not create:  # a damaged index can only be replaced
                    raise
            self.generation = 1 + max((int(path.stem) for path in self._manifests()), default=0)
        except BaseException:
            self._remove_empty_folders()
            self._lock.release()
            raise

    def live(self) -> Manifest | None:
        """The live generation, ``None`` if none was ever finished."""
        if not (self.root / CURRENT_FILE).exists():
            return None
        return manifest_at(self.root, current_name(self.root))

    def _make_root(self) -> bool:
        """Make the index folder; false if it was there before."""
        try:
            self.root.mkdir(parents=True)
        except FileExistsError:
            if not self.root.is_dir():
                raise IndexExistsError(
                    f"{self.root}: exists and is not a folder; an index is a folder: name a new one"
                ) from None
            return False
        except NotADirectoryError:
            file = next(parent for parent in self.root.parents if parent.exists())
            raise IndexExistsError(
                f"{self.root}: {file} is a file, and no folder can be made in it; name another folder"
            ) from None
        return True

    def _refuse_foreign(self) -> None:
        foreign = [path.name for path in self.root.iterdir() if not (path.name in _OURS or _is_stray(path))]
        if foreign:
            is_index = (self.root / CURRENT_FILE).exists()
            raise self._foreign(foreign, "move them away" if is_index else "name a new or empty folder")

    def _refuse_folders_of_others(self) -> None:
        """Refuse folders that are named like those of an index, and hold other things.

        Without a lock no writer was ever here, and all that they hold is the user's.
        """
        foreign = []
        locked = (self.root / LOCK_FILE).exists()
        for folder, written in _WRITTEN.items():
            path = self.root / folder
            if path.is_dir():
                inside = [entry.name for entry in path.iterdir() if not _is_stray(entry)]
                foreign += [f"{folder}/{name}" for name in inside if not (locked and written.fullmatch(name))]
            elif path.exists():
                foreign.append(folder)
        if foreign:
            raise self._foreign(foreign, "name a new or empty folder")

    def _foreign(self, names: list[str], advice: str) -> IndexExistsError:
        some = ", ".join(sorted(names)[:3])
        return IndexExistsError(f"{self.root}: the folder holds other things ({some}); {advice}")

    def _manifests(self) -> list[Path]:
        folder = self.root / MANIFESTS_FOLDER
        return [path for path in folder.iterdir() if _MANIFEST_NAME.fullmatch(path.name)]

    def _remove_leftovers(self, live: Manifest | None) -> None:
        """Remove all that neither ``live`` nor a journal mentions. (Readers keep removed files open.)"""
        wanted = set()
        if live is not None:
            wanted = {live.filename} | {segment.name for segment in live.segments}
            wanted |= {segment.tombstones.file for segment in live.segments if segment.tombstones}
        if self.journal.exists():
            wanted |= {BUILDING, finished_segment(self.journal) or BUILDING}
        for folder, written in _WRITTEN.items():
            for path in (self.root / folder).iterdir():
                if path.name in wanted or not written.fullmatch(path.name):
                    continue
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        for name in (CURRENT_FILE, JOURNAL_FILE):
            (self.root / (name + TEMPORARY_SUFFIX)).unlink(missing_ok=True)

    def new_name(self) -> str:
        """A name for a new segment or tombstones."""
        return f"{self.generation:06d}-{secrets.token_hex(4)}"

    def stage(self, name: str) -> Path:
        """A new empty folder, which `publish` turns into the segment ``name``."""
        path = self.staged(name)
        path.mkdir()
        return path

    def staged(self, name: str) -> Path:
        """The folder that `stage` made for ``name``."""
        return self.segments / (_WRITING_PREFIX + name)

    def finished(self, name: str) -> Path:
        """Where the complete segment ``name`` of a build is, which may have got its final name before a crash."""
        return self.building if self.building.exists() else self.segments / name

    def adopt(self, folder: Path, name: str) -> None:
        """Give the finished segment in ``folder`` its final name (again, after a crash in between)."""
        if folder.exists():
            fsync_files(folder)
            folder.rename(self.segments / name)
        fsync(self.segments)

    def write_tombstones(self, dead: bytes, deleted: int) -> TombstonesEntry:
        """Write a bitmap of deleted rows."""
        name = f"{self.new_name()}.bits"
        path = self.root / TOMBSTONES_FOLDER / name
        with path.open("xb") as file:
            file.write(dead)
            file.flush()
            os.fsync(file.fileno())
        return TombstonesEntry(name, deleted, len(dead), hashlib.sha256(dead).hexdigest())

    def publish(self, manifest: Manifest, folders: Mapping[str, Path] | None = None) -> None:
        """Make ``manifest`` the live generation; ``folders``: the staged segments by their final names."""
        path, content = self.root / MANIFESTS_FOLDER / manifest.filename, manifest.to_json()
        try:
            parse_manifest(path, content)
        except IndexDamagedError as error:  # the old one must stay, for this one would never open again
            raise AssertionError(f"{self.root}: a manifest that cannot be read was not written") from error
        self._forget_finished()
        for name, folder in (folders or {}).items():
            self.adopt(folder, name)
        fsync(self.root / TOMBSTONES_FOLDER)
        write_atomically(path, content)
        fsync(self.root)
        try:
            write_atomically(self.root / CURRENT_FILE, (manifest.filename + "\n").encode("ascii"))
            if self._created:
                fsync(self.root.absolute().parent)
        except OSError as error:
            if not self._is_live(manifest):
                raise
            # nothing can be undone any more: a reader may have it
            warnings.warn(
                f"{self.root}: the change is made and readers see it, but the disk did not confirm it "
                f"({error.strerror or error}): after a power cut it may be gone; check the disk",
                stacklevel=2,
            )
        # What cannot be removed now, the next writer removes.
        with contextlib.suppress(OSError):
            self._remove_leftovers(manifest)
        self.generation += 1

    def _is_live(self, manifest: Manifest) -> bool:
        try:
            return current_name(self.root) == manifest.filename
        except (OSError, IndexDamagedError):
            return False

    def _forget_finished(self) -> None:
        """Remove the journal of a segment that is live already: once that is deleted, it would come back."""
        with contextlib.suppress(FileNotFoundError, IndexDamagedError):
            live, finished = self.live(), finished_segment(self.journal)
            if live is not None and finished in {segment.name for segment in live.segments}:
                self.journal.unlink(missing_ok=True)
                fsync(self.root)

    def __enter__(self) -> Writer:
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove what was not published, and unlock."""
        if not self._lock.is_held:  # a forked child unwinds; its parent goes on writing
            return
        try:
            self._discard()
        finally:
            self._lock.release()

    def _discard(self) -> None:
        # asks the disk what is live: Ctrl-C may have struck between the switch and any note of it in memory
        try:
            live = self.live()
        except (OSError, RuntimeError):
            return
        with contextlib.suppress(OSError):
            self._remove_leftovers(live)
        self._remove_empty_folders()

    def _remove_empty_folders(self) -> None:
        """Remove the empty folders of an index that was never finished."""
        if (self.root / CURRENT_FILE).exists() or self.journal.exists():
            return
        (self.root / LOCK_FILE).unlink(missing_ok=True)
        folders = [self.segments, self.root / MANIFESTS_FOLDER, self.root / TOMBSTONES_FOLDER]
        for folder in [*folders, *([self.root] if self._created else [])]:
            with contextlib.suppress(OSError):
                folder.rmdir()
