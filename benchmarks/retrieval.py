"""Quality, time and memory of retrieval, with `embedkit.Index` and with Faiss alone.

    python benchmarks/retrieval.py --data DIR --work CACHE --json OUT.json --plot OUT.png
    python benchmarks/retrieval.py MODEL... --pairs quora_duplicate_questions.tsv --work CACHE

The first table follows Table 3 of the HPD paper: the second questions of Quora's pairs are stored, the first ones
are the queries, searched by Faiss on a CPU as IVF1024,Flat with nprobe 5; in addition, exact search and the index
that `target_recall=0.95` chooses. `retrieval_data.question_pairs` defines queries, stored questions (padded to
83,222 vectors, which at 128 dimensions are the paper's 42.61 MB) and positives; their counts are printed. The pairs
of the data folder are a subset of Quora's, so the figures are not those of the full set.

Fewer dimensions than a model has are its first ones, normalized again (`truncate_dim`).

Times are CPU times of one thread: vectors in batches of 1000, with Faiss alone and with `Index.search_vectors` in
alternating rounds; one vector at a time; and everything from text to hits. The vectors of texts are cached in --work.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import common
import numpy as np
import retrieval_data
from retrieval_data import Collection, Vectors

from embedkit.index.evaluate import mrr, ndcg, recall

__all__ = ["ranked"]

K = 10
PAPER_VECTORS = 83_222
PAPER_FACTORY, PAPER_NPROBE = "IVF1024,Flat", 5
BATCH = 1000


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = common.parser(__doc__)
    parser.add_argument(
        "models",
        nargs="*",
        default=["builtin"],
        help="model folders, or 'builtin' (default)",
        metavar="MODEL",
    )
    parser.add_argument("--precision", default="auto", help="precision of the models: auto, fp32 or int8")
    parser.add_argument("--data", type=Path, help="folder with quora/ and retrieval/")
    parser.add_argument("--pairs", type=Path, help="pairs of questions (.tsv, optionally .gz)")
    parser.add_argument("--stored", type=int, default=PAPER_VECTORS, help="vectors to pad the collection to")
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 256, 384, 768])
    parser.add_argument(
        "--auto-dims", type=int, nargs="*", help="dimensions to choose an index for (default: --dims)"
    )
    parser.add_argument("--target-recall", type=float, default=0.95, help="recall of the chosen index")
    parser.add_argument("--rounds", type=common.positive, default=5)
    parser.add_argument("--work", type=Path, required=True, help="folder to cache vectors in")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--plot", type=Path, help="plot MRR@10 against time to this file")
    options = parser.parse_args(argv)
    if options.data is None and options.pairs is None:
        parser.error("give --data, --pairs or both")
    return options


# ----------------------------------------------------------------------------------------------------- quality


def ranked(found: np.ndarray, own_row: np.ndarray, k: int) -> list[list[int]]:
    """The first ``k`` rows of each query, without the query's own and without -1."""
    return [
        [row for row in line if row >= 0 and row != own][:k]
        for line, own in zip(found.tolist(), own_row.tolist(), strict=True)
    ]


# -------------------------------------------------------------------------------------------------------- time


def processor_seconds(run: Callable[[], object]) -> Callable[[], float]:
    """Wrap `run` in a function that returns its CPU seconds on this thread."""

    def seconds() -> float:
        start = time.thread_time()
        run()
        return time.thread_time() - start

    return seconds


def batched(search: Callable[[Vectors], object], queries: Vectors) -> Callable[[], float]:
    """Milliseconds per 1000 queries of ``search``, called with 1000 queries at a time."""

    def run() -> None:
        for start in range(0, len(queries), BATCH):
            search(queries[start : start + BATCH])

    seconds = processor_seconds(run)
    return lambda: seconds() * 1e6 / len(queries)


def one_by_one(search: Callable[[Vectors], object], queries: Vectors) -> Callable[[], float]:
    """Median microseconds of ``search`` for one vector."""
    lines = [queries[row : row + 1] for row in range(len(queries))]

    def median() -> float:
        return float(np.median([processor_seconds(lambda line=line: search(line))() for line in lines])) * 1e6

    return median


# ---------------------------------------------------------------------------------------------------- indexing


