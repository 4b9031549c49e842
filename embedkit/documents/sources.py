"""Input files as lines and rows: finding, opening and decompressing them."""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Literal, cast

from .errors import InputError, OnError, reject
from .whole import import_reader, not_utf8

__all__ = [
    "FORMATS",
    "OWN_TABLE",
    "STDIN",
    "Format",
    "Source",
    "Span",
    "csv_rows",
    "format_of",
    "import_pyarrow",
    "listed_formats",
    "names_of",
    "tsv_rows",
]

Format = Literal["txt", "text", "md", "html", "json", "jsonl", "csv", "tsv", "parquet", "pdf", "docx"]

FORMATS: tuple[Format, ...] = (
    "txt",
    "text",
    "md",
    "html",
    "json",
    "jsonl",
    "csv",
    "tsv",
    "parquet",
    "pdf",
    "docx",
)
OWN_TABLE = b"embedkit.documents"
"""In the schema's metadata of a parquet file that an index has exported."""
STDIN = "-"
MAX_RECORD_BYTES = 64 << 20
"""A longer line (or quoted CSV record) is malformed: bounds memory for files that are not text."""

_PACKED_AS = ("gz", "zst")
_ALSO = {"text": "", "ndjson": "jsonl", "htm": "html", "markdown": "md"}  # "text" is no file name's ending
_NEVER_PACKED = ("parquet", "pdf", "docx")
_BOM = "\ufeff"
# of a date beyond Python's, an unknown time zone (of zoneinfo or pytz a KeyError), text that is not UTF-8
_NO_VALUE = (OverflowError, ValueError, KeyError)
_NEEDS_PYARROW = "which is not installed: pip install 'embedkit[parquet]'"


def listed_formats() -> str:
    """The file types that are read, for messages."""
    return (
        ".txt, .md, .html, .json, .jsonl, .ndjson, .csv, .tsv, .parquet, .pdf and .docx, all but the last three "
        "also with .gz or .zst"
    )


def format_of(name: str) -> tuple[Format | None, str]:
    """The format by a file's name, and its compression: "", ".gz" or ".zst"."""
    base = os.path.basename(name)  # pathlib takes most of the time of walking a large folder
    suffixes = [] if base.endswith(".") else base.lstrip(".").lower().split(".")[1:]
    packing = f".{suffixes.pop()}" if suffixes and suffixes[-1] in _PACKED_AS else ""
    extension = suffixes[-1] if suffixes else ""
    extension = _ALSO.get(extension, extension)
    known = extension in FORMATS and not (packing and extension in _NEVER_PACKED)
    return cast(Format, extension) if known else None, packing


