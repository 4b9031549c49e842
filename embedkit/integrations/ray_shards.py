"""Documents and their vectors in shards: parquet files in a folder on any file system known to fsspec.

```
SHARDS/
  job.json                what the vectors depend on: only a job with the same header is resumed
  shards/000017.parquet   id, text, metadata (JSON), vector, line; what was left out is in the file's metadata
```

Shard n holds the documents of piece n, so that the shards are in the order of the input. A shard is complete or
absent, and one that is there is not encoded again. Vector databases load the files as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import posixpath
import re
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from pyarrow import parquet

from ..documents.document import Document
from ..documents.errors import InputError
from ..files import expanded
from ..index.errors import IndexDamagedError, ResumeError
from ..index.storage.faiss_index import Float32Array
from ..index.storage.vector_table import VectorTable, write_parquet

__all__ = ["JobHeader", "Rejected", "Shard", "ShardStore", "ShardWriter"]

JOB_FILE = "job.json"
SHARDS_FOLDER = "shards"

_VERSION = 1
_FINISHED = re.compile(r"\d{6,}\.parquet")
_UNFINISHED = re.compile(r"\.\d{6,}\.parquet\.[0-9a-f]+")
_OURS = b"embedkit"
_READERS = 16  # a footer on an object store is a round trip
_NAMES = {"fingerprint": "model", "document_prompt": "document prompt", "fields": "text or id field"}


@dataclass(frozen=True, slots=True)
class JobHeader:
    """What the shards of a job depend on.

    Attributes:
        input: digest of the pieces.
        fingerprint, precision, document_prompt: of the encoder.
        dimension: columns of a vector.
        metric: "cosine" or "dot".
        fields: the text and id field.
        max_length, on_overflow: of the encoder, if they are not its model's.
    """

    input: str
    fingerprint: str
    precision: str
    document_prompt: str
    dimension: int
    metric: str
    fields: list[str | None]
    max_length: int | None = None
    on_overflow: str | None = None

    def digest(self) -> str:
        """The job's name, carried by its shards."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Rejected:
    """A document that cannot be used, and why."""

    origin: str
    reason: str

    def error(self) -> InputError:
        """The error that a build on one machine would have raised."""
        return InputError(self.origin, self.reason, skippable=True)


@dataclass(frozen=True, slots=True)
class Shard:
    """What a finished shard holds.

    Attributes:
        piece: number of the piece.
        rows: documents.
        blank: documents left out because their text is blank.
        rejected: documents left out because they cannot be used.
    """

    piece: int
    rows: int
    blank: int
    rejected: tuple[Rejected, ...] = field(default=())


