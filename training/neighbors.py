"""Related texts for unlabeled texts, found by a teacher.

Random sentences are unrelated, so a batch of them teaches little about near-duplicates and close neighbors. Augmented
SBERT (Thakur et al. 2021, arXiv:2010.08240) therefore draws pairs from a search; here each text gets two of its
neighbors in the training data, one of the nearest third and one of the farthest third.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..output import unit

__all__ = ["near_and_far"]

_NEIGHBORS = 15  # searched; one is drawn from the nearest third, one from the farthest
_SAME = 0.97  # a neighbor with a higher cosine is the same text in another spelling
_CELL = 400  # texts of a cell, on average; `_PROBED` of them are searched
_PROBED = 12
_EXACT = 20_000  # texts up to which all are searched

Rows = npt.NDArray[np.int64]


def near_and_far(vectors: npt.NDArray[Any]) -> Rows:
    """For each text a near and a farther neighbor; deterministic.

    Args:
        vectors: (n, d), of any length; neighbors have the highest cosine.

    Returns:
        (m, 3) rows: a text, the near one, the farther one. Texts with fewer than two neighbors are left out.

    Raises:
        ImportError: Faiss is not installed.
    """
    from ..index.storage.faiss_index import import_faiss

    faiss = import_faiss()
    units = unit(vectors)
    count, width = units.shape
    if count <= _EXACT:
        index = faiss.IndexFlatIP(width)
    else:
        index = faiss.index_factory(width, f"IVF{count // _CELL},Flat", faiss.METRIC_INNER_PRODUCT)
        index.train(units)
        index.nprobe = _PROBED
    index.add(units)
    scores, found = index.search(units, min(_NEIGHBORS + 1, count))
    random = np.random.default_rng(0)
    rows = []
    for text, (score, neighbors) in enumerate(zip(scores, found, strict=True)):
        others = neighbors[(neighbors >= 0) & (neighbors != text) & (score < _SAME)]
        if len(others) < 2:
            continue
        third = max(len(others) // 3, 1)
        rows.append((text, random.choice(others[:third]), random.choice(others[-third:])))
    return np.array(rows, np.int64).reshape(-1, 3)
