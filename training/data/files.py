"""Reads rows of training and evaluation files.

Files are UTF-8, plain or gzipped: ``.tsv`` (header row, no quoting), ``.csv`` (RFC 4180), ``.jsonl``,
``.txt`` (a sentence a line, the column ``text``), and ``.parquet``.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["ABSENT", "Rows", "file_rows", "named_rows"]

_FORMATS = (".tsv", ".csv", ".jsonl", ".txt", ".parquet")

Rows = tuple[list[str], str, Iterator[tuple[int, Sequence[Any]]]]
"""Header, the origin that messages name (file and kind of place), and (line, values) of each row."""

ABSENT = object()
"""The value of a field that the header has and a row of JSON has not."""


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
        raise FileNotFoundError(
            f"{path}: no such file. Relative paths start at the folder of --data (or EMBEDKIT_DATA); "
            "`embedkit-train RECIPE --show` lists the files that a recipe reads"
        )
    origin = str(path)
    if kind == [".parquet"]:
        return _parquet_rows(path)
    lines = _lines(path, gzipped)
    if kind == [".txt"]:
        return ["text"], origin, ((number, (line,)) for number, line in lines if line.strip())
    if kind == [".jsonl"]:
        return _json_rows(origin, lines)
    records = (
        _csv_records(origin, lines) if kind == [".csv"] else ((n, line.split("\t")) for n, line in lines)
    )
    first = next(records, None)
    if first is None:
        raise ValueError(f"{path}: the file is empty; its first row must name the columns")
    header = first[1]
    for name in header:
        if header.count(name) > 1:
            raise ValueError(f"{path}:1: two columns are named {name!r}; rename one")
    return header, origin, _whole(origin, header, records)


def named_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """(``file:line``, the fields of ``columns``) of each row of a table.

    Raises:
        ValueError: a column is missing, or as for `file_rows`.
    """
    header, origin, rows = file_rows(path)
    for name in columns:
        if name not in header:
            raise ValueError(f"{origin}:1: no column {name!r}; there are {', '.join(header)}")
    places = [header.index(name) for name in columns]
    for line, values in rows:
        for name, place in zip(columns, places, strict=True):
            if values[place] is ABSENT:
                raise ValueError(f"{origin}:{line}: no field {name!r}, which the first line has; add it")
        yield f"{origin}:{line}", [values[place] for place in places]


def _whole(
    origin: str, header: list[str], records: Iterable[tuple[int, list[str]]]
) -> Iterator[tuple[int, list[str]]]:
    for number, row in records:
        if len(row) != len(header):
            raise ValueError(
                f"{origin}:{number}: {len(row)} columns where the header has {len(header)}; repair the row "
                "(.tsv has no quoting: texts contain neither tabs nor line breaks)"
            )
        yield number, row


def _lines(path: Path, gzipped: bool) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with gzip.open(path, "rb") if gzipped else open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                text = line.decode("utf-8").removesuffix("\n").removesuffix("\r")
                yield number, text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}:{number}: not valid UTF-8 at byte {error.start + 1}; convert the file to UTF-8"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}:{number + 1}: damaged gzip data ({error}); fetch the file again") from None


def _csv_records(origin: str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for _, line in lines), strict=True)
    number = 1
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise ValueError(f"{origin}:{number}: not valid CSV ({error}); repair the row") from None
        if row is None:
            return
        if row:
            yield number, row
        number = reader.line_num + 1


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
    header = list(first[1])

    def rows() -> Iterator[tuple[int, list[Any]]]:
        yield first[0], list(first[1].values())
        for number, value in records:
            yield number, [value.get(name, ABSENT) for name in header]

    return header, origin, rows()


def _batches(path: Path, file: Any) -> Iterator[Any]:
    try:
        yield from file.iter_batches()
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

    def rows() -> Iterator[tuple[int, Sequence[Any]]]:
        number = 0
        for batch in _batches(path, file):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                number += 1
                yield number, row

    return list(file.schema_arrow.names), str(path), rows()
