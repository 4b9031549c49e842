"""Which kind of Faiss index to build: each is made of a sample, and its recall and time are measured.

What is measured is a sample of at most `SAMPLE_ROWS` vectors; with no more vectors than that, it is all of
them. Beyond, these figures of the whole are estimates, and are named so:

* bytes: those of the sample's index × rows / sample (a little too many: centroids grow by the root only);
* time and nprobe or ef: each candidate is also built of a quarter of the sample. What a fourfold number of
  vectors does to the least time and effort that reach the target is taken to go on: a power law through the
  two sizes. Exact search × rows / sample;
* time to build: × rows / sample.

So whoever builds the index measures nprobe or ef once more on it (`embedkit.index.auto.tune`).
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from ..storage.faiss_index import (
    AUTO_IVF_ROWS,
    Float32Array,
    Int64Array,
    create_index,
    faiss_threads,
    import_faiss,
    inverted_lists,
    ivf_of,
    resolve_factory,
)
from .measure import FINAL_CALLS, K, Point, Setting, search_settings, timed_search
from .plot import frontier

SAMPLE_ROWS = 100_000
"""Most vectors that candidates are built of."""

QUERIES = 1000
"""Queries held out of the sample where none are given."""

SECONDS = 120.0
"""Candidates are tried for about so long by default."""

_ADD_ROWS = 4096
_TRAINING_ROWS = 65_536
_SEED = 20240

_log = logging.getLogger("embedkit")


@dataclass(frozen=True, slots=True)
class Measured:
    """A candidate, and what was found out about it.

    Attributes:
        factory: the Faiss factory string for all rows.
        note: why it was not chosen, or "chosen".
        setting: what reaches the target, estimated for all rows unless the sample is all; where nothing
            reaches it, the best that was seen.
        recall: recall@10 on the sample.
        sample_ms: milliseconds a query on the sample.
        ms: milliseconds a query over all rows, estimated unless the sample is all.
        bytes: size over all rows, estimated unless the sample is all.
        build_seconds: processor seconds to build it of all rows, estimated unless the sample is all.
        points: every setting measured on the sample.
    """

    factory: str
    note: str
    setting: Setting = field(default_factory=Setting)
    recall: float | None = None
    sample_ms: float | None = None
    ms: float | None = None
    bytes: int | None = None
    build_seconds: float | None = None
    points: tuple[Point, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Choice:
    """What `choose` chose, and the table that it chose from.

    Attributes:
        chosen: the fastest candidate that reaches the target and fits; see ``reached``.
        reached: whether it reaches the target; if none does, the chosen one has the best recall of those
            that fit.
        target_recall: recall@10 that was asked for.
        max_memory: bytes that the index may take; ``None``: any.
        rows: vectors that the index is for.
        sample_rows: vectors that the candidates were made of.
        queries: how many were searched for.
        held_out: the queries are vectors taken out of the sample, not queries that were given.
        table: all candidates, the chosen one among them.
    """

    chosen: Measured
    reached: bool
    target_recall: float
    max_memory: int | None
    rows: int
    sample_rows: int
    queries: int
    held_out: bool
    table: tuple[Measured, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON for the manifest; of the points measured, those of the table that no other one beats."""
        data = asdict(self)
        del data["chosen"]["points"]
        for candidate, measured in zip(data["table"], self.table, strict=True):
            candidate["points"] = [asdict(point) for point in frontier(measured.points)]
        return data

    def lines(self) -> list[str]:
        """The table as text, a line a candidate."""
        return table_of(self.to_dict())


