"""Queries and which documents answer them, from files.

* Queries: any file that `Corpus` reads, with ids (``id``, ``_id`` or ``query_id``) and texts. Judgments (qrels) beside
  them, a line each: TREC's ``query 0 document relevance``, BEIR's ``query document relevance`` (a header is skipped),
  or JSON Lines with the fields ``query_id``, ``doc_id`` and, if not 1, ``relevance``.
* Pairs: JSON Lines with the fields ``query`` and ``id``, or two tab-separated columns: a query and the id of a document
  that answers it. The same query may come more than once.

A relevance above 0 counts as relevant.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

from ...documents.document import Document
from ...documents.errors import InputError
from ...documents.readers import Corpus

__all__ = ["Judgments", "read_judgments", "read_pairs"]

_PATH = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Judgments:
    """Queries, and the documents that answer them.

    Attributes:
        queries: texts.
        gains: for each query the relevance (> 0) of each id.
        left_out: queries without a relevant document.
    """

    queries: list[str]
    gains: list[dict[str, float]]
    left_out: int = 0


def _query_id(document: Document) -> str:
    """Its id; other collections name the field otherwise: ``_id`` (BEIR), ``query_id``."""
    fields = document.metadata or {}
    return str(next((fields[name] for name in ("_id", "query_id") if name in fields), document.id))


def read_judgments(queries: _PATH, qrels: _PATH) -> Judgments:
    """Queries and judgments from two files.

    Raises:
        InputError: a file cannot be read, a line is malformed, or no query has a relevant document.
    """
    texts: dict[str, str] = {}
    for given in Corpus([queries], options=()):
        id = _query_id(given)
        if id in texts:
            raise InputError(given.origin, f"a second query has the id {id!r}")
        texts[id] = given.text
    gains: dict[str, dict[str, float]] = {}
    for number, line in _lines(qrels):
        judged = _judgment(f"{os.fspath(qrels)}:{number}", line, first=number == 1)
        if judged is None:
            continue
        query, document, relevance = judged
        if query not in texts:
            raise InputError(
                f"{os.fspath(qrels)}:{number}",
                f"there is no query with the id {query!r} in {os.fspath(queries)}",
            )
        if relevance > 0:
            gains.setdefault(query, {})[document] = relevance
    judged_queries = [id for id in texts if id in gains]
    if not judged_queries:
        raise InputError(os.fspath(qrels), "no query has a relevant document")
    return Judgments(
        [texts[id] for id in judged_queries],
        [gains[str(id)] for id in judged_queries],
        len(texts) - len(judged_queries),
    )


def read_pairs(path: _PATH) -> Judgments:
    """Queries, each with the id of a document that answers it.

    Raises:
        InputError: the file cannot be read, a line is malformed, or there are none.
    """
    gains: dict[str, dict[str, float]] = {}
    for number, line in _lines(path):
        origin = f"{os.fspath(path)}:{number}"
        if line.startswith("{"):
            record = _json(origin, line)
            query, document = record.get("query"), record.get("id")
        else:
            query, _, document = line.partition("\t")
            document = document.strip()
        if isinstance(document, int) and not isinstance(document, bool):
            document = str(document)
        if not isinstance(query, str) or not isinstance(document, str) or not query.strip() or not document:
            raise InputError(
                origin, "expected a query and a document's id, tab-separated or as query and id in JSON"
            )
        gains.setdefault(query, {})[document] = 1.0
    if not gains:
        raise InputError(os.fspath(path), "contains no pairs")
    return Judgments(list(gains), list(gains.values()))


def _lines(path: _PATH) -> Iterator[tuple[int, str]]:
    for document in Corpus([path], format="txt"):  # which passes over blank lines
        yield int(document.origin.rpartition(":")[2]), document.text.strip()


def _json(origin: str, line: str) -> dict[str, object]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InputError(origin, f"not valid JSON: {error}") from None
    if not isinstance(record, dict):
        raise InputError(origin, "not a JSON object")
    return record


def _judgment(origin: str, line: str, *, first: bool) -> tuple[str, str, float] | None:
    """Query, document and relevance of a line; ``None`` for a header."""
    fields: list[object]
    if line.startswith("{"):
        record = _json(origin, line)
        fields = [record.get("query_id"), record.get("doc_id"), record.get("relevance", 1)]
        if fields[0] is None or fields[1] is None:
            raise InputError(origin, "expected the fields query_id, doc_id and relevance")
    else:
        parts = line.split("\t") if line.count("\t") >= 2 else line.split()
        if len(parts) not in (3, 4):
            raise InputError(
                origin, "expected 'query 0 document relevance' (TREC) or 'query document relevance' (BEIR)"
            )
        fields = [parts[0], parts[-2], parts[-1]]
    query, document, relevance = fields
    try:
        gain = float(relevance)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        if first and not line.startswith("{"):
            return None
        raise InputError(origin, f"the relevance {relevance!r} is not a number") from None
    if not math.isfinite(gain):
        raise InputError(origin, f"the relevance {relevance!r} is not a number")
    return str(query), str(document), gain