class KnownVectors:
    """An encoder with precomputed vectors for documents; queries are encoded by ``encoder``.

    Args:
        encoder: encodes queries, and identifies the model to the index.
        texts: the documents.
        vectors: (documents, dimension), the vectors of ``texts``.
    """

    def __init__(self, encoder: Any, texts: Sequence[str], vectors: Vectors) -> None:
        self._encoder = encoder
        self._rows = {text: row for row, text in enumerate(texts)}
        self._vectors = vectors
        self.encode_seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode_document(self, sentences: list[str], *, normalize_embeddings: bool) -> Vectors:
        return self._vectors[[self._rows[text] for text in sentences]]

    def encode_query(self, sentences: list[str], *, normalize_embeddings: bool) -> Any:
        start = time.thread_time()
        vectors = self._encoder.encode_query(sentences, normalize_embeddings=normalize_embeddings)
        self.encode_seconds += time.thread_time() - start
        return vectors


def build(folder: Path, texts: Sequence[str], encoder: Any, vectors: Vectors, **options: Any) -> Any:
    """Build an `embedkit.Index` of ``texts`` in a new folder below ``folder``, for one thread."""
    from embedkit.index import Index

    path = Path(tempfile.mkdtemp(dir=folder)) / "index"
    known = KnownVectors(encoder, texts, vectors)
    return Index.build(path, list(texts), known, threads=1, max_memory=16 << 30, **options)


def faiss_of(index: Any) -> Any:
    """The Faiss index of ``index``, exported and read back."""
    import faiss

    path = index.path.with_suffix(".faiss")
    index.export_faiss(path)
    return faiss.read_index(str(path))


def megabytes(index: Any) -> float:
    """Size of the Faiss files of ``index`` in MB."""
    return (
        sum((s.folder / p.entry.file).stat().st_size for s in index.generation.segments for p in s.parts)
        / 1e6
    )


# ------------------------------------------------------------------------------------------------------- parts


def against_faiss(index: Any, raw: Any, queries: Vectors, rounds: int) -> dict[str, Any]:
    """Time with `Index` and with Faiss alone, in alternating rounds, and whether the rows agree."""
    some = queries[: 2 * BATCH]
    searches = {"embedkit": lambda v: index.search_vectors(v, K), "faiss": lambda v: raw.search(v, K)}
    batches = common.alternate({name: batched(search, some) for name, search in searches.items()}, rounds)
    singles = common.alternate(
        {name: one_by_one(search, queries[:300]) for name, search in searches.items()}, rounds
    )
    ratios = [ours / theirs for ours, theirs in zip(batches["embedkit"], batches["faiss"], strict=True)]
    differences = [ours - theirs for ours, theirs in zip(singles["embedkit"], singles["faiss"], strict=True)]
    return {
        "ms_per_1000": {name: common.Spread.of(values) for name, values in batches.items()},
        "times_faiss_in_batches": common.Spread.of(ratios),
        "us_for_one_vector": {name: common.Spread.of(values) for name, values in singles.items()},
        "us_over_faiss_for_one": common.Spread.of(differences),
        "same_rows": bool((index.search_vectors(some, K)[1] == raw.search(some, K)[1]).mean() > 0.999),
    }


def text_to_answer(index: Any, queries: Sequence[str]) -> dict[str, float]:
    """CPU time from text to hits with their texts: 1000 queries in one call, and one at a time."""
    asked = list(queries[:BATCH])
    encoder = index.encoder
    index.search(asked[:100], K, hybrid=False)
    encoder.encode_seconds = 0.0
    start = time.thread_time()
    index.search(asked, K, hybrid=False)
    whole = time.thread_time() - start
    encoding = encoder.encode_seconds
    vectors = encoder.encode_query(asked, normalize_embeddings=True)
    searching = processor_seconds(lambda: index.search_vectors(vectors, K))()
    singles = [
        processor_seconds(lambda text=text: index.search(text, K, hybrid=False))() * 1e3
        for text in asked[:300]
    ]
    return {
        "ms_per_1000_queries": round(whole * 1e6 / len(asked), 1),
        "share_of_encoding": round(encoding / whole, 3),
        "share_of_search": round(searching / whole, 3),
        "one_query_p50_ms": round(common.percentile(singles, 50), 3),
        "one_query_p99_ms": round(common.percentile(singles, 99), 3),
    }


