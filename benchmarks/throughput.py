"""Sentences and tokens per second of `embedkit.Encoder.encode` and of every installed peer.

    python benchmarks/throughput.py TEXTS.txt --model FOLDER --threads 2 --json OUT.json --plot OUT.png
    python benchmarks/throughput.py TEXTS.txt --model FOLDER --device cuda [--lengths 128]
    python benchmarks/throughput.py TEXTS.txt --model FOLDER --table hpd
    python benchmarks/throughput.py TEXTS.txt --model FOLDER --shape modernbert-base --lengths 4x8192

All candidates get the same distinct texts, CPUs and number of threads; their runs alternate, and tokenization is
included. Each peer first finds its best batch size on a part of the texts. The output includes the mean and the
worst cosine to the fp32 reference, and the share of the processor's peak. On a GPU (``gpu.py``) it also includes
encoding without tokenization, its share of the GPU's peak, the latency of one query and, with ``--sts``, the
quality on scored pairs; ``--json`` is then written after each part. ``--table hpd`` (``hpd.py``) measures the
models of HPD's Table 1.
"""

import argparse
import contextlib
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import common
import gpu
import hpd
import lengths
import numpy as np
import shapes
import stages
from peers import choose, peer_class
from peers.base import CALIBRATION, Setting, Tokenizer
from peers.worker import PeerFailed, Worker, alternate, best_setting


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = common.parser(__doc__)
    common.add_text_arguments(parser, default_limit=2048)
    common.add_model(parser, fp32=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--lengths",
        help="cut the texts to these token counts: 128, 8-256 for a mixture, or a list: 200,63x10",
    )
    parser.add_argument("--table", choices=["hpd"], help="measure the models of a table instead of one")
    parser.add_argument("--rows", help="--table: only these models, comma-separated")
    parser.add_argument("--mpnet", type=Path, help="--table hpd: real all-mpnet-base-v2 weights")
    parser.add_argument(
        "--shape",
        help="measure random weights of this shape instead of the folder's, with the folder's tokenizer: "
        "layers=12,hidden=768,heads=12,intermediate=3072,pooling=cls, or nomic, modernbert-base, gte, deberta-v3-base, "
        "qwen3-0.6b or embeddinggemma (their published sizes)",
    )
    parser.add_argument("--peers", default="all", help="all, own, or names, comma-separated (default: all)")
    parser.add_argument(
        "--by-precision",
        action="store_true",
        help="load and measure the candidates of one precision after the other, if all do not fit in memory",
    )
    parser.add_argument(
        "--sts",
        type=Path,
        help="cuda: measure the quality on scored pairs (.tsv: sentence1, sentence2, score)",
    )
    parser.add_argument(
        "--isa", help="limit all candidates to this instruction set: avx2 (embedkit also: avx2_vnni)"
    )
    common.add_threads(parser)
    parser.add_argument(
        "--rounds", type=common.positive, default=5, help="alternating runs of each candidate (default: 5)"
    )
    parser.add_argument("--cache", type=Path, help="keep converted models here (default: a temporary folder)")
    parser.add_argument(
        "--profile", action="store_true", help="instead, time the stages of the core, without peers"
    )
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--plot", type=Path, help="draw a bar chart here (.png)")
    options = parser.parse_args()
    if options.table:
        given = [f"--{name}" for name in ("isa", "shape", "profile", "plot") if getattr(options, name)]
        if given:
            parser.error(f"--table does not take {', '.join(given)}")
    if options.profile and options.isa:
        parser.error(f"--profile takes no --isa: set EMBEDKIT_ISA={options.isa}, which is read at the start")
    return options


#: From lossless to least exact.
PRECISIONS = ("fp32", "bf16", "fp16", "fp8", "int8")
#: The default of most packages.
USUAL_BATCH = "32"
LONG = 256  # tokens of a long text
_REST = 4000  # texts beside those that are measured
#: On a GPU, candidates find their batch size on at most this many texts and tokens.
SEARCH_TEXTS, SEARCH_TOKENS = 8192, 2**18


def ceiling(threads: int, isa: str | None = None) -> dict[str, float]:
    """Peak of the processor in GOP/s on `threads` threads, by precision; empty without embedkit's core.

    Measured with the widest multiply-add instruction (of ``isa``) on registers alone, on all threads at once.
    """
    try:
        from embedkit import _core
    except ImportError:
        return {}
    with ThreadPoolExecutor(threads) as pool:
        return {
            precision: sum(
                pool.map(lambda _, p=precision: _core.measure_peak(p, 0.5, isa or ""), range(threads))
            )
            for precision in ("fp32", "bf16", "int8")
        }


