"""Trials: a candidate index is built from a sample and measured, and its figures are extrapolated to all vectors.

For more vectors than the sample holds,

* bytes are those of the sample's index times rows / sample (slightly too many: centroids grow with the
  square root);
* time and nprobe or ef follow a power law through two sizes: each candidate is also built from a quarter of the
  sample. Exact search scales with rows / sample;
* build time is scaled by rows / sample.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import replace
from typing import Any

import numpy as np

from ..storage.faiss_index import (
    Float32Array,
    auto_nlist,
    create_index,
    faiss_threads,
    import_faiss,
    inverted_lists,
    ivf_of,
    layers,
    train,
    transforms,
)
from ..storage.search_parameters import SearchParameters
from .measure import FINAL_CALLS, K, Point, Truth, fastest_parameters, timed_search
from .result import Measured

__all__ = ["OVER_MEMORY", "Trials", "least_bytes"]

OVER_MEMORY = "over the memory allowed"
"""The note of a candidate that is too large."""

_ADD_ROWS = 4096
_TRAINING_ROWS = 65_536
_SEED = 20240


class Trials:
    """Builds one candidate after another from the same sample, and measures it against exact search."""

    def __init__(
        self,
        rows: int,
        sample: Float32Array,
        queries: Float32Array,
        *,
        scaled: bool,
        target: float,
        max_memory: int | None,
        threads: int | None,
        deadline: float,
    ) -> None:
        """Compute exact results; if ``scaled``, also on a quarter of the sample.

        Args:
            rows: vectors to index.
            sample: (n, dimension) of them.
            queries: (q, dimension).
            scaled: figures are extrapolated from ``n`` to ``rows`` vectors.
            target: recall@10 to reach.
            max_memory: bytes that the index may take; ``None``: any.
            threads: for building.
            deadline: in `time.monotonic`, after which no build is started.
        """
        self.rows = rows
        self.sample = sample
        self.queries = queries
        self.target = target
        self.max_memory = max_memory
        self._threads = threads
        self._deadline = deadline
        # a sample of all vectors but the queries held out needs no scaling
        self.scale = rows / len(sample) if scaled else 1.0
        self._centroids: Float32Array | None = None
        flat = create_index("Flat", sample.shape[1])
        flat.add(sample)
        k = min(K, len(sample))
        with faiss_threads(threads):
            self._truth = Truth(queries, flat.search(queries, k)[1], sample.__getitem__)
        some = queries[:64]  # exact search takes the same time for every query
        _, taken = timed_search(lambda: flat.search(some, k)[1], FINAL_CALLS)
        self.exact_ms = 1e3 * taken / len(some)
        self._quarter: Trials | None = None
        if scaled:
            self._quarter = Trials(
                len(sample[::4]),
                np.ascontiguousarray(sample[::4]),
                queries,
                scaled=False,
                target=target,
                max_memory=None,
                threads=threads,
                deadline=deadline,
            )

    def candidate(self, factory: str) -> Measured:
        """Build, measure and scale one candidate."""
        dimension = self.sample.shape[1]
        if self.max_memory is not None and least_bytes(factory, dimension) * self.rows > self.max_memory:
            return Measured(factory, OVER_MEMORY)
        if factory == "Flat":
            size = 4 * dimension * self.rows
            ms = self.exact_ms * self.scale
            return Measured(factory, "", SearchParameters(), 1.0, self.exact_ms, ms, size, 0.0)
        basic = factory.startswith("IVF") and factory.endswith(",Flat")
        if time.monotonic() > self._deadline and not basic:
            return Measured(factory, "not tried: out of time")
        built = self._build(factory)
        if built is None:
            return Measured(factory, "not tried: its build takes longer than the time allowed")
        index, build_seconds = built
        point, points = fastest_parameters(index, self._truth, self.target, too_slow=self.exact_ms)
        shown = point or max(points, key=lambda one: (one.sure_recall, -one.ms))
        size = round(_written_bytes(index) * self.scale)
        del index
        parameters, ms = (
            (shown.parameters, shown.ms) if self._quarter is None else self._extrapolate(factory, shown)
        )
        over = self.max_memory is not None and size > self.max_memory
        missed = f"below recall {self.target:g}" if point is None else ""
        return Measured(
            factory,
            OVER_MEMORY if over else missed,
            parameters,
            shown.recall,
            shown.ms,
            ms,
            size,
            build_seconds * self.scale,
            tuple(points),
        )

    def _extrapolate(self, factory: str, point: Point) -> tuple[SearchParameters, float]:
        """Parameters and milliseconds over all rows, from ``point`` on the sample and its counterpart on a quarter."""
        quarter = self._quarter
        assert quarter is not None
        built = quarter._build(factory)
        rescore = point.parameters.rescore
        smaller = None
        if built is not None:
            smaller, _ = fastest_parameters(
                built[0],
                quarter._truth,
                min(self.target, point.recall),
                rescores=() if rescore is None else (rescore,),
            )
        doublings = math.log(self.scale) / math.log(len(self.sample) / len(quarter.sample))

        def go_on(small: float, large: float) -> float:
            # between constant and linear in the number of vectors: anything else is noise
            return large * min(float(max(large / small, 1.0) ** doublings), self.scale)

        if smaller is None:
            return point.parameters, point.ms * self.scale
        parameters = point.parameters
        if parameters.nprobe is not None:
            lists = inverted_lists(create_index(factory, self.sample.shape[1])) or 1
            grown = point.parameters.nprobe and go_on(smaller.parameters.nprobe or 1, parameters.nprobe)
            parameters = replace(parameters, nprobe=min(lists, math.ceil(grown or 1)))
        if parameters.ef is not None:
            parameters = replace(parameters, ef=math.ceil(go_on(smaller.parameters.ef or 1, parameters.ef)))
        return parameters, go_on(smaller.ms, point.ms)

    def _build(self, factory: str) -> tuple[Any, float] | None:
        """The index of the sample and the CPU seconds it took; ``None`` if time ran out."""
        factory = re.sub(r"IVF\d+", f"IVF{auto_nlist(len(self.sample))}", factory)
        index = create_index(factory, self.sample.shape[1])
        begin = time.process_time()
        with faiss_threads(self._threads):
            if not index.is_trained:
                self._train(index)
            # one call for all vectors would be hardly faster, and could not be stopped
            for start in range(0, len(self.sample), _ADD_ROWS):
                index.add(self.sample[start : start + _ADD_ROWS])
                if factory.startswith("HNSW") and time.monotonic() > self._deadline:
                    return None
        return index, time.process_time() - begin

    def _train(self, index: Any) -> None:
        """Train; the centroids are found once and shared, as all kinds have the same lists."""
        faiss = import_faiss()
        ivf = ivf_of(index)
        rotation = next(transforms(index), None)
        chosen = np.random.default_rng(_SEED).permutation(len(self.sample))[:_TRAINING_ROWS]
        vectors = self.sample[np.sort(chosen)]
        if ivf is not None and self._centroids is not None:
            centroids = self._centroids
            if rotation is not None:
                rotation.train(vectors)
                centroids = rotation.apply(centroids)
            faiss.downcast_index(ivf.quantizer).add(centroids)
        elif ivf is not None:
            ivf.cp.min_points_per_centroid = 1  # no warning on stderr about a small sample
        train(index, vectors)
        if self._centroids is None and ivf is not None and rotation is None:
            self._centroids = faiss.downcast_index(ivf.quantizer).reconstruct_n(0, ivf.nlist)


def least_bytes(factory: str, dimension: int) -> int:
    """Least bytes per vector: its codes, including those of a refinement."""
    index = create_index(factory, dimension)
    faiss = import_faiss()
    *_, coded = layers(index)
    size = int(coded.code_size)
    if isinstance(index, faiss.IndexRefine):
        size += int(faiss.downcast_index(index.refine_index).code_size)
    return size


def _written_bytes(index: Any) -> int:
    """The size of the file that ``index`` would be written to."""
    size = 0

    def count(block: bytes) -> int:
        nonlocal size
        size += len(block)
        return len(block)

    faiss = import_faiss()
    writer = faiss.PyCallbackIOWriter(count)
    faiss.write_index(index, writer)
    del writer  # flushes its buffer, which counts the rest
    return size
