"""What throughput.py measures on a GPU beside the throughput: encoding alone, utilisation, one query."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import common
import numpy as np
from peers.worker import PeerFailed, Worker

#: Dense 16-bit products of the vendor's data sheets, operations/s: what model FLOP utilisation is relative to.
DATA_SHEET = {"H100 PCIe": 756e12, "H200": 989e12, "H100": 989e12, "A100": 312e12}
QUERIES = 200


def name() -> str:
    """The first GPU's."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: --device cuda needs one")
    return torch.cuda.get_device_name()


def ceiling() -> dict[str, float]:
    """GOP/s of a large product by precision, measured."""
    import kernels_gpu

    name()
    found = {}
    for precision, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        found[precision] = kernels_gpu.ceilings(dtype, ())[dtype] / 1e9
    return found


def measure(
    workers: Mapping[str, Worker],
    batches: Mapping[str, int | None],
    texts: list[str],
    counts: list[int],
    rounds: int,
) -> dict[str, dict[str, Any]]:
    """Encoding alone, alternating, and one query at a time, by candidate.

    Args:
        workers: each with ``texts`` sent to it.
        batches: the best batch size of each.
        texts: what is encoded.
        counts: tokens of each.
        rounds: how many times.
    """
    runs = {key: (lambda w=w, b=batches[key]: w.alone(b)) for key, w in workers.items()}
    taken = common.alternate(runs, rounds)
    result: dict[str, dict[str, Any]] = {}
    for key, seconds in taken.items():
        rate = common.Spread.of([len(texts) / s for s in seconds])
        alone = {"sentences_per_s": rate, "tokens_per_s": round(rate.median * sum(counts) / len(texts))}
        result[key] = {"alone": alone}
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


def add_utilisation(
    measured: dict[str, dict[str, Any]], operations_per_token: float, peaks: Mapping[str, float]
) -> None:
    """Model FLOP utilisation of encoding alone: of the data sheet's peak where it is known, and of the measured.

    Args:
        measured: as `measure` gives it; gets "mfu" and "share_of_measured_peak".
        operations_per_token: on average over the texts, attention's counted.
        peaks: GOP/s as `ceiling` gives them; 16-bit products all run at the same rate.
    """
    gpu_name = name()
    sheet = next((peak for model, peak in DATA_SHEET.items() if model in gpu_name), None)
    for one in measured.values():
        alone = one["alone"]
        rate = operations_per_token * alone["tokens_per_s"]
        alone["mfu"] = round(rate / sheet, 4) if sheet else None
        alone["share_of_measured_peak"] = round(rate / (max(peaks.values()) * 1e9), 4)


def reference(
    model: Path, texts: list[str], vectors: dict[str, np.ndarray], threads: int
) -> tuple[str, dict[str, np.ndarray]]:
    """The fp32 vectors of the core on the CPU for up to 512 of the texts, and everyone's vectors of these."""
    from embedkit import Encoder

    step = max(1, len(texts) // 512)
    encoder = Encoder(str(model), device="cpu", precision="fp32", threads=threads)
    chosen = {key: rows[::step] for key, rows in vectors.items()}
    label = "embedkit fp32 on the CPU"
    return label, {**chosen, label: encoder.encode(texts[::step], normalize_embeddings=True)}


def show(rows: list[dict[str, Any]]) -> str:
    """The table of encoding alone and of one query."""

    def percent(share: float | None) -> str:
        return "-" if share is None else f"{share:.1%}"

    cells = []
    for row in rows:
        alone, query = row["alone"], row.get("one_query")
        cells.append(
            [
                row["name"],
                alone["sentences_per_s"],
                f"{alone['tokens_per_s']:,}",
                percent(alone["mfu"]),
                percent(alone["share_of_measured_peak"]),
                f"{query['p50_ms']:.3f} / {query['p99_ms']:.3f}" if query else "-",
            ]
        )
    headers = ["", "sentences/s, encoding alone", "valid tokens/s", "MFU", "of the measured peak"]
    return common.table([*headers, "one query, p50 / p99 ms"], cells)