def import_pyarrow(purpose: str) -> Any:
    """Import pyarrow, or raise `ImportError` naming the extra that installs it."""
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError(f"{purpose} needs pyarrow, {_NEEDS_PYARROW}") from error
    return pyarrow


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive lines or rows of a file, read on their own.

    Attributes:
        first: number of the first line or row, from 1.
        begin: the first byte of a file of lines, the first row (from 0) of a parquet file.
        end: likewise, exclusive.
    """

    first: int
    begin: int
    end: int


class Source:
    """One input, opened as a context manager and read as decoded lines or tables.

    Attributes:
        path: the file, or "stdin".
        name: what the default ids of its documents begin with.
        size: bytes of the file; ``None`` if unknown.
        format: of the file.
        strict: a malformed record is an error whatever ``on_error`` says, as is the header of a table.
        binary: the columns of a parquet file that hold bytes, once `tables` has opened it.
    """

    def __init__(
        self,
        path: str,
        name: str,
        format: Format | None,
        on_error: OnError,
        *,
        span: Span | None = None,
        open_file: Callable[[str], IO[bytes]] | None = None,
        remedy: str = "",
    ) -> None:
        """Check that ``path`` can be read.

        Args:
            path: the file, or ``-``.
            name: what the default ids of its documents begin with.
            format: of the file; ``None``: by its name.
            on_error: what to do with a malformed line.
            span: the part to read of an uncompressed file; ``None``: all.
            open_file: opens a ``path`` that is not on this machine; it is not checked before.
            remedy: added to the message if its name tells no format.
        """
        self.path = "stdin" if path == STDIN else path
        self.name = "stdin" if path == STDIN else name
        self.size = None if path == STDIN or open_file is not None else _size(path)
        self.strict = False
        self.binary: frozenset[str] = frozenset()
        self.own = False  # a parquet file that an index has exported
        self._span = span
        self._open_file = open_file
        self._on_error = on_error
        self._from_stdin = path == STDIN
        found, self._packing = format_of("-.txt" if path == STDIN else path)
        if format is None and found is None:
            raise InputError(path, f"unknown file type; embedkit reads {listed_formats()}{remedy}")
        self.format: Format = format or found or "txt"
        if self.format == "parquet":
            if self._packing or self._from_stdin:
                raise InputError(path, "a parquet file cannot be compressed or read from standard input")
            import_pyarrow("reading .parquet")
        elif self.format in _NEVER_PACKED and self._packing:
            raise InputError(path, f"a {self.format} file cannot be compressed")
        import_reader(self.format)
        if self._packing == ".zst":
            import_pyarrow("reading .zst")
        self._files = ExitStack()
        self._fraction = 0.0  # of a file that is not read sequentially

    def __enter__(self) -> Source:
        """Open the file."""
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
                opened = open(self.path, "rb") if self._open_file is None else self._open_file(self.path)
                self._raw = self._files.enter_context(opened)
            if self._span is not None and self.format != "parquet":
                self._raw.seek(self._span.begin)
        except OSError as error:
            raise InputError(self.path, f"cannot be read: {error.strerror or error}") from None
        self._file = self._raw
        if self._packing == ".gz":
            self._file = cast("IO[bytes]", self._files.enter_context(gzip.GzipFile(fileobj=self._raw)))
        elif self._packing == ".zst":
            pyarrow = import_pyarrow("reading .zst")
            stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(self._raw, "r"), "zstd")
            self._file = self._files.enter_context(io.BufferedReader(stream, 1 << 20))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._files.close()

    def position(self) -> int:
        """Bytes read of the file on disk (compressed ones, if it is); 0 if unknown."""
        if self.format in _NEVER_PACKED:
            return int(self._fraction * (self.size or 0))
        return 0 if self.size is None else self._raw.tell()

    def reject(self, line: int, reason: str) -> None:
        """Treat a malformed record as ``on_error`` says."""
        error = InputError(f"{self.path}:{line}", reason, skippable=not self.strict)
        if self.strict:
            raise error
        reject(error, self._on_error)

    def content(self) -> bytes | None:
        """All bytes of the file, decompressed; ``None`` if it was rejected as too large."""
        parts: list[bytes] = []
        left = MAX_RECORD_BYTES + 1
        while left > 0 and (part := self._read(1, lambda: self._file.read(1 << 20))):
            parts.append(part)
            left -= len(part)
        if left <= 0:
            remedy = (
                ": convert it to .jsonl, which is read line by line (jq -c '.[]')"
                if self.format == "json"
                else ""
            )
            self.reject(1, f"the file is larger than {MAX_RECORD_BYTES >> 20} MiB{remedy}")
            return None
        return b"".join(parts)

    def seekable(self) -> IO[bytes] | None:
        """The file itself, to be read at any place, whatever its size; ``None`` if `content` has rejected it.

        Standard input is read to its end first.
        """
        self._fraction = 1.0
        if self._raw.seekable():
            return self._raw
        content = self.content()
        return None if content is None else io.BytesIO(content)

    def lines(self) -> Iterator[tuple[int, str | None]]:
        """Number and content of each line, without its line ending; ``None`` for a rejected line."""
        number = 0 if self._span is None else self._span.first - 1
        while self._span is None or self._raw.tell() < self._span.end:
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
                self.reject(number, not_utf8(line, error, first=number == 1))
                yield number, None
                continue
            text = text.removesuffix("\n").removesuffix("\r")
            yield number, text.removeprefix(_BOM) if number == 1 else text

    def _readline(self, number: int) -> bytes:
        return self._read(number, lambda: self._file.readline(MAX_RECORD_BYTES + 1))

    def _read(self, number: int, read: Callable[[], bytes]) -> bytes:
        try:
            return read()
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(f"{self.path}:{number}", f"the gzip data is damaged: {error}") from None
        except OSError as error:
            if self._packing == ".zst" and error.errno is None:
                raise InputError(f"{self.path}:{number}", f"the zstd data is damaged: {error}") from None
            raise InputError(f"{self.path}:{number}", f"cannot be read: {error.strerror or error}") from None

    def tables(self) -> Iterator[tuple[int, dict[str, list[Any]]]]:
        """The rows of a parquet file in one or more batches: the number of the first row (from 1), and columns by name.

        Raises:
            InputError: it is not a parquet file, or damaged.
        """
        pyarrow = import_pyarrow("reading .parquet")
        from pyarrow.parquet import ParquetFile

        row = 0
        try:
            file = ParquetFile(self._raw)
            if twice := [name for name, count in Counter(file.schema_arrow.names).items() if count > 1]:
                raise InputError(self.path, f"two columns are named {twice[0]!r}; rename one")
            self.own = OWN_TABLE in (file.schema_arrow.metadata or {})
            self.binary = frozenset(field.name for field in file.schema_arrow if _holds_bytes(field.type))
            maps = {field.name: field.type for field in file.schema_arrow if _holds_map(field.type)}
            begin, end = 0, file.metadata.num_rows
            if self._span is not None:
                begin, end = self._span.begin, self._span.end
            groups, row = _row_groups(file.metadata, begin, end)
            for batch in file.iter_batches(batch_size=1024, row_groups=groups):
                start, stop = max(begin - row, 0), min(end - row, batch.num_rows)
                self._fraction = (row + stop) / max(1, file.metadata.num_rows)
                if start < stop:
                    for first, columns in self._columns(batch.slice(start, stop - start), row + start + 1):
                        for name, kind in maps.items():
                            columns[name] = [_with_dicts(value, kind) for value in columns[name]]
                        yield first, columns
                row += batch.num_rows
            if begin >= end:
                yield begin + 1, {name: [] for name in file.schema_arrow.names}
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(f"{self.path}:{row + 1}", f"the parquet data is damaged: {error}") from None

    def _columns(self, batch: Any, first: int) -> Iterator[tuple[int, dict[str, list[Any]]]]:
        """The columns of ``batch``; row by row if Python has no such value, to reject only the rows that hold one."""
        try:
            yield first, batch.to_pydict()
            return
        except _NO_VALUE:
            pass
        for at in range(batch.num_rows):
            columns: dict[str, list[Any]] = {}
            for name, column in zip(batch.schema.names, batch.slice(at, 1).columns, strict=True):
                try:
                    columns[name] = column.to_pylist()
                except _NO_VALUE as error:
                    self.reject(
                        first + at, f"the field {name!r}, {column.type}, holds no usable value: {error}"
                    )
                    break
            else:
                yield first + at, columns


def _holds_bytes(kind: Any) -> bool:
    """Whether a type of pyarrow is one of bytes, or of lists or objects with such."""
    types = import_pyarrow("reading .parquet").types
    if types.is_dictionary(kind):
        return _holds_bytes(kind.value_type)
    if types.is_nested(kind):
        return any(_holds_bytes(kind.field(at).type) for at in range(kind.num_fields))
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return True
    return str(kind) == "binary_view"  # pyarrow 15 has no function for it


def _holds_map(kind: Any) -> bool:
    """Whether a type of pyarrow is a map, or one of lists or objects with such."""
    types = import_pyarrow("reading .parquet").types
    if types.is_map(kind):
        return True
    return bool(types.is_nested(kind)) and any(
        _holds_map(kind.field(at).type) for at in range(kind.num_fields)
    )


def _with_dicts(value: Any, kind: Any) -> Any:
    """A value of pyarrow's type ``kind``, its maps as dicts: pyarrow makes lists of pairs of them.

    (Its maps_as_pydicts is not in pyarrow 15.)
    """
    types = import_pyarrow("reading .parquet").types
    if value is None:
        return None
    if types.is_map(kind):
        return {key: _with_dicts(item, kind.item_type) for key, item in value}
    if types.is_struct(kind):
        fields = (kind.field(at) for at in range(kind.num_fields))
        return {field.name: _with_dicts(value[field.name], field.type) for field in fields}
    return [_with_dicts(item, kind.value_type) for item in value] if types.is_nested(kind) else value


def names_of(paths: list[str]) -> list[str]:
    """What the default ids of each file's documents begin with: its name, or its path if names repeat."""
    names = [os.path.basename(path) for path in paths]
    return names if len(set(names)) == len(names) else paths  # distinguishes a/x.txt from b/x.txt