def table_of(choice: dict[str, Any]) -> list[str]:
    """The lines of `Choice.lines` from what `Choice.to_dict` gave and a manifest kept."""
    rows, sample_rows, table = choice["rows"], choice["sample_rows"], choice["table"]
    source = "vectors held out" if choice["held_out"] else "queries given"
    head = f"recall@10 ≥ {choice['target_recall']:g} of {choice['queries']:,} {source}, on "
    if rows > sample_rows:
        head += f"{sample_rows:,} of {rows:,} vectors; ~ is an estimate for all"
    else:
        head += f"all {rows:,} vectors"
    if choice["max_memory"] is not None:
        head += f"; at most {choice['max_memory'] / 1e6:,.0f} MB"
    width = max(len(one["factory"]) for one in table)
    mark = "~" if rows > sample_rows else ""

    def cell(value: float | None, columns: int, form: str, mark: str = mark) -> str:
        return f"{'' if value is None else mark + format(value, form):>{columns}}"

    lines = [head, f"{'index':<{width}}  recall  ms/query      MB  build s  setting"]
    for one in table:
        size = None if one["bytes"] is None else one["bytes"] / 1e6
        cells = (
            cell(one["recall"], 6, ".4f", ""),
            cell(one["ms"], 8, ".4f"),
            cell(size, 6, ",.0f"),
            cell(one["build_seconds"], 7, ",.0f"),
            str(Setting(**one["setting"])),
        )
        note = f"({one['note']})" if one["note"] else ""
        lines.append("  ".join((f"{one['factory']:<{width}}", *cells, note)).rstrip())
    if (tuned := choice.get("tuned")) is not None:
        point = tuned["point"]
        lines.append(
            f"measured on the index itself: {Setting(**point['setting'])}, recall {point['recall']:.4f}, "
            f"{point['ms']:.4f} ms/query"
        )
    return lines


