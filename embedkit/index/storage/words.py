"""The words of a segment, in two tables of ``documents.sqlite``, and their BM25 scores.

``words(term, rows, postings)`` holds each word as `index.words.analyzer` makes them, the number of rows that hold it,
and these rows (``csrc/words/postings.h``). ``lengths(documents, words, lengths)`` is one row: documents and words in
all, and the words of each row as uint32, little-endian.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ... import _core
from ...forking import cached_property
from ..words.analyzer import Analyzer, create_table
from .faiss_index import Int64Array
from .faiss_part import Bits

if TYPE_CHECKING:
    from .document_store import DocumentReader

T = TypeVar("T")
Lengths = npt.NDArray[np.uint32]
Term = tuple[str, int, int]  # a word, the rows that hold it, and how often it is in them

__all__ = [
    "RARE",
    "TITLE_FIELDS",
    "TITLE_WEIGHT",
    "Postings",
    "Words",
    "attainable",
    "common_from",
    "titles_of",
    "weight_of",
    "write_words",
]

RARE = 3
"""Rarest words of a query that a document is expected to hold."""

TITLE_FIELDS = ("title", "heading", "headings")
"""Fields of the metadata (strings, or arrays of them) whose words count more than those of the text."""

TITLE_WEIGHT = 3.0
"""What a word of the title counts where one of the text counts 1 (`benchmarks/hybrid.py`)."""

_COMMON_SHARE = 0.05
_LEAST_COMMON = 10
_PREFIXES_KEPT = 64
_INSTANCES_AT_ONCE = (1 << 18, 1 << 22)  # least and most
_SORTED_AT_ONCE = 16 << 20  # bytes
_BEYOND = "\U0010ffff"  # above every letter
_SCRATCH_FILE = "words.sqlite"


def common_from(rows: int) -> int:
    """The number of texts, of ``rows`` in all, from which on a word that is in so many is common."""
    return max(int(rows * _COMMON_SHARE), _LEAST_COMMON)


def attainable(counts: Sequence[int], rows: int) -> float:
    """The BM25 score of a text of average length that holds the `RARE` rarest words of a query once.

    Args:
        counts: for each word of the query that is not common, how many of the texts hold it.
        rows: texts in all.
    """
    # of such a text, the other factor of BM25 is 1
    return sum(sorted((weight_of(count, rows) for count in counts), reverse=True)[:RARE])


def weight_of(count: int, rows: int) -> float:
    """The inverse document frequency of a word in ``count`` of ``rows`` texts, as FTS5 has it."""
    return max(math.log((rows - count + 0.5) / (count + 0.5)), 1e-6)


def titles_of(metadata: str) -> str:
    """The title and headings in ``metadata``, a JSON object as text; "" if there are none."""
    if not any(f'"{name}"' in metadata for name in TITLE_FIELDS):
        return ""
    fields = json.loads(metadata)
    found: list[object] = []
    for name in TITLE_FIELDS:
        value = fields.get(name)
        found += value if isinstance(value, list) else [value]
    return "\n".join(one for one in found if isinstance(one, str))


def write_words(db: sqlite3.Connection, folder: Path, rows: int, analyzer: Analyzer) -> bool:
    """Write the words of the table ``documents`` of ``db``; ``False`` if SQLite lacks FTS5.

    FTS5 cuts the texts into words and sorts these, in bounded memory, in a file of ``folder`` that is removed again.

    Args:
        db: outside a transaction; opened with ``uri=True``.
        folder: of the segment.
        rows: of the segment, replaced ones included.
        analyzer: of the language.
    """
    scratch = folder / _SCRATCH_FILE
    scratch.unlink(missing_ok=True)
    db.execute("ATTACH ? AS scratch", (scratch.absolute().as_uri(),))
    try:
        db.execute("PRAGMA scratch.journal_mode=MEMORY")
        db.execute("PRAGMA scratch.synchronous=OFF")
        try:
            create_table(db, "scratch.cut", "title, text, content='', columnsize=0", analyzer.tokenizer)
        except sqlite3.OperationalError as error:
            if "no such module" not in str(error):
                raise
            return False
        db.execute("INSERT INTO scratch.cut(cut, rank) VALUES ('hashsize', ?)", (_SORTED_AT_ONCE,))
        db.create_function("titles", 1, lambda metadata: analyzer.text(titles_of(metadata)))
        db.create_function("words", 1, analyzer.text)
        db.execute("BEGIN")
        db.execute(
            "INSERT INTO scratch.cut(rowid, title, text) "
            "SELECT row, CASE WHEN metadata IS NULL THEN '' ELSE titles(metadata) END, words(text) FROM documents"
        )
        db.execute("CREATE VIRTUAL TABLE scratch.terms USING fts5vocab(cut, row)")
        db.execute("CREATE VIRTUAL TABLE scratch.instances USING fts5vocab(cut, instance)")
        _write_postings(db, rows)
        db.execute("COMMIT")
    finally:
        with contextlib.suppress(sqlite3.Error):  # after a failure, which is the one to report
            if db.in_transaction:
                db.execute("ROLLBACK")
            db.execute("DETACH scratch")
        scratch.unlink(missing_ok=True)
    return True


def _write_postings(db: sqlite3.Connection, rows: int) -> None:
    """Fill the tables from FTS5's lists of terms and of their instances, which ascend."""
    for table in ("words", "lengths"):
        db.execute(f"DROP TABLE IF EXISTS main.{table}")
    db.execute(
        "CREATE TABLE main.words (term TEXT PRIMARY KEY, rows INTEGER NOT NULL, postings BLOB NOT NULL) WITHOUT ROWID"
    )
    db.execute("CREATE TABLE main.lengths (documents INTEGER, words INTEGER, lengths BLOB)")
    lengths = np.zeros(rows, np.uint32)
    least, most = _INSTANCES_AT_ONCE
    at_once = min(max(rows // 4, least), most)
    with contextlib.closing(db.execute("SELECT term, doc, cnt FROM scratch.terms")) as found:
        # a mark by itself is a word without letters
        for block in _blocks((term for term in found if term[0]), at_once):
            if block[0][2] < at_once:
                instances = _instances(db, block[0][0], block[-1][0])
                np.add.at(lengths, instances >> 1, 1)
                lists = _core.encode_postings(instances, np.array([count for _, _, count in block], np.int64))
            else:
                lists = [_long_list(db, block[0][0], at_once, lengths)]
            db.executemany(
                "INSERT INTO main.words VALUES (?, ?, ?)",
                ((term, held, postings) for (term, held, _), postings in zip(block, lists, strict=True)),
            )
    (documents,) = db.execute("SELECT count(*) FROM documents").fetchone()
    db.execute(
        "INSERT INTO main.lengths VALUES (?, ?, ?)",
        (documents, int(lengths.sum()), lengths.astype("<u4", copy=False).tobytes()),
    )


def _blocks(terms: Iterable[Term], instances: int) -> Iterator[list[Term]]:
    """Consecutive terms of at most so many instances together; one of more is alone."""
    block: list[Term] = []
    total = 0
    for term in terms:
        if block and total + term[2] >= instances:
            yield block
            block, total = [], 0
        block.append(term)
        total += term[2]
    if block:
        yield block


def _instances(db: sqlite3.Connection, first: str, last: str) -> Int64Array:
    """Those of the terms from ``first`` to ``last``, as `encode_postings` takes them."""
    # as one string: a Python object for each would take twice the time
    (text,) = db.execute(
        "SELECT group_concat(2 * doc + (col = 'text')) FROM scratch.instances WHERE term BETWEEN ? AND ?",
        (first, last),
    ).fetchone()
    return np.fromstring(text, np.int64, sep=",")


def _long_list(db: sqlite3.Connection, term: str, at_once: int, lengths: Lengths) -> bytes:
    """The posting list of one term, ``at_once`` instances at a time; they are added to ``lengths``."""
    postings = b""
    after = -1
    rest = np.empty(0, np.int64)
    sql = "SELECT 2 * doc + (col = 'text') FROM scratch.instances WHERE term = ?"
    with contextlib.closing(db.execute(sql, (term,))) as found:
        while len(some := np.array(found.fetchmany(at_once), np.int64).ravel()):
            np.add.at(lengths, some >> 1, 1)
            some = np.concatenate([rest, some])
            whole = int(np.searchsorted(some, some[-1] & ~1))  # the last row may go on
            if whole:
                postings += _core.encode_postings(some[:whole], np.array([whole]), after)[0]
                after = int(some[whole - 1] >> 1)
            rest = some[whole:]
    return postings + _core.encode_postings(rest, np.array([len(rest)]), after)[0]


class Postings(NamedTuple):
    """A word of a query in one segment.

    Attributes:
        rows: how many rows hold it, replaced ones included.
        list: its posting list.
    """

    rows: int
    list: bytes


class _Lengths(NamedTuple):
    documents: int
    words: int
    of_rows: Lengths


class Words:
    """Reads the words of a finished segment. Thread-safe."""

    def __init__(self, documents: DocumentReader, rows: int) -> None:
        """Those of ``documents``, which has ``rows``."""
        self._documents = documents
        self._rows = rows
        self._prefixes: dict[str, Postings] = {}

    @cached_property
    def _lengths(self) -> _Lengths:
        found = self._documents.query("SELECT documents, words, lengths FROM lengths")
        if len(found) == 1:
            documents, words, lengths = found[0]
            numbers = isinstance(documents, int) and isinstance(words, int) and 0 <= documents <= self._rows
            if numbers and isinstance(lengths, bytes) and len(lengths) == 4 * self._rows:
                of_rows = np.frombuffer(lengths, "<u4")
                if int(of_rows.sum(dtype=np.int64)) == words:
                    return _Lengths(documents, words, of_rows)
        raise self._documents.damaged("the numbers of its words are damaged")

    @cached_property
    def any(self) -> bool:
        """Whether a document holds a word."""
        return bool(self._documents.query("SELECT 1 FROM words LIMIT 1"))

    @property
    def documents(self) -> int:
        """The number of documents, deleted ones included."""
        return self._lengths.documents

    @property
    def length(self) -> int:
        """The number of words of all documents."""
        return self._lengths.words

    def count(self, terms: Sequence[str]) -> list[int]:
        """How many rows hold each of ``terms``, as of `find`; a row counts for each word that a prefix stands for."""
        bounds = [(term[:-1], term[:-1] + _BEYOND) if term.endswith("*") else (term, term) for term in terms]
        sql = (
            "SELECT (SELECT total(rows) FROM words WHERE term BETWEEN json_extract(value, '$[0]') AND "
            "json_extract(value, '$[1]')) FROM json_each(?)"
        )
        return [int(rows) for (rows,) in self._documents.query(sql, json.dumps(bounds))]

    def find(self, terms: Sequence[str]) -> list[Postings]:
        """The postings of each of ``terms``; one that ends in "*" stands for all words that begin with it."""
        found = {
            term: Postings(rows, postings)
            for term, rows, postings in self._documents.query(
                "SELECT term, rows, postings FROM words WHERE term IN (SELECT value FROM json_each(?))",
                json.dumps([term for term in terms if not term.endswith("*")]),
            )
        }
        for rows, postings in found.values():
            if not isinstance(rows, int) or rows <= 0 or not isinstance(postings, bytes):
                raise self._documents.damaged("its words are damaged")
        words = [self._prefix(term) if term.endswith("*") else found.get(term, _NONE) for term in terms]
        if any(word.rows > self.documents for word in words):
            raise self._documents.damaged("its words are damaged")
        return words

    def _prefix(self, term: str) -> Postings:
        known = self._prefixes.get(term)
        if known is None:
            found = self._documents.query(
                "SELECT postings FROM words WHERE term >= ? AND term < ?", term[:-1], term[:-1] + _BEYOND
            )
            merged, rows = self._checked(lambda: _core.merge_postings([one for (one,) in found], self._rows))
            known = Postings(rows, merged)
            if len(self._prefixes) >= _PREFIXES_KEPT:  # a thread that adds one at the same time does no harm
                self._prefixes = {}
            self._prefixes[term] = known
        return known

    def best(
        self,
        words: Sequence[Postings],
        weights: Sequence[float],
        average: float,
        limit: int,
        chosen: Bits | None,
    ) -> list[tuple[int, float]]:
        """The ``limit`` best rows by BM25, with their scores, best first.

        Args:
            words: of a query; one that is there twice counts twice.
            weights: of each word (`weight_of`).
            average: words of a document, on average.
            limit: most rows.
            chosen: a bitmap of rows; ``None``: all.
        """
        held = [(word.list, weight) for word, weight in zip(words, weights, strict=True) if word.rows]
        if not held:
            return []
        rows, scores = self._checked(
            lambda: _core.bm25(
                [postings for postings, _ in held],
                [weight for _, weight in held],
                self._lengths.of_rows,
                average,
                TITLE_WEIGHT,
                limit,
                chosen,
            )
        )
        return list(zip(rows.tolist(), scores.tolist(), strict=True))

    def _checked(self, read: Callable[[], T]) -> T:
        """The result of ``read``, whose errors are those of the file."""
        try:
            return read()
        except (TypeError, ValueError) as error:
            raise self._documents.damaged(f"its words are damaged ({error})") from None


_NONE = Postings(0, b"")
