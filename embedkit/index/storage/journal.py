"""``build.journal``: what a build has encoded, so that a killed one goes on instead of starting again.

JSON Lines, appended and fsynced, one object each:

* ``{"journal": 1, "mode": …, …}``: what the vectors depend on. A build goes on only where it is the same.
* ``{"rows": n}``: the first n documents lie in ``documents.sqlite`` and their vectors in ``vectors.f32``, on
  disk. A line is written for each shard of some thousand documents.
* ``{"segment": {…}, "made": {…}}``: the segment is complete; only the manifest that names it may be missing. With
  what it was made of, so that it stands in for the same documents and settings alone.

A last line that a crash has torn counts as not written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .durable import fsync
from .manifest import SegmentEntry, segment_from_json

_VERSION = 1


@dataclass(frozen=True, slots=True)
class State:
    """What a journal says.

    Attributes:
        header: what the vectors depend on.
        rows: documents encoded and on disk.
        segment: the finished segment, ``None`` while there is none.
        made: what it was made of: ``input`` (the `InputDigest` of its documents) and settings.
    """

    header: dict[str, Any]
    rows: int
    segment: SegmentEntry | None
    made: dict[str, Any]


def read_journal(path: Path) -> State | None:
    """The state that the journal at ``path`` describes; ``None`` where nothing can be resumed."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    header: dict[str, Any] | None = None
    rows = 0
    segment = None
    made: dict[str, Any] = {}
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not isinstance(record, dict):
            break
        if header is None:
            if record.get("journal") != _VERSION:
                break
            header = record
        elif isinstance(record.get("rows"), int):
            rows = record["rows"]
        elif "segment" in record:
            segment, made = segment_from_json(path, record["segment"]), dict(record.get("made") or {})
    return None if header is None or rows == 0 else State(header, rows, segment, made)


def segment_of(path: Path) -> str | None:
    """The name of the finished segment that the journal at ``path`` tells of, if it does."""
    state = read_journal(path)
    return state.segment.name if state is not None and state.segment is not None else None


class Journal:
    """Appends to a journal."""

    def __init__(self, path: Path, header: dict[str, Any], *, resume: bool) -> None:
        """Open the journal at ``path``; begin it with ``header``, or go on where ``resume`` says so."""
        if resume:
            # without the torn line that a crash may have left
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
            self._file = path.open("ab", buffering=0)
            return
        self._file = path.open("wb", buffering=0)
        self._append({"journal": _VERSION, **header})
        fsync(path.parent)

    def _append(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False).encode("utf-8") + b"\n")
        os.fsync(self._file.fileno())

    def encoded(self, rows: int) -> None:
        """Note that the first ``rows`` documents and vectors are on disk."""
        self._append({"rows": rows})

    def finished(self, segment: SegmentEntry, made: Mapping[str, Any]) -> None:
        """Note that the segment is complete, and what it was made of."""
        self._append({"segment": asdict(segment), "made": dict(made)})

    def close(self) -> None:
        """Close the file."""
        self._file.close()