def questions(
    name: str,
    collection: Collection,
    vectors: tuple[Vectors, Vectors],
    encoder: Any,
    options: argparse.Namespace,
) -> list[dict[str, Any]]:
    """The first table for one model and dimension: the paper's index, exact search, and the chosen index.

    Args:
        name: of the model, as shown.
        collection: stored questions and queries.
        vectors: of the stored questions and of the queries.
        encoder: encodes the queries again where the time from text to hits is measured.
        options: of the command line.
    """
    documents, queries = vectors
    import faiss

    dimension = documents.shape[1]
    exact = faiss.IndexFlatIP(dimension)
    exact.add(documents)
    truth = exact.search(queries, K + 1)[1]
    common_part = {"model": name, "dimension": dimension}
    some = queries[:BATCH]
    rows: list[dict[str, Any]] = []

    def row(kind: str, factory: str, setting: str, found: np.ndarray, **more: Any) -> None:
        hits = (found[:, :K, None] == truth[:, None, :K]).any(axis=1).mean()
        rows.append(
            {
                **common_part,
                "kind": kind,
                "factory": factory,
                "setting": setting,
                "mrr_at_10": round(mrr(ranked(found, collection.own_row, K), collection.positives, K), 4),
                "recall_at_10_of_exact": round(float(hits), 4),
                **more,
            }
        )

    with tempfile.TemporaryDirectory(dir=options.work) as folder, ExitStack() as stack:
        paper = stack.enter_context(
            build(Path(folder), collection.stored, encoder, documents, factory=PAPER_FACTORY)
        )
        paper.set_search_defaults(nprobe=PAPER_NPROBE)
        raw = faiss_of(paper)
        raw.nprobe = PAPER_NPROBE
        measured = against_faiss(paper, raw, queries, options.rounds)
        row(
            "HPD's Table 3",
            PAPER_FACTORY,
            f"nprobe {PAPER_NPROBE}",
            paper.search_vectors(queries, K + 1)[1],
            ms_per_1000=measured["ms_per_1000"]["embedkit"],
            vectors_mb=round(documents.nbytes / 1e6, 2),
            index_mb=round(megabytes(paper), 2),
            against_faiss=measured,
            text_to_answer=text_to_answer(paper, collection.queries),
        )
        seconds = common.alternate({"exact": batched(lambda v: exact.search(v, K), some)}, 2)["exact"]
        row(
            "exact",
            "Flat",
            "",
            truth,
            ms_per_1000=common.Spread.of(seconds),
            vectors_mb=round(documents.nbytes / 1e6, 2),
            index_mb=round(documents.nbytes / 1e6, 2),
        )
        if dimension in options.auto_dims:
            chosen = stack.enter_context(
                build(
                    Path(folder),
                    collection.stored,
                    encoder,
                    documents,
                    target_recall=options.target_recall,
                )
            )
            tuning = chosen.info()["tuning"]
            from embedkit.index.auto.result import table_of

            print("\n".join(table_of(tuning)), flush=True)
            times = common.alternate(
                {"auto": batched(lambda v: chosen.search_vectors(v, K), queries[: 2 * BATCH])}, options.rounds
            )
            numbers = tuning["chosen"]["setting"]
            setting = ", ".join(f"{key} {value}" for key, value in numbers.items() if value is not None)
            row(
                f"auto, recall ≥ {options.target_recall:g}",
                tuning["chosen"]["factory"],
                setting,
                chosen.search_vectors(queries, K + 1)[1],
                ms_per_1000=common.Spread.of(times["auto"]),
                vectors_mb=round(documents.nbytes / 1e6, 2),
                index_mb=round(megabytes(chosen), 2),
                tuning=tuning,
            )
    return rows


