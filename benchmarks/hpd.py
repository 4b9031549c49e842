"""`throughput.py --table hpd`: size, dimension and speed of the models of HPD's Table 1, on this machine.

Zhao et al. 2022 (arXiv 2203.07687) report sentences/s on a TITAN Xp. This measures each shape of their table with
and without a projection to 128 dimensions. Speed does not depend on the values of the weights, so shapes without
real weights get random ones, as the table says. On a CPU, large models get an evenly spaced part of the texts; on a
GPU, all models get all texts, and encoding without tokenization and its utilization are measured as well.
"""

import argparse
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import gpu
import shapes
from peers import choose, peer_class
from peers.base import Tokenizer
from peers.worker import PeerFailed, Worker, alternate, best_setting

__all__ = ["run"]

DIMENSION = 128
HARDWARE = "TITAN Xp (Zhao et al. 2022, Table 1)"


@dataclass(frozen=True)
class Shape:
    """A row's model.

    Attributes:
        name: in the table.
        spec: for `shapes.build`; None for the folder of ``--model``.
        paper: sentences/s in the paper, by dimension.
    """

    name: str
    spec: str | None
    paper: dict[int, int]


SHAPES = (
    Shape(
        "RoBERTa-large",
        "layers=24,hidden=1024,heads=16,intermediate=4096,pooling=mean",
        {1024: 291},  # SimCSE-RoBERTa-large
    ),
    Shape("MPNet-base", "layers=12,hidden=768,heads=12,intermediate=3072,pooling=mean", {}),
    Shape("TinyBERT", "layers=4,hidden=312,heads=12,intermediate=1200,pooling=mean", {128: 2609}),
    Shape("MiniLM-L6", None, {128: 2024}),
)


