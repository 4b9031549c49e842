"""The last step of a segment: Faiss files of its vectors, its documents' ids and words, and the checksums."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ..storage.faiss_index import is_exact, read_index
from ..storage.manifest import DOCUMENTS_FILE, IDS_FILE, RAW_FILE, Raw, SegmentEntry, WordsEntry, hash_file
from ..storage.raw import write_raw
from ..storage.search_parameters import SearchParameters
from ..storage.spool import Spool
from .build_parts import build_parts
from .settings import BuildSettings, Report

__all__ = ["finish_segment", "remove_all_but"]


def finish_segment(
    folder: Path,
    name: str,
    spool: Spool,
    finish_documents: Callable[[], WordsEntry | None],
    *,
    settings: BuildSettings,
    parameters: SearchParameters,
    report: Report,
) -> SegmentEntry:
    """Complete the segment ``name`` in ``folder``; may be repeated after a crash at any point.

    Args:
        folder: of the segment.
        name: of the segment.
        spool: its vectors.
        finish_documents: completes ``keys`` and ``documents.sqlite``; returns how its words were made.
        settings: ``factory``, ``kept``, ``max_memory`` and ``threads`` are used.
        parameters: the default search parameters of its Faiss indexes.
        report: called after each step.
    """
    parts = build_parts(spool, folder, settings, parameters, report)
    lossless = all(
        is_exact(read_index(folder / part.file, rows=part.rows, dimension=spool.dimension)) for part in parts
    )
    assert settings.kept is not None  # the manifest's
    raw: Raw = "none" if lossless else settings.kept
    if raw != "none":
        write_raw(spool, folder / RAW_FILE, raw)
    words = finish_documents()
    names = [part.file for part in parts] + [IDS_FILE, DOCUMENTS_FILE] + ([RAW_FILE] if raw != "none" else [])
    files = {file: hash_file(folder / file) for file in names}
    return SegmentEntry(name, spool.rows, parts, raw, words is not None, files, words=words)


def remove_all_but(folder: Path, names: Iterable[str]) -> None:
    """Remove the working files of a build: all but ``names``."""
    wanted = set(names)
    for path in folder.iterdir():
        if path.name not in wanted:
            path.unlink()
