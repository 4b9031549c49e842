"""What a vector of 256 bytes should be: formats of a model's vectors at the same size, on the development sets.

    python benchmarks/vector_formats.py MODEL --data DIR --work CACHE --json OUT.json

Formats of all columns, or of the principal components (a rotation, fitted on other texts): int8 with a range a
column (Faiss' SQ8), float8 (e4m3, by a scale that fills its range), five and six bits a column, packed, and product
quantization (Faiss' PQ). nDCG@10 on Cranfield, MED and CACM, of codes of the documents and queries in float32, as
in an index; and Spearman x 100 on the pairs of STS-B dev that are in no test set, of codes on both sides.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import common
import numpy as np
from card import View
from hybrid import collections_of
from retrieval_data import Vectors

from embedkit.index.evaluate import ndcg
from embedkit.output import unit

_FITTED_ON = 60_000
Code = Callable[[Vectors], Vectors]


def uniform(fitted: Vectors, levels: int, tail: float = 0.0) -> Code:
    """``levels`` steps a column between the quantiles ``tail`` and 1 - ``tail`` of ``fitted``."""
    low, high = np.quantile(fitted, tail, axis=0), np.quantile(fitted, 1 - tail, axis=0)
    step = (high - low) / (levels - 1)
    return lambda x: np.asarray(low + np.clip(np.rint((x - low) / step), 0, levels - 1) * step, np.float32)


def float8(fitted: Vectors) -> Code:
    """e4m3: a sign, four bits of exponent and three of fraction; the largest value becomes 448."""
    scale = 448 / np.abs(fitted).max()

    def code(x: Vectors) -> Vectors:
        scaled = np.clip(x * scale, -448, 448)
        exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(scaled), 1e-30))), -6)
        quantum = 2.0 ** (exponent - 3)
        return np.asarray(np.rint(scaled / quantum) * quantum / scale, np.float32)

    return code


def product(fitted: Vectors, factory: str) -> Code:
    """Faiss' codes of a factory string."""
    import faiss

    index = faiss.index_factory(fitted.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    index.train(fitted)
    return lambda x: np.asarray(index.sa_decode(index.sa_encode(np.ascontiguousarray(x))), np.float32)


def _components(found: Code) -> Code:
    return lambda x: unit(found(x))


def formats(fitted: Vectors) -> Iterator[tuple[str, float, Code, Code]]:
    """Name, bytes a vector, the rotation of both sides, and what codes say of a rotated vector."""
    from embedkit.training.linear_map import fit

    whole = fitted.shape[1]

    def same(x: Vectors) -> Vectors:
        return x

    turned: dict[int, Code] = {whole: same}
    for width in (64, 128, 256, 341):
        if width < whole:
            turned[width] = _components(fit(fitted, width, center=False))

    def halves(x: Vectors) -> Vectors:
        return x.astype(np.float16).astype(np.float32)

    for width, turn in sorted(turned.items(), reverse=True):
        known = turn(fitted)
        name = "all" if width == whole else f"{width} components"
        yield f"float32, {name}", 4 * width, turn, same
        yield f"int8, {name}", width, turn, uniform(known, 256)
        if width == 256 < whole:
            yield f"float32, {name} without mean", 4 * width, _components(fit(fitted, width)), same
        if width in (128, 256):
            yield f"float8, {name}", width, turn, float8(known)
        if width == 128:
            yield f"float16, {name}", 2 * width, turn, halves
        if width == 341:
            yield f"6 bits, {name}", width * 6 / 8, turn, uniform(known, 64, 0.0005)
        if width == whole:
            yield f"5 bits, {name}", width * 5 / 8, turn, uniform(known, 32, 0.001)
            for size in (64, 96, 128, 192):
                if whole % size == 0:
                    yield f"PQ{size}, {name}", size, turn, product(known, f"PQ{size}x8")


def main() -> None:
    """Measure, print and write."""
    parser = common.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--query-prompt", default="")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    from embedkit.training.evaluate.pairs import spearman
    from embedkit.training.evaluate.sts import sts_dev_sets

    from embedkit import Encoder

    view = View(Encoder(options.model, precision=options.precision), options.query_prompt, options.work)
    judged = collections_of(options.data)
    sentences = [row["text"] for row in common.records(options.data / "corpus_en" / "sentences_en.tsv.gz")]
    paragraphs = [" ".join(sentences[i : i + 5]) for i in range(0, len(sentences), 40)]
    fitted = view.encode([*sentences[:: len(sentences) // (_FITTED_ON // 2)], *paragraphs][:_FITTED_ON])
    documents = {name: view.encode(one.texts) for name, one in judged.items()}
    queries = {name: view.queries(one.queries) for name, one in judged.items()}
    (pairs,) = sts_dev_sets(options.data).values()
    first, second = (view.encode([pair[side] for pair in pairs.pairs]) for side in (0, 1))
    gold = [pair.score for pair in pairs.pairs]
    rows: list[dict[str, Any]] = []
    for name, size, turn, code in formats(fitted):
        row: dict[str, Any] = {"format": name, "bytes": size}
        for collection, one in judged.items():
            cosines = turn(queries[collection]) @ code(turn(documents[collection])).T
            order = np.argsort(-cosines, axis=1, kind="stable")[:, :10]
            row[collection] = round(ndcg(order.tolist(), one.gains, 10), 4)
        row["mean_ndcg"] = round(float(np.mean([row[collection] for collection in judged])), 4)
        a, b = (unit(code(turn(side))) for side in (first, second))
        row["stsb_dev"] = round(100 * spearman((a * b).sum(1), gold), 2)
        rows.append(row)
        print(row, flush=True)
    if options.json is not None:
        about = {"model": Path(options.model).name, "query_prompt": options.query_prompt, "rows": rows}
        machine, found = common.machine_info(), common.versions(["embedkit", "faiss-cpu", "numpy"])
        result = common.report("vector-formats", machine=machine, versions=found, **about)
        common.write_json(options.json, result)


if __name__ == "__main__":
    main()