def candidates(rows: int, dimension: int) -> list[str]:
    """The factory strings to try for so many vectors, those first that are quick to build.

    Below `AUTO_IVF_ROWS` vectors there is nothing to train: exact search and HNSW only.
    """
    if rows < AUTO_IVF_ROWS:
        return ["Flat", "HNSW32"]
    lists = resolve_factory("auto", rows).partition(",")[0]
    # PQ takes a divisor of the dimension; 4 bits for each two columns
    subvectors = next(m for m in range(max(1, dimension // 2), 0, -1) if dimension % m == 0)
    kinds = [
        "Flat",
        f"{lists},Flat",
        # turned at random first: 4 bits for each two columns do badly where columns differ in their variance
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
    queries: Float32Array | None = None,
    seconds: float = SECONDS,
    threads: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Choice:
    """Measure kinds of index on a sample of vectors, and choose the fastest that is good enough.

    Args:
        sample: (n, dimension) float32, all vectors or a random part; of more than `SAMPLE_ROWS` and the
            queries, a part is drawn, the same every time. Similarity is the inner product.
        rows: how many vectors the index is for; ``None``: n.
        target_recall: recall@10 to reach against exact search, above 0, at most 1.
        max_memory: bytes that the index may take.
        queries: (q, dimension); ``None``: up to 1,000 vectors are taken out of the sample and searched for.
        seconds: no further candidate is begun, and HNSW is given up, when this much time has passed; Flat and
            ``IVF…,Flat`` are always measured.
        threads: for building; the time of a search is always that of one thread.
        progress: told the factory string before each candidate.

    Raises:
        ValueError: ``target_recall``, ``max_memory`` or ``rows`` is out of range, there are no vectors, or the
            queries have another dimension.
    """
    if not 0 < target_recall <= 1:
        raise ValueError(f"target_recall must be above 0 and at most 1, not {target_recall}")
    if max_memory is not None and max_memory < 1:
        raise ValueError(f"max_memory must be at least 1 byte, not {max_memory}")
    given, dimension = sample.shape
    if given == 0:
        raise ValueError("there are no vectors to choose an index for")
    rows = given if rows is None else rows
    if rows < given:
        raise ValueError(f"rows must be at least the {given} vectors given, not {rows}")
    if queries is not None and (queries.ndim != 2 or queries.shape[1] != dimension or not len(queries)):
        raise ValueError(
            f"the queries have the shape {queries.shape}; give (q, {dimension}), as the vectors have it"
        )
    vectors, asked = _parts(sample, queries)
    run = _Run(
        rows,
        vectors,
        asked,
        scaled=rows > len(vectors) + (len(asked) if queries is None else 0),
        target=target_recall,
        max_memory=max_memory,
        threads=threads,
        deadline=time.monotonic() + seconds,
    )
    table = []
    for factory in candidates(rows, dimension):
        if progress is not None:
            progress(factory)
        table.append(run.candidate(factory))
    return _decide(table, run, held_out=queries is None)


def _parts(vectors: Float32Array, queries: Float32Array | None) -> tuple[Float32Array, Float32Array]:
    """Vectors to build of, and queries; the same every time."""
    rows = len(vectors)
    held_out = 0 if queries is not None else min(QUERIES, max(1, rows // 10))
    wanted = min(rows, SAMPLE_ROWS + held_out)
    chosen = np.random.default_rng(_SEED).permutation(rows)[:wanted]
    if queries is not None or rows == 1:
        sample = np.ascontiguousarray(vectors[np.sort(chosen)], np.float32)
        return sample, sample if queries is None else np.ascontiguousarray(queries, np.float32)
    asked = np.ascontiguousarray(vectors[np.sort(chosen[:held_out])], np.float32)
    return np.ascontiguousarray(vectors[np.sort(chosen[held_out:])], np.float32), asked


class _Run:
    """The sample, its exact answers, and what one candidate after the other learns from it."""

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
        self.rows = rows
        self.sample = sample
        self.queries = queries
        self.target = target
        self.max_memory = max_memory
        self._threads = threads
        self._deadline = deadline
        # of all vectors but the queries held out, the figures stand for all as they are
        self.scale = rows / len(sample) if scaled else 1.0
        self._centroids: Float32Array | None = None
        flat = create_index("Flat", sample.shape[1])
        flat.add(sample)
        k = min(K, len(sample))
        with faiss_threads(threads):
            self._truth: Int64Array = flat.search(queries, k)[1]
        some = queries[:64]  # exact search takes as long for any query
        _, taken = timed_search(lambda: flat.search(some, k)[1], FINAL_CALLS)
        self.exact_ms = 1e3 * taken / len(some)
        self._quarter: _Run | None = None
        if scaled:
            self._quarter = _Run(
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
        if self.max_memory is not None and _least_bytes(factory, dimension) * self.rows > self.max_memory:
            return Measured(factory, "over the memory allowed")
        if factory == "Flat":
            size = 4 * dimension * self.rows
            ms = self.exact_ms * self.scale
            return Measured(factory, "", Setting(), 1.0, self.exact_ms, ms, size, 0.0)
        basic = factory.startswith("IVF") and factory.endswith(",Flat")
        if time.monotonic() > self._deadline and not basic:
            return Measured(factory, "not tried: out of time")
        built = self._build(factory)
        if built is None:
            return Measured(factory, "not tried: its build takes longer than the time allowed")
        index, build_seconds = built
        point, points = search_settings(index, self.queries, self._truth, self.target, too_slow=self.exact_ms)
        shown = point or max(points, key=lambda one: (one.sure_recall, -one.ms))
        size = round(_written_bytes(index) * self.scale)
        del index
        setting, ms = (shown.setting, shown.ms) if self._quarter is None else self._grown(factory, shown)
        over = self.max_memory is not None and size > self.max_memory
        missed = f"below recall {self.target:g}" if point is None else ""
        return Measured(
            factory,
            "over the memory allowed" if over else missed,
            setting,
            shown.recall,
            shown.ms,
            ms,
            size,
            build_seconds * self.scale,
            tuple(points),
        )

    def _grown(self, factory: str, point: Point) -> tuple[Setting, float]:
        """Setting and milliseconds over all rows, from ``point`` on the sample and the same on a quarter."""
        quarter = self._quarter
        assert quarter is not None
        built = quarter._build(factory)
        factor = point.setting.k_factor
        smaller = None
        if built is not None:
            smaller, _ = search_settings(
                built[0],
                quarter.queries,
                quarter._truth,
                min(self.target, point.recall),
                k_factors=() if factor is None else (factor,),
            )
        doublings = math.log(self.scale) / math.log(len(self.sample) / len(quarter.sample))

        def go_on(small: float, large: float) -> float:
            # no faster with more vectors, and no worse than all of them: what is beyond is noise
            return large * min(float(max(large / small, 1.0) ** doublings), self.scale)

        if smaller is None:
            return point.setting, point.ms * self.scale
        setting = point.setting
        if setting.nprobe is not None:
            lists = inverted_lists(create_index(factory, self.sample.shape[1])) or 1
            grown = point.setting.nprobe and go_on(smaller.setting.nprobe or 1, setting.nprobe)
            setting = replace(setting, nprobe=min(lists, math.ceil(grown or 1)))
        if setting.ef is not None:
            setting = replace(setting, ef=math.ceil(go_on(smaller.setting.ef or 1, setting.ef)))
        return setting, go_on(smaller.ms, point.ms)

    def _build(self, factory: str) -> tuple[Any, float] | None:
        """The index of the sample and the processor seconds it took; ``None`` if time ran out."""
        own_lists = resolve_factory("auto", max(len(self.sample), AUTO_IVF_ROWS)).partition(",")[0]
        factory = re.sub(r"IVF\d+", own_lists, factory)
        index = create_index(factory, self.sample.shape[1])
        begin = time.process_time()
        with faiss_threads(self._threads):
            if not index.is_trained:
                self._train(index)
            # one call for all would be quicker by little, and could not be given up
            for start in range(0, len(self.sample), _ADD_ROWS):
                index.add(self.sample[start : start + _ADD_ROWS])
                if factory.startswith("HNSW") and time.monotonic() > self._deadline:
                    return None
        return index, time.process_time() - begin

    def _train(self, index: Any) -> None:
        """Train; the centroids of the lists are found once and shared, as all kinds have the same lists."""
        faiss = import_faiss()
        base = _base(index)
        ivf = ivf_of(base)
        chosen = np.random.default_rng(_SEED).permutation(len(self.sample))[:_TRAINING_ROWS]
        vectors = self.sample[np.sort(chosen)]
        if ivf is not None and self._centroids is not None:
            centroids = self._centroids
            if isinstance(base, faiss.IndexPreTransform):
                rotation = faiss.downcast_VectorTransform(base.chain.at(0))
                rotation.train(vectors)
                centroids = rotation.apply(centroids)
            faiss.downcast_index(ivf.quantizer).add(centroids)
        elif ivf is not None:
            ivf.cp.min_points_per_centroid = 1  # a small sample is no mistake: no warning on stderr
        index.train(vectors)
        if self._centroids is None and ivf is not None and not isinstance(base, faiss.IndexPreTransform):
            self._centroids = faiss.downcast_index(ivf.quantizer).reconstruct_n(0, ivf.nlist)


def _decide(table: list[Measured], run: _Run, *, held_out: bool) -> Choice:
    good = [one for one in table if not one.note and one.ms is not None]
    fitting = [one for one in table if one.note != "over the memory allowed" and one.recall is not None]
    if good:
        chosen = min(good, key=lambda one: one.ms or 0.0)
    elif fitting:
        chosen = max(fitting, key=lambda one: one.recall or 0.0)
    else:
        smallest = min(_least_bytes(one.factory, run.sample.shape[1]) for one in table) * run.rows
        raise ValueError(
            f"no index of {run.rows:,} vectors of {run.sample.shape[1]} dimensions fits "
            f"{run.max_memory or 0:,} bytes: allow at least {smallest * 1.2:,.0f}, or use fewer dimensions"
        )
    if not good:
        _log.warning(
            "no index reaches recall@10 %g%s; %s is used, with %.4f",
            run.target,
            "" if run.max_memory is None else f" within {run.max_memory:,} bytes",
            chosen.factory,
            chosen.recall,
        )
    marked = replace(chosen, note="chosen" if good else "chosen: the best recall that fits")
    return Choice(
        chosen=marked,
        reached=bool(good),
        target_recall=run.target,
        max_memory=run.max_memory,
        rows=run.rows,
        sample_rows=len(run.sample) if run.scale > 1 else run.rows,
        queries=len(run.queries),
        held_out=held_out,
        table=tuple(marked if one is chosen else one for one in table),
    )


def _base(index: Any) -> Any:
    faiss = import_faiss()
    return faiss.downcast_index(index.base_index) if isinstance(index, faiss.IndexRefine) else index


def _least_bytes(factory: str, dimension: int) -> int:
    """Bytes a vector takes at least: its codes, those of the refinement counted."""
    index = create_index(factory, dimension)
    faiss = import_faiss()
    base = _base(index)
    storage = base
    if isinstance(base, faiss.IndexHNSW):
        storage = faiss.downcast_index(base.storage)
    elif isinstance(base, faiss.IndexPreTransform):
        storage = faiss.downcast_index(base.index)
    size = int(storage.code_size)
    if index is not base:
        size += int(faiss.downcast_index(index.refine_index).code_size)
    return size


def _written_bytes(index: Any) -> int:
    """The size of the file that ``index`` makes."""
    size = 0

    def count(block: bytes) -> int:
        nonlocal size
        size += len(block)
        return len(block)

    faiss = import_faiss()
    writer = faiss.PyCallbackIOWriter(count)
    faiss.write_index(index, writer)
    del writer  # it buffers, and counts the rest when it goes
    return size
