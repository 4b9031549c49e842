"""Retrieval by exact search: Cranfield, and duplicate questions of Quora."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...index.evaluate.metrics import mrr, ndcg
from .tables import Data, Row, data_folder, read_table
from .vectors import TextEncoder, encode_distinct, highest

__all__ = [
    "RetrievalResult",
    "cranfield",
    "quora_duplicates",
    "rank_quality",
    "retrieval",
    "retrieval_pairs",
]

K = 10
_BLOCK = 256  # queries whose similarities to the whole corpus are in memory at once


@dataclass(frozen=True)
class RetrievalResult:
    """Means over the queries that have a relevant document, from 0 to 1."""

    ndcg_at_10: float
    mrr_at_10: float
    queries: int
    documents: int


def retrieval(encoder: TextEncoder, data: Data = None) -> dict[str, RetrievalResult]:
    """`cranfield` and `quora_duplicates`, by name; arguments and errors are theirs."""
    return {"Cranfield": cranfield(encoder, data), "Quora": quora_duplicates(encoder, data)}


def retrieval_pairs(data: Data = None) -> dict[str, list[tuple[str, str]]]:
    """Pairs that training data must not contain: Cranfield's queries, each paired with itself, and Quora's pairs.

    Arguments and errors are those of `cranfield` and `quora_duplicates`.
    """
    queries = read_table(data_folder(data) / "retrieval" / "queries.tsv.gz", ("query_id", "text"))
    return {
        "Cranfield": [(row.text("text"), row.text("text")) for row in queries],
        "Quora": [(row.text("text1"), row.text("text2")) for row in _quora(data)[1]],
    }


def _quora(data: Data) -> tuple[Path, Iterator[Row]]:
    """Quora's table and its rows outside the split "train"."""
    path = data_folder(data) / "quora" / "quora_pairs.tsv.gz"
    rows = read_table(path, ("split", "text1", "text2", "label"))
    return path, (row for row in rows if row["split"] != "train")


def cranfield(encoder: TextEncoder, data: Data = None) -> RetrievalResult:
    """The 225 queries of the Cranfield collection among its 1,400 abstracts.

    Queries are encoded with ``encode_query`` and abstracts with ``encode_document`` if the encoder has them, so
    that a model gets its prompts; otherwise with ``encode``. The two blank abstracts are not encoded, and rank last.

    Args:
        encoder: similarity is the cosine of its vectors.
        data: folder with ``retrieval/{docs,queries,qrels}.tsv.gz``; None for ``EMBEDKIT_DATA``.

    Raises:
        FileNotFoundError: the folder or a table does not exist.
        ValueError: a row is malformed or names an unknown query or document, or a vector is unusable.
    """
    folder = data_folder(data) / "retrieval"
    documents: dict[str, str] = {}
    for row in read_table(folder / "docs.tsv.gz", ("doc_id", "text")):
        if row["doc_id"] in documents:
            raise ValueError(f"{row.origin}: the doc_id {row['doc_id']!r} occurs twice")
        documents[row["doc_id"]] = row["text"]  # the text begins with the title; two documents are blank
    queries: dict[str, str] = {}
    for row in read_table(folder / "queries.tsv.gz", ("query_id", "text")):
        if row["query_id"] in queries:
            raise ValueError(f"{row.origin}: the query_id {row['query_id']!r} occurs twice")
        queries[row["query_id"]] = row.text("text")
    gains = _gains(folder / "qrels.tsv.gz", list(queries), list(documents))
    query_vectors = encode_distinct(encoder, queries.values(), getattr(encoder, "encode_query", None))
    filled = [text.strip() != "" for text in documents.values()]
    texts = list(compress(documents.values(), filled))
    found = encode_distinct(encoder, texts, getattr(encoder, "encode_document", None)).of(texts)
    vectors = np.full((len(documents), found.shape[1]), np.nan, np.float32)  # blank documents rank last
    vectors[filled] = found
    return rank_quality(query_vectors.of(queries.values()), vectors, gains)


def quora_duplicates(encoder: TextEncoder, data: Data = None) -> RetrievalResult:
    """Find the duplicates of a question among all other questions.

    The corpus is all distinct questions of the dev and test splits. Queries are the first questions of duplicate
    pairs; relevant are all questions labeled as duplicates of the query, in either order, and the query itself is
    excluded from its ranking. Duplicates are not transitive here, so an unlabeled duplicate counts as wrong. The
    split "train" is excluded: it repeats questions in a lower-cased, tokenized form.

    Args:
        encoder: encodes queries and corpus with ``encode``; similarity is the cosine.
        data: folder with ``quora/quora_pairs.tsv.gz``; None for ``EMBEDKIT_DATA``.

    Raises:
        FileNotFoundError, ValueError: as for `cranfield`.
    """
    path, rows = _quora(data)
    corpus: dict[str, int] = {}
    gains: defaultdict[int, dict[int, float]] = defaultdict(dict)
    asked: dict[int, None] = {}  # an ordered set
    for row in rows:
        left, right = (corpus.setdefault(row.text(side), len(corpus)) for side in ("text1", "text2"))
        if row.label("label") and left != right:
            asked[left] = None
            gains[left][right] = gains[right][left] = 1.0
    if not asked:
        raise ValueError(f"{path}: no pair of duplicates outside the split 'train'")
    vectors = encode_distinct(encoder, corpus).unit
    queries = list(asked)
    return rank_quality(vectors[queries], vectors, [gains[query] for query in queries], exclude=queries)


def rank_quality(
    queries: npt.NDArray[np.float32],
    documents: npt.NDArray[np.float32],
    gains: Sequence[Mapping[int, float]],
    *,
    exclude: Sequence[int] | None = None,
) -> RetrievalResult:
    """nDCG@10 and MRR@10 of exact search by dot product.

    Args:
        queries: (q, dim) vectors, of length 1 for the cosine.
        documents: (n, dim) vectors likewise.
        gains: for each query, row of a relevant document -> gain above 0. Queries without one are excluded from
            the means, as in trec_eval.
        exclude: for each query, the row of a document to exclude from its ranking.
    """
    rankings, judged = [], []
    for start in range(0, len(queries), _BLOCK):
        similarity = queries[start : start + _BLOCK] @ documents.T
        if exclude is not None:
            rows = exclude[start : start + _BLOCK]
            similarity[np.arange(len(rows)), rows] = -np.inf
        for index, best in enumerate(_top(similarity), start):
            if gains[index]:
                rankings.append(best.tolist())
                judged.append(gains[index])
    if not judged:
        raise ValueError("no query has a relevant document")
    return RetrievalResult(ndcg(rankings, judged, K), mrr(rankings, judged, K), len(judged), len(documents))


def _top(similarity: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """(q, at most 10): the documents of each row, the most similar first, ties in order."""
    return np.stack([highest(row, K) for row in similarity])


def _gains(path: Path, queries: Sequence[str], documents: Sequence[str]) -> list[dict[int, float]]:
    """Judgments above 0 of each query, by the row of the document."""
    rows = {
        "query_id": {key: row for row, key in enumerate(queries)},
        "doc_id": {key: row for row, key in enumerate(documents)},
    }
    gains: list[dict[int, float]] = [{} for _ in queries]
    for row in read_table(path, ("query_id", "doc_id", "rel")):
        for column, known in rows.items():
            if row[column] not in known:
                raise ValueError(f"{row.origin}: there is no {column} {row[column]!r}")
        gain = row.number("rel", -1, 10)
        if gain > 0:
            gains[rows["query_id"][row["query_id"]]][rows["doc_id"][row["doc_id"]]] = gain
    return gains