def _row_groups(metadata: Any, begin: int, end: int) -> tuple[list[int], int]:
    """The row groups of a parquet file that hold its rows ``begin`` to ``end``, and the first row of the first."""
    groups: list[int] = []
    first = row = 0
    for number in range(metadata.num_row_groups):
        rows = metadata.row_group(number).num_rows
        if row < end and row + rows > begin:
            first = first if groups else row
            groups.append(number)
        row += rows
    return groups, first


def _size(path: str) -> int | None:
    """Bytes of the file at ``path``, ``None`` for a pipe or device; `InputError` if it cannot be read."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InputError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not os.access(path, os.R_OK):
        raise InputError(path, "cannot be read: Permission denied")
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _table_lines(source: Source) -> Iterator[tuple[int, str | None]]:
    """The lines of a table; refuses a header that holds the rest of a file whose lines end in ``\\r``."""
    for number, line in source.lines():
        if source.strict and line is not None and "\r" in line:
            source.reject(
                number,
                "the header holds a carriage return (\\r) within the line; save the file with lines that end in "
                "\\n or \\r\\n, e.g. by: tr '\\r' '\\n' < FILE > NEW",
            )
        yield number, line


def tsv_rows(source: Source) -> Iterator[tuple[int, list[str]]]:
    """Rows of a TSV file, each with the number of its line."""
    for line, content in _table_lines(source):
        if content is not None:
            yield line, content.split("\t")


def csv_rows(source: Source) -> Iterator[tuple[int, list[str]]]:
    """Rows of a CSV file, each with the number of its first line.

    Of a row whose quote never closes, or only where another opens, the first line is rejected; those after it are
    read as rows of their own.

    (The standard library's reader limits the size of fields by a setting of the whole process, and does not
    distinguish an unclosed quote from the end of the file.)
    """
    row: list[str] = []
    quoted: list[str] | None = None  # parts of a quoted field that is open across lines
    first = size = 0
    usable = True
    lines = _table_lines(source)
    rest: list[str | None] = []  # the row's lines but the first
    # Lines to read again. All quotes that an open one ran over are doubled, and no field that opens with such leaves
    # its line: only the last of these lines can begin such a row again.
    again: Iterator[tuple[int, str | None]] = iter(())
    while True:
        taken = next(again, None) or next(lines, None)
        if taken is None:
            if quoted is None:
                return
            source.reject(first, "a quoted field that opens in this row never closes")
            quoted, again = None, enumerate(rest, first + 1)
            continue
        number, line = taken
        if quoted is None:
            row, first, size, usable, rest = [], number, 0, True, []
        else:
            rest.append(line)
            size += 1  # the line break
        if line is None:
            usable = False
            continue
        size += len(line)
        if size > MAX_RECORD_BYTES:
            source.reject(first, f"a quoted field does not close within {MAX_RECORD_BYTES >> 20} MiB")
            quoted, again = None, enumerate(rest, first + 1)
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
            began_before = len(quoted) > 1
            quoted = None
            at = end + 2
            if line[end + 1 : at] not in ("", ","):
                usable = False
                if began_before and line[:end].rstrip('"')[-1:] in ("", ","):
                    source.reject(
                        first,
                        "a quoted field that opens in this row does not close before another opens "
                        f"(column {end + 1} of line {number})",
                    )
                    again = enumerate(rest, first + 1)
                else:
                    source.reject(first, f"text follows a closing quote (column {end + 2} of line {number})")
                break
        if quoted is None and usable:
            yield first, row


def _closing_quote(line: str, at: int) -> int:
    """Position of the quote that closes a quoted field (two are an escaped one), -1 if none does."""
    while True:
        at = line.find('"', at)
        if at < 0 or line[at + 1 : at + 2] != '"':
            return at
        at += 2
