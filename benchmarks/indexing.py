"""The overhead of an index over the encoder: building, adding, one query and a thousand.

    python benchmarks/indexing.py TEXTS --limit 501000 --threads 2 --json OUT.json

The last 1,000 texts are the queries, the others (500,000 by default) are stored: `--build` of them by a build, before
and after which `Encoder.encode` is timed on a quarter of them; the rest by `Index.add`. Then all are compacted to one
segment. `Index.search` is timed for one text at a time, by vectors alone and by vectors and words, and by vectors for
all queries in one call, with `Encoder.encode_query` and `Index.search_vectors` alone beside it: the rest is the
overhead of `search`. Recall is relative to a search of all lists. Last, the index is compacted to 4-bit codes (one of
the kinds that `--target-recall` tries), tuned to a recall of 0.95, and searched again.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import numpy as np

QUERIES = 1000
RECALL_QUERIES = 200
TARGET_RECALL = 0.95  # for stored documents as queries, each without itself among its hits
MAX_MEMORY = 8 << 30  # enough for a single Faiss file
K = 10


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = common.parser(__doc__)
    common.add_text_arguments(parser, default_limit=501_000)
    common.add_model(parser)
    parser.add_argument("--build", type=int, default=200_000, help="number of texts of the timed build")
    common.add_threads(parser)
    parser.add_argument("--rounds", type=common.positive, default=5, help="rounds of searches")
    parser.add_argument("--work", type=Path, help="where to create the index (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="write the results here")
    return parser.parse_args()


def measure(
    options: argparse.Namespace, stored: list[str], queries: list[str], folder: Path
) -> dict[str, Any]:
    """Build, extend and search an index in ``folder``."""
    from embedkit import Encoder, Index

    encoder = Encoder(options.model, device="cpu", threads=options.threads)
    first = stored[: options.build]
    encoder.encode(first[:2000])  # warm-up
    quarter = first[::4]
    alone = [common.timed(lambda: encoder.encode(quarter))()]
    steps: dict[str, float] = {}
    before = time.perf_counter()

    def note(progress: Any) -> None:
        nonlocal before
        now = time.perf_counter()
        steps[progress.stage] = steps.get(progress.stage, 0.0) + now - before
        before = now

    build = common.timed(
        lambda: Index.build(folder, first, encoder, threads=options.threads, progress=note).close()
    )()
    alone.append(common.timed(lambda: encoder.encode(quarter))())
    rate = 2 * len(quarter) / sum(alone)
    result: dict[str, Any] = {
        "build": {
            "texts": len(first),
            "encode_per_s": [round(len(quarter) / s) for s in alone],
            "build_per_s": round(len(first) / build),
            "share_of_encode_rate": round(len(first) / build / rate, 3),
            "steps_s": {stage: round(s, 1) for stage, s in steps.items()},
        }
    }
    with Index.open(folder, encoder, threads=options.threads) as index:
        rest = stored[options.build :]
        if rest:
            documents = ((str(number), text) for number, text in enumerate(rest, options.build))
            added = common.timed(lambda: index.add(_documents(documents)))()
            compacted = common.timed(index.compact)()
            result["add"] = {"texts": len(rest), "add_s": round(added, 1), "compact_s": round(compacted, 1)}
        index.refresh()
        result["default"] = _ask(index, encoder, queries, options.rounds)
        dimension, lists = index.info()["dimension"], index.info()["nlist"]
        if lists is not None:
            codes = f"RR{dimension},IVF{lists},PQ{dimension // 2}x4fsr,RFlat"
            index.compact(factory=codes, max_memory=MAX_MEMORY)
            index.tune(TARGET_RECALL)
            result["codes"] = _ask(index, encoder, queries, options.rounds)
    return result


def _documents(pairs: Any) -> Any:
    from embedkit.index import Document

    return (Document(text, id) for id, text in pairs)


def _ask(index: Any, encoder: Any, queries: list[str], rounds: int) -> dict[str, Any]:
    """Search one query at a time, and all in one call and its parts."""
    index.search(queries[:100], K, hybrid=False)
    vectors = encoder.encode_query(queries, normalize_embeddings=True)
    single = {
        name: [
            common.timed(lambda q=query, h=hybrid: index.search(q, K, hybrid=h))() * 1e3 for query in queries
        ]
        for name, hybrid in (("one_query_ms", False), ("one_query_hybrid_ms", True))
    }
    runs = {
        "all": common.timed(lambda: index.search(queries, K, hybrid=False)),
        "encode": common.timed(lambda: encoder.encode_query(queries, normalize_embeddings=True)),
        "faiss": common.timed(lambda: index.search_vectors(vectors, K)),
    }
    taken = {
        name: common.Spread.of([s * 1e3 for s in values])
        for name, values in common.alternate(runs, rounds).items()
    }
    info = index.info()
    sample = vectors[:RECALL_QUERIES]
    found, exact = (index.search_vectors(sample, K, nprobe=lists)[1] for lists in (None, info["nlist"]))
    overlap = [len(np.intersect1d(a, b)) for a, b in zip(found, exact, strict=True)]
    return {
        "documents": info["documents"],
        "factory": info["factory"],
        "nprobe": info["nprobe"],
        "recall_at_10": {"queries": len(sample), "recall": round(float(np.mean(overlap)) / K, 4)},
        **{
            name: {
                "p50": round(common.percentile(taken_ms, 50), 3),
                "p99": round(common.percentile(taken_ms, 99), 3),
                "calls": len(taken_ms),
            }
            for name, taken_ms in single.items()
        },
        "queries_in_one_call": {
            "queries": len(queries),
            **{f"{name}_ms": spread for name, spread in taken.items()},
            "share_of_encode_and_search": round(
                (taken["encode"].median + taken["faiss"].median) / taken["all"].median, 3
            ),
        },
    }


def main() -> None:
    """Measure, print and write."""
    options = arguments()
    texts = common.texts_of(options)
    if len(texts) < QUERIES + 2:
        raise SystemExit(f"{len(texts)} texts are too few: {QUERIES} of them are queries")
    machine, found = common.machine_info(), common.versions(["embedkit", "faiss-cpu", "numpy"])
    print(common.show_machine(machine, found))
    with tempfile.TemporaryDirectory(prefix="embedkit-bench-", dir=options.work) as work:
        result = measure(options, texts[:-QUERIES], texts[-QUERIES:], Path(work) / "index")
    for name, part in result.items():
        print(f"{name}: {part}")
    if options.json:
        common.write_json(
            options.json,
            common.report(
                "indexing",
                machine=machine,
                versions=found,
                **common.built_in(options.model),
                threads=options.threads,
                **result,
            ),
        )


if __name__ == "__main__":
    main()
