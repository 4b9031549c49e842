"""The gain of `--factory auto --target-recall` over inverted files, on clustered vectors.

    python benchmarks/auto_index.py --rows 500000 --json OUT.json --plot OUT.png

`auto` chooses on its sample. Its choice, and IVF-Flat with common numbers of lists, are then built from all
vectors, and each is tuned on half of the queries: the fastest parameters that reach the recall. The table shows
recall and time on the other half. Time is CPU time of one thread, all queries in one call, median of alternating
rounds.

The vectors are unit vectors around `--clusters` centers. Centers and deviations from them are Gaussian, with a
standard deviation of i^-0.5 in dimension i; `--spread` scales the deviations. With a larger spread, a search needs
more lists: at 1, IVF2828 reaches recall 0.95 with 0.4 % of its lists. Sentence vectors need more: 43 of 1154 lists
for 83,222 questions (`retrieval.py`).
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np

K = 10


def clustered(rows: int, dimension: int, clusters: int, spread: float) -> Any:
    """(rows, dimension) unit vectors, see above; deterministic."""
    random = np.random.default_rng(0)
    deviation = (np.arange(1, dimension + 1) ** -0.5).astype(np.float32)
    centers = random.standard_normal((clusters, dimension), np.float32) * deviation
    vectors = random.standard_normal((rows, dimension), np.float32) * deviation
    vectors *= spread
    vectors += centers[random.integers(0, clusters, rows)]
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = common.parser(__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--spread", type=float, default=1.0)
    parser.add_argument("--queries", type=int, default=2000, help="half for tuning, half for measuring")
    parser.add_argument("--target-recall", type=float, default=0.95)
    parser.add_argument(
        "--lists", type=int, nargs="+", default=[1024, 2828], help="numbers of lists of IVF-Flat"
    )
    parser.add_argument("--seconds", type=float, default=120, help="time limit of the choice")
    parser.add_argument("--rounds", type=common.positive, default=5)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--plot", type=Path, help="plot recall against time to this file")
    return parser.parse_args(argv)


def main() -> None:
    """Choose, build, tune and measure."""
    options = arguments()
    import faiss

    from embedkit.index.auto import Truth, apply, choose, fastest_parameters
    from embedkit.index.auto.measure import timed_search
    from embedkit.index.auto.plot import plot
    from embedkit.index.auto.result import table_of
    from embedkit.index.figure import check_plot

    if options.plot:
        check_plot(options.plot)
    machine, found = common.machine_info(), common.versions(["faiss-cpu", "numpy"])
    print(common.show_machine(machine, found))
    everything = clustered(
        options.rows + options.queries, options.dimension, options.clusters, options.spread
    )
    vectors, queries = everything[: options.rows], everything[options.rows :]
    choice = choose(vectors, target_recall=options.target_recall, seconds=options.seconds)
    print("\n".join(["", *table_of(choice.to_dict()), ""]))

    faiss.omp_set_num_threads(1)
    exact = faiss.IndexFlatIP(options.dimension)
    exact.add(vectors)
    tuning, measuring = (
        Truth(some, exact.search(some, K)[1], vectors.__getitem__) for some in (queries[::2], queries[1::2])
    )
    kinds = {"auto": choice.chosen.factory} | {f"IVF{n},Flat": f"IVF{n},Flat" for n in options.lists}
    indexes, settings, curves, rows = {}, {}, {}, []
    for name, factory in kinds.items():
        index = faiss.index_factory(options.dimension, factory, faiss.METRIC_INNER_PRODUCT)
        _, built = timed_search(lambda index=index: _fill(index, vectors), 1)
        point, points = fastest_parameters(index, tuning, options.target_recall)
        if point is None:
            raise SystemExit(
                f"{factory} does not reach recall {options.target_recall} on {options.rows} vectors"
            )
        apply(index, point.parameters)
        indexes[name], settings[name], curves[f"{name}: {factory}" if name == "auto" else name] = (
            index,
            point.parameters,
            points,
        )
        print(f"{name}: {factory} built in {built:.0f} s, {point.parameters}", flush=True)

    asked = measuring.queries

    def search(name: str) -> Callable[[], float]:
        return lambda: timed_search(lambda: indexes[name].search(asked, K)[1], 1)[1] * 1e3 / len(asked)

    runs = common.alternate({name: search(name) for name in kinds}, options.rounds)
    spreads = {name: common.Spread.of(values) for name, values in runs.items()}
    for name, factory in kinds.items():
        recall, _ = measuring.recalls(indexes[name].search(asked, K)[1])
        rows.append(
            {
                "name": name,
                "factory": factory,
                "setting": str(settings[name]),
                "recall_at_10": round(recall, 4),
                "ms_per_query": spreads[name],
                "times_auto": round(spreads[name].median / spreads["auto"].median, 2),
            }
        )
    headers = ["", "index", "parameters", "recall@10", "ms/query", "time / auto"]
    cells = [
        [
            row["name"],
            row["factory"],
            row["setting"],
            row["recall_at_10"],
            row["ms_per_query"],
            row["times_auto"],
        ]
        for row in rows
    ]
    print("\n" + common.table(headers, cells))
    if options.plot:
        title = (
            f"Recall against search time: {options.rows:,} clustered vectors of {options.dimension} dimensions, "
            f"{machine['cpu']}"
        )
        plot(options.plot, curves, target=options.target_recall, title=title)
    common.write_json(
        options.json,
        common.report(
            "auto_index",
            machine=machine,
            versions=found,
            rows=options.rows,
            dimension=options.dimension,
            clusters=options.clusters,
            spread=options.spread,
            queries=len(asked),
            rounds=options.rounds,
            choice=choice.to_dict(),
            results=rows,
        ),
    )


def _fill(index: Any, vectors: Any) -> Any:
    index.train(vectors[np.random.default_rng(1).permutation(len(vectors))[:120_000]])
    index.add(vectors)
    return np.empty((0, 0), np.int64)


if __name__ == "__main__":
    main()
