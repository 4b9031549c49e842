"""Reading documents from files: records one at a time, or whole files.

* ``.txt``: one text per line, or the whole file (``text``).
* ``.md``, ``.html``, ``.pdf``, ``.docx``: one document per file; its title and Markdown's front
  matter are metadata.
* ``.json``: an array of objects as in ``.jsonl`` (or of texts), an object that holds one (if of texts, nothing
  else), or one object.
* ``.jsonl``, ``.ndjson``: one JSON object per line; the field ``text`` is indexed, ``id`` is the id, all
  others are metadata.
* ``.csv``: RFC 4180 (quoted fields may contain commas, quotes and line breaks); column names in the first row.
* ``.tsv``: tab-separated, without quoting; column names in the first row.
* ``.parquet``: columns as the fields of ``.jsonl``; maps are objects, NaN is null, and columns of bytes other than text
  and id are left out with a warning.

Text files may be compressed (``.gz``, ``.zst``). Text is UTF-8, with or without a byte order mark; lines end
in ``\\n`` or ``\\r\\n``. Documents whose text is empty or white space, and which bring no vector, are skipped and
counted as blank. The default id is ``file:line``, or ``file`` for a file that is one text; see `folders` for the file's
name.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import os
import uuid
import warnings
import zipfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
import numpy.typing as npt

from .document import Document, json_type
from .errors import InputError, OnError
from .folders import Files, NamedBy, Patterns, find_files
from .sources import FORMATS, STDIN, Format, Source, csv_rows, format_of, tsv_rows
from .whole import READ_IN_PARTS, WHOLE, UnreadableError, not_utf8, read_whole

__all__ = ["FORMATS", "Corpus", "Format", "Names", "check_fields"]

_OPTIONS = ("--format", "--text-field", "--id-field", "--vector-field")
_VECTORS_AT_ONCE = 4096
_WITH_VECTORS = ("json", "jsonl", "parquet")  # in a field of their records
_UNNAMED = (
    "a document has no id, and the index has no root that names of files are relative to; name that folder: "
    "--root FOLDER, or --id-field, if another field holds the ids"
)


class _Record(NamedTuple):
    """A record of an input: its line or row, and the fields of its `Document`."""

    line: int
    text: str
    id: str | None = None
    metadata: dict[str, Any] | None = None
    vector: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """How the files of a `Corpus` are found and named.

    Attributes:
        root: the folder that names are relative to; ``None``: the folder given, or the one all inputs share.
        named_by: what they are named by; "none": a document without an id is refused.
        patterns: which files below a folder are read; ``None``: all of a known type.
        whole_text: a ``.txt`` file is one document.
        whole_stdin: so is the text of standard input.
    """

    root: str | None = None
    named_by: NamedBy = "root"
    patterns: Patterns | None = None
    whole_text: bool = False
    whole_stdin: bool = False


def _format(path: str, format: Format | None, names: Names) -> Format | None:
    known = format or ("txt" if path == STDIN else format_of(path)[0])
    return "text" if known == "txt" and (names.whole_stdin if path == STDIN else names.whole_text) else format


def check_fields(text_field: str, id_field: str | None, vector_field: str | None = None) -> None:
    """Refuse one field for two purposes.

    Raises:
        InputError: the text, the id or the vector have the same field.
    """
    named = zip(_OPTIONS[1:], (text_field, id_field, vector_field), strict=True)
    given = [(option, name) for option, name in named if name is not None]
    for at, (option, name) in enumerate(given):
        for other, same in given[:at]:
            if name == same:
                raise InputError(
                    "", f"{other} and {option} both name the field {name!r}; a field is one of the two"
                )


class Corpus:
    """Input files as one stream of `Document`; can be iterated once.

    Attributes:
        blank: documents skipped so far because their text is empty or white space, and they bring no vector.
        named: whether a record so far had an id of its own.
        total_bytes: size of all inputs, the final value of ``Document.position``; ``None`` if unknown.
        files: the input files, and what was left out of folders.
    """

    def __init__(
        self,
        inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        format: Format | None = None,
        text_field: str = "text",
        id_field: str | None = None,
        vector_field: str | None = None,
        vectors: str | os.PathLike[str] | None = None,
        on_error: OnError = "stop",
        names: Names | None = None,
        options: Collection[str] = _OPTIONS,
    ) -> None:
        """Check that every input exists and is readable, without reading it.

        Args:
            inputs: files, or one: folders (all files of a known type below them) and patterns such as ``*.jsonl``;
                ``-`` is standard input.
            format: the format of every input; ``None``: by file name, and ``txt`` for standard input.
            text_field: field or column of the text.
            id_field: field or column of the id, which every record must have; ``None``: ``id`` if there is one.
            vector_field: field or column of precomputed vectors (lists of numbers).
            vectors: a ``.npy`` file of precomputed vectors, one per document in order.
            on_error: what to do with a malformed line, as in `embedkit.Index.build`.
            names: how files are found and named; ``None``: as `Names` does by default.
            options: --format, --text-field, --id-field and --vector-field, or those of them that the caller's
                command has: what messages may offer.

        Raises:
            InputError: an input is missing, unreadable, of unknown format, given twice, or has no fields for vectors.
            ImportError: an input needs pyarrow, which is not installed.
        """
        if isinstance(inputs, (str, os.PathLike)):
            inputs = [inputs]
        if not inputs:
            raise InputError("", "no input files given")
        if vectors is not None and (vector_field is not None or on_error != "stop"):
            raise InputError(
                os.fspath(vectors),
                "a file of vectors belongs to the documents by their order: malformed lines cannot be skipped, "
                "and no field can hold vectors as well",
            )
        check_fields(text_field, id_field, vector_field)
        names = names or Names()
        files = find_files(
            inputs,
            root=names.root,
            named_by=names.named_by,
            patterns=names.patterns,
            any_type=format is not None,
        )
        remedy = " (for any other name, set the format with --format)" if "--format" in options else ""
        sources = [
            Source(path, name, _format(path, format, names), on_error, remedy=remedy)
            for path, name in zip(files.paths, files.names, strict=True)
        ]
        for source in sources:
            if vector_field is not None and source.format not in _WITH_VECTORS:
                named = "; if it is one of them, name it with --format" if "--format" in options else ""
                raise InputError(
                    source.path,
                    f"vectors are read only from fields of json, jsonl and parquet, and from .npy files{named}",
                )
            # records may have ids of their own
            if not source.name and id_field is None and source.format in ("txt", *WHOLE):
                raise InputError(source.path, _UNNAMED)
        known: set[str] = set()
        for path in files.paths:
            identity = path if path == STDIN else os.path.realpath(path)
            if identity in known:
                raise InputError(path, "the input is given twice")
            known.add(identity)
        self.files = files
        self._options = options
        self._read(sources, text_field, id_field, vector_field, vectors)

    @classmethod
    def of_sources(cls, sources: Sequence[Source], *, text_field: str, id_field: str | None) -> Corpus:
        """The documents of ``sources``."""
        corpus = cls.__new__(cls)
        corpus.files = Files()
        corpus._options = ("--text-field", "--id-field")  # of build on Ray
        corpus._read(sources, text_field, id_field, None, None)
        return corpus

    def _read(
        self,
        sources: Sequence[Source],
        text_field: str,
        id_field: str | None,
        vector_field: str | None,
        vectors: str | os.PathLike[str] | None,
    ) -> None:
        self.blank = 0
        self.named = False
        self._text_field = text_field
        self._id_field = id_field
        self._vector_field = vector_field
        self._vectors = None if vectors is None else _VectorFile(Path(vectors))
        self._sources = sources
        sizes = [source.size for source in sources]
        self.total_bytes = None if None in sizes else sum(cast("list[int]", sizes))

    def __iter__(self) -> Iterator[Document]:
        """Read the inputs in the order given.

        Raises:
            InputError: a line is malformed and ``on_error`` is "stop"; a file is damaged or lacks a column.
        """
        start = number = 0
        for source in self._sources:
            with source:
                for line, text, document_id, metadata, given in self._records(source):
                    origin = f"{source.path}:{line}"
                    if given is None and not text.strip():
                        if self._vectors is not None:
                            raise InputError(origin, "the text is blank, but vectors are given by position")
                        self.blank += 1
                        continue
                    if document_id is None and not source.name:
                        source.reject(line, _UNNAMED)
                        continue
                    vector = given if self._vectors is None else self._vectors.row(number, origin)
                    number += 1
                    self.named = self.named or document_id is not None
                    yield Document(
                        text,
                        f"{source.name}:{line}" if document_id is None else document_id,
                        metadata,
                        origin,
                        start + source.position(),
                        vector,
                    )
            start += source.size or 0
        if self._vectors is not None and number != self._vectors.rows:
            raise InputError(
                str(self._vectors.path), f"holds {self._vectors.rows} vectors for {number} documents"
            )

    def _records(self, source: Source) -> Iterator[_Record]:
        if source.format == "txt":
            for line, content in source.lines():
                if content is not None:
                    yield _Record(line, content)
        elif source.format == "jsonl":
            yield from self._json_records(source)
        elif source.format == "json":
            yield from self._json_array(source)
        elif source.format in WHOLE:
            yield from self._whole(source)
        elif source.format == "parquet":
            yield from self._parquet_records(source)
        else:
            yield from self._table_records(source)

    def _json_records(self, source: Source) -> Iterator[_Record]:
        for line, content in source.lines():
            if content is None:
                continue
            if not content.strip():
                self.blank += 1
                continue
            try:
                yield _Record(line, *self._json_record(content))
            except _MalformedError as error:
                array = "--format" in self._options and line == 1 and content.lstrip().startswith("[")
                source.reject(line, f"{error}{'; if it is one JSON array: --format json' if array else ''}")

    def _whole(self, source: Source) -> Iterator[_Record]:
        content = source.seekable() if source.format in READ_IN_PARTS else source.content()
        if content is None:
            return
        try:
            text, metadata = read_whole(source.format, content)
        except UnreadableError as error:
            source.reject(1, str(error))
            return
        name = None
        if self._id_field is not None and (given := metadata.pop(self._id_field, None)) is not None:
            try:
                name = _id(self._id_field, given)
            except _MalformedError as error:
                source.reject(1, str(error))
                return
        yield _Record(1, text, source.name or None if name is None else name, metadata or None)

    def _json_array(self, source: Source) -> Iterator[_Record]:
        content = source.content()
        if content is None or not content.strip():
            return
        try:
            found = _parse_json(content.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            source.reject(1, not_utf8(content, error))
            return
        except _MalformedError as error:
            lines = "--format" in self._options and "Extra data at line" in str(error)  # after the first
            source.reject(1, f"{error}{'; if it is JSON Lines: --format jsonl' if lines else ''}")
            return
        if isinstance(found, dict) and self._text_field not in found:
            arrays = [value for value in found.values() if isinstance(value, list)]
            # other arrays than of objects are fields of a record that lacks its text, e.g. tags
            if len(arrays) == 1 and (len(found) == 1 or all(isinstance(item, dict) for item in arrays[0])):
                found = arrays[0]
        for number, record in enumerate(found if isinstance(found, list) else [found], 1):
            try:
                if isinstance(record, str) and self._vector_field is None:
                    yield _Record(number, record)
                elif isinstance(record, dict):
                    yield _Record(number, *self._fields(record))
                else:
                    expected = "a JSON object" + (" or a text" if self._vector_field is None else "")
                    raise _MalformedError(f"element {number} is {json_type(record)}, not {expected}")
            except _MalformedError as error:
                source.reject(number, str(error))

    def _json_record(self, content: str) -> tuple[str, str | None, dict[str, Any], Any]:
        record = _parse_json(content)
        if not isinstance(record, dict):
            raise _MalformedError(f"the line is {json_type(record)}, not a JSON object")
        return self._fields(record)

    def _fields(self, record: dict[str, Any]) -> tuple[str, str | None, dict[str, Any], Any]:
        """Text, id, metadata and vector of a record."""
        if self._text_field not in record:
            raise _MalformedError(f"no field {self._text_field!r} (the fields are: {_listed(record)})")
        text = record.pop(self._text_field)
        if not isinstance(text, str):
            raise _MalformedError(f"the field {self._text_field!r} is {json_type(text)}, not a string")
        vector = None
        if self._vector_field is not None:
            if self._vector_field not in record:
                raise _MalformedError(f"no field {self._vector_field!r} (the fields are: {_listed(record)})")
            vector = _vector(self._vector_field, record.pop(self._vector_field))
        id_field = self._id_field or "id"
        if id_field not in record:
            if self._id_field is not None:
                raise _MalformedError(f"no field {id_field!r} (the fields are: {_listed(record)})")
            return text, None, record, vector
        return text, _id(id_field, record.pop(id_field)), record, vector

    def _parquet_records(self, source: Source) -> Iterator[_Record]:
        names: list[str] = []
        texts = {self._text_field, self._id_field or "id"}
        for first, columns in source.tables():
            if not names:
                self._columns(source.path, list(columns))
                left_out = source.binary - texts
                if left_out:
                    warnings.warn(
                        f"{source.path}: left out, as they hold bytes: {_listed(sorted(left_out))}",
                        stacklevel=2,
                    )
            names = [name for name in columns if name not in source.binary or name in texts]
            for line, values in enumerate(zip(*(columns[name] for name in names), strict=True), first):
                try:
                    record = {
                        name: value if name == self._vector_field else _plain(value, name)
                        for name, value in zip(names, values, strict=True)
                    }
                    yield _Record(line, *(self._own_fields(record) if source.own else self._fields(record)))
                except _MalformedError as error:
                    source.reject(line, str(error))

    def _own_fields(self, record: dict[str, Any]) -> tuple[str, str | None, dict[str, Any], Any]:
        """`_fields` of a row of an index's own export: its metadata are JSON, and its vector is none of them."""
        written = record.pop("metadata", None)
        for name in {"vector", "line"} - {self._vector_field}:
            record.pop(name, None)
        metadata = _parse_json(written) if written else {}
        text, id, others, vector = self._fields({**metadata, **record})
        return text, id, others | {name: metadata[name] for name in metadata.keys() & record.keys()}, vector

    def _table_records(self, source: Source) -> Iterator[_Record]:
        rows = csv_rows(source) if source.format == "csv" else tsv_rows(source)
        source.strict = True  # without a header nothing in the file can be read
        header = next(rows, None)
        source.strict = False
        if header is None:
            return
        line, columns = header
        if source.format == "csv" and len(columns) == 1 and self._text_field not in columns:
            other = next((mark for mark in ";\t|" if mark in columns[0]), None)
            if other is not None:
                raise InputError(
                    f"{source.path}:{line}",
                    f"its columns are separated by {other!r}, and .csv is read with commas: convert it",
                )
        text_column, id_column = self._columns(f"{source.path}:{line}", columns)
        others = [(at, name) for at, name in enumerate(columns) if at not in (text_column, id_column)]
        for line, row in rows:
            if row == [""]:
                self.blank += 1
            elif len(row) != len(columns):
                source.reject(line, f"{len(row)} columns, but the first row has {len(columns)}")
            else:
                metadata = {name: row[at] for at, name in others}
                document_id = None if id_column is None else row[id_column]
                yield _Record(line, row[text_column], document_id, metadata)

    def _columns(self, origin: str, columns: list[str]) -> tuple[int, int | None]:
        """Positions of the text and id columns."""
        for name in columns:
            if columns.count(name) > 1:
                raise InputError(origin, f"two columns are named {name!r}")
        fields = (self._text_field, self._id_field, self._vector_field)
        for wanted, option in zip(fields, _OPTIONS[1:], strict=True):
            if wanted is not None and wanted not in columns:
                remedy = f"; name it with {option}" if option in self._options else ""
                raise InputError(
                    origin, f"no column {wanted!r} (the columns are: {_listed(columns)}){remedy}"
                )
        id_field = self._id_field or "id"
        has_id = id_field in columns and id_field != self._text_field
        return columns.index(self._text_field), columns.index(id_field) if has_id else None


