"""The ids of a segment in a memory-mapped file: maps a row to its id without SQLite.

Little endian: the magic number (8 bytes), the number of ids and the position of the offset table (u64 each), the
concatenated ids in UTF-8, zeros up to a multiple of 8, then ``rows + 1`` offsets (u64) into the ids.
"""

from __future__ import annotations

import mmap
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import IndexDamagedError

__all__ = ["Ids", "shared_id", "write_ids"]

_MAGIC = b"EKKEYS\x00\x01"
_HEADER = struct.Struct("<8sQQ")
_BLOCK = 8192
_FEW = 32
_SMALL = 1 << 16  # bytes
_HASHES_AT_ONCE = 1 << 24  # 128 MiB, and as much again while they are gathered
_REPEATED_AT_ONCE = 1000


def write_ids(path: Path, ids: Iterable[str]) -> None:
    """Write ``ids`` to the new file ``path``, in constant memory."""
    table = path.with_name(path.name + ".offsets")
    end = rows = 0
    with path.open("xb") as file, table.open("w+b") as offsets:
        file.write(_HEADER.pack(_MAGIC, 0, 0))
        ends = [0]
        for document_id in ids:
            encoded = document_id.encode("utf-8")
            file.write(encoded)
            end += len(encoded)
            ends.append(end)
            rows += 1
            if len(ends) == _BLOCK:
                offsets.write(np.array(ends, "<u8").tobytes())
                ends = []
        offsets.write(np.array(ends, "<u8").tobytes())
        offsets.seek(0)
        file.write(bytes(-end % 8))
        start = file.tell()
        shutil.copyfileobj(offsets, file)
        file.seek(0)
        file.write(_HEADER.pack(_MAGIC, rows, start))
    table.unlink()


def shared_id(sources: Sequence[Callable[[], Iterator[list[str]]]], rows: int) -> tuple[str, int, int] | None:
    """An id that two of ``sources`` hold, and their numbers; ``None`` if there is none.

    Hashes of 8 bytes are compared, and only where two are equal the ids themselves.

    Args:
        sources: each yields its ids, in blocks, whenever it is called.
        rows: how many ids all have together.
    """
    passes = -(-rows // _HASHES_AT_ONCE)
    for number in range(passes):
        hashed = (_hashes(block) for source in sources for block in source())
        hashes = np.concatenate([some[some % passes == number] for some in hashed])
        hashes.sort()
        repeated = np.unique(hashes[1:][hashes[1:] == hashes[:-1]]).tolist()
        for begin in range(0, len(repeated), _REPEATED_AT_ONCE):
            shared = _held_twice(sources, set(repeated[begin : begin + _REPEATED_AT_ONCE]))
            if shared is not None:
                return shared
    return None


def _hashes(ids: list[str]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(hash, ids), np.int64, len(ids))


def _held_twice(
    sources: Sequence[Callable[[], Iterator[list[str]]]], hashes: set[int]
) -> tuple[str, int, int] | None:
    """`shared_id` among the ids with these ``hashes``."""
    holders: dict[str, int] = {}
    for number, source in enumerate(sources):
        for block in source():
            for document_id in block:
                if (
                    hash(document_id) in hashes
                    and (first := holders.setdefault(document_id, number)) != number
                ):
                    return document_id, first, number
    return None


class Ids:
    """The ids of a segment, memory-mapped unless they are few."""

    def __init__(self, path: Path, rows: int) -> None:
        """Map ``path``, which must hold ``rows`` ids (raises `IndexDamagedError` otherwise)."""
        self._path = path
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < _HEADER.size:
                raise IndexDamagedError(f"{path}: truncated ({size} bytes); build the index again")
            # a map keeps a descriptor of its own, of which many small segments would need too many
            small = size <= _SMALL
            file.seek(0)
            self._map = file.read() if small else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        magic, count, table = _HEADER.unpack_from(self._map)
        if magic != _MAGIC:
            raise self._damaged("not an ids file")
        if count != rows:
            raise self._damaged(f"holds {count} ids, but the manifest says {rows}")
        if table + 8 * (rows + 1) != size:
            raise self._damaged("the offset table does not fit the file")
        self._offsets = np.frombuffer(self._map, "<u8", rows + 1, table)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._table = table

    def _damaged(self, reason: str) -> IndexDamagedError:
        return IndexDamagedError(f"{self._path}: {reason}; build the index again")

    def empty_rows(self) -> npt.NDArray[np.int64]:
        """The rows without an id, which were replaced before the segment was finished."""
        return np.flatnonzero(np.diff(self._offsets) == 0)

    def many(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """The ids of ``rows``; many are gathered and decoded at once, 0.1 µs each."""
        if len(rows) <= _FEW:
            pairs = zip(self._offsets[rows].tolist(), self._offsets[rows + 1].tolist(), strict=True)
            last = self._table - _HEADER.size
            ids = [self._map[_HEADER.size + i : _HEADER.size + j] for i, j in pairs if i < j <= last]
            if len(ids) == len(rows) and all(map(bytes.isascii, ids)):
                return [document_id.decode("ascii") for document_id in ids]
            return [self[row] for row in rows.tolist()]
        begins = self._offsets[rows].astype(np.int64)
        lengths = self._offsets[rows + 1].astype(np.int64) - begins
        inside = begins.min() >= 0 and lengths.min() >= 0
        if not inside or (begins + lengths).max() > self._table - _HEADER.size:
            return [self[row] for row in rows.tolist()]  # names the wrong one
        ends = np.cumsum(lengths)
        starts = ends - lengths
        places = np.arange(ends[-1]) + np.repeat(begins - starts + _HEADER.size, lengths)
        blob = self._bytes[places].tobytes()
        if blob.isascii():
            text = blob.decode("ascii")
            return [text[begin:end] for begin, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return [self[row] for row in rows.tolist()]

    def __len__(self) -> int:
        """The number of ids."""
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> str:
        """The id of ``row`` (0-based)."""
        begin = _HEADER.size + int(self._offsets[row])
        end = _HEADER.size + int(self._offsets[row + 1])
        if not begin <= end <= self._table:
            raise self._damaged(f"the id of row {row} lies outside the file")
        try:
            return self._map[begin:end].decode("utf-8")
        except UnicodeDecodeError:
            raise self._damaged(f"the id of row {row} is not UTF-8") from None
