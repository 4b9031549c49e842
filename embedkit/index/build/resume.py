"""What an interrupted build has left, and whether the current one may use it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...documents.document import Document
from ...files import fsync, reason_of
from ..errors import (
    BuildError,
    IndexDamagedError,
    IndexExistsError,
    IndexNotFoundError,
    ResumeError,
    TooFewVectorsError,
)
from ..storage.journal import Header, Made, State, forget_finished, read_journal
from ..storage.layout import CURRENT_FILE, JOURNAL_FILE, Writer, current_name, manifest_at
from ..storage.manifest import Manifest, SegmentEntry, hash_file
from .settings import Mode, Written

__all__ = [
    "HEADER_NAMES",
    "InputDigest",
    "change_errors",
    "check_base",
    "check_finished",
    "check_header",
    "check_new",
    "check_output",
    "check_replaced",
    "discard",
    "disk_errors",
    "forget",
    "not_replaced",
    "published_before",
    "resumable_rows",
    "told",
    "vector_bytes",
    "written_before",
]

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
HEADER_NAMES = {
    "mode": "command",
    "fingerprint": "model",
    "precision": "precision",
    "document_prompt": "document prompt",
    "dimension": "dimension",
    "metric": "metric",
    "max_length": "--max-length",
    "on_overflow": "--on-overflow",
}
_MADE_NAMES = {
    "factory": "factory",
    "kept": "kind of kept vectors",
    "target_recall": "target recall",
    "language": "language",
    "passages": "setting of passages",
    "distinct": "setting of dedup",
}
_UNSET = {"max_length": "the model's own", "on_overflow": "truncate or error"}


class InputDigest:
    """SHA-256 of documents as they pass by: ids, texts, metadata and given vectors."""

    def __init__(self) -> None:
        """Start without documents."""
        self._hash = hashlib.sha256()

    def watch(self, documents: Iterable[str | Document]) -> Iterator[str | Document]:
        """Pass ``documents`` through."""
        for item in documents:
            document = item if isinstance(item, Document) else Document(item)
            metadata = document.metadata  # whatever it is: it is checked later
            if isinstance(metadata, Mapping):
                metadata = dict(metadata)
            fields = (document.id, document.text, metadata, vector_bytes(document.vector))
            try:
                content = repr(fields)
            except (RecursionError, ValueError):  # metadata that is refused where it is stored
                content = ""
            self._hash.update(content.encode("utf-8", "surrogatepass"))
            yield item

    def hexdigest(self) -> str:
        """The digest of the documents that have passed through."""
        return self._hash.hexdigest()


def vector_bytes(vector: Any) -> bytes | None:
    """A given vector for a digest; what is none is refused later, where vectors are checked."""
    try:
        return None if vector is None else np.asarray(vector).tobytes()
    except (TypeError, ValueError, OverflowError):
        return b""


def _digest(documents: Iterable[str | Document]) -> str:
    digest = InputDigest()
    for _ in digest.watch(documents):
        pass
    return digest.hexdigest()


def resumable_rows(root: Path, mode: Mode | None = None) -> int:
    """How many documents an interrupted ``mode`` (``None``: any command) at ``root`` has encoded.

    The same command skips these.
    """
    state = read_journal(root / JOURNAL_FILE)
    return 0 if state is None or mode not in (None, state.header.mode) else state.rows


def check_output(root: Path, *, overwrite: bool, restart: bool) -> int:
    """How many documents a build at ``root`` finds encoded; to be asked before a model is loaded.

    Raises:
        IndexExistsError: it is not a folder, or holds an index that is not to be replaced.
        ResumeError: an interrupted command other than a build has encoded documents for the index.
    """
    if os.path.lexists(root) and not root.is_dir():
        raise IndexExistsError(f"{root}: exists and is not a folder; an index is a folder: name a new one")
    state = None if restart else read_journal(root / JOURNAL_FILE)
    live = None
    with contextlib.suppress(IndexNotFoundError, IndexDamagedError, OSError):
        live = manifest_at(root, current_name(root))
    check_replaced(root, state, live)
    rows = 0 if state is None or state.header.mode != "build" else state.rows
    if not overwrite and not rows and (root / CURRENT_FILE).exists():
        raise not_replaced(root)
    return rows


def not_replaced(root: Path) -> IndexExistsError:
    """The error for a build at ``root`` that was not told to replace the index there."""
    return IndexExistsError(f"{root}: an index exists there; pass --overwrite (overwrite=True) to replace it")


def check_replaced(root: Path, state: State | None, live: Manifest | None) -> None:
    """Refuse to build where another command was interrupted, unless what it has encoded is live."""
    if state is None or state.header.mode == "build" or published_before(state, live) is not None:
        return
    raise ResumeError(
        f"{root}: an interrupted '{state.header.mode}' has encoded {state.rows} documents for the index there; "
        "run that command again, or pass --overwrite and --restart (overwrite=True, restart=True) to replace "
        "the index"
    )


def discard(writer: Writer) -> None:
    """Remove what an interrupted build has left."""
    writer.journal.unlink(missing_ok=True)
    shutil.rmtree(writer.building, ignore_errors=True)


def check_new(writer: Writer) -> None:
    """Refuse a folder with an index, or with what an interrupted build has encoded for one."""
    if writer.live() is not None:
        raise IndexExistsError(f"{writer.root}: an index exists there; name another folder")
    if rows := resumable_rows(writer.root):
        raise IndexExistsError(
            f"{writer.root}: an interrupted 'build' has encoded {rows} documents there; name another folder"
        )


def forget(writer: Writer) -> None:
    """Remove the journal, durably."""
    writer.journal.unlink(missing_ok=True)
    fsync(writer.root)


def published_before(state: State | None, live: Manifest | None) -> SegmentEntry | None:
    """The segment of an interrupted build that is live: only its journal was left to be removed."""
    if state is None or state.finished is None or live is None:
        return None
    name = state.finished.segment.name
    return next((entry for entry in live.segments if entry.name == name), None)


def written_before(
    root: Path, state: State, entry: SegmentEntry, documents: Iterable[str | Document]
) -> Written:
    """What a command that was killed after its last step has written, if ``documents`` are its input."""
    if state.finished is None or _digest(documents) != state.finished.made.input:
        raise ResumeError(
            f"{root}: an interrupted '{state.header.mode}' of other documents had finished, and none of these "
            "documents were added; run the command again"
        )
    return Written(entry.documents, 0, state.rows)


def told(settings: Header | Made | Manifest, name: str) -> object:
    """A setting, or what it means that there is none."""
    value = getattr(settings, name)
    return _UNSET.get(name, "none") if value in (None, "") else value


def check_header(root: Path, state: State | None, header: Header) -> None:
    """Refuse to resume if the vectors would differ from those encoded already."""
    for name, label in HEADER_NAMES.items():
        if state is None or getattr(state.header, name) == getattr(header, name):
            continue
        raise ResumeError(
            f"{root}: an interrupted '{state.header.mode}' has encoded {state.rows} documents with another "
            f"{label} ({told(state.header, name)}, now {told(header, name)}); run that command again, or "
            "discard them with --restart (restart=True)"
        )


def check_base(root: Path, state: State | None, header: Header) -> None:
    """Say that the index has changed meanwhile, too, so that other documents of the same input may be to encode."""
    if state is None or state.header.base in (None, header.base):
        return
    raise ResumeError(
        f"{root}: an interrupted '{state.header.mode}' was given other documents, or the index has changed so that "
        f"others of them are to be encoded (generation {state.header.base}, now {header.base}); give the same input "
        "again, or, if it is the same, discard what is encoded with --restart (restart=True)"
    )


def check_finished(
    writer: Writer, state: State, made: Made, documents: Iterable[str | Document]
) -> SegmentEntry | None:
    """The complete segment that an interrupted build has left, if it is the one to be made now.

    ``None`` if there is none, or if it is to be made again: its files are not as they were written, its words are
    those of an earlier embedkit, or the index to which its documents are added has become of another kind. What else is
    left of the build is used for that.
    """
    root, mode, finished = writer.root, state.header.mode, state.finished
    if finished is None:
        return None
    before = finished.made
    if before.base != made.base:  # other documents may be the ones that have not changed
        raise ResumeError(
            f"{root}: the index has changed since an interrupted '{mode}' had finished (generation {before.base}, now "
            f"{made.base}); discard it with --restart (restart=True)"
        )
    differing = [name for name in _MADE_NAMES if getattr(before, name) != getattr(made, name)]
    if differing and mode == "build":
        name = differing[0]
        raise ResumeError(
            f"{root}: an interrupted '{mode}' had finished with another {_MADE_NAMES[name]} ({told(before, name)}, "
            f"now {told(made, name)}); run that command again, or discard it with --restart (restart=True)"
        )
    if differing or finished.segment.has_old_words or _remove_damaged(writer, finished.segment):
        forget_finished(writer.journal)
        return None
    if _digest(documents) != before.input:
        raise ResumeError(
            f"{root}: these are not the documents that an interrupted '{mode}' has encoded; give the same input, "
            "or start over with --restart (restart=True)"
        )
    return finished.segment


def _remove_damaged(writer: Writer, entry: SegmentEntry) -> bool:
    """Remove the files of a finished segment that are not as they were written; whether there were any."""
    folder = writer.finished(entry.name)
    damaged = [
        folder / name
        for name, file in entry.files.items()
        if not (folder / name).exists() or hash_file(folder / name) != file
    ]
    for path in damaged:
        path.unlink(missing_ok=True)
    return bool(damaged)


@contextlib.contextmanager
def change_errors(path: Path, what: str) -> Iterator[None]:
    """Turn errors of the disk into a `BuildError` that names ``path``; ``what`` failed and left nothing."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise BuildError(f"{path}: {what} failed and was undone: {error}") from error
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        raise BuildError(f"{path}: {what} failed and was undone: {error.strerror}") from error


