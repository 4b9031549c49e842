"""How the input of a job on Ray is cut into pieces, one for each shard."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

import fsspec
import numpy as np
from fsspec.core import url_to_fs
from pyarrow import ArrowException
from pyarrow.parquet import ParquetFile

from ..documents.errors import InputError, OnError
from ..documents.folders import find_files
from ..documents.sources import Source, Span, names_of

__all__ = ["File", "Piece", "digest", "files", "pieces_of", "source_of"]

READ = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")

_BLOCK = 8 << 20
_NEWLINE = 10


@dataclass(frozen=True, slots=True)
class File:
    """One input file.

    Attributes:
        path: absolute, or a URL.
        name: prefix of its documents' ids.
        size: bytes.
        stamp: changes when the file does: its modification time or, on an object store, its ETag.
    """

    path: str
    name: str
    size: int
    stamp: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive documents of one file; ``span`` is ``None`` for a compressed file, which is one piece."""

    file: File
    span: Span | None


def files(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> tuple[list[File], str | None]:
    """The files named by ``inputs`` (one, or several), in order: files, folders and patterns here, or URLs of them.

    Returns:
        The files, and the folder that their names are relative to; ``None`` where there are URLs among them.

    Raises:
        InputError: one is missing, given twice, or neither JSON Lines nor parquet.
    """
    if isinstance(inputs, (str, os.PathLike)):
        inputs = [inputs]
    if not inputs:
        raise InputError("", "no input files given")
    if any("://" in os.fspath(one) for one in inputs):
        given: list[str] = []
        for one in inputs:
            item = os.fspath(one)
            given += _remote(item) if "://" in item else find_files([item]).paths
        names, root = names_of(given), None
    else:  # named as where no cluster is at work
        found = find_files(inputs)
        given, names, root = found.paths, found.names, found.root
    paths = [path if "://" in path else os.path.realpath(path) for path in given]
    for number, path in enumerate(paths):
        if not path.lower().endswith(READ):
            raise InputError(path, f"on Ray, embedkit reads {', '.join(READ)} files")
        if path in paths[:number]:
            raise InputError(path, "the input is given twice")
    return [_file(path, name) for path, name in zip(paths, names, strict=True)], root


def _remote(url: str) -> list[str]:
    fs, path = url_to_fs(url)
    if glob.has_magic(url):
        found = fs.glob(path)
    elif fs.isdir(path):
        found = [name for name in fs.find(path) if name.lower().endswith(READ)]
    else:
        return [url]
    if not found:
        raise InputError(url, f"no files there that embedkit reads on Ray ({', '.join(READ)})")
    return [fs.unstrip_protocol(name) for name in sorted(found)]


def _file(path: str, name: str) -> File:
    fs, inner = url_to_fs(path)
    try:
        info = fs.info(inner)
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror or error}") from None
    stamp = next((info[key] for key in ("ETag", "etag", "mtime", "LastModified") if info.get(key)), "")
    return File(path, name, int(info["size"]), str(stamp))


def open_file(path: str) -> IO[bytes]:
    """The file at ``path``, of this machine or a URL."""
    return cast("IO[bytes]", fsspec.open(path, "rb").open())


def pieces_of(file: File, rows: int) -> list[Piece]:
    """``file`` in pieces of ``rows`` lines or rows, the last of fewer; reads it once, or its parquet footer.

    Raises:
        InputError: it cannot be read, or is not a parquet file.
    """
    try:
        with open_file(file.path) as opened:
            name = file.path.lower()
            if name.endswith(".parquet"):
                total = ParquetFile(opened).metadata.num_rows
                starts = range(0, total, rows) or range(
                    1
                )  # an empty one is also read: its columns are checked
                return [Piece(file, Span(at + 1, at, min(at + rows, total))) for at in starts]
            if name.endswith(".jsonl"):
                return [Piece(file, span) for span in _lines(opened, rows)]
            return [Piece(file, None)]
    except ArrowException as error:
        raise InputError(file.path, f"the parquet data is damaged: {error}") from None
    except OSError as error:
        raise InputError(file.path, f"cannot be read: {error.strerror or error}") from None


def _lines(file: IO[bytes], rows: int) -> list[Span]:
    spans = []
    first, begin, lines, at = 1, 0, 0, 0
    while block := file.read(_BLOCK):
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE)
        for place in range(rows - 1 - lines % rows, len(ends), rows):
            end = at + int(ends[place]) + 1
            spans.append(Span(first, begin, end))
            first, begin = first + rows, end
        lines += len(ends)
        at += len(block)
    if at > begin:
        spans.append(Span(first, begin, at))
    return spans


def source_of(piece: Piece, on_error: OnError) -> Source:
    """A reader of ``piece``, on whichever machine this is."""
    file = piece.file
    return Source(file.path, file.name, None, on_error, span=piece.span, open_file=open_file)


def digest(pieces: Sequence[Piece]) -> str:
    """Identifies the input: the same for the same files, named alike, cut into the same pieces."""
    described: list[Any] = [
        # the name, too: ids begin with it, and another spelling of the path gives another one
        (piece.file.path, piece.file.name, piece.file.size, piece.file.stamp, piece.span and piece.span.begin)
        for piece in pieces
    ]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()
