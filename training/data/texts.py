"""Columns of texts that need not fit in memory.

The texts of a training run lie in a file, of which only what is used comes into memory. There, each text takes 8 bytes
for its place, and 16 for its hash while equal texts are looked for.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import tempfile
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt

__all__ = [
    "Chain",
    "KeyIndex",
    "Keys",
    "Rows",
    "Selection",
    "TextFile",
    "TextWriter",
    "distinct",
    "full_disk_named",
    "text_keys",
]

_KEY = 16  # bytes of a text's hash
_CHUNK = 65_536  # numbers that are Python objects at once

Keys = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.int64]


class _Column(Sequence[str]):
    """A sequence of texts whose slices are views."""

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        """A text, or a view of several."""
        if isinstance(index, slice):
            return Selection(self, np.arange(*index.indices(len(self)), dtype=np.int64))
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"text {index} of {count}")
        return self._text(index % count)

    @abstractmethod
    def _text(self, index: int) -> str:
        """Text ``index``, from 0 on."""


class TextFile(_Column):
    """Texts in a file without a name, which is gone with the last user of it, however the process ends."""

    def __init__(self, data: mmap.mmap | bytes, ends: npt.NDArray[np.int64]) -> None:
        """Made by `TextWriter.close`: the texts in UTF-8 one after another, and where each ends."""
        self._data, self._ends = data, ends

    def __len__(self) -> int:
        """The number of texts."""
        return len(self._ends)

    def __iter__(self) -> Iterator[str]:
        """The texts in order."""
        data, start = self._data, 0
        for end in _numbers(self._ends):
            yield data[start:end].decode()
            start = end

    def _text(self, index: int) -> str:
        start = int(self._ends[index - 1]) if index else 0
        return self._data[start : int(self._ends[index])].decode()


class TextWriter:
    """Writes a `TextFile`."""

    def __init__(self, folder: Path | None = None) -> None:
        """Begin a file in ``folder``; None for the system's folder of temporary files."""
        self._folder = folder
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # closed by `close`
        self._ends = array("q")
        self._end = 0

    def append(self, text: str) -> None:
        """Add a text, which must be valid Unicode."""
        data = text.encode()
        try:  # not `full_disk_named`, which would cost more than the rest
            self._file.write(data)
        except OSError as error:
            raise _lacking(error, self._folder) from None
        self._end += len(data)
        self._ends.append(self._end)

    def close(self) -> TextFile:
        """The texts; nothing can be added after this."""
        with full_disk_named(self._folder), self._file as file:
            file.flush()
            # an empty file cannot be mapped
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self._end else b""
        return TextFile(data, np.frombuffer(self._ends, np.int64))


@contextmanager
def full_disk_named(folder: Path | None) -> Iterator[None]:
    """Name the folder, and what helps, where a file of texts finds the disk full.

    Raises:
        OSError: it does.
    """
    try:
        yield
    except OSError as error:
        raise _lacking(error, folder) from None


def _lacking(error: OSError, folder: Path | None) -> OSError:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return error
    remedy = "set TMPDIR to another folder" if folder is None else "choose another output or cache"
    return OSError(
        f"{folder or tempfile.gettempdir()} has no room for the texts ({error.strerror}); free space, or {remedy}"
    )


class Selection(_Column):
    """Some of the texts of a column, in any order."""

    def __init__(self, column: Sequence[str], rows: npt.ArrayLike) -> None:
        """``rows`` (n,) of ``column``."""
        self._column, self._rows = column, np.asarray(rows, np.int64)

    def __len__(self) -> int:
        """The number of texts."""
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        """The texts in order."""
        return (self._column[row] for row in _numbers(self._rows))

    def _text(self, index: int) -> str:
        return self._column[int(self._rows[index])]


class Chain(_Column):
    """Several columns one after another, each with a prefix of its own."""

    def __init__(self, columns: Iterable[Sequence[str]], prefixes: Iterable[str] | None = None) -> None:
        """``prefixes``: what is put before the texts of each column; None for nothing."""
        self._columns = list(columns)
        self._prefixes = list(prefixes) if prefixes is not None else [""] * len(self._columns)
        self._ends = list(accumulate(map(len, self._columns)))

    def __len__(self) -> int:
        """The number of texts."""
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[str]:
        """The texts in order."""
        return chain.from_iterable(
            (prefix + text for text in column) if prefix else column
            for prefix, column in zip(self._prefixes, self._columns, strict=True)
        )

    def _text(self, index: int) -> str:
        number = bisect_right(self._ends, index)
        own = index - (self._ends[number - 1] if number else 0)
        return self._prefixes[number] + self._columns[number][own]


def _numbers(values: Rows) -> Iterator[int]:
    for start in range(0, len(values), _CHUNK):
        yield from values[start : start + _CHUNK].tolist()


def text_keys(texts: Iterable[str]) -> Keys:
    """Hashes (n, 16) of texts: equal for equal texts, and no others (2^-128)."""
    digests = bytearray()
    for text in texts:
        digests += hashlib.blake2b(text.encode(), digest_size=_KEY).digest()
    return np.frombuffer(digests, np.uint8).reshape(-1, _KEY)


def distinct(keys: Keys) -> tuple[Rows, Rows]:
    """The distinct texts of these hashes, in the order of first appearance.

    Returns:
        The index of the first of each, (distinct,), and for each text (n,) which of the distinct ones it is.
    """
    order, known = _sorted(keys)
    new = np.ones(len(order), bool)
    new[1:] = (known[:, 1:] != known[:, :-1]).any(0)
    first = order[new]
    by_appearance = np.argsort(first)
    number = np.empty(len(first), np.int64)
    number[by_appearance] = np.arange(len(first))
    rows = np.empty(len(order), np.int64)
    rows[order] = number[np.cumsum(new) - 1]
    return first[by_appearance], rows


class KeyIndex:
    """Finds texts by their hashes."""

    def __init__(self, keys: Keys) -> None:
        """``keys`` (n, 16) of the texts that can be found."""
        self._order, self._known = _sorted(keys)

    def find(self, keys: Keys) -> Rows:
        """For each of ``keys`` (m, 16) the text (m,) with this hash; -1 if there is none."""
        first, second = _halves(keys)
        at = np.searchsorted(self._known[0], first)
        found = np.full(len(keys), -1, np.int64)
        looked_at = np.arange(len(keys))
        while len(looked_at := looked_at[at[looked_at] < len(self._order)]):
            here = at[looked_at]
            looked_at = looked_at[self._known[0, here] == first[looked_at]]
            here = at[looked_at]
            same = self._known[1, here] == second[looked_at]
            found[looked_at[same]] = self._order[here[same]]
            looked_at = looked_at[~same]
            at[looked_at] += 1  # another text has the same first half
        return found


def _halves(keys: Keys) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(np.ascontiguousarray(keys).view(np.uint64).T)


def _sorted(keys: Keys) -> tuple[Rows, npt.NDArray[np.uint64]]:
    """The order of the hashes, and their halves (2, n) in it; of equal ones, the first comes first."""
    halves = _halves(keys)
    order = np.lexsort((halves[1], halves[0])).astype(np.int64)
    return order, halves[:, order]