def versions(chosen: Sequence[str]) -> dict[str, str]:
    """Of the packages that the candidates need."""
    return common.versions(sorted({p for key in chosen for p in peer_class(key).packages} | {"numpy"}))


def measure(
    options: argparse.Namespace,
    model: Path,
    cache: Path,
    texts: list[str],
) -> dict[str, Any]:
    """Run every candidate; return the result to print, plot and write.

    Args:
        options: the command line.
        model: model folder.
        cache: folder for converted models.
        texts: what is encoded.
    """
    counts = [len(row) for row in Tokenizer(model)(texts)]
    tokens = sum(counts)
    histogram = common.length_histogram(counts)
    chosen, left_out = choose(options.peers, options.device, options.isa)
    machine, found = common.machine_info(), versions(chosen)
    cpus = machine["cpus_usable"][: options.threads]
    print(common.show_machine(machine, found))
    print(
        f"threads: {options.threads} on CPUs {cpus}; tokenization included; {len(set(texts))} texts are distinct"
    )
    print(common.show_histogram(histogram))
    for key, reason in left_out.items():
        print(f"left out: {key}: {reason}")

    on_cuda = options.device == "cuda"
    # Enough for several of a GPU's largest batches; 384 short texts would be one small batch.
    searched = min(SEARCH_TEXTS, SEARCH_TOKENS * len(texts) // tokens) if on_cuda else 384
    search = texts[:: max(1, len(texts) // searched)]
    best: dict[str, tuple[Setting, dict[str, float]]] = {}
    seconds: dict[str, list[float]] = {}
    cosines: dict[str, np.ndarray] = {}
    on_gpu: dict[str, dict[str, Any]] = {}
    peaks: dict[str, float] = {}
    memory: dict[str, int] = {}
    sts: dict[str, dict[str, float]] = {}
    reference, truth = gpu.reference(model, texts, options.threads) if on_cuda else ("", np.empty(0))

    def result() -> dict[str, Any]:
        rows = _rows(
            model,
            tokens=tokens,
            texts=len(texts),
            best=best,
            seconds=seconds,
            cosines=cosines,
            peaks=peaks,
            memory=memory,
        )
        for row in rows:
            row.update(on_gpu.get(row["peer"], {}))
            if row["peer"] in sts:
                row["sts"] = sts[row["peer"]]
        return common.report(
            "throughput-cuda" if on_cuda else "throughput",
            machine=machine | ({"gpu": gpu.name()} if on_cuda else {}),
            versions=found,
            isa=options.isa or common.embedkit_isa(),
            threads=options.threads,
            rounds=options.rounds,
            model=model.name,
            shape=shapes.describe(model),
            texts={**histogram, "distinct": len(set(texts)) == len(texts)},
            tokenization_counted=True,
            reference=reference,
            **({"reference_sts": sts[gpu.REFERENCE]} if sts else {}),
            mflop_per_token=round(shapes.flops_per_token(model) / 1e6, 2),
            ceiling_gops={k: round(v, 1) for k, v in peaks.items()},
            left_out=left_out,
            rows=rows,
        )

    def keep(part: dict[str, Any]) -> None:
        # Write what there is so far, in case the program is stopped.
        common.write_json(options.json, part, finished=False)

    vectors: dict[str, np.ndarray] = {}
    for group in _by_precision(chosen) if options.by_precision else [chosen]:
        with contextlib.ExitStack() as stack:
            workers: dict[str, Worker] = {}
            for key in group:
                worker = stack.enter_context(
                    Worker(
                        key,
                        model,
                        options.threads,
                        cache,
                        cpus,
                        patience=gpu.PATIENCE if on_cuda else None,
                        isa=options.isa,
                    )
                )
                try:
                    worker.convert()
                    best[key] = best_setting(worker, search, worker.settings())
                    worker.texts(texts)
                    worker.run(best[key][0].batch)  # warm-up at full size
                    if on_cuda:
                        worker.run(best[key][0].batch)  # captures the CUDA graphs
                        seconds[key] = [worker.run(best[key][0].batch)]
                        cosines[key] = gpu.cosines(worker.vectors(), truth)
                        keep(result())
                except PeerFailed as error:
                    left_out[key] = error.reason
                    print(f"left out: {error}")
                    continue
                workers[key] = worker
                tried = ", ".join(f"{s}: {v:.0f}/s" for s, v in best[key][1].items())
                print(f"{key}: batch {best[key][0]}" + (f"  ({tried})" if tried else ""), flush=True)
            if not workers:
                continue
            runs = {key: (lambda w=w, b=best[key][0].batch: w.run(b)) for key, w in workers.items()}
            timed = alternate(runs, options.rounds, left_out)
            for key in workers.keys() - timed.keys():
                seconds.pop(key, None)
            workers = {key: workers[key] for key in timed}
            seconds |= timed
            vectors |= {key: worker.vectors() for key, worker in workers.items()}
            memory |= {key: worker.peak_mb() for key, worker in workers.items()}
            if on_cuda and workers:
                cosines |= {key: gpu.cosines(vectors[key], truth) for key in workers}
                keep(result())
                batches = {key: best[key][0].batch for key in workers}
                on_gpu |= gpu.measure(workers, batches, texts, counts, options.rounds)
                keep(result())
                if options.sts:
                    sts |= gpu.quality(options.sts, model, options.threads, workers, batches)
                    keep(result())
    if not vectors:
        raise SystemExit("no candidate left to measure")
    if on_cuda:
        peaks |= gpu.ceiling()
        precisions = {key: peer_class(key).precision for key in vectors}
        gpu.add_utilization(on_gpu, shapes.flops(model, counts) / tokens, peaks, precisions)
    else:
        peaks |= ceiling(options.threads, options.isa)
        reference = next(
            (k for k in ("sentence-transformers", "embedkit-fp32") if k in vectors), next(iter(vectors))
        )
        cosines |= {key: common.cosines(vectors[key], vectors[reference]) for key in vectors}
    return result()


def _by_precision(chosen: Sequence[str]) -> list[list[str]]:
    """The candidates of each precision."""
    return [[key for key in chosen if peer_class(key).precision == one] for one in PRECISIONS]


def _rows(
    model: Path,
    *,
    tokens: int,
    texts: int,
    best: dict[str, tuple[Setting, dict[str, float]]],
    seconds: dict[str, list[float]],
    cosines: dict[str, np.ndarray],
    peaks: dict[str, float],
    memory: dict[str, int],
) -> list[dict[str, Any]]:
    """One row per candidate of ``seconds``, sorted by precision and speed."""
    flops = shapes.flops_per_token(model)
    rows = []
    for key, taken in seconds.items():
        kind = peer_class(key)
        rate = common.Spread.of([texts / s for s in taken])
        speed = rate.median * tokens / texts
        peak = peaks.get(kind.precision)
        rows.append(
            {
                "peer": key,
                "name": kind.name,
                "precision": kind.precision,
                "batch": str(best[key][0]),
                "tried": best[key][1],
                "sentences_per_s": rate,
                "tokens_per_s": round(speed),
                "peak_mb": memory.get(key),
                "cosine": round(float(cosines[key].mean()), 6),
                "worst_cosine": round(float(cosines[key].min()), 6),
                "share_of_ceiling": round(speed * flops / (peak * 1e9), 4) if peak else None,
            }
        )
    rows.sort(key=lambda row: (PRECISIONS.index(row["precision"]), -row["sentences_per_s"].median))
    return rows


def show(result: dict[str, Any]) -> str:
    """The table, and embedkit's speed relative to the fastest peer of each precision."""
    texts = result["texts"]
    lines = [
        f"throughput of {result['model']} ({result['shape']}), {result['threads']} threads, {texts['texts']} texts of "
        f"{texts['mean']} tokens on average, {result['mflop_per_token']} MFLOP per token"
    ]
    if result["ceiling_gops"]:
        lines.append("ceiling: " + ", ".join(f"{k} {v:.0f} GOP/s" for k, v in result["ceiling_gops"].items()))
    lines.append(
        common.table(
            [
                "",
                "batch",
                "sentences/s (range)",
                "tokens/s",
                "peak MB",
                f"cosine to {result['reference']}: mean, worst",
                "of the ceiling",
            ],
            [
                [
                    row["name"],
                    row["batch"],
                    row["sentences_per_s"],
                    row["tokens_per_s"],
                    row["peak_mb"] or "-",
                    f"{row['cosine']:.6f}, {row['worst_cosine']:.6f}",
                    "-" if row["share_of_ceiling"] is None else f"{row['share_of_ceiling']:.1%}",
                ]
                for row in result["rows"]
            ],
        )
    )
    if any("alone" in row for row in result["rows"]):
        lines.append(gpu.show(result["rows"]))
    if "reference_sts" in result:
        lines.append(gpu.show_quality(result["reference_sts"], result["rows"]))
    for precision in dict.fromkeys(row["precision"] for row in result["rows"]):
        rows = [r for r in result["rows"] if r["precision"] == precision]
        own = [r for r in rows if r["peer"].startswith("embedkit")]
        peers = [r for r in rows if not r["peer"].startswith("embedkit")]
        if own and peers:
            rival = max(peers, key=lambda r: r["sentences_per_s"].median)
            lead = own[0]["sentences_per_s"].median / rival["sentences_per_s"].median
            lines.append(f"embedkit {precision} / fastest {precision} peer ({rival['name']}): {lead:.2f}")
            usual = max(peers, key=lambda r: r["tried"].get(USUAL_BATCH, 0))
            if USUAL_BATCH in usual["tried"]:
                lead = own[0]["sentences_per_s"].median / usual["tried"][USUAL_BATCH]
                lines.append(f"… with batches of {USUAL_BATCH} on all threads ({usual['name']}): {lead:.2f}")
    return "\n".join(lines)


def plot(result: dict[str, Any], path: Path) -> None:
    """A horizontal bar with its range for each candidate, embedkit's in another color."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = sorted(result["rows"], key=lambda r: r["sentences_per_s"].median)
    medians = [r["sentences_per_s"].median for r in rows]
    error = [
        [r["sentences_per_s"].median - r["sentences_per_s"].low for r in rows],
        [r["sentences_per_s"].high - r["sentences_per_s"].median for r in rows],
    ]
    colors = ["#c1440e" if r["peer"].startswith("embedkit") else "#8a9ba8" for r in rows]
    figure, axes = pyplot.subplots(figsize=(8, 0.36 * len(rows) + 1.5), layout="constrained")
    axes.barh([r["name"] for r in rows], medians, xerr=error, color=colors, error_kw={"capsize": 3, "lw": 1})
    for i, row in enumerate(rows):
        label = f" {medians[i]:,.0f}  (cosine {row['cosine']:.5f})"
        axes.text(row["sentences_per_s"].high, i, label, va="center", fontsize=9)
    axes.margins(y=0.02)
    axes.set_xlim(0, max(r["sentences_per_s"].high for r in rows) * 1.4)
    axes.set_xlabel("sentences per second (median and range), tokenization included")
    axes.set_title(
        f"Throughput of {result['model']} on {result['texts']['texts']:,} texts of {result['texts']['mean']} tokens\n"
        f"{result['threads']} threads of {result['machine']['cpu']} ({result['isa']})",
        fontsize=10,
    )
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def texts_and_rest(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The texts to measure, and others of the same source, to calibrate with."""
    more = argparse.Namespace(**{**vars(options), "limit": options.limit + _REST})
    found = common.texts_of(more)
    return found[: options.limit], found[options.limit :]


def write_calibration(model: Path, folder: Path, rest: list[str]) -> None:
    """Texts that are not measured, for peers that calibrate: 200 as they are and 60 of `LONG` tokens."""
    if rest and not (folder / CALIBRATION).exists():
        texts = rest[:200] + lengths.texts_of_lengths(model, rest[200:] or rest, [LONG] * 60)
        (folder / CALIBRATION).write_text("\n".join(texts), encoding="utf-8")


def main() -> None:
    """Measure, print and write."""
    options = arguments()
    texts, rest = texts_and_rest(options)
    with tempfile.TemporaryDirectory(prefix="embedkit-bench-") as scratch:
        cache = options.cache or Path(scratch)
        model = options.model.resolve()
        if options.lengths:
            sizes = lengths.wanted(options.lengths, len(texts))
            texts = lengths.texts_of_lengths(model, texts, sizes)
        if options.table:
            hpd.run(options, model, cache, texts)
            return
        if options.shape:
            made = common.conversions(cache, model)
            model = shapes.build(options.shape, tokenizer_of=model, folder=made)
        if options.profile:
            found = stages.run(options, model, texts)
            print(stages.show(found))
            common.write_json(options.json, found)
            if options.plot:
                stages.plot(found, options.plot)
            return
        converted = common.conversions(cache, model)
        write_calibration(model, converted, rest)
        result = measure(options, model, converted, texts)
    print(show(result))
    common.write_json(options.json, result)
    if options.plot:
        plot(result, options.plot)


if __name__ == "__main__":
    main()
