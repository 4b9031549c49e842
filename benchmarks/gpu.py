"""Further GPU measurements of throughput.py: encoding without tokenization, utilization, one query."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import common
import numpy as np
from peers.worker import PeerFailed, Worker, alternate

__all__ = [
    "PATIENCE",
    "REFERENCE",
    "Sts",
    "add_utilization",
    "ceiling",
    "cosines",
    "measure",
    "name",
    "quality",
    "reference",
    "show",
    "show_quality",
]

#: Dense 16-bit peak in the vendor's data sheets, operations/s, for model FLOP utilization. The first entry contained in
#: the GPU's name counts. 8-bit products are twice as fast on all of them.
DATA_SHEET = {"H100 PCIe": 756e12, "H100 NVL": 835e12, "H200": 989e12, "H100": 989e12, "A100": 312e12}
#: Time limit in seconds of one call to a candidate: loading, compiling, or encoding all texts once.
PATIENCE = 90.0
QUERIES = 200
#: The vectors are compared with those of this encoder.
REFERENCE = "embedkit fp32 on the CPU"
COMPARED = 512


def name() -> str:
    """Name of the first GPU."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: --device cuda needs one")
    return torch.cuda.get_device_name()


def ceiling() -> dict[str, float]:
    """Measured GOP/s of a large product, by precision; only those that the GPU and torch support."""
    import gpu_rates

    name()
    kinds = {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8", "int8": "int8"}
    found = gpu_rates.products({"bfloat16", "float16", "fp8", "int8"})
    return {precision: found[kind] / 1e9 for precision, kind in kinds.items() if kind in found}


def measure(
    workers: Mapping[str, Worker],
    batches: Mapping[str, int | None],
    texts: list[str],
    counts: list[int],
    rounds: int,
) -> dict[str, dict[str, Any]]:
    """Encoding without tokenization, in alternating rounds, and one query at a time, for each candidate.

    Args:
        workers: each with ``texts`` sent to it.
        batches: the best batch size of each.
        texts: to encode.
        counts: tokens of each text.
        rounds: number of rounds.

    Returns:
        "alone" and "one_query" of each candidate, if they did not fail.
    """
    runs = {key: (lambda w=w, b=batches[key]: w.alone(b)) for key, w in workers.items()}
    # The first round warms up, and excludes candidates that fail.
    able = alternate(runs, 1)
    taken = alternate({key: runs[key] for key in able}, rounds)
    result: dict[str, dict[str, Any]] = {key: {} for key in workers}
    for key, seconds in taken.items():
        rate = common.Spread.of([len(texts) / s for s in seconds])
        alone = {"sentences_per_s": rate, "tokens_per_s": round(rate.median * sum(counts) / len(texts))}
        result[key]["alone"] = alone
    middle = sorted(range(len(texts)), key=lambda i: counts[i])[len(texts) // 2]
    queries = [text for text, count in zip(texts, counts, strict=True) if count == counts[middle]][:QUERIES]
    for key, worker in workers.items():
        try:
            worker.texts(queries)
            worker.one_by_one()  # warm-up
            every = [1000 * s for _ in range(3) for s in worker.one_by_one()]
        except PeerFailed as error:
            print(f"no latency of {key}: {error}")
            continue
        result[key]["one_query"] = {
            "tokens": counts[middle],
            "p50_ms": round(common.percentile(every, 50), 4),
            "p99_ms": round(common.percentile(every, 99), 4),
        }
    return result


def add_utilization(
    measured: dict[str, dict[str, Any]],
    operations_per_token: float,
    peaks: Mapping[str, float],
    precisions: Mapping[str, str],
) -> None:
    """Add the utilization of encoding: the share of the data sheet's peak, if known, and of the measured peak.

    Args:
        measured: from `measure`; "mfu" and "share_of_measured_peak" are added.
        operations_per_token: mean over the texts, including attention.
        peaks: GOP/s from `ceiling`; all 16-bit products run at the same rate.
        precisions: of each candidate; 8-bit products are compared with the 8-bit peak.
    """
    gpu_name = name()
    sheet = next((peak for model, peak in DATA_SHEET.items() if model in gpu_name), None)
    for key, one in measured.items():
        if "alone" not in one:
            continue
        alone, precision = one["alone"], precisions[key]
        eight = precision in ("fp8", "int8")
        peak = peaks.get(precision) if eight else max(peaks.get("bf16", 0.0), peaks.get("fp16", 0.0))
        rate = operations_per_token * alone["tokens_per_s"]
        alone["mfu"] = round(rate / (sheet * (2 if eight else 1)), 4) if sheet else None
        alone["share_of_measured_peak"] = round(rate / (peak * 1e9), 4) if peak else None


class Sts:
    """Scored pairs of sentences, and the rank correlation of vectors with the scores.

    The file has the columns `sentence1`, `sentence2` and `score`. With a column `split`, only the rows of `dev` count,
    or of `test` if a task has no `dev`; with a column `task`, each task is scored separately.
    """

    def __init__(self, path: Path) -> None:
        rows = list(common.records(path))
        missing = [c for c in ("sentence1", "sentence2", "score") if not rows or c not in rows[0]]
        if missing:
            raise SystemExit(
                f"--sts {path}: no column {missing[0]!r}; expected sentence1, sentence2 and score"
            )
        tasks: dict[str, list[dict[str, str]]] = {}
        for row in rows:
            tasks.setdefault(row.get("task", "STS"), []).append(row)
        self.tasks = {}
        for task, all_rows in tasks.items():
            splits = {row.get("split", "") for row in all_rows}
            wanted = next((s for s in ("dev", "test") if s in splits), None)
            self.tasks[task] = [r for r in all_rows if wanted is None or r["split"] == wanted]
        self._places: dict[str, int] = {}
        for rows in self.tasks.values():
            for row in rows:
                for column in ("sentence1", "sentence2"):
                    self._places.setdefault(row[column], len(self._places))

    @property
    def texts(self) -> list[str]:
        """The distinct sentences."""
        return list(self._places)

    def scores(self, vectors: np.ndarray) -> dict[str, float]:
        """Spearman × 100 of the cosines by task, and their "mean".

        Args:
            vectors: (len(texts), dimension), of length 1.
        """
        from embedkit.training.evaluate.pairs import spearman

        result = {}
        for task, rows in self.tasks.items():
            one, two = (vectors[[self._places[row[c]] for row in rows]] for c in ("sentence1", "sentence2"))
            gold = [float(row["score"]) for row in rows]
            result[task] = round(100 * spearman(np.sum(one * two, axis=1), gold), 3)
        return result | {"mean": round(float(np.mean(list(result.values()))), 3)}


def quality(
    path: Path, model: Path, threads: int, workers: Mapping[str, Worker], batches: Mapping[str, int | None]
) -> dict[str, dict[str, float]]:
    """`Sts.scores` of every candidate and of fp32 on the CPU; candidates that fail are reported and left out."""
    from embedkit import Encoder

    pairs = Sts(path)
    encoder = Encoder(str(model), device="cpu", precision="fp32", threads=threads)
    result = {REFERENCE: pairs.scores(encoder.encode(pairs.texts, normalize_embeddings=True))}
    for key, worker in workers.items():
        try:
            worker.texts(pairs.texts)
            worker.run(batches[key])
            result[key] = pairs.scores(worker.vectors())
        except PeerFailed as error:
            print(f"no quality of {key}: {error}")
    return result


def reference(model: Path, texts: list[str], threads: int) -> tuple[str, np.ndarray]:
    """The core's fp32 vectors of up to `COMPARED` of the texts, and who made them."""
    from embedkit import Encoder

    encoder = Encoder(str(model), device="cpu", precision="fp32", threads=threads)
    return REFERENCE, encoder.encode(texts[:: _step(len(texts))], normalize_embeddings=True)


def cosines(vectors: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """The cosines of the vectors of all texts with those of `reference`."""
    return common.cosines(vectors[:: _step(len(vectors))], truth)


def _step(texts: int) -> int:
    return max(1, texts // COMPARED)


def show(rows: list[dict[str, Any]]) -> str:
    """The table of encoding without tokenization and of one query."""

    def percent(share: float | None) -> str:
        return "-" if share is None else f"{share:.1%}"

    cells = []
    for row in rows:
        if "alone" not in row:
            continue
        alone, query = row["alone"], row.get("one_query")
        cells.append(
            [
                row["name"],
                alone["sentences_per_s"],
                f"{alone['tokens_per_s']:,}",
                percent(alone.get("mfu")),
                percent(alone.get("share_of_measured_peak")),
                f"{query['p50_ms']:.3f} / {query['p99_ms']:.3f}" if query else "-",
            ]
        )
    headers = ["", "sentences/s, encoding only", "valid tokens/s", "MFU", "share of the measured peak"]
    return common.table([*headers, "one query, p50 / p99 ms"], cells)


def show_quality(reference: dict[str, float], rows: list[dict[str, Any]]) -> str:
    """The table of scored pairs: Spearman × 100 by task."""
    cells = [[REFERENCE, *reference.values()]]
    cells += [[row["name"], *row["sts"].values()] for row in rows if "sts" in row]
    return common.table(["Spearman x 100", *reference], cells)
