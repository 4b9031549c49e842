"""`SearchParameters`: how hard to search, passed whole from `Index.search` down to Faiss."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["SearchParameters"]

_MOST = 2**31 - 1  # Faiss' efSearch is an int


@dataclass(frozen=True, slots=True)
class SearchParameters:
    """How hard to search, named after Faiss' class; ``None``: the default of the index.

    Attributes:
        nprobe: inverted lists to visit (``nprobe`` of an IndexIVF).
        ef: candidates that HNSW keeps (``efSearch`` of an IndexHNSW).
        rescore: candidates per hit: an index of codes looks up ``rescore · k`` rows by their codes and ranks
            them by finer codes or by their vectors (``k_factor`` of an IndexRefine); 0: it does not.
    """

    nprobe: int | None = None
    ef: int | None = None
    rescore: int | None = None

    @classmethod
    def given(cls, nprobe: Any, ef: Any, rescore: Any) -> SearchParameters:
        """The same from arguments.

        Raises:
            TypeError: one of them is not an integer.
            ValueError: one of them is too small or too large for any index.
        """
        return cls(_integer("nprobe", nprobe), _integer("ef", ef), _integer("rescore", rescore, least=0))

    def __str__(self) -> str:
        """As ``nprobe 16, rescore 4``; empty where nothing is set."""
        named = (("nprobe", self.nprobe), ("ef", self.ef), ("rescore", self.rescore))
        return ", ".join(f"{name} {value}" for name, value in named if value is not None)

    def to_json(self) -> dict[str, int | None]:
        """The fields as a manifest stores them; ``rescore`` under its name in Faiss."""
        return {"nprobe": self.nprobe, "ef": self.ef, "k_factor": self.rescore}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SearchParameters:
        """What `to_json` wrote; anything but an integer becomes ``None``."""
        values = (data.get(name) for name in ("nprobe", "ef", "k_factor"))
        return cls(*(value if isinstance(value, int) else None for value in values))


def _integer(name: str, value: Any, least: int = 1) -> int | None:
    if value is None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, not {value!r:.80}")
    if number < least:
        raise ValueError(f"{name} must be at least {least}, not {number}")
    if number > _MOST:
        raise ValueError(f"{name} must be at most {_MOST}, not {number}")
    return number
