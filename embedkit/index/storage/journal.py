"""``build.journal``: what a build has encoded, so that a killed build is resumed instead of restarted.

JSON Lines, appended and fsynced, one object each:

* ``{"journal": 1, "mode": …, …}``: the `Header`. A build is resumed only if it has the same one.
* ``{"rows": n, "truncated": m, "given": g}``: the first n documents are in ``documents.sqlite`` and their vectors in
  ``vectors.f32``, on disk; the model cut m of their texts, and g of the vectors came with their documents. Written for
  each shard of some thousand documents.
* ``{"segment": {…}, "made": {…}}``: the segment is complete (`Finished`); only the manifest that names it may be
  missing.

A last line torn by a crash counts as not written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from ...files import fsync, write_atomically
from ..errors import IndexDamagedError
from ..words.languages import AUTO
from .manifest import SegmentEntry, segment_from_json

__all__ = [
    "Finished",
    "Header",
    "Journal",
    "Made",
    "State",
    "finished_segment",
    "forget_finished",
    "read_journal",
]

_VERSION = 1
_SEGMENT = b'{"segment":'
_Record = TypeVar("_Record", "Header", "Made")


@dataclass(frozen=True, slots=True)
class Header:
    """What the vectors depend on.

    Attributes:
        mode: the command: "build", "add", "upsert", "sync" or "reembed".
        fingerprint, precision, document_prompt: of the encoder.
        dimension: columns of a vector.
        metric: "cosine" or "dot".
        max_length, on_overflow: of the encoder, as in the manifest.
        base: the generation that an upsert was compared with when it began; ``None`` for other commands. It may go on
            with another one, as long as the same documents are to be encoded.
    """

    mode: str
    fingerprint: str
    precision: str
    document_prompt: str
    dimension: int
    metric: str
    max_length: int | None
    on_overflow: str | None
    base: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Made:
    """What a finished segment was made of, beyond its `Header`.

    Attributes:
        factory: the Faiss factory string asked for.
        kept: how the vectors are kept.
        target_recall: recall@10 asked for, if any.
        input: digest of the documents; empty while it is not known.
        language: of the words, as asked for.
        base: the generation that an upsert was compared with; ``None`` for other commands.
        passages: how a new index's documents are cut; ``None``: they are whole.
        distinct: whether repeated texts were left out.
    """

    factory: str
    kept: str
    target_recall: float | None
    input: str = ""
    language: str = AUTO
    base: int | None = None
    passages: str | None = None
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """A complete segment, and what it was made of."""

    segment: SegmentEntry
    made: Made


@dataclass(frozen=True, slots=True)
class State:
    """The state recorded in a journal.

    Attributes:
        header: what the vectors depend on.
        rows: documents encoded and on disk.
        finished: the complete segment, ``None`` while there is none.
        truncated: texts among them that the model cut; ``None`` if that is unknown.
        given: those whose vectors the caller gave; ``None`` if that is unknown.
    """

    header: Header
    rows: int
    finished: Finished | None
    truncated: int | None = None
    given: int | None = None


def read_journal(path: Path) -> State | None:
    """The state that the journal at ``path`` describes; ``None`` if nothing can be resumed."""
    try:
        return _read(path)[0]
    except (FileNotFoundError, NotADirectoryError):
        return None


def _read(path: Path) -> tuple[State | None, int]:
    """The state, and the bytes up to the first line that cannot be read."""
    lines = path.read_bytes().split(b"\n")[:-1]
    readable = 0
    header: Header | None = None
    rows = 0
    truncated: int | None = None
    given: int | None = None
    finished = None
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(record, dict):
            break
        if header is None:
            if record.get("journal") != _VERSION:
                break
            header = _from_json(Header, record)
        elif isinstance(record.get("rows"), int):
            rows = record["rows"]
            truncated, given = record.get("truncated"), record.get("given")
        elif "segment" in record:
            made = _from_json(Made, record.get("made") or {})
            try:
                finished = Finished(segment_from_json(path, record["segment"]), made)
            except IndexDamagedError:  # as good as a line that a crash tore
                break
        readable += len(line) + 1
    state = None if header is None or rows == 0 else State(header, rows, finished, truncated, given)
    return state, readable


def _from_json(kind: type[_Record], record: Mapping[str, Any]) -> _Record:
    # a field that is missing is None, which equals nothing that a build compares it with
    values: dict[str, Any] = {each.name: record.get(each.name) for each in fields(kind)}
    return kind(**values)


def finished_segment(path: Path) -> str | None:
    """The name of the complete segment that the journal at ``path`` names, if any."""
    state = read_journal(path)
    return None if state is None or state.finished is None else state.finished.segment.name


def forget_finished(path: Path) -> None:
    """Drop the complete segment from the journal at ``path``; what is encoded stays."""
    lines = path.read_bytes().splitlines(keepends=True)
    write_atomically(path, b"".join(line for line in lines if not line.startswith(_SEGMENT)))


class Journal:
    """Appends to a journal."""

    def __init__(self, path: Path, header: Header, *, resume: bool) -> None:
        """Start the journal at ``path`` with ``header``, or with ``resume`` continue it."""
        if resume:
            # what follows a line that a crash has torn would never be read
            os.truncate(path, _read(path)[1])
            self._file = path.open("ab", buffering=0)
            return
        self._file = path.open("wb", buffering=0)
        self._append({"journal": _VERSION, **asdict(header)})
        fsync(path.parent)

    def _append(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False).encode("utf-8") + b"\n")
        os.fsync(self._file.fileno())

    def encoded(self, rows: int, truncated: int | None = None, given: int | None = None) -> None:
        """Record that the first ``rows`` documents and vectors are on disk; the rest is as in `State`."""
        known = {"rows": rows, "truncated": truncated, "given": given}
        self._append({name: count for name, count in known.items() if count is not None})

    def finished(self, finished: Finished) -> None:
        """Record that the segment is complete."""
        self._append(asdict(finished))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
