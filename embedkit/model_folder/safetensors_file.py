"""Reads safetensors files as views of a memory map, and names those that cannot be written.

The ``safetensors`` package copies tensors for numpy and cannot represent bfloat16 there; embedkit maps the file,
so that opening a model needs no second copy. Files are untrusted: every number of the header is checked before it
is used.

A mapped file cannot be protected against writers: if it is truncated while a view of it is read, the process dies
with SIGBUS. Tensors that are used after a model was opened are therefore copied (`weights.core_tensors`); while a
model is opened, saved or verified, its files must not change. Replacing a file by renaming another one is safe.
"""

from __future__ import annotations

import errno
import json
import math
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

__all__ = ["SafetensorsFile", "to_bf16", "write_errors"]

_MAX_HEADER = 100_000_000  # bytes; the format's own limit
_MAX_NUMBER = 1 << 63  # of a shape or an offset; larger products could not be printed
_MAX_DIMENSIONS = 32  # of a tensor; the limit of numpy
_ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}
_REMEDY = "The file is damaged or was not fully downloaded; fetch it again."


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Raise an `OSError` of ``path`` for what ``safetensors`` raises if it cannot write, as on a full disk."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        if (told := re.search(r"os error (\d+)", str(error))) is None:
            raise OSError(errno.EIO, str(error), str(path)) from error
        raise OSError(int(told[1]), os.strerror(int(told[1])), str(path)) from error


class SafetensorsFile(Mapping[str, "npt.NDArray[Any]"]):
    """The tensors of one file: ``name -> array``, read-only.

    ``F32`` and ``I8`` tensors are views of the mapped file. ``F16`` and ``BF16`` become new float32 arrays
    with exactly the same values; `bits` gives views of ``BF16``. Tensors of other types can be listed but not read.

    Raises:
        ValueError: the file is not a complete, consistent safetensors file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Map the file and check its header; no tensor is read."""
        self.path = Path(path)
        size = self.path.stat().st_size
        if size < 8:
            raise self._error(f"{size} bytes is too short")
        with self.path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        header_bytes = int.from_bytes(self._map[:8], "little")
        if header_bytes > min(size - 8, _MAX_HEADER):
            raise self._error(f"the header claims {header_bytes} bytes of a file of {size}")
        self._start = 8 + header_bytes
        self._entries = self._check(self._parse(self._map[8 : self._start]), size - self._start)

    def _error(self, what: str) -> ValueError:
        return ValueError(f"{self.path}: {what}. {_REMEDY}")

    def _parse(self, header: bytes) -> dict[str, Any]:
        def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            result = dict(pairs)
            if len(result) != len(pairs):
                raise ValueError("a name occurs twice")
            return result

        try:
            parsed = json.loads(header.decode("utf-8"), object_pairs_hook=unique)
        except (ValueError, RecursionError) as error:
            raise self._error(f"the header is not valid JSON ({error})") from None
        if not isinstance(parsed, dict):
            raise self._error("the header is not a JSON object")
        parsed.pop("__metadata__", None)
        return parsed

    def _check(self, header: dict[str, Any], data_bytes: int) -> dict[str, tuple[str, tuple[int, ...], int]]:
        """``name -> (dtype, shape, offset from the start of the data)``, checked for consistency."""
        entries: dict[str, tuple[str, tuple[int, ...], int]] = {}
        spans: list[tuple[int, int, str]] = []
        for name, entry in header.items():
            if not isinstance(entry, dict):
                raise self._error(f"the entry of tensor {name!r} is not an object")
            dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
            if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
                raise self._error(f"tensor {name!r} has the unknown type {dtype!r:.80}")
            if not _naturals(shape) or len(shape) > _MAX_DIMENSIONS:
                raise self._error(f"tensor {name!r} has the shape {shape!r:.80}")
            if not _naturals(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= data_bytes:
                raise self._error(f"tensor {name!r} lies at {offsets!r:.80} of {data_bytes} bytes of data")
            expected = _ITEM_BYTES[dtype]
            for dimension in shape:
                expected *= dimension  # Python integers: cannot overflow
            if offsets[1] - offsets[0] != expected:
                raise self._error(
                    f"tensor {name!r} of shape {shape} and type {dtype} needs {expected} bytes, "
                    f"but has {offsets[1] - offsets[0]}"
                )
            entries[name] = (dtype, tuple(shape), offsets[0])
            spans.append((offsets[0], offsets[1], name))
        end = 0
        for begin, stop, name in sorted(spans):
            if begin != end:
                kind = "overlaps the tensor before it" if begin < end else "leaves a hole before it"
                raise self._error(f"tensor {name!r} {kind}")
            end = stop
        if end != data_bytes:
            raise self._error(f"{data_bytes - end} bytes at the end belong to no tensor")
        return entries

    def dtype(self, name: str) -> str:
        """The stored type of a tensor: ``"F32"``, ``"BF16"``, ``"I8"`` …"""
        return self._entries[name][0]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self._entries[name][1]

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Read a tensor as float32 or int8, C-contiguous and aligned."""
        return self._decoded(name, None)

    def rows(self, name: str, places: list[int]) -> npt.NDArray[Any]:
        """Read some rows of a tensor, as `__getitem__` reads all."""
        return self._decoded(name, places)

    def _view(self, name: str, stored: str) -> npt.NDArray[Any]:
        """The mapped bytes of a tensor as numpy's type ``stored``; not aligned in every file."""
        _, shape, offset = self._entries[name]
        return np.frombuffer(self._map, stored, math.prod(shape), self._start + offset).reshape(shape)

    def _decoded(self, name: str, places: list[int] | None) -> npt.NDArray[Any]:
        dtype = self.dtype(name)
        stored = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "|i1"}.get(dtype)
        if stored is None:
            raise ValueError(
                f"{self.path}: tensor {name!r} is stored as {dtype}; "
                "embedkit reads F32, F16, BF16 and I8. Save the model in one of these."
            )
        array = self._view(name, stored)
        if places is not None:
            array = array[places]
        if dtype == "BF16":
            return (array.astype("<u4") << 16).view("<f4")  # bfloat16 is the upper half of a float32
        if dtype == "F16":
            return array.astype("<f4")
        return array if array.flags.aligned else array.copy()

    def bits(self, name: str) -> npt.NDArray[np.uint16]:
        """A ``BF16`` tensor as the upper halves of its float32 values, C-contiguous and aligned."""
        if (dtype := self.dtype(name)) != "BF16":
            raise ValueError(f"{self.path}: tensor {name!r} is stored as {dtype}, not BF16")
        array = self._view(name, "<u2")
        return array if array.flags.aligned else array.copy()

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """Read a tensor of integers or floats of any size, in its own type; F16 and BF16 as float32."""
        stored = {
            "I16": "<i2",
            "U16": "<u2",
            "I32": "<i4",
            "U32": "<u4",
            "I64": "<i8",
            "U64": "<u8",
            "F64": "<f8",
        }.get(self.dtype(name))
        return self[name] if stored is None else self._view(name, stored)

    def __contains__(self, name: object) -> bool:
        """Whether there is a tensor of this name, of any type."""
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, in the order of the header."""
        return iter(self._entries)

    def __len__(self) -> int:
        """Count the tensors."""
        return len(self._entries)


def to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of finite values rounded to bfloat16, to the nearest, ties to even."""
    bits = values.view(np.uint32)
    rounded: npt.NDArray[np.uint32] = bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)
    return (rounded >> 16).astype(np.uint16)


def _naturals(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item < _MAX_NUMBER for item in value
    )
