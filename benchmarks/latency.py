"""Latency of single texts, time to the first vector, and memory of a long run.

    python benchmarks/latency.py TEXTS.txt --model FOLDER --threads 2 --json OUT.json

* single texts: p50 and p99 of `encode([text])` for distinct texts of one length, in rounds that alternate between
  embedkit and its peers (each is frozen while another one is measured, and warmed up again before its own turn);
* cold start: seconds from the start of a process to its first vector, median of several processes;
* `import embedkit`: seconds, and the heavy packages it imports;
* memory: peak of a process that encodes many short texts through `encode_iter`.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common
from peers import choose, peer_class
from peers.base import Tokenizer
from peers.worker import PeerFailed, Worker

HEAVY = ("torch", "transformers", "faiss", "sentence_transformers", "tokenizers")

COLD = """
import sys
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
from peers import peer_class
peer = peer_class({key!r})({model}, {threads}, Path({cache!r}))
peer.load()
peer.encode([{text!r}], 1)
print("ready", flush=True)
"""

BUILT_IN = """
from embedkit import Encoder
Encoder().encode({text!r})
print("ready", flush=True)
"""

IMPORT = """
import json, sys, time
start = time.perf_counter()
import embedkit
seconds = time.perf_counter() - start
print(json.dumps({{"seconds": seconds, "heavy": [m for m in {heavy!r} if m in sys.modules]}}))
"""

# VmHWM, since ru_maxrss starts at the size of the parent process.
MEMORY = """
import json, sys
from pathlib import Path
from embedkit import Encoder
def texts():
    with open({file!r}, encoding="utf-8") as file:
        for line in file:
            yield line.rstrip("\\n")
def high_water():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
encoder = Encoder({model}precision="int8", threads={threads})
loaded = high_water()
count = sum(len(block) for block in encoder.encode_iter(texts()))
print(json.dumps({{"texts": count, "loaded_mib": round(loaded, 1), "peak_mib": round(high_water(), 1)}}))
"""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = common.parser(__doc__)
    common.add_text_arguments(parser, default_limit=20_000)
    common.add_model(parser, fp32=True)
    parser.add_argument("--peers", default="all", help="all, own, names; separated by commas (default: all)")
    common.add_threads(parser)
    parser.add_argument("--tokens", type=int, default=15, help="length of the texts, special tokens included")
    parser.add_argument("--queries", type=int, default=100, help="distinct texts in a round (default: 100)")
    parser.add_argument(
        "--rounds", type=common.positive, default=5, help="alternating rounds of each candidate (default: 5)"
    )
    parser.add_argument(
        "--starts", type=int, default=5, help="processes started for the cold start (default: 5)"
    )
    parser.add_argument(
        "--memory-texts", type=int, default=50_000, help="texts of the memory run (default: 50000)"
    )
    parser.add_argument("--cache", type=Path, help="keep converted models here (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="write the results here")
    return parser.parse_args()


def queries(texts: list[str], options: argparse.Namespace) -> list[str]:
    """The texts that have exactly `--tokens` tokens, at most `--queries` of them."""
    ids = Tokenizer(options.model)(texts)
    fitting = [text for text, row in zip(texts, ids, strict=True) if len(row) == options.tokens]
    if not fitting:
        raise SystemExit(f"no text has {options.tokens} tokens; see --tokens")
    return fitting[: options.queries]


def one_at_a_time(
    options: argparse.Namespace, keys: list[str], texts: list[str], cache: Path
) -> dict[str, Any]:
    """p50 and p99 in milliseconds over all rounds, and the range of the rounds' p50, for each candidate."""
    cpus = sorted(os.sched_getaffinity(0))[: options.threads]
    with contextlib.ExitStack() as stack:
        workers = {}
        for key in keys:
            worker = stack.enter_context(Worker(key, options.model, options.threads, cache, cpus))
            try:
                worker.convert()
                worker.load(1)
                worker.texts(texts)
                worker.one_by_one()  # warm-up
                workers[key] = worker
            except PeerFailed as error:
                print(f"left out: {error}")
        taken: dict[str, list[list[float]]] = {key: [] for key in workers}
        for turn in range(options.rounds):
            for key in list(workers) if turn % 2 == 0 else reversed(workers):
                workers[key].one_by_one()  # what was frozen starts with cold caches and a low clock
                taken[key].append([1000 * s for s in workers[key].one_by_one()])
    result = {}
    for key, rounds in taken.items():
        every = [ms for one in rounds for ms in one]
        medians = [statistics.median(one) for one in rounds]
        result[key] = {
            "p50_ms": round(common.percentile(every, 50), 4),
            "p99_ms": round(common.percentile(every, 99), 4),
            "p50_of_rounds_ms": common.Spread.of(medians),
            "calls": len(every),
        }
    return result


