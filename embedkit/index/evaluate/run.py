"""How well and how fast an index answers judged queries."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...documents.errors import InputError
from ...documents.passages import document_of
from ..search.rerank import CANDIDATES, rerank
from .judgments import Judgments
from .metrics import mrr, ndcg, recall

if TYPE_CHECKING:
    from ...cross_encoder import CrossEncoder
    from ..index import Index
    from ..search.hits import Hit

__all__ = ["Measured", "Search", "evaluate"]

_K = 10
_TIMED = 200  # queries asked one by one


@dataclass(frozen=True, slots=True)
class Search:
    """A way to search.

    Attributes:
        name: for the table.
        hybrid: score by words, too.
        reranker: reorders the best hits.
    """

    name: str
    hybrid: bool
    reranker: CrossEncoder | None = None

    def hits(
        self, index: Index, queries: Sequence[str], k: int, *, per_document: bool = False
    ) -> list[list[Hit]]:
        """The ``k`` best hits of each query; with ``per_document`` one passage of each document."""
        if self.reranker is None:
            return index.search(list(queries), k, hybrid=self.hybrid, per_document=per_document)
        found = index.search(list(queries), max(k, CANDIDATES), hybrid=self.hybrid, per_document=per_document)
        return [
            [*rerank(self.reranker, [query], [hits[:CANDIDATES]], CANDIDATES)[0], *hits[CANDIDATES:]][:k]
            for query, hits in zip(queries, found, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one way to search one index.

    Attributes:
        search: its name.
        ndcg: nDCG@10.
        mrr: MRR@10.
        recall: by k.
        ms: median milliseconds of one query, encoding included.
        queries: the number of queries.
    """

    search: str
    ndcg: float
    mrr: float
    recall: dict[int, float]
    ms: float
    queries: int


def evaluate(
    index: Index, judgments: Judgments, searches: Sequence[Search], *, ks: Sequence[int] = (10, 100)
) -> list[Measured]:
    """Measure each of ``searches`` on ``index``. Judgments of an index of passages name passages, or documents.

    Judged documents that are not in the index count as never found, as in trec_eval, with a warning.

    Args:
        index: to search.
        judgments: queries and what answers them.
        searches: ways to search.
        ks: of recall@k.

    Raises:
        InputError: most judged documents are not in the index.
    """
    wanted = list({id for gain in judgments.gains for id in gain})
    generation = index.generation
    of_documents = {} if generation.manifest.passages is None else generation.find_passages(wanted)
    per_document = bool(of_documents)
    known = of_documents or generation.find(wanted)
    missing = [id for id in wanted if id not in known]
    if missing:
        told = f"{len(missing):,} of {len(wanted):,} judged documents are not in the index, such as {min(missing)!r}"
        if 2 * len(missing) > len(wanted):
            raise InputError(
                "",
                f"{told}; blank texts are not indexed, and judgments name documents by their ids (in BEIR's files _id)",
            )
        warnings.warn(f"{told}, as blank texts never are; they count as never found", stacklevel=2)
    return [_measure(index, judgments, search, ks, per_document=per_document) for search in searches]


def _measure(
    index: Index, judgments: Judgments, search: Search, ks: Sequence[int], *, per_document: bool
) -> Measured:
    k = max((_K, *ks))
    found = [
        [document_of(hit.id) if per_document else hit.id for hit in hits]
        for hits in search.hits(index, judgments.queries, k, per_document=per_document)
    ]
    seconds = []
    for query in judgments.queries[:_TIMED]:
        begin = time.perf_counter()
        search.hits(index, [query], _K, per_document=per_document)
        seconds.append(time.perf_counter() - begin)
    return Measured(
        search.name,
        ndcg(found, judgments.gains, _K),
        mrr(found, judgments.gains, _K),
        {one: recall(found, judgments.gains, one) for one in ks},
        1e3 * sorted(seconds)[len(seconds) // 2],
        len(judgments.queries),
    )
