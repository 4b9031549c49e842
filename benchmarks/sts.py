"""Quality of models: STS (Spearman × 100), Chinese pairs, retrieval and minimal pairs, with size and speed.

    python benchmarks/sts.py MODEL [MODEL...] --data DIR --zh --retrieval --pairs --json OUT.json
    python benchmarks/sts.py MODEL [MODEL...] --data DIR --precision fp32 bf16 int8 --json OUT.json

STS12-16 in the setting "all", STS-B and SICK-R, with the columns of HPD's Table 1. Sentences per second are
measured once, on the distinct texts of the STS pairs, tokenization included. They are good enough to compare
models, but not packages (see `benchmarks/throughput.py`).
"""

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import common


class Timed:
    """An encoder that times its calls.

    Attributes:
        texts: number of texts encoded.
        seconds: time it took.
    """

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self.texts = 0
        self.seconds = 0.0

    def encode(self, sentences: list[str]) -> Any:
        start = time.perf_counter()
        vectors = self.encoder.encode(sentences)
        self.seconds += time.perf_counter() - start
        self.texts += len(sentences)
        return vectors

    def describe(self) -> dict[str, Any]:
        return {"model": getattr(self.encoder, "describe", lambda: {"model": "model"})()["model"]}


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = common.parser(__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="model folder, or a name on the Hub")
    parser.add_argument("--data", type=Path, help="folder of evaluation data (default: EMBEDKIT_DATA)")
    parser.add_argument("--backend", choices=("embedkit", "sentence-transformers"), default="embedkit")
    parser.add_argument(
        "--precision",
        choices=("auto", "fp32", "bf16", "int8"),
        nargs="+",
        default=["auto"],
        help="precisions of embedkit: a row each",
    )
    common.add_threads(parser)
    parser.add_argument(
        "--unseen", action="store_true", help="also the sets without pairs of STS-B dev and STS12 train"
    )
    parser.add_argument("--zh", action="store_true", help="also the Chinese sets")
    parser.add_argument("--retrieval", action="store_true", help="also Cranfield and Quora duplicates")
    parser.add_argument("--pairs", action="store_true", help="also the minimal pairs (negation, color)")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args(argv)
    if options.backend != "embedkit" and options.precision not in (["auto"], ["fp32"]):
        parser.error("--precision bf16 and int8 are for the backend embedkit")
    return options


def size(folder: Path) -> dict[str, float]:
    """Number of parameters, and MB of the whole folder."""
    from embedkit.model_folder.safetensors_file import SafetensorsFile

    files = [path for path in folder.rglob("*") if path.is_file()]
    parameters = 0
    for path in files:
        if path.suffix == ".safetensors":
            tensors = SafetensorsFile(path)
            for name in tensors:
                if name.rpartition(".")[2] != "position_ids":  # a buffer in old folders
                    count = 1
                    for side in tensors.shape(name):
                        count *= side
                    parameters += count
    return {"parameters": parameters, "megabytes": round(sum(p.stat().st_size for p in files) / 1e6, 1)}


def load(folder: Path, precision: str, options: argparse.Namespace) -> Any:
    """Open a folder with the chosen backend."""
    if options.backend == "embedkit":
        from embedkit import Encoder

        return Encoder(folder, device="cpu", precision=precision, threads=options.threads)
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(options.threads)
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def name_of(model: str, models: Sequence[str]) -> str:
    """The shortest end of a model's path that is the end of no other one of ``models``."""
    own, *others = (Path(os.path.abspath(one)).parts for one in (model, *models))
    ends = (own[-count:] for count in range(1, len(own) + 1))
    return str(
        Path(*next(end for end in ends if all(one[-len(end) :] != end or one == own for one in others)))
    )


def measure(model: str, precision: str, options: argparse.Namespace) -> dict[str, Any]:
    """The result row of one model in one precision."""
    from embedkit.training import evaluate

    from embedkit.model_folder.hub import resolve

    folder = resolve(model)
    encoder = load(folder, precision, options)
    timed = Timed(encoder)
    result = evaluate.sts(timed, options.data)
    row: dict[str, Any] = {
        "model": name_of(model, options.models),
        "backend": options.backend,
        "precision": encoder.describe()["precision"] if options.backend == "embedkit" else "fp32",
        **size(folder),
        "dimension": encoder.get_embedding_dimension(),
        "sentences_per_s": round(timed.texts / timed.seconds, 1),
        "sts": {**asdict(result), "average": result.average},
    }
    if options.unseen:
        unseen = evaluate.score_pairs(encoder, evaluate.sts_unseen_sets(options.data))
        row["sts_unseen"] = {**asdict(unseen), "average": unseen.average}
    if options.zh:
        chinese = evaluate.chinese(encoder, options.data)
        row["chinese"] = {**asdict(chinese), "average": chinese.average}
    if options.retrieval:
        found = evaluate.retrieval(encoder, options.data)
        row["retrieval"] = {name: asdict(quality) for name, quality in found.items()}
    if options.pairs:
        row["minimal_pairs"] = asdict(evaluate.minimal_pairs(encoder))["languages"]
    return row


