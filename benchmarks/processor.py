"""One table for a processor: embedkit and every installed peer, on several models, short questions and long texts.

    python benchmarks/processor.py TEXTS.tsv --column text1,text2 --models MINILM BGE-SMALL BERT-BASE \\
        --cache CACHE --json benchmarks/results/cpu-zen4.json

Candidates and rules are those of ``throughput.py``: the same distinct texts, alternating runs, tokenization included.
They find their batch size and streams anew in each case. The number of texts of a case follows from ``--gflop``, but
is large enough for two batches of each thread, so runs on a large model take longer. ``--convert`` only fills the cache
(exports, quantization with calibration), which needs no quiet machine. The measurement starts when the load average of
the last minute is below ``--load``. A run that was stopped goes on from the cases in ``X.part.json`` beside ``--json``.
A finished ``--json`` of the same processor and packages keeps its cases of other models: each has its own date.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import lengths
import numpy as np
import shapes
import throughput
from peers import REGISTRY, choose, peer_class
from peers.worker import PeerFailed, Worker


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = common.parser(__doc__)
    common.add_text_arguments(parser, default_limit=2048)
    parser.add_argument(
        "--models", type=common.model_folder, nargs="+", required=True, help="model folders with fp32 weights"
    )
    parser.add_argument(
        "--gflop", type=float, default=150, help="work of one run of a package (default: 150, ~2 s in fp32)"
    )
    parser.add_argument("--peers", default="all", help="all, own, or names, comma-separated (default: all)")
    common.add_threads(parser)
    parser.add_argument(
        "--rounds", type=common.positive, default=5, help="alternating runs of each candidate (default: 5)"
    )
    parser.add_argument(
        "--load", type=float, default=0.3, help="wait until the load is below this (default: 0.3)"
    )
    parser.add_argument(
        "--patience", type=float, default=1800, help="seconds to wait for it, then fail (default: 1800)"
    )
    parser.add_argument("--cache", type=Path, help="keep converted models here (default: a temporary folder)")
    parser.add_argument("--convert", action="store_true", help="only convert the models into --cache")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--plot", type=Path, help="draw the first case here (.png)")
    options = parser.parse_args()
    options.models = [model.resolve() for model in options.models]
    names = [model.name for model in options.models]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        parser.error(f"--models: two are called {twice[0]}, and the table could not tell them apart")
    return options


def wait_for_quiet(limit: float, patience: float) -> None:
    """Wait until the load average of one minute is below ``limit``; exit after ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while (load := os.getloadavg()[0]) >= limit:
        if time.monotonic() > deadline:
            sys.exit(f"the load is still {load:.2f} after {patience:g} s: stop what runs, or raise --load")
        print(f"waiting: load {load:.2f}, wanted below {limit:g}", flush=True)
        time.sleep(10)


#: The fewest texts of a case for each thread: two batches of 32 short texts, or of 8 long ones.
SHORT, LONG = 64, 16


def cases(model: Path, texts: list[str], gflop: float, threads: int) -> dict[str, list[str]]:
    """The texts of each case of a model: as many as ``gflop`` allow, and enough for ``threads``."""
    per_token = shapes.flops_per_token(model) / 1e9
    counts = [len(row) for row in throughput.Tokenizer(model)(texts)]
    short = min(len(texts), max(SHORT * threads, round(gflop / (per_token * float(np.mean(counts))))))
    long = max(LONG * threads, round(gflop / (per_token * throughput.LONG)))
    step = len(texts) / short
    return {
        "short": [texts[int(i * step)] for i in range(short)],
        str(throughput.LONG): lengths.texts_of_lengths(model, texts, [throughput.LONG] * long),
    }


def convert(options: argparse.Namespace, model: Path, cache: Path) -> None:
    """Convert a model for every peer; report those that cannot."""
    chosen, _ = choose(options.peers)
    cpus = common.machine_info()["cpus_usable"]
    for key in chosen:
        start = time.monotonic()
        with Worker(key, model, options.threads, cache, cpus) as worker:
            try:
                worker.convert()
            except PeerFailed as error:
                print(f"left out: {error}")
        print(f"{model.name}: {key} converted in {time.monotonic() - start:.0f} s", flush=True)


def inputs(models: list[Path], texts: list[str]) -> dict[str, dict[str, str]]:
    """By name of a model: what tells it, and the texts, from others whose files have the same names."""
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]
    return {model.name: {"fingerprint": common.fingerprint(model), "texts": digest} for model in models}


