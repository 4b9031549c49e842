"""The index folder on disk: where things lie, and how a generation appears as a whole or not at all.

A build works in ``segments/.building-…``; when all is written and fsynced, that folder gets its final name,
then the manifest is written, and last ``CURRENT`` is replaced. Until then a reader sees the former
generation, or no index.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from pathlib import Path
from types import TracebackType

from embedkit.index.errors import IndexDamagedError, IndexExistsError, IndexNotFoundError
from embedkit.index.manifest import Manifest, manifest_name, read_manifest

CURRENT_FILE = "CURRENT"
MANIFESTS_FOLDER = "manifests"
SEGMENTS_FOLDER = "segments"

_STAGING_PREFIX = ".building-"
_TEMPORARY_SUFFIX = ".tmp"
_MANIFEST_NAME = re.compile(r"[0-9]{6,12}\.json")


def fsync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_atomically(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + _TEMPORARY_SUFFIX)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync(path.parent)


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
        raise IndexNotFoundError(_not_found(root)) from None
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
        return f"{root}: a build of this index did not finish; run it again"
    return f"{root}: not an index (it has no file {CURRENT_FILE})"


class BuildArea:
    """The right to write one index: a locked folder, a staging folder in it, and `publish`.

    As a context manager it leaves nothing behind unless `publish` ran: the staging folder goes, and so does
    the index folder where this build created it.
    """

    def __init__(self, root: Path, *, overwrite: bool) -> None:
        """Check and lock ``root``, clear what a killed build left there, and make the staging folder.

        Raises:
            IndexExistsError: an index is there and ``overwrite`` is false, or the folder holds other things.
            BlockingIOError: another process builds there now.
        """
        self.root = root
        self._segments = root / SEGMENTS_FOLDER
        self._created = self._make_root()
        self._lock = os.open(root, os.O_RDONLY)
        try:
            self._take_lock()
        except BaseException:  # the folders may be those of the build that holds the lock
            os.close(self._lock)
            raise
        try:
            self._refuse_foreign()
            if (root / CURRENT_FILE).exists() and not overwrite:
                raise IndexExistsError(
                    f"{root}: an index exists there; pass --overwrite (overwrite=True) to replace it"
                )
            self._segments.mkdir(exist_ok=True)
            (root / MANIFESTS_FOLDER).mkdir(exist_ok=True)
            self._remove_leftovers()
            self.generation = 1 + max((int(path.stem) for path in self._manifests()), default=0)
            self.segment_name = f"{self.generation:06d}-{secrets.token_hex(4)}"
            self.staging = self._segments / (_STAGING_PREFIX + self.segment_name)
            self.staging.mkdir()
        except BaseException:
            self._remove_empty_folders()
            os.close(self._lock)
            raise

    def _make_root(self) -> bool:
        """Make the index folder; false if it was there before."""
        try:
            self.root.mkdir(parents=True)
        except FileExistsError:
            if not self.root.is_dir():
                raise IndexExistsError(f"{self.root}: exists and is not a folder") from None
            return False
        return True

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(
                f"{self.root}: another process is building this index; wait for it, or name another folder"
            ) from None

    def _refuse_foreign(self) -> None:
        ours = {CURRENT_FILE, MANIFESTS_FOLDER, SEGMENTS_FOLDER, CURRENT_FILE + _TEMPORARY_SUFFIX}
        foreign = sorted(entry.name for entry in self.root.iterdir() if entry.name not in ours)
        if foreign:
            raise IndexExistsError(
                f"{self.root}: the folder holds other things ({', '.join(foreign[:3])}); "
                "name a new or empty folder"
            )

    def _manifests(self) -> list[Path]:
        folder = self.root / MANIFESTS_FOLDER
        return [path for path in folder.iterdir() if _MANIFEST_NAME.fullmatch(path.name)]

    def _remove_leftovers(self, keep: Manifest | None = None) -> None:
        """Remove staging folders and temporary files; with ``keep``, also every other generation."""
        if keep is None and not (self.root / CURRENT_FILE).exists():
            segments = list(
                self._segments.iterdir()
            )  # no generation was ever finished: nothing here is in use
            manifests = self._manifests()
        elif keep is None:
            segments = list(self._segments.glob(_STAGING_PREFIX + "*"))
            manifests = []
        else:
            live = {segment.name for segment in keep.segments}
            segments = [path for path in self._segments.iterdir() if path.name not in live]
            manifests = [path for path in self._manifests() if path.name != keep.filename]
        for path in segments:
            shutil.rmtree(path, ignore_errors=True)
        for path in (*manifests, *(self.root / MANIFESTS_FOLDER).glob("*" + _TEMPORARY_SUFFIX)):
            path.unlink(missing_ok=True)
        (self.root / (CURRENT_FILE + _TEMPORARY_SUFFIX)).unlink(missing_ok=True)

    def publish(self, manifest: Manifest) -> None:
        """Make the staged segment live, as ``manifest`` describes it, and remove the former generation."""
        for segment in manifest.segments:
            for name in segment.files:
                fsync(self.staging / name)
        fsync(self.staging)
        self.staging.rename(self._segments / self.segment_name)
        fsync(self._segments)
        _write_atomically(self.root / MANIFESTS_FOLDER / manifest.filename, manifest.to_json())
        fsync(self.root)
        _write_atomically(self.root / CURRENT_FILE, (manifest.filename + "\n").encode("ascii"))
        if self._created:
            fsync(self.root.absolute().parent)
        # Readers of the former generation keep its files open; what cannot be removed now, the next build
        # removes.
        with contextlib.suppress(OSError):
            self._remove_leftovers(keep=manifest)

    def __enter__(self) -> BuildArea:
        """Return the area itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unlock, and remove what was not published."""
        try:
            if not self._is_published():
                self._discard()
        finally:
            os.close(self._lock)

    def _is_published(self) -> bool:
        # asks the disk: Ctrl-C may have struck between the switch and any note of it in memory
        try:
            return (self.root / CURRENT_FILE).read_text("ascii").strip() == manifest_name(self.generation)
        except (OSError, UnicodeDecodeError):
            return False

    def _discard(self) -> None:
        for path in (self.staging, self._segments / self.segment_name):
            shutil.rmtree(path, ignore_errors=True)
        (self.root / MANIFESTS_FOLDER / manifest_name(self.generation)).unlink(missing_ok=True)
        self._remove_empty_folders()

    def _remove_empty_folders(self) -> None:
        folders = [self._segments, self.root / MANIFESTS_FOLDER, *([self.root] if self._created else [])]
        for folder in folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
