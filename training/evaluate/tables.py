"""The data folder and its tables: ``.tsv`` or ``.tsv.gz``, a header row, no quoting and no escaping."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...files import expanded
from ..data.files import named_rows

__all__ = ["DATA_VARIABLE", "Data", "Row", "data_folder", "read_table"]

Data = str | os.PathLike[str] | None
DATA_VARIABLE = "EMBEDKIT_DATA"
_EXPECTED = (
    "a folder with sts_en/sts_en.tsv.gz, zh/zh_pairs.tsv.gz, zh/zh_sts.tsv.gz, "
    "retrieval/{docs,queries,qrels}.tsv.gz and quora/quora_pairs.tsv.gz, or those that the evaluation reads"
)


class Row(dict[str, str]):
    """A row of a table: column -> field.

    Attributes:
        origin: ``file:line``.
    """

    def __init__(self, columns: Sequence[str], fields: Sequence[str], origin: str) -> None:
        """Pair ``columns`` with ``fields``."""
        super().__init__(zip(columns, fields, strict=True))
        self.origin = origin

    def text(self, column: str) -> str:
        """The field, which must not be blank."""
        if not self[column].strip():
            raise ValueError(f"{self.origin}: {column} is blank")
        return self[column]

    def number(self, column: str, low: float, high: float) -> float:
        """The field as a number from ``low`` to ``high``."""
        try:
            value = float(self[column])
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise ValueError(
                f"{self.origin}: {column} is {self[column]!r}; expected a number from {low:g} to {high:g}"
            )
        return value

    def label(self, column: str) -> bool:
        """The field, which must be 0 or 1."""
        if self[column] not in ("0", "1"):
            raise ValueError(f"{self.origin}: {column} is {self[column]!r}; expected 0 or 1")
        return self[column] == "1"


def data_folder(data: Data = None) -> Path:
    """The folder of evaluation data: ``data``, else the environment variable ``EMBEDKIT_DATA``.

    Raises:
        ValueError: neither is given.
        FileNotFoundError: it is not a folder.
    """
    given = data if data is not None else os.environ.get(DATA_VARIABLE)
    if not given:
        raise ValueError(f"no evaluation data: give data= (--data) or set {DATA_VARIABLE} to {_EXPECTED}")
    folder = expanded(given)
    if not folder.is_dir():
        origin = "the data folder" if data is not None else DATA_VARIABLE
        raise FileNotFoundError(f"{origin} {os.fspath(given)!r} is not a folder; give {_EXPECTED}")
    return folder


def read_table(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """The rows of a table, checked one by one as they are read.

    Args:
        path: ``.tsv`` or ``.tsv.gz``, UTF-8.
        columns: the columns to read; the table may have others.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: a column is missing, a row has more or fewer fields than the header, or the file is
            damaged; names the file and, if known, the line.
    """
    for origin, fields in named_rows(path, columns):
        yield Row(columns, fields, origin)