def python(script: str, threads: int) -> tuple[float, str]:
    """Run a script in a fresh interpreter; return the seconds until its first line, and that line."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "OMP_NUM_THREADS": str(threads)}
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=tempfile.gettempdir(),  # not the repository: `embedkit` must be the installed package
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - start
        errors = process.stderr.read()
    if process.returncode != 0:
        raise PeerFailed("a new process", errors)
    return seconds, line


def cold_starts(
    options: argparse.Namespace, keys: list[str], text: str, cache: Path
) -> dict[str, common.Spread]:
    """Seconds from starting a process to its first vector; the first start only warms the disk cache."""
    scripts = {
        key: COLD.format(
            benchmarks=str(Path(__file__).resolve().parent),
            key=key,
            model=f"Path({str(options.model)!r})",
            threads=options.threads,
            cache=str(cache),
            text=text,
        )
        for key in keys
    }
    if any(key.startswith("embedkit") for key in keys):
        scripts = {"embedkit, built-in model": BUILT_IN.format(text=text), **scripts}
    runs = {}
    for name, script in scripts.items():
        try:
            python(script, options.threads)
        except PeerFailed as error:
            print(f"no cold start of {name}: {error}")
            continue
        runs[name] = lambda s=script: python(s, options.threads)[0]
    return {name: common.Spread.of(taken) for name, taken in common.alternate(runs, options.starts).items()}


def import_time(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of `import embedkit` in a fresh process, and the heavy packages it imports."""
    answers = [json.loads(python(IMPORT.format(heavy=HEAVY), 1)[1]) for _ in range(options.starts)]
    return {"seconds": common.Spread.of([a["seconds"] for a in answers]), "heavy": answers[-1]["heavy"]}


def memory(options: argparse.Namespace, texts: list[str], scratch: Path) -> dict[str, Any]:
    """Peak resident memory of `encode_iter` over `--memory-texts` texts read from a file, int8."""
    file = scratch / "many.txt"
    count = options.memory_texts
    numbered = (
        texts[i % len(texts)] + ("" if i < len(texts) else f" {i // len(texts)}") for i in range(count)
    )
    file.write_text("".join(f"{text}\n" for text in numbered), encoding="utf-8")
    answer = {}
    for name, model in {"the folder": f"{str(options.model)!r}, ", "built-in model": ""}.items():
        script = MEMORY.format(file=str(file), model=model, threads=options.threads)
        answer[name] = json.loads(python(script, options.threads)[1])
    return answer


def show(result: dict[str, Any]) -> str:
    """The tables of latency and cold start, and embedkit's import time and memory."""
    names = {key: peer_class(key).name for key in result["one_at_a_time"]}
    ordered = sorted(result["one_at_a_time"].items(), key=lambda item: item[1]["p50_ms"])
    lines = [
        f"latency of {result['model']} on single texts of {result['tokens']} tokens, {result['threads']} threads",
        common.table(
            ["", "p50 ms", "p99 ms", "p50 of the rounds"],
            [
                [names[k], f"{r['p50_ms']:.3f}", f"{r['p99_ms']:.3f}", r["p50_of_rounds_ms"]]
                for k, r in ordered
            ],
        ),
        "seconds from process start to first vector",
        common.table(
            ["", "seconds (range)"],
            [
                [names.get(key, key), spread]
                for key, spread in sorted(result["cold_start_s"].items(), key=lambda item: item[1].median)
            ],
        ),
    ]
    if "import" in result:
        heavy = ", ".join(result["import"]["heavy"]) or "none"
        lines.append(f"import embedkit: {result['import']['seconds']} s; heavy packages imported: {heavy}")
    for name, one in result.get("memory", {}).items():
        lines.append(
            f"encode_iter over {one['texts']} texts, int8, {name}: peak {one['peak_mib']} MiB "
            f"({one['loaded_mib']} MiB after loading)"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write."""
    options = arguments()
    options.model = options.model.resolve()
    texts = common.texts_of(options)
    keys, left_out = choose(options.peers)
    machine = common.machine_info()
    found = common.versions(sorted({p for key in keys for p in peer_class(key).packages} | {"numpy"}))
    print(common.show_machine(machine, found))
    for key, reason in left_out.items():
        print(f"left out: {key}: {reason}")
    with tempfile.TemporaryDirectory(prefix="embedkit-bench-") as scratch:
        cache = common.conversions((options.cache or Path(scratch)).resolve(), options.model)
        chosen = queries(texts, options)
        singles = one_at_a_time(options, keys, chosen, cache)
        own = any(key.startswith("embedkit") for key in singles)
        result = common.report(
            "latency",
            machine=machine,
            versions=found,
            isa=common.embedkit_isa(),
            threads=options.threads,
            model=options.model.name,
            tokens=options.tokens,
            queries=len(chosen),
            rounds=options.rounds,
            one_at_a_time=singles,
            cold_start_s=cold_starts(options, list(singles), chosen[0], cache),
            **(
                {
                    "import": import_time(options),
                    "memory": memory(options, texts, Path(scratch)),
                    **common.built_in(None),
                }
                if own
                else {}
            ),
            left_out=left_out,
        )
    print(show(result))
    common.write_json(options.json, result)


if __name__ == "__main__":
    main()