@contextlib.contextmanager
def disk_errors(root: Path, mode: Mode, what: str) -> Iterator[None]:
    """Turn errors of the disk and of Faiss into ones that name the index, ``what`` failed, and what can be resumed.

    Those of the caller's documents, which are read meanwhile, stay as they are.
    """

    def failed(reason: object) -> BuildError:
        rows = resumable_rows(root, mode)
        if rows and isinstance(reason, TooFewVectorsError):
            return BuildError(
                f"{root}: {what} failed: {reason}; {rows:,} documents are encoded, and the command goes on from there "
                "with such a --factory (factory=)"
            )
        if rows:
            return BuildError(
                f"{root}: {what} failed: {reason}; {rows:,} documents are encoded, and the same command "
                "resumes from there"
            )
        return BuildError(f"{root}: {what} failed and was undone: {reason}")

    try:
        yield
    except ResumeError:
        raise
    except (sqlite3.OperationalError, BuildError) as error:
        raise failed(error) from error
    except OSError as error:
        if error.errno not in _DISK_ERRORS and not _is_of(root, error):
            raise
        raise failed(reason_of(error)) from error


def _is_of(root: Path, error: OSError) -> bool:
    """Whether ``error`` names a file of the index at ``root``, or a folder in which ``root`` was to be made."""
    if not isinstance(error.filename, (str, bytes)):  # a descriptor, or none: embedkit's own errors
        return False
    place, root = Path(os.fsdecode(error.filename)).absolute(), root.absolute()
    return place.is_relative_to(root) or place in root.parents
