"""Retrieval on collections of one's own: queries, documents and judgments in three files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.files import ABSENT, file_rows
from .retrieval import RetrievalResult, rank_quality
from .vectors import TextEncoder, encode_distinct

__all__ = ["Collection", "check_collection", "collection_quality", "read_collection"]

_PARTS = {
    "queries": ("query_id", "text"),
    "documents": ("doc_id", "text"),
    "judgments": ("query_id", "doc_id", "rel"),
}


@dataclass(frozen=True)
class Collection:
    """Queries, documents and which of them belong together.

    Attributes:
        queries: id -> text.
        documents: id -> text; blank ones are left out.
        gains: query id -> document id -> gain above 0.
    """

    queries: Mapping[str, str]
    documents: Mapping[str, str]
    gains: Mapping[str, Mapping[str, float]]


def check_collection(spec: Mapping[str, Any]) -> None:
    """Check the ``queries``, ``documents`` and ``judgments`` of `read_collection` without reading them.

    Raises:
        ValueError: a part is missing or unknown, or has the wrong type.
    """
    if set(spec) != set(_PARTS):
        raise ValueError(
            f"a collection has {', '.join(_PARTS)}, not {', '.join(map(str, spec)) or 'nothing'}"
        )
    for part, given in spec.items():
        entry = {"path": given} if isinstance(given, str) else given
        if not isinstance(entry, Mapping) or not isinstance(entry.get("path"), str):
            raise ValueError(f"{part} is {given!r}; give a file, or a mapping with path and columns")
        columns = entry.get("columns", {})
        if (
            set(entry) - {"path", "columns"}
            or not isinstance(columns, Mapping)
            or set(columns) - set(_PARTS[part])
        ):
            raise ValueError(f"{part}.columns is {columns!r}; name the columns of {', '.join(_PARTS[part])}")


def read_collection(spec: Mapping[str, Any], root: Path) -> Collection:
    """Read a collection.

    Args:
        spec: ``queries`` (columns query_id, text), ``documents`` (doc_id, text) and ``judgments`` (query_id, doc_id,
            rel: above 0 is relevant, as a gain), each a file of `embedkit.training.data.files` or a mapping of
            ``path`` and ``columns``, from these names to those of the file.
        root: folder to which the paths are relative.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a column is missing, an id occurs twice or is unknown, or no query has a relevant document.
    """
    check_collection(spec)
    queries = _texts("queries", spec["queries"], root)
    documents = _texts("documents", spec["documents"], root)
    gains: dict[str, dict[str, float]] = {}
    for origin, (query, document, rel) in _rows("judgments", spec["judgments"], root):
        for what, key, known in (("query_id", query, queries), ("doc_id", document, documents)):
            if key not in known:
                raise ValueError(f"{origin}: there is no {what} {key!r}")
        try:
            gain = float(rel)
        except ValueError:
            raise ValueError(f"{origin}: rel is {rel!r}; give a number") from None
        if not math.isfinite(gain):
            raise ValueError(f"{origin}: rel is {rel!r}; give a finite number")
        if gain > 0 and documents[document].strip():
            gains.setdefault(query, {})[document] = gain
    if not gains:
        raise ValueError(f"{spec['judgments']}: no query has a relevant document")
    asked = {key: text for key, text in queries.items() if key in gains}
    return Collection(asked, {key: text for key, text in documents.items() if text.strip()}, gains)


def collection_quality(encoder: TextEncoder, collection: Collection) -> RetrievalResult:
    """nDCG@10 and MRR@10 of exact search by cosine, or by the dot product if that is the encoder's similarity.

    Queries are encoded with ``encode_query`` and documents with ``encode_document`` if the encoder has them, so that a
    model gets its prompts.
    """
    unit = getattr(encoder, "similarity_fn_name", "cosine") != "dot"
    queries = encode_distinct(
        encoder, collection.queries.values(), getattr(encoder, "encode_query", None), unit=unit
    )
    documents = encode_distinct(
        encoder, collection.documents.values(), getattr(encoder, "encode_document", None), unit=unit
    )
    row = {key: number for number, key in enumerate(collection.documents)}
    gains = [
        {row[key]: gain for key, gain in collection.gains[query].items()} for query in collection.queries
    ]
    return rank_quality(
        queries.of(collection.queries.values()), documents.of(collection.documents.values()), gains
    )


def _texts(part: str, given: Any, root: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for origin, (key, text) in _rows(part, given, root):
        if key in found:
            raise ValueError(f"{origin}: the {_PARTS[part][0]} {key!r} occurs twice")
        found[key] = text
    return found


def _rows(part: str, given: Any, root: Path) -> list[tuple[str, tuple[str, ...]]]:
    entry: Mapping[str, Any] = {"path": given} if isinstance(given, str) else given
    columns = [entry.get("columns", {}).get(name, name) for name in _PARTS[part]]
    rows = file_rows(root / entry["path"])
    for column in columns:
        if column not in rows.header:
            raise ValueError(
                f"{rows.origin}: no column {column!r}; the columns are {', '.join(rows.header)}: name it in "
                f"{part}.columns"
            )
    found = []
    for line, values in rows.of(columns):
        where = f"{rows.origin}:{line}"
        own = [_value(where, name, value) for name, value in zip(columns, values, strict=True)]
        found.append((where, tuple(own)))
    return found


def _value(where: str, column: str, value: Any) -> str:
    if value is ABSENT:
        raise ValueError(f"{where}: no field {column!r}, which the first line has; add it")
    if not isinstance(value, str | int | float) or (isinstance(value, float) and math.isnan(value)):
        raise ValueError(
            f"{where}: {column} is {value!r:.80}, which is neither text nor a number; leave the row out"
        )
    return str(value)
