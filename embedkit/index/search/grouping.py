"""The best passage of each document."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...documents.passages import document_of
from ..storage.faiss_index import Float32Array
from .hybrid import Parts
from .prepared import Found, PreparedSearch

__all__ = ["best_of_documents"]

_DEEPER = 4


def best_of_documents(search: PreparedSearch, vectors: Float32Array, texts: list[str] | None) -> Found:
    """What ``search`` finds, but one passage of each document; row -1 where there are fewer documents.

    Searches deeper until there are enough documents, or nothing more is found.
    """
    generation, k = search.generation, search.k
    scores = np.full((len(vectors), k), -np.inf, np.float32)
    rows = np.full((len(vectors), k), -1, np.int64)
    parts: list[list[Parts]] = [[] for _ in range(len(vectors))]
    explained = False
    open_lines = np.arange(len(vectors))
    depth = k
    while len(open_lines):
        depth = min(depth * _DEEPER, generation.manifest.documents)
        some = None if texts is None else [texts[line] for line in open_lines]
        found = replace(search, k=depth).run(vectors[open_lines], some)
        unfinished = []
        for at, line in enumerate(open_lines.tolist()):
            living = found.rows[at] >= 0
            documents: dict[str, int] = {}
            ids = generation.ids(found.rows[at][living])
            for place, passage in zip(np.flatnonzero(living).tolist(), ids, strict=True):
                documents.setdefault(document_of(passage), place)
            best = list(documents.values())[:k]
            scores[line, : len(best)] = found.scores[at][best]
            rows[line, : len(best)] = found.rows[at][best]
            if found.parts is not None:
                explained = True
                parts[line] = [found.parts[at][place] for place in best]
            more = living.all() and depth < generation.manifest.documents
            if more and len(best) < k and len(best) < generation.whole_documents:
                unfinished.append(line)
        open_lines = np.array(unfinished, np.int64)
    return Found(scores, rows, parts if explained else None)