def sets_table(rows: Sequence[dict[str, Any]], key: str) -> str:
    """Spearman × 100 of each set and their mean, for "sts" with size and speed."""
    columns = list(rows[0][key]["sets"])
    headers = ["model", *columns, "Avg"]
    if key == "sts":
        headers += ["parameters", "MB", "dim", "sentences/s"]
    cells = []
    for row in rows:
        scores = [f"{row[key]['sets'][column]['spearman']:.2f}" for column in columns]
        cell = [f"{row['model']} {row['precision']}", *scores, f"{row[key]['average']:.2f}"]
        if key == "sts":
            cell += [f"{row['parameters'] / 1e6:.1f}M", f"{row['megabytes']:.1f}", row["dimension"]]
            cell.append(f"{row['sentences_per_s']:,.0f}")
        cells.append(cell)
    return common.table(headers, cells)


def retrieval_table(rows: Sequence[dict[str, Any]]) -> str:
    """nDCG@10 and MRR@10 of each collection."""
    cells = [
        [
            f"{row['model']} {row['precision']}",
            name,
            f"{q['ndcg_at_10']:.4f}",
            f"{q['mrr_at_10']:.4f}",
            f"{q['queries']:,}",
            f"{q['documents']:,}",
        ]
        for row in rows
        for name, q in row["retrieval"].items()
    ]
    return common.table(["model", "collection", "nDCG@10", "MRR@10", "queries", "documents"], cells)


def pairs_table(rows: Sequence[dict[str, Any]]) -> str:
    """Share of items whose paraphrase is closer than the changed sentence, and the mean cosines."""
    cells = [
        [
            f"{row['model']} {row['precision']}",
            language,
            category,
            q["items"],
            f"{q['accuracy']:.1%}",
            f"{q['cosine_paraphrase']:.3f}",
            f"{q['cosine_changed']:.3f}",
        ]
        for row in rows
        for language, categories in row["minimal_pairs"].items()
        for category, q in categories.items()
    ]
    headers = ["model", "language", "category", "items", "paraphrase closer", "cos paraphrase", "cos changed"]
    return common.table(headers, cells)


def main() -> None:
    """Measure every model, print, write."""
    options = arguments()
    machine = common.machine_info()
    found = common.versions(["embedkit", "numpy", "scipy", "sentence-transformers", "torch"])
    print(common.show_machine(machine, found))
    rows = []
    for model in options.models:
        for precision in options.precision:
            try:
                rows.append(measure(model, precision, options))
            except (ValueError, OSError, ImportError) as error:
                raise SystemExit(f"{model}: {error}") from None
    print("\nSTS, Spearman x 100\n" + sets_table(rows, "sts"))
    if options.unseen:
        print("\nwithout pairs of STS-B dev and STS12 train\n" + sets_table(rows, "sts_unseen"))
        pairs = {name: score["pairs"] for name, score in rows[0]["sts_unseen"]["sets"].items()}
        print("; ".join(f"{name}: {count:,} pairs" for name, count in pairs.items()))
    if options.zh:
        print("\nChinese pairs, Spearman x 100\n" + sets_table(rows, "chinese"))
        sources = {name: score["source"] for name, score in rows[0]["chinese"]["sets"].items()}
        print("; ".join(f"{name}: {source}" for name, source in sources.items()))
    if options.retrieval:
        print("\nretrieval\n" + retrieval_table(rows))
    if options.pairs:
        print("\nminimal pairs\n" + pairs_table(rows))
    result = common.report(
        "sts",
        machine=machine,
        versions=found,
        isa=common.embedkit_isa(),
        threads=options.threads,
        rows=rows,
    )
    common.write_json(options.json, result)


if __name__ == "__main__":
    main()