def run(options: argparse.Namespace, model: Path, cache: Path, texts: list[str]) -> None:
    """Measure, print and write."""
    device = options.device
    default = "embedkit-fp32,embedkit-int8,sentence-transformers" if device == "cpu" else "all"
    keys, left_out = choose(default if options.peers == "all" else options.peers, device)
    machine = common.machine_info()
    found = common.versions(sorted({p for key in keys for p in peer_class(key).packages} | {"numpy"}))
    print(common.show_machine(machine, found))
    reference = shapes.flops_per_token(model)
    counts = [len(row) for row in Tokenizer(model)(texts)]
    print(common.show_histogram(common.length_histogram(counts)))
    rows = []
    chosen = [shape.name for shape in SHAPES] if options.rows is None else options.rows.split(",")
    if unknown := set(chosen) - {shape.name for shape in SHAPES}:
        raise SystemExit(f"--rows: no {', '.join(unknown)}; there are {', '.join(s.name for s in SHAPES)}")
    peaks = gpu.ceiling() if device == "cuda" else {}

    def report() -> dict[str, Any]:
        return common.report(
            "throughput-hpd",
            machine=machine | ({"gpu": gpu.name()} if device == "cuda" else {}),
            versions=found,
            isa=common.embedkit_isa() if device == "cpu" else None,
            device=device,
            threads=options.threads,
            rounds=options.rounds,
            texts=common.length_histogram(counts),
            tokenization_counted=True,
            paper_hardware=HARDWARE,
            left_out=left_out,
            rows=rows,
        )

    for shape in SHAPES:
        if shape.name not in chosen:
            continue
        weights = "random"
        if shape.spec is None:
            folder, weights = model, "real"
        elif shape.name == "MPNet-base" and options.mpnet is not None:
            folder, weights = options.mpnet.resolve(), "real"
        else:
            folder = shapes.build(shape.spec, tokenizer_of=model, folder=common.conversions(cache, model))
        cost = shapes.flops_per_token(folder) / reference
        step = 1 if device == "cuda" else max(1, min(round(cost), len(texts) // 64))
        for projected in (False, True):
            one = (
                shapes.project(folder, DIMENSION, common.conversions(cache, folder)) if projected else folder
            )
            speeds, alone, failed = _speeds(
                options, keys, one, cache, texts=texts[::step], counts=counts[::step]
            )
            precisions = {key: peer_class(key).precision for key in alone}
            if alone:
                gpu.add_utilization(alone, shapes.flops(one, counts) / sum(counts), peaks, precisions)
            dimension = DIMENSION if projected else shapes.hidden_size(folder)
            rows.append(
                {
                    "model": shape.name,
                    "weights": weights + (", projection random" if projected else ""),
                    "shape": shapes.describe(folder),
                    "parameters_m": round(shapes.parameters(one) / 1e6, 1),
                    "dimension": dimension,
                    "texts": len(texts[::step]),
                    "sentences_per_s": speeds,
                    **({"on_gpu": alone} if alone else {}),
                    **({"left_out": failed} if failed else {}),
                    "paper_sentences_per_s": shape.paper.get(dimension),
                }
            )
            measured = ", ".join(f"{peer_class(key).name} {speed}" for key, speed in speeds.items())
            print(f"{shape.name}, {dimension} dimensions: sentences/s {measured}", flush=True)
            if alone:
                print(gpu.show([{"name": peer_class(key).name, **one} for key, one in alone.items()]))
            if options.json:
                common.write_json(options.json, report(), finished=False)
    if options.json:
        common.write_json(options.json, report())
    print(f"\n{options.threads} threads, tokenization included; paper: {HARDWARE}\n{_table(rows, keys)}")


def _speeds(
    options: argparse.Namespace,
    keys: list[str],
    folder: Path,
    cache: Path,
    *,
    texts: list[str],
    counts: list[int],
) -> tuple[dict[str, common.Spread], dict[str, dict[str, Any]], dict[str, str]]:
    """Sentences/s of each candidate, alternating, the results of `gpu.measure` (empty on a CPU), and failures.

    Candidates that fail are reported and left out; the failures are their reasons.
    """
    on_cuda = options.device == "cuda"
    cpus = sorted(os.sched_getaffinity(0))[: options.threads]
    cache = common.conversions(cache, folder)
    with contextlib.ExitStack() as stack:
        workers, batches = {}, {}
        failed: dict[str, str] = {}
        for key in keys:
            worker = stack.enter_context(
                Worker(key, folder, options.threads, cache, cpus, patience=gpu.PATIENCE if on_cuda else None)
            )
            try:
                worker.convert()
                setting, _ = best_setting(worker, texts, worker.settings())
                worker.texts(texts)
                worker.run(setting.batch)
                if on_cuda:
                    worker.run(setting.batch)  # captures the CUDA graph
            except PeerFailed as error:
                failed[key] = error.reason
                print(f"left out: {error}")
                continue
            workers[key], batches[key] = worker, setting.batch
        runs: dict[str, Any] = {
            key: (lambda w=worker, b=batches[key]: w.run(b)) for key, worker in workers.items()
        }
        taken = alternate(runs, options.rounds, failed)
        alone = {}
        if on_cuda:
            left = {key: workers[key] for key in taken}
            alone = gpu.measure(left, batches, texts, counts, options.rounds)
    speeds = {key: common.Spread.of([len(texts) / s for s in seconds]) for key, seconds in taken.items()}
    return speeds, alone, failed


def _table(rows: list[dict[str, Any]], keys: list[str]) -> str:
    names = [peer_class(key).name for key in keys]
    return common.table(
        [
            "model",
            "weights",
            "size",
            "dimension",
            *(f"{n}, sentences/s" for n in names),
            "paper, sentences/s",
        ],
        [
            [
                row["model"],
                row["weights"],
                f"{row['parameters_m']:g} M",
                row["dimension"],
                *(f"{s.median:,.0f}" if (s := row["sentences_per_s"].get(k)) else "-" for k in keys),
                row["paper_sentences_per_s"] or "-",
            ]
            for row in rows
        ],
    )
