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
import re
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
    corpus = Corpus([queries], options=())
    for given in corpus:
        id = _query_id(given)
        if id in texts:
            raise InputError(given.origin, f"a second query has the id {id!r}")
        texts[id] = given.text
    blank = f", which has blank lines or texts ({corpus.blank})" if corpus.blank else ""
    grades: dict[str, dict[str, float]] = {}
    for number, line in _lines(qrels):
        origin = f"{os.fspath(qrels)}:{number}"
        judged = _judgment(origin, line, first=number == 1)
        if judged is None:
            continue
        query, document, relevance = judged
        if query not in texts:
            raise InputError(
                origin, f"there is no query with the id {query!r} in {os.fspath(queries)}{blank}"
            )
        before = grades.setdefault(query, {}).setdefault(document, relevance)
        if before != relevance:
            raise InputError(
                origin,
                f"the relevance of {document!r} to the query {query!r} is {relevance:g}, and was {before:g} before",
            )
    gains = {query: {id: grade for id, grade in each.items() if grade > 0} for query, each in grades.items()}
    judged_queries = [id for id in texts if gains.get(id)]
    if not judged_queries:
        raise InputError(os.fspath(qrels), "no query has a relevant document")
    return Judgments(
        [texts[id] for id in judged_queries],
        [gains[id] for id in judged_queries],
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
        record = _record(origin, line)
        if record is None:
            text, _, id = line.partition("\t")
            record = {"query": text, "id": id.strip()}
        query, document = record.get("query"), record.get("id")
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


def _record(origin: str, line: str) -> dict[str, object] | None:
    """The JSON object of a line; ``None`` for columns, the first of which may begin with a brace."""
    if not line.startswith("{") or ("\t" in line and not re.match(r'\{\s*"', line)):
        return None
    try:
        record: dict[str, object] = json.loads(line)
    except ValueError as error:
        raise InputError(origin, f"not valid JSON: {error}") from None
    return record


def _judgment(origin: str, line: str, *, first: bool) -> tuple[str, str, float] | None:
    """Query, document and relevance of a line; ``None`` for a header."""
    fields: list[object]
    record = _record(origin, line)
    if record is not None:
        fields = [record.get("query_id"), record.get("doc_id"), record.get("relevance", 1)]
        if fields[0] is None or fields[1] is None:
            raise InputError(origin, "expected the fields query_id, doc_id and relevance")
    else:
        tabs = line.count("\t") >= 2
        parts = [part.strip() for part in line.split("\t")] if tabs else line.split()
        if len(parts) not in (3, 4):
            raise InputError(
                origin, "expected 'query 0 document relevance' (TREC) or 'query document relevance' (BEIR)"
            )
        fields = [parts[0], parts[-2], parts[-1]]
    query, document, relevance = fields
    try:
        gain = float(relevance)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        if first and record is None:
            return None
        raise InputError(origin, f"the relevance {relevance!r} is not a number") from None
    if not math.isfinite(gain):
        raise InputError(origin, f"the relevance {relevance!r} is not a number")
    return str(query), str(document), gain