class _MalformedError(Exception):
    """A record is malformed; the message says why."""


def _parse_json(content: str) -> Any:
    try:
        return json.loads(content, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise _MalformedError(f"not valid JSON: {error.msg} at {line}column {error.colno}") from None
    except ValueError as error:
        raise _MalformedError(f"not valid JSON: {error}") from None
    except RecursionError:
        raise _MalformedError("not usable JSON: nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _listed(names: Any) -> str:
    names = [str(name) for name in names]
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "") or "none"


def _number(value: decimal.Decimal) -> int | float | str:
    """A decimal without loss: an integer if its column has no digits after the point, else a float if one is equal."""
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and exponent >= 0:
        return int(value)
    return float(value) if decimal.Decimal(repr(float(value))) == value else str(value)


def _plain(value: Any, name: str) -> Any:
    """A value of the parquet column ``name`` as JSON: times in ISO 8601, NaN as null, bytes as the UTF-8 they hold."""
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        value = _number(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return None
        raise _MalformedError(f"the field {name!r} is {value}, which JSON does not have")
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            raise _MalformedError(f"the field {name!r} holds bytes that are not UTF-8") from None
    if isinstance(value, list):
        return [_plain(item, name) for item in value]
    if isinstance(value, dict):
        # keys of maps may be of any type
        return {str(_plain(key, name)): _plain(item, name) for key, item in value.items()}
    return value


def _id(name: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise _MalformedError(f"the field {name!r} is {json_type(value)}, not a string or an integer")
    return value


def _vector(name: str, value: Any) -> npt.NDArray[np.float32]:
    try:
        vector = np.asarray(value, np.float32)
    except (TypeError, ValueError, OverflowError):
        vector = np.empty((0, 0), np.float32)
    if vector.ndim != 1:
        raise _MalformedError(f"the field {name!r} is not a list of numbers")
    return vector


class _VectorFile:
    """The rows of a ``.npy`` file, read in blocks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            if not isinstance(array, np.ndarray):
                array.close()
                raise ValueError("an archive of arrays")
        except OSError as error:
            raise InputError(str(path), f"cannot be read: {error.strerror or error}") from None
        except (ValueError, EOFError, zipfile.BadZipFile):
            # numpy's message speaks of loading objects "unsafely"
            raise InputError(
                str(path), "is not a .npy file of numbers, as numpy.save writes it from an array of floats"
            ) from None
        if array.ndim != 2 or array.dtype.kind != "f" or not array.flags.c_contiguous:
            raise InputError(
                str(path),
                f"holds {array.dtype} {array.shape}, expected floats (documents, dimension) in C order",
            )
        self.rows, self._width = array.shape
        self._dtype = array.dtype
        self._offset = int(cast(Any, array).offset)
        self._first = 0
        self._block = np.empty((0, self._width), np.float32)

    def row(self, number: int, origin: str) -> npt.NDArray[np.float32]:
        if number >= self.rows:
            raise InputError(origin, f"{self.path} holds {self.rows} vectors, none for this document")
        if not self._first <= number < self._first + len(self._block):
            count = min(_VECTORS_AT_ONCE, self.rows - number)
            offset = self._offset + number * self._width * self._dtype.itemsize
            values = np.fromfile(self.path, self._dtype, count * self._width, offset=offset)
            self._block = values.reshape(count, self._width).astype(np.float32)
            self._first = number
        vector: npt.NDArray[np.float32] = self._block[number - self._first]
        return vector