def read(path: Path) -> dict[str, Any]:
    """A result of this script as it was before it was written."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for row in (row for case in found["cases"] for row in case["rows"]):
        row["sentences_per_s"] = common.Spread(**row["sentences_per_s"])
    return found


def begun(path: Path | None, about: dict[str, Any]) -> dict[str, Any]:
    """What a stopped run of the same inputs, machine and versions (``about``) has left; else ``about``, no cases."""
    none = {**about, "minutes": 0.0, "cases": []}
    if path is None or not (part := common.part_of(path)).is_file():
        return none
    found = read(part)
    same = [found["machine"] | {"load_before": about["machine"]["load_before"]} == about["machine"]]
    same += [found.get(name) == about[name] for name in ("arguments", "versions", "inputs")]
    if not all(same):
        print(f"{part} is of another machine, other versions, arguments, models or texts, and begun anew")
        return none
    print(f"goes on from {part}, begun {found['date']}: remove it to measure all cases anew")
    return found


def earlier(path: Path | None, about: dict[str, Any], threads: int) -> dict[str, Any]:
    """A finished result of the same processor and packages (``about``) on as many threads; without cases if none.

    Of other models, those that are known to have read other texts are left out.
    """
    none: dict[str, Any] = {"cases": []}
    if path is None or not path.is_file():
        return none
    found = read(path)
    same = [found["machine"][name] == about["machine"][name] for name in ("cpu_family_model", "cpu_flags")]
    same.append(found["threads"] == threads)
    # of packages that are measured; a table names no version of their dependencies
    packages = {peer_class(key).packages[0] for key in REGISTRY} & about["versions"].keys()
    same += [found["versions"].get(name) == about["versions"][name] for name in packages]
    if not all(same):
        print(f"{path} is of another processor, other packages or threads, and will be replaced")
        return none
    known, digests = found.get("inputs", {}), {one["texts"] for one in about["inputs"].values()}
    stale = {model for model, one in known.items() if one["texts"] not in digests} - about["inputs"].keys()
    if stale:
        print(f"{path}: {', '.join(sorted(stale))} were measured on other texts, and are left out")
    found["cases"] = [case for case in found["cases"] if case["model"] not in stale]
    found["inputs"] = {model: one for model, one in known.items() if model not in stale}
    return found


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The result ``new`` with the cases of other models of ``old``, in its order, and with its note beside them."""
    order = list(dict.fromkeys(case["model"] for case in [*old["cases"], *new["cases"]]))
    measured = {case["model"] for case in new["cases"]}
    kept = [case for case in old["cases"] if case["model"] not in measured]
    return {
        **new,
        **({"note": old["note"]} if kept and "note" in old else {}),
        "inputs": old.get("inputs", {}) | new["inputs"],
        "cases": sorted([*kept, *new["cases"]], key=lambda case: order.index(case["model"])),
    }


def main() -> None:
    """Measure every case, print and write."""
    options = arguments()
    if options.convert and not options.cache:
        sys.exit("--convert needs --cache")
    texts, rest = throughput.texts_and_rest(options)
    options.device, options.isa, options.by_precision = "cpu", None, False
    with tempfile.TemporaryDirectory(prefix="embedkit-bench-") as scratch:
        cache = options.cache or Path(scratch)
        folders = {}
        for model in options.models:
            folder = folders[model] = common.conversions(cache, model)
            throughput.write_calibration(model, folder, rest)
            if options.convert:
                convert(options, model, folder)
        if options.convert:
            return
        wait_for_quiet(options.load, options.patience)
        chosen, _ = choose(options.peers)
        about = common.report(
            "processor",
            machine=common.machine_info(),
            versions=throughput.versions(chosen),
            inputs=inputs(options.models, texts),
        )
        others = earlier(options.json, about, options.threads)
        result = begun(options.json, about)
        done = {(one["model"], one["case"]) for one in result["cases"]}
        start = time.monotonic() - 60 * result["minutes"]
        for model, folder in folders.items():
            for case, those in cases(model, texts, options.gflop, options.threads).items():
                if (model.name, case) in done:
                    continue
                one = throughput.measure(options, model, folder, those)
                print(throughput.show(one), flush=True)
                result["cases"].append({"case": case, **one})
                result |= {"threads": options.threads, "rounds": options.rounds}
                result["minutes"] = round((time.monotonic() - start) / 60, 1)
                common.write_json(options.json, result, finished=False)
        result = merged(others, result)
        common.write_json(options.json, result)
        if options.plot:
            throughput.plot(result["cases"][0], options.plot)


if __name__ == "__main__":
    main()
