"""Reading documents from text, JSON Lines, CSV and TSV files, plain or gzipped, one record at a time.

* ``.txt``: a text a line.
* ``.jsonl``: a JSON object a line; the field ``text`` is indexed, ``id`` is the key, all others are metadata.
* ``.csv``: RFC 4180 (quoted fields may hold commas, quotes and line breaks), first row the column names.
* ``.tsv``: tab-separated, no quoting, first row the column names.

Everything is UTF-8, with or without a byte order mark; lines end in ``\\n`` or ``\\r\\n``. A document whose
text is empty or white space is skipped and counted as blank. One without an id gets ``file:line`` as its key.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, NoReturn, cast

from embedkit.index.documents import Document, json_type
from embedkit.index.errors import InputError
from embedkit.index.ingest import OnError, reject

Format = Literal["txt", "jsonl", "csv", "tsv"]

FORMATS: tuple[Format, ...] = ("txt", "jsonl", "csv", "tsv")
STDIN = "-"
MAX_RECORD_BYTES = 64 << 20
"""A longer line (or quoted CSV record) is malformed: it bounds memory against files that are not text."""

_BOM = "\ufeff"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


class Corpus:
    """Input files as one stream of `Document`, to be iterated once.

    Attributes:
        blank: documents skipped so far because their text is empty or white space.
        total_bytes: size of all inputs, which each document's ``position`` counts towards; ``None`` if
            unknown.
    """

    def __init__(
        self,
        inputs: Sequence[str | os.PathLike[str]],
        *,
        format: Format | None = None,
        text_field: str = "text",
        id_field: str | None = None,
        on_error: OnError = "stop",
    ) -> None:
        """Check that every input exists and can be read, without reading it.

        Args:
            inputs: paths; ``-`` is standard input.
            format: the format of every input; ``None``: by file name, and ``txt`` for standard input.
            text_field: field or column that is indexed.
            id_field: field or column that holds the key, which every record must have; ``None``: ``id`` where
                there is one.
            on_error: what to do about a malformed line, as for `embedkit.Index.build`.

        Raises:
            InputError: an input is missing, unreadable, a folder, of unknown format, or given twice.
        """
        if not inputs:
            raise InputError("", "no input file is given")
        self.blank = 0
        self._text_field = text_field
        self._id_field = id_field
        paths = [os.fspath(path) for path in inputs]
        names = [Path(path).name for path in paths]
        if len(set(names)) < len(names):
            names = paths  # the names go into the keys: tell a/x.txt from b/x.txt
        self._sources = [
            _Source(path, name, format, on_error) for path, name in zip(paths, names, strict=True)
        ]
        identities = [path if path == STDIN else os.path.realpath(path) for path in paths]
        for number, identity in enumerate(identities):
            if identity in identities[:number]:
                raise InputError(paths[number], "the input is given twice")
        sizes = [source.size for source in self._sources]
        self.total_bytes = None if None in sizes else sum(cast("list[int]", sizes))

    def __iter__(self) -> Iterator[Document]:
        """Read the inputs in the order given.

        Raises:
            InputError: a line is malformed and ``on_error`` says stop; a file is damaged or lacks a column.
        """
        start = 0
        for source in self._sources:
            with source:
                for line, text, key, metadata in self._records(source):
                    if not text.strip():
                        self.blank += 1
                        continue
                    yield Document(
                        text,
                        f"{source.name}:{line}" if key is None else key,
                        metadata,
                        f"{source.path}:{line}",
                        start + source.position(),
                    )
            start += source.size or 0

    def _records(self, source: _Source) -> Iterator[tuple[int, str, str | None, dict[str, Any] | None]]:
        """Line number, text, key and metadata of each record."""
        if source.format == "txt":
            for line, content in source.lines():
                if content is not None:
                    yield line, content, None, None
        elif source.format == "jsonl":
            yield from self._json_records(source)
        else:
            yield from self._table_records(source)

    def _json_records(self, source: _Source) -> Iterator[tuple[int, str, str | None, dict[str, Any] | None]]:
        for line, content in source.lines():
            if content is None:
                continue
            if not content.strip():
                self.blank += 1
                continue
            try:
                yield line, *self._json_record(content)
            except _MalformedError as error:
                source.reject(line, str(error))

    def _json_record(self, content: str) -> tuple[str, str | None, dict[str, Any]]:
        try:
            record = json.loads(content, parse_constant=_refuse_constant)
        except json.JSONDecodeError as error:
            raise _MalformedError(f"not valid JSON: {error.msg} at column {error.colno}") from None
        except ValueError as error:
            raise _MalformedError(f"not valid JSON: {error}") from None
        except RecursionError:
            raise _MalformedError("not usable JSON: nested too deeply") from None
        if not isinstance(record, dict):
            raise _MalformedError(f"the line is {json_type(record)}, not a JSON object")
        if self._text_field not in record:
            raise _MalformedError(f"no field {self._text_field!r} (the fields are: {_listed(record)})")
        text = record.pop(self._text_field)
        if not isinstance(text, str):
            raise _MalformedError(f"the field {self._text_field!r} is {json_type(text)}, not a string")
        id_field = self._id_field or "id"
        if id_field not in record:
            if self._id_field is not None:
                raise _MalformedError(f"no field {id_field!r} (the fields are: {_listed(record)})")
            return text, None, record
        key = record.pop(id_field)
        if isinstance(key, int) and not isinstance(key, bool):
            key = str(key)
        if not isinstance(key, str):
            raise _MalformedError(f"the field {id_field!r} is {json_type(key)}, not a string or an integer")
        return text, key, record

    def _table_records(self, source: _Source) -> Iterator[tuple[int, str, str | None, dict[str, Any] | None]]:
        rows = _csv_rows(source) if source.format == "csv" else _tsv_rows(source)
        source.strict = True  # without a header nothing in the file can be read
        header = next(rows, None)
        source.strict = False
        if header is None:
            return
        line, columns = header
        text_column, id_column = self._columns(f"{source.path}:{line}", columns)
        others = [(at, name) for at, name in enumerate(columns) if at not in (text_column, id_column)]
        for line, row in rows:
            if row == [""]:
                self.blank += 1
            elif len(row) != len(columns):
                source.reject(line, f"{len(row)} columns where the first row has {len(columns)}")
            else:
                metadata = {name: row[at] for at, name in others}
                yield line, row[text_column], None if id_column is None else row[id_column], metadata

    def _columns(self, origin: str, columns: list[str]) -> tuple[int, int | None]:
        """Positions of the text and id columns."""
        for name in columns:
            if columns.count(name) > 1:
                raise InputError(origin, f"two columns are named {name!r}")
        for wanted, option in ((self._text_field, "--text-field"), (self._id_field, "--id-field")):
            if wanted is not None and wanted not in columns:
                raise InputError(
                    origin,
                    f"no column {wanted!r} (the columns are: {_listed(columns)}); name it with {option}",
                )
        id_field = self._id_field or "id"
        has_id = id_field in columns and id_field != self._text_field
        return columns.index(self._text_field), columns.index(id_field) if has_id else None


class _MalformedError(Exception):
    """A record is malformed; the message says how."""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _listed(names: Any) -> str:
    names = [str(name) for name in names]
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "") or "none"


class _Source:
    """One input: opened as a context manager, read as decoded lines."""

    def __init__(self, path: str, name: str, format: Format | None, on_error: OnError) -> None:
        self.path = "stdin" if path == STDIN else path
        self.name = "stdin" if path == STDIN else name
        self.size = None if path == STDIN else _size(path)
        self.strict = False
        self._on_error = on_error
        self._from_stdin = path == STDIN
        suffixes = [] if path == STDIN else [suffix.lower() for suffix in Path(path).suffixes]
        self._gzipped = suffixes[-1:] == [".gz"]
        if self._gzipped:
            del suffixes[-1]
        extension = suffixes[-1][1:] if suffixes else ""
        if format is None and path == STDIN:
            format = "txt"
        if format is None and extension not in FORMATS:
            raise InputError(
                path,
                "unknown file type; embedkit reads .txt, .jsonl, .csv and .tsv, each also with .gz "
                "(for another name, give the format with --format)",
            )
        self.format: Format = format or cast(Format, extension)
        self._files = ExitStack()

    def __enter__(self) -> _Source:
        try:
            if self._from_stdin:
                if sys.stdin is None:
                    raise InputError(self.path, "there is no standard input")
                # A reader of our own on the descriptor: a thread blocked in sys.stdin would hang the
                # interpreter's exit.
                self._raw: IO[bytes] = self._files.enter_context(
                    open(sys.stdin.fileno(), "rb", closefd=False)
                )
            else:
                self._raw = self._files.enter_context(open(self.path, "rb"))
        except OSError as error:
            raise InputError(self.path, f"cannot be read: {error.strerror or error}") from None
        self._file = self._raw
        if self._gzipped:
            self._file = cast("IO[bytes]", self._files.enter_context(gzip.GzipFile(fileobj=self._raw)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def position(self) -> int:
        """Bytes read of the file as it lies on disk; 0 where that means nothing."""
        return 0 if self.size is None else self._raw.tell()

    def reject(self, line: int, reason: str) -> None:
        error = InputError(f"{self.path}:{line}", reason, skippable=not self.strict)
        if self.strict:
            raise error
        reject(error, self._on_error)

    def lines(self) -> Iterator[tuple[int, str | None]]:
        """Number and content of each line, without its end; ``None`` for one that was rejected."""
        number = 0
        while True:
            number += 1
            line = self._readline(number)
            if not line:
                return
            if len(line) > MAX_RECORD_BYTES and not line.endswith(b"\n"):
                while line and not line.endswith(b"\n"):
                    line = self._readline(number)
                self.reject(number, f"the line is longer than {MAX_RECORD_BYTES >> 20} MiB")
                yield number, None
                continue
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                hint = "; the file looks like UTF-16: convert it" if line.startswith(_UTF16_BOMS) else ""
                self.reject(
                    number, f"not valid UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1}{hint}"
                )
                yield number, None
                continue
            text = text.removesuffix("\n").removesuffix("\r")
            yield number, text.removeprefix(_BOM) if number == 1 else text

    def _readline(self, number: int) -> bytes:
        try:
            return self._file.readline(MAX_RECORD_BYTES + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(f"{self.path}:{number}", f"the gzip data is damaged: {error}") from None
        except OSError as error:
            raise InputError(f"{self.path}:{number}", f"cannot be read: {error.strerror or error}") from None


def _size(path: str) -> int | None:
    """Bytes of the file at ``path``, ``None`` for a pipe or device; `InputError` if it cannot be read."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InputError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(status.st_mode):
        raise InputError(path, "is a folder; name the files in it")
    if not os.access(path, os.R_OK):
        raise InputError(path, "cannot be read: Permission denied")
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _tsv_rows(source: _Source) -> Iterator[tuple[int, list[str]]]:
    for line, content in source.lines():
        if content is not None:
            yield line, content.split("\t")