class ShardStore:
    """The shards of one job."""

    def __init__(self, url: str, job: str) -> None:
        """Shards of the ``job`` (a digest) at ``url``: a folder of this machine, or a URL such as s3://…."""
        self.url = url if "://" in url else os.path.abspath(expanded(url))
        self.job = job
        self._fs: AbstractFileSystem
        self._fs, self._root = url_to_fs(self.url)

    def begin(self, header: JobHeader, *, restart: bool) -> None:
        """Start the job described by ``header``, or resume it.

        Raises:
            ResumeError: the shards there belong to another job; names what differs.
        """
        path = self._path(JOB_FILE)
        if restart:
            self.remove()
        if self._fs.exists(path):
            try:
                before = json.loads(self._fs.cat_file(path))
            except ValueError:
                before = {}
            for name, value in asdict(header).items():
                if before.get("job") != _VERSION or before.get(name) != value:
                    raise ResumeError(
                        f"{self.url}: the shards there were made with another {_NAMES.get(name, name)}; use the same, "
                        "name another place (--shards), or discard them with --restart (restart=True)"
                    )
            return
        self._fs.makedirs(self._path(SHARDS_FOLDER), exist_ok=True)
        self._fs.pipe_file(path, json.dumps({"job": _VERSION, **asdict(header)}, indent=2).encode())

    def finished(self, pieces: int) -> dict[int, Shard]:
        """The finished shards of this job, by the number of their piece."""
        there = {posixpath.basename(name) for name in self._files()}
        wanted = [piece for piece in range(pieces) if _name(piece) in there]
        with ThreadPoolExecutor(_READERS) as pool:
            found = pool.map(self.find, wanted)
            return {shard.piece: shard for shard in found if shard is not None}

    def find(self, piece: int) -> Shard | None:
        """The shard of ``piece``, if it is there and belongs to this job."""
        try:
            with self._open(piece) as file:
                return self._shard(parquet.ParquetFile(file))
        except (OSError, pyarrow.ArrowException, ValueError, KeyError):
            return None  # a machine died while writing: the shard is made again

    def _shard(self, file: parquet.ParquetFile) -> Shard | None:
        known = json.loads(file.metadata.metadata[_OURS])
        if known["job"] != self.job:
            return None
        rejected = tuple(Rejected(**one) for one in known["rejected"])
        return Shard(known["piece"], file.metadata.num_rows, known["blank"], rejected)

    def read(self, shard: Shard) -> Iterator[tuple[Document, int]]:
        """The documents of ``shard`` with their vectors, and the line or row that each was on.

        Raises:
            IndexDamagedError: it is missing or damaged.
        """
        path = self._path(SHARDS_FOLDER, _name(shard.piece))
        try:
            with self._open(shard.piece) as file:
                opened = parquet.ParquetFile(file)
                if self._shard(opened) != shard:
                    raise ValueError("it belongs to another job")
                for group in range(opened.num_row_groups):  # of bounded size, as the actor encoded it
                    for batch in opened.iter_batches(row_groups=[group]):
                        yield from _documents(batch)
        except (OSError, pyarrow.ArrowException, ValueError, KeyError) as error:
            raise IndexDamagedError(
                f"{path}: cannot be read here ({error}); --shards must name a place that every machine can reach; "
                "run the same command again to make missing shards"
            ) from error

    @contextlib.contextmanager
    def writer(self, piece: int, dimension: int) -> Iterator[ShardWriter]:
        """Write the shard of ``piece``, which appears at the end unless something is raised."""
        path = self._path(SHARDS_FOLDER, _name(piece))
        # Two actors may work on the same piece, if one was taken for dead.
        temporary = self._path(SHARDS_FOLDER, f".{_name(piece)}.{secrets.token_hex(4)}")
        try:
            with self._fs.open(temporary, "wb") as file:
                writer = ShardWriter(file, piece, self.job, dimension)
                yield writer
                writer.close()
            self._fs.mv(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self._fs.rm_file(temporary)
            raise

    def sweep(self) -> None:
        """Remove unfinished files of actors that were killed; to be called when every shard is there."""
        for name in self._files():
            if _UNFINISHED.fullmatch(posixpath.basename(name)):
                with contextlib.suppress(OSError):
                    self._fs.rm_file(name)

    def remove(self) -> None:
        """Remove the job and all its shards, and nothing else that is there.

        Raises:
            ResumeError: a file of the job's name is something else.
        """
        job = self._path(JOB_FILE)
        if self._fs.exists(job):
            try:
                content = json.loads(self._fs.cat_file(job))
                ours = isinstance(content, dict) and "job" in content
            except ValueError:
                ours = True  # cut short, as a machine died
            if not ours:
                raise ResumeError(
                    f"{self.url}: its {JOB_FILE} is not embedkit's; name another place (--shards)"
                )
        for name in self._files():
            base = posixpath.basename(name)
            if _FINISHED.fullmatch(base) or _UNFINISHED.fullmatch(base):
                self._fs.rm_file(name)
        if self._fs.exists(job):
            self._fs.rm_file(job)
        folders = [self._path(SHARDS_FOLDER)]
        if isinstance(self._fs, LocalFileSystem):  # elsewhere it may be a bucket
            folders.append(self._root)
        for path in folders:
            with contextlib.suppress(OSError):
                self._fs.rmdir(path)  # unless it contains other things

    def _files(self) -> list[str]:
        """What is in the folder of the shards; nothing where a file system has no empty folders, as object stores."""
        folder = self._path(SHARDS_FOLDER)
        self._fs.invalidate_cache(folder)
        try:
            found: list[str] = self._fs.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        return found

    def _open(self, piece: int) -> Any:
        return self._fs.open(self._path(SHARDS_FOLDER, _name(piece)), "rb")

    def _path(self, *names: str) -> str:
        return posixpath.join(self._root, *names)


class ShardWriter:
    """Appends documents and vectors to one shard.

    Attributes:
        rows: documents written.
        blank, rejected: to be set before `close`, see `Shard`.
    """

    def __init__(self, file: Any, piece: int, job: str, dimension: int) -> None:
        """Start the parquet file in ``file``."""
        self.rows = self.blank = 0
        self.rejected: list[Rejected] = []
        self._piece = piece
        self._job = job
        self._table = VectorTable(dimension, lines=True)
        self._writer = write_parquet(file, self._table.schema)

    def add(self, documents: Sequence[Document], lines: Sequence[int], vectors: Float32Array) -> None:
        """Append ``documents`` with ids, the lines they were on, and their ``vectors`` (n, dimension)."""
        self._writer.write_table(self._table.make(documents, vectors, lines))
        self.rows += len(documents)

    def close(self) -> None:
        """Write the end of the file."""
        metadata = {
            "job": self._job,
            "piece": self._piece,
            "blank": self.blank,
            "rejected": [asdict(one) for one in self.rejected],
        }
        self._writer.add_key_value_metadata({_OURS: json.dumps(metadata).encode()})
        self._writer.close()


def _name(piece: int) -> str:
    return f"{piece:06d}.parquet"


def _documents(batch: pyarrow.RecordBatch) -> Iterator[tuple[Document, int]]:
    column = batch.column("vector")
    vectors = column.flatten().to_numpy(zero_copy_only=False).reshape(batch.num_rows, -1)
    fields = (batch.column(name).to_pylist() for name in ("id", "text", "metadata", "line"))
    for document_id, text, metadata, line, vector in zip(*fields, vectors, strict=True):
        known = None if metadata is None else json.loads(metadata)
        yield Document(text, document_id, known, vector=vector), line
