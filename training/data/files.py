"""Reads rows of training and evaluation files.

Files are UTF-8, plain or gzipped: ``.tsv`` (header row, no quoting), ``.csv`` (RFC 4180), ``.jsonl``,
``.txt`` (a sentence a line, the column ``text``), and ``.parquet``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from ...documents.errors import InputError
from ...documents.sources import Source, csv_rows, tsv_rows

__all__ = ["ABSENT", "Rows", "file_rows", "named_rows"]

_FORMATS = (".tsv", ".csv", ".jsonl", ".txt", ".parquet")

ABSENT = object()
"""The value of a field that the header has and a row of JSON has not."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Rows:
    """The rows of a file or data set.

    Attributes:
        header: the names of all columns.
        origin: what messages name.
        of: (line, values) of each row, read lazily and once, for some of the columns, in the order given; a parquet
            file or a data set leaves the others on disk.
    """

    header: list[str]
    origin: str
    of: Callable[[Sequence[str]], Iterator[tuple[int, Sequence[Any]]]]

    def __post_init__(self) -> None:
        """Refuse a header that names a column twice; spreadsheets write several without a name."""
        for name in self.header:
            if name and self.header.count(name) > 1:
                raise ValueError(f"{self.origin}: two columns are named {name!r}; rename one")


def file_rows(path: Path) -> Rows:
    """The rows of a file, read lazily.

    Raises:
        ValueError: the format is unknown, or the file is damaged (also while the rows are read); names the file and,
            if known, the line.
        FileNotFoundError: the file does not exist.
        ImportError: `pyarrow` is needed and missing.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    gzipped = suffixes[-1:] == [".gz"]
    kind = (suffixes[:-1] if gzipped else suffixes)[-1:]
    if kind not in [[name] for name in _FORMATS] or (gzipped and kind == [".parquet"]):
        raise ValueError(
            f"{path}: unknown kind of file; training reads {', '.join(_FORMATS)} "
            "(all but .parquet also with .gz)"
        )
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    origin = str(path)
    if kind == [".parquet"]:
        return _parquet_rows(path)
    if kind == [".jsonl"]:
        return _json_rows(origin, _read(path, _lines))
    if kind == [".txt"]:
        lines = _read(path, _lines)
        return _picked(["text"], origin, ((number, [line]) for number, line in lines if line.strip()))
    records = _read(path, _csv_rows if kind == [".csv"] else tsv_rows)
    first = next(records, None)
    if first is None:
        raise ValueError(f"{path}: the file is empty; its first row must name the columns")
    return _picked(first[1], origin, _whole(origin, first[1], records))


def named_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """(``file:line``, the fields of ``columns``) of each row of a table.

    Raises:
        ValueError: a column is missing, or as for `file_rows`.
    """
    rows = file_rows(path)
    for name in columns:
        if name not in rows.header:
            raise ValueError(f"{rows.origin}:1: no column {name!r}; there are {', '.join(rows.header)}")
    for line, values in rows.of(columns):
        for name, value in zip(columns, values, strict=True):
            if value is ABSENT:
                raise ValueError(f"{rows.origin}:{line}: no field {name!r}, which the first line has; add it")
        yield f"{rows.origin}:{line}", list(values)


def _picked(header: list[str], origin: str, records: Iterator[tuple[int, list[str]]]) -> Rows:
    def of(columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        places = [header.index(name) for name in columns]
        return ((line, [row[at] for at in places]) for line, row in records)

    return Rows(header, origin, of)


def _whole(
    origin: str, header: list[str], records: Iterator[tuple[int, list[str]]]
) -> Iterator[tuple[int, list[str]]]:
    for number, row in records:
        if row == [""] and len(header) > 1:  # an empty line
            continue
        if len(row) != len(header):
            raise ValueError(
                f"{origin}:{number}: {len(row)} columns where the header has {len(header)}; repair the row "
                "(.tsv has no quoting: texts contain neither tabs nor line breaks)"
            )
        yield number, row


def _read(path: Path, rows: Callable[[Source], Iterator[tuple[int, _T]]]) -> Iterator[tuple[int, _T]]:
    """The rows of a file of lines, by a reader of embedkit's documents."""
    try:
        with Source(str(path), path.name, None, "stop") as source:
            yield from rows(source)
    except InputError as error:
        raise ValueError(f"{error}; repair the file, or fetch it again") from None


def _lines(source: Source) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in source.lines() if line is not None)


def _csv_rows(source: Source) -> Iterator[tuple[int, list[str]]]:
    return ((number, row) for number, row in csv_rows(source) if row != [""])  # empty lines are no rows


def _json_rows(origin: str, lines: Iterator[tuple[int, str]]) -> Rows:
    def objects() -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in lines:
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{origin}:{number}: not valid JSON ({error}); repair the line") from None
            if not isinstance(value, dict):
                raise ValueError(f"{origin}:{number}: not a JSON object; write one object a line")
            yield number, value

    records = objects()
    first = next(records, None)
    if first is None:
        raise ValueError(f"{origin}: the file is empty; give one with rows")

    def of(columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
        every = chain([first], records)
        return ((number, [value.get(name, ABSENT) for name in columns]) for number, value in every)

    return Rows(list(first[1]), origin, of)


def _batches(path: Path, file: Any, columns: list[str]) -> Iterator[Any]:
    try:
        yield from file.iter_batches(columns=columns)
    except OSError as error:  # pyarrow's own errors are some of these
        raise ValueError(f"{path}: damaged parquet data ({error}); fetch the file again") from None


def _parquet_rows(path: Path) -> Rows:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError(f"{path}: reading parquet needs pyarrow: pip install pyarrow") from None
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path}: not a parquet file ({error}); fetch it again") from None

    def of(columns: Sequence[str]) -> Iterator[tuple[int, Sequence[Any]]]:
        number = 0
        for batch in _batches(path, file, list(dict.fromkeys(columns))):
            for row in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                number += 1
                yield number, row

    return Rows(list(file.schema_arrow.names), str(path), of)