def _csv_rows(source: _Source) -> Iterator[tuple[int, list[str]]]:
    """Rows of a CSV file, each with the number of its first line.

    (The standard library's reader refuses fields over a limit that is one setting for the whole process, and
    does not tell an unclosed quote from the end of the file.)
    """
    row: list[str] = []
    quoted: list[str] | None = None  # parts of a quoted field that is open across lines
    first = size = 0
    usable = True
    for number, line in source.lines():
        if quoted is None:
            row, first, size, usable = [], number, 0, True
        if line is None:
            usable = False
            continue
        size += len(line)
        if size > MAX_RECORD_BYTES:
            source.reject(first, f"a quoted field does not close within {MAX_RECORD_BYTES >> 20} MiB")
            quoted = None
            continue
        at = 0
        while at <= len(line):
            if quoted is None and line.startswith('"', at):
                quoted = []
                at += 1
            if quoted is None:
                end = line.find(",", at)
                end = len(line) if end < 0 else end
                row.append(line[at:end])
                at = end + 1
                continue
            end = _closing_quote(line, at)
            if end < 0:
                quoted.append(line[at:].replace('""', '"') + "\n")
                break
            quoted.append(line[at:end].replace('""', '"'))
            row.append("".join(quoted))
            quoted = None
            at = end + 2
            if line[end + 1 : at] not in ("", ","):
                source.reject(first, f"text follows a closing quote (column {end + 2} of line {number})")
                usable = False
                break
        if quoted is None and usable:
            yield first, row
    if quoted is not None:
        source.reject(first, "a quoted field that opens in this row never closes")


def _closing_quote(line: str, at: int) -> int:
    """Position of the quote that ends a quoted field (two stand for one), -1 if the line does not end it."""
    while True:
        at = line.find('"', at)
        if at < 0 or line[at + 1 : at + 2] != '"':
            return at
        at += 2
