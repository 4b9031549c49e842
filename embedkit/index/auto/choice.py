"""Chooses a kind of Faiss index: each candidate is built from a sample, and its recall and time are measured.

The sample is at most `SAMPLE_ROWS` vectors, or all if there are no more. Figures for more vectors than
that are estimates (see `trials`) and marked as such, so nprobe or ef is measured once more on the finished index
(`embedkit.index.auto.tune`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..storage.faiss_index import AUTO, Float32Array, import_faiss, resolve_factory
from .result import Choice, Measured
from .trials import OVER_MEMORY, Trials, least_bytes

__all__ = ["QUERIES", "SAMPLE_ROWS", "SECONDS", "candidates", "choose"]

SAMPLE_ROWS = 100_000
"""Maximum number of vectors that candidates are built from."""

QUERIES = 1000
"""Queries held out of the sample."""

SECONDS = 120.0
"""Default time for trying candidates."""

_SEED = 20240

_log = logging.getLogger("embedkit")


def candidates(rows: int, dimension: int) -> list[str]:
    """The factory strings to try for ``rows`` vectors, in the order of their build time.

    Where ``auto`` is exact search, there is too little to train: exact search and HNSW only.
    """
    auto = resolve_factory(AUTO, rows)
    if auto == "Flat":
        return ["Flat", "HNSW32"]
    lists = auto.partition(",")[0]
    # 4 bits per two columns; the number of subvectors must divide the dimension
    subvectors = next(m for m in range(max(1, dimension // 2), 0, -1) if dimension % m == 0)
    kinds = [
        "Flat",
        f"{lists},Flat",
        # rotated at random first: 4 bits per two columns do badly if the variance of columns differs
        f"RR{dimension},{lists},PQ{subvectors}x4fsr,RFlat",
        f"RR{dimension},{lists},PQ{subvectors}x4fsr,Refine(SQ8)",
        f"{lists},SQ8",
    ]
    if hasattr(import_faiss(), "IndexIVFRaBitQ"):
        kinds.append(f"{lists},RaBitQ,RFlat")
    return [*kinds, "HNSW32"]


def choose(
    sample: Float32Array,
    *,
    rows: int | None = None,
    target_recall: float = 0.95,
    max_memory: int | None = None,
    seconds: float = SECONDS,
    threads: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Choice:
    """Measure kinds of index on a sample of vectors, and choose the fastest that reaches a recall.

    Args:
        sample: (n, dimension) float32, all vectors or a random sample of them; more than `SAMPLE_ROWS` and the
            queries, up to 1,000 of them, are sampled again, always the same way. Similarity is the inner product.
        rows: the number of vectors to index; ``None``: n.
        target_recall: recall@10 to reach against exact search, above 0, at most 1.
        max_memory: bytes that the index may take.
        seconds: after this time no candidate is started and HNSW is abandoned; Flat and ``IVF…,Flat`` are always
            measured.
        threads: for building; searches are timed on one thread.
        progress: called with the factory string before each candidate.

    Raises:
        ValueError: no index fits ``max_memory``.
    """
    rows = len(sample) if rows is None else rows
    vectors, asked = _split(sample)
    trials = Trials(
        rows,
        vectors,
        asked,
        scaled=rows > len(vectors) + len(asked),
        target=target_recall,
        max_memory=max_memory,
        threads=threads,
        deadline=time.monotonic() + seconds,
    )
    table = []
    for factory in candidates(rows, sample.shape[1]):
        if progress is not None:
            progress(factory)
        table.append(trials.candidate(factory))
    return _decide(table, trials)


def _split(vectors: Float32Array) -> tuple[Float32Array, Float32Array]:
    """Vectors to build from, and queries; deterministic."""
    rows = len(vectors)
    if rows == 1:
        return vectors, vectors
    held_out = min(QUERIES, max(1, rows // 10))
    wanted = min(rows, SAMPLE_ROWS + held_out)
    chosen = np.random.default_rng(_SEED).permutation(rows)[:wanted]
    asked = vectors[np.sort(chosen[:held_out])]
    return vectors[np.sort(chosen[held_out:])], asked


def _decide(table: list[Measured], trials: Trials) -> Choice:
    good = [one for one in table if not one.note and one.ms is not None]
    fitting = [one for one in table if one.note != OVER_MEMORY and one.recall is not None]
    if good:
        chosen = min(good, key=lambda one: one.ms or 0.0)
    elif fitting:
        chosen = max(fitting, key=lambda one: one.recall or 0.0)
    else:
        smallest = min(least_bytes(one.factory, trials.sample.shape[1]) for one in table) * trials.rows
        raise ValueError(
            f"no index of {trials.rows:,} vectors of {trials.sample.shape[1]} dimensions fits "
            f"{trials.max_memory or 0:,} bytes: allow at least {smallest * 1.2:,.0f}, or use fewer dimensions"
        )
    if not good:
        _log.warning(
            "no index reaches recall@10 %g%s; %s is used, with %.4f",
            trials.target,
            "" if trials.max_memory is None else f" within {trials.max_memory:,} bytes",
            chosen.factory,
            chosen.recall,
        )
    marked = replace(chosen, note="chosen" if good else "chosen: the best recall that fits")
    return Choice(
        chosen=marked,
        reached=bool(good),
        target_recall=trials.target,
        max_memory=trials.max_memory,
        rows=trials.rows,
        sample_rows=len(trials.sample) if trials.scale > 1 else trials.rows,
        queries=len(trials.queries),
        table=tuple(marked if one is chosen else one for one in table),
    )
