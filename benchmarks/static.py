"""Speed of static models: embedkit, model2vec and sentence-transformers on the same folder.

    python benchmarks/static.py TEXTS.txt --model FOLDER --threads 1 2 --json OUT.json

The folder is Model2Vec's (``embedkit-train distill-static MODEL -o FOLDER`` makes one). Every candidate gets the same
texts through its own `encode`, tokenization counted, and their runs alternate. Each number of threads runs in its own
process, since `tokenizers` and torch read it from the environment. CPU seconds are those of all threads of the process:
on a shared machine they tell more than the clock.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np


def measure(folder: Path, texts: list[str], threads: int, rounds: int) -> dict[str, Any]:
    """Seconds of every candidate, in this process."""
    from model2vec import StaticModel
    from sentence_transformers import SentenceTransformer

    from embedkit import Encoder

    own, small = Encoder(folder, threads=threads), Encoder(folder, precision="int8", threads=threads)
    model2vec = StaticModel.from_pretrained(folder)
    transformer = SentenceTransformer(str(folder), device="cpu")
    candidates: dict[str, Callable[[], Any]] = {
        "embedkit": lambda: own.encode(texts),
        "embedkit int8": lambda: small.encode(texts),
        "model2vec": lambda: model2vec.encode(texts, use_multiprocessing=threads > 1),
        "sentence-transformers": lambda: transformer.encode(texts, batch_size=1024, show_progress_bar=False),
    }
    reference = model2vec.encode(texts[:1000])
    worst = float(np.abs(own.encode(texts[:1000]) - reference).max())

    def both(run: Callable[[], Any]) -> Callable[[], float]:
        def seconds() -> float:
            begin, used = time.perf_counter(), time.process_time()
            run()
            clock.append(time.perf_counter() - begin)
            return time.process_time() - used

        clock: list[float] = []
        clocks.append(clock)
        run()  # the first call of torch starts its threads
        return seconds

    clocks: list[list[float]] = []
    processor = common.alternate({name: both(run) for name, run in candidates.items()}, rounds)
    wall = dict(zip(candidates, clocks, strict=True))
    return {"processor_seconds": processor, "seconds": wall, "worst_difference_to_model2vec": worst}


def main() -> None:
    """Read the command line, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common.add_text_arguments(parser, default_limit=20_000)
    parser.add_argument("--model", type=common.model_folder, required=True, help="Model2Vec's folder")
    parser.add_argument("--threads", type=common.positive, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=common.positive, default=5)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.model, json.load(sys.stdin), options.worker, options.rounds)))
        return
    if (
        json.loads((options.model / "config.json").read_text(encoding="utf-8")).get("model_type")
        != "model2vec"
    ):
        parser.error(f"{options.model} is not a folder of Model2Vec: its config.json has another model_type")
    machine = common.machine_info()
    found = common.versions(["embedkit", "model2vec", "sentence-transformers", "tokenizers", "torch"])
    print(common.show_machine(machine, found))
    texts = common.texts_of(options)
    results: dict[str, Any] = {}
    rows = []
    for threads in options.threads:
        raw = common.in_process(__file__, options, texts, threads)
        peer = raw["processor_seconds"]["model2vec"]
        for name, used in raw["processor_seconds"].items():
            ratio = common.Spread.of([b / a for a, b in zip(used, peer, strict=True)])
            speed = common.Spread.of([len(texts) / s for s in raw["seconds"][name]])
            rows.append((threads, name, speed, f"{len(texts) / min(used):,.0f}", ratio))
        results[str(threads)] = {"texts": len(texts), **raw}
        print(
            f"{threads} threads: difference to model2vec at most {raw['worst_difference_to_model2vec']:.1e}"
        )
    print("\nmedian (lowest-highest); tokenization included")
    print(
        common.table(
            ["threads", "package", "texts/s", "texts per CPU second", "x model2vec by CPU time"], rows
        )
    )
    result = common.report(
        "static",
        machine=machine,
        versions=found,
        model=options.model.name,
        rounds=options.rounds,
        threads=results,
    )
    common.write_json(options.json, result)


if __name__ == "__main__":
    main()