def judged(
    name: str,
    collection: Collection,
    vectors: tuple[Vectors, Vectors],
    encoder: Any,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Cranfield for one model and dimension, by exact search, with `Index` and with Faiss alone; see `questions`."""
    documents, queries = vectors
    import faiss

    with (
        tempfile.TemporaryDirectory(dir=options.work) as folder,
        build(Path(folder), collection.stored, encoder, documents, factory="Flat") as index,
    ):
        ours = index.search_vectors(queries, 100)[1]
    raw = faiss.IndexFlatIP(documents.shape[1])
    raw.add(documents)
    result: dict[str, Any] = {"model": name, "dimension": documents.shape[1]}
    for kind, found in (("embedkit", ours), ("faiss", raw.search(queries, 100)[1])):
        rankings = ranked(found, collection.own_row, 100)
        result[kind] = {
            "ndcg_at_10": round(ndcg(rankings, collection.positives, K), 4),
            "recall_at_100": round(recall(rankings, collection.positives, 100), 4),
        }
    return result


class Gaussian:
    """Random vectors for texts that are row numbers, to measure the overhead of `Index` without a model."""

    fingerprint = "gaussian"
    prompts: ClassVar[dict[str, str]] = {}

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors

    def get_embedding_dimension(self) -> int:
        return int(self._vectors.shape[1])

    def describe(self) -> dict[str, Any]:
        return {"model": "gaussian", "precision": "fp32"}

    def encode_document(self, sentences: list[str], *, normalize_embeddings: bool) -> Vectors:
        return self._vectors[[int(text) for text in sentences]]

    encode_query = encode_document


def wrapper(options: Any) -> dict[str, Any]:
    """The overhead of `Index` over Faiss on 100,000 × 128 unit vectors, with the paper's index and nprobe."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((101_000, 128), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    stored, queries = vectors[:100_000], vectors[99_000:]
    texts = [str(row) for row in range(len(stored))]
    with (
        tempfile.TemporaryDirectory(dir=options.work) as folder,
        build(Path(folder), texts, Gaussian(stored), stored, factory=PAPER_FACTORY) as index,
    ):
        index.set_search_defaults(nprobe=PAPER_NPROBE)
        raw = faiss_of(index)
        raw.nprobe = PAPER_NPROBE
        return against_faiss(index, raw, queries, 2 * options.rounds)


# -------------------------------------------------------------------------------------------------------- main


def models_of(options: Any) -> list[tuple[str, Any]]:
    """Name and folder of each model, ``None`` for the built-in one."""
    return [("built-in", None) if one == "builtin" else (Path(one).name, one) for one in options.models]


def vectors_of(collection: Collection, encoder: Any, work: Path) -> tuple[Vectors, Vectors]:
    """Vectors of the stored texts and of the queries, at the model's own dimension."""
    kinds = (
        ("document", collection.stored, encoder.encode_document),
        ("query", collection.queries, encoder.encode_query),
    )
    documents, queries = (
        retrieval_data.cached_vectors(
            work,
            encoder,
            texts,
            lambda window, encode=encode: encode(window, normalize_embeddings=True),
            kind,
        )
        for kind, texts, encode in kinds
    )
    return documents, queries


def _both(vectors: tuple[Vectors, Vectors], dimension: int) -> tuple[Vectors, Vectors]:
    documents, queries = (retrieval_data.truncated(one, dimension) for one in vectors)
    return documents, queries


def question_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The first table."""
    headers = [
        "model",
        "dim",
        "",
        "index",
        "MRR@10",
        "recall@10",
        "ms/1000 queries",
        "MB",
        "text to answer, ms/1000",
    ]
    return common.table(
        headers,
        [
            [
                row["model"],
                row["dimension"],
                row["kind"],
                f"{row['factory']} {row['setting']}".strip(),
                f"{row['mrr_at_10']:.3f}",
                f"{row['recall_at_10_of_exact']:.3f}",
                row["ms_per_1000"],
                f"{row['index_mb']:.1f}",
                row.get("text_to_answer", {}).get("ms_per_1000_queries", ""),
            ]
            for row in rows
        ],
    )


def draw(path: Path, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Plot MRR@10 against time: color by model, marker by kind of index, one point per dimension."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    lines: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        lines.setdefault((row["model"], row["kind"]), []).append(row)
    colors = {model: f"C{number}" for number, model in enumerate(dict.fromkeys(model for model, _ in lines))}
    markers = dict(zip(dict.fromkeys(kind for _, kind in lines), "osD^v", strict=False))
    for (model, kind), points in lines.items():
        x = [point["ms_per_1000"].median for point in points]
        y = [point["mrr_at_10"] for point in points]
        axes.plot(x, y, marker=markers[kind], color=colors[model])
    best = {(row["kind"], row["dimension"]): row for row in sorted(rows, key=lambda row: row["mrr_at_10"])}
    for (_, dimension), row in best.items():
        at = (row["ms_per_1000"].median, row["mrr_at_10"])
        axes.annotate(str(dimension), at, xytext=(-4, 7), textcoords="offset points", fontsize=8)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("milliseconds per 1000 queries, one thread")
    axes.set_ylabel("MRR@10")
    axes.set_title(title, fontsize=10)
    axes.grid(which="both", alpha=0.25)
    keys = [Line2D([], [], color=color, label=model) for model, color in colors.items()]
    keys += [Line2D([], [], color="grey", marker=marker, label=kind) for kind, marker in markers.items()]
    axes.legend(handles=keys, fontsize=8)
    figure.savefig(path)


def main() -> None:
    """Encode what is not cached yet, measure, print and write."""
    options = arguments()
    options.auto_dims = options.dims if options.auto_dims is None else options.auto_dims
    options.work.mkdir(parents=True, exist_ok=True)
    import faiss

    from embedkit import Encoder

    faiss.omp_set_num_threads(1)
    machine, found = common.machine_info(), common.versions(["embedkit", "faiss-cpu", "numpy"])
    print(common.show_machine(machine, found))
    pairs = options.pairs or options.data / "quora" / "quora_pairs.tsv.gz"
    asked = retrieval_data.question_pairs(retrieval_data.read_pairs(pairs), options.stored)
    subset = options.pairs is None
    print(f"\nquestions{', a subset of Quora’s pairs' if subset else ''}: {asked.notes}\n")
    abstracts = retrieval_data.cranfield(options.data) if options.data else None
    rows: list[dict[str, Any]] = []
    cranfield: list[dict[str, Any]] = []
    precisions = {}
    for name, folder in models_of(options):
        full = Encoder(folder, precision=options.precision)
        precisions[name] = full.describe()["precision"]
        vectors = vectors_of(asked, full, options.work)
        judged_vectors = None if abstracts is None else vectors_of(abstracts, full, options.work)
        for dimension in options.dims:
            if dimension > full.get_embedding_dimension():
                continue
            encoder = Encoder(folder, precision=options.precision, threads=1, truncate_dim=dimension)
            rows += questions(name, asked, _both(vectors, dimension), encoder, options)
            if abstracts is not None and judged_vectors is not None:
                both = _both(judged_vectors, dimension)
                cranfield.append(judged(name, abstracts, both, encoder, options))
            print(f"{name} {precisions[name]}, {dimension} dimensions: done", flush=True)
    over = wrapper(options)
    print("\n" + question_table(rows))
    if cranfield:
        headers = ["model", "dim", "nDCG@10", "recall@100", "Faiss alone: nDCG@10", "recall@100"]
        cells = [
            [row["model"], row["dimension"]]
            + [
                f"{row[kind][key]:.4f}"
                for kind in ("embedkit", "faiss")
                for key in ("ndcg_at_10", "recall_at_100")
            ]
            for row in cranfield
        ]
        print("\nCranfield, exact search\n" + common.table(headers, cells))
    print(
        f"\noverhead of Index over Faiss, 100,000 × 128, {PAPER_FACTORY}, nprobe {PAPER_NPROBE}: "
        f"{over['times_faiss_in_batches']} times the time of Faiss in batches of {BATCH}, "
        f"{over['us_over_faiss_for_one']} µs more for one vector"
    )
    if options.plot:
        title = f"Retrieval quality and time: {asked.notes['queries']:,} questions among {asked.notes['stored']:,}"
        draw(options.plot, rows, title + (" (a subset of Quora's pairs)" if subset else ""))
    if options.json:
        common.write_json(
            options.json,
            common.report(
                "retrieval",
                machine=machine,
                versions=found,
                isa=common.embedkit_isa(),
                threads=1,
                precisions=precisions,
                **common.built_in(None if "builtin" in options.models else options.models),
                subset_of_quora=subset,
                questions=asked.notes,
                rows=rows,
                cranfield=cranfield,
                index_over_faiss=over,
            ),
        )


if __name__ == "__main__":
    main()
