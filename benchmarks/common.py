"""Shared by all benchmarks: texts, machine, alternating timed runs, output.

Nothing here imports a peer or a numerical library beyond numpy, so a worker process loads only the package that it
measures.
"""

import argparse
import csv
import gzip
import hashlib
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO, TypeVar

import numpy as np

__all__ = [
    "DEVELOPMENT",
    "RESULTS",
    "ROOT",
    "TRAINING_RESULTS",
    "Spread",
    "add_model",
    "add_text_arguments",
    "add_threads",
    "alternate",
    "built_in",
    "bytes_saturate",
    "conversions",
    "cosines",
    "embedkit_isa",
    "fingerprint",
    "in_process",
    "length_histogram",
    "machine_info",
    "model_folder",
    "open_text",
    "parser",
    "part_of",
    "percentile",
    "positive",
    "read_texts",
    "records",
    "report",
    "sample_texts",
    "show_histogram",
    "show_machine",
    "table",
    "texts_of",
    "timed",
    "versions",
    "write_json",
]

Key = TypeVar("Key")
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TRAINING_RESULTS = RESULTS / "training"

#: Collections that the built-in model was chosen on, its whitening on NPL too: no test of it.
DEVELOPMENT = ("cranfield", "med", "cacm", "npl")

#: The flags that decide which kernels a package can use.
CPU_FLAGS = (
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
)


# --------------------------------------------------------------------------------------------------- texts


def open_text(path: Path) -> TextIO:
    """The file at `path`, decompressed if it is a .gz, as UTF-8 text with its line ends as they are."""
    if not path.is_file():
        raise SystemExit(f"there is no file {path}")
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8", newline="")
    return open(path, encoding="utf-8", newline="")


def _rows(path: Path, columns: Sequence[str]) -> Iterator[str]:
    kind = Path(path.name.removesuffix(".gz")).suffix
    with open_text(path) as file:
        if kind == ".txt":
            for line in file:
                yield line.rstrip("\r\n")
        elif kind in (".tsv", ".csv"):
            # No quoting in .tsv files: a lone quotation mark belongs to the text.
            reader = (
                csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
                if kind == ".tsv"
                else csv.DictReader(file)
            )
            missing = [c for c in columns if c not in (reader.fieldnames or ())]
            if missing:
                raise SystemExit(
                    f"{path}: no column {missing[0]!r}; it has {', '.join(reader.fieldnames or ())}"
                )
            for row in reader:
                yield from _fields(row, columns, f"{path}:{reader.line_num}")
        elif kind == ".jsonl":
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise SystemExit(f"{path}:{number}: {error}") from None
                yield from _fields(record, columns, f"{path}:{number}")
        else:
            raise SystemExit(
                f"{path}: unknown file type; expected .txt, .tsv, .csv or .jsonl, optionally .gz"
            )


def _fields(record: Any, columns: Sequence[str], origin: str) -> list[str]:
    texts = [record.get(c) if isinstance(record, dict) else None for c in columns]
    for column, text in zip(columns, texts, strict=True):
        if not isinstance(text, str):
            raise SystemExit(f"{origin}: no text {column!r}")
    return texts


def records(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a `.tsv` file without quoting, optionally `.gz`, as dictionaries by column."""
    with open_text(path) as file:
        yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def read_texts(
    paths: Iterable[Path], columns: Sequence[str] = ("text",), limit: int | None = None
) -> list[str]:
    """The distinct, non-empty texts of `paths` in order, at most `limit` of them.

    Args:
        paths: `.txt` (one text per line), `.tsv`, `.csv` or `.jsonl` files, optionally `.gz`.
        columns: the columns (`.tsv`, `.csv`) or fields (`.jsonl`) that hold texts.
        limit: stop after this many texts.
    """
    seen: dict[str, None] = {}
    for path in paths:
        for text in _rows(path, columns):
            if text.strip():
                seen.setdefault(text)
                if limit is not None and len(seen) >= limit:
                    return list(seen)
    return list(seen)


def sample_texts(count: int) -> list[str]:
    """The texts of the sample corpus, repeated up to `count`.

    Copies after the first end with their number, so that all texts are distinct and no package gains from caching.
    """
    texts = read_texts([ROOT / "examples" / "corpus.jsonl"])
    copies = -(-count // len(texts))
    return [text if copy == 0 else f"{text} {copy}" for copy in range(copies) for text in texts][:count]


def positive(text: str) -> int:
    """For argparse: a whole number above 0."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def model_folder(text: str) -> Path:
    """For argparse: the folder of a model, so that a wrong name is found before anything is measured."""
    if not (Path(text) / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{text} is not the folder of a model: it has no config.json")
    return Path(text)


def fingerprint(folder: Path) -> str:
    """What tells a model folder from others of its name: 12 digits of a hash of its settings, tokenizer and weights."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.suffix in (".json", ".txt", ".model", ".safetensors", ".bin"):
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.relative_to(folder)}\0{content}\n".encode())
    return digest.hexdigest()[:12]


def conversions(cache: Path, model: Path) -> Path:
    """The folder below ``cache`` of all that is made of this very ``model``; it is made if it is not there."""
    folder = cache / f"converted-{model.name}-{fingerprint(model)}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help opens with a module's docstring, as it stands."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_model(parser: argparse.ArgumentParser, *, fp32: bool = False) -> None:
    """``--model``: a folder that must have fp32 weights, or any in place of the built-in model."""
    told = "model folder with fp32 weights" if fp32 else "model folder (default: the built-in model)"
    parser.add_argument("--model", type=model_folder, required=fp32, help=told)


def add_threads(parser: argparse.ArgumentParser) -> None:
    """``--threads``, by default one per CPU of the process."""
    parser.add_argument("--threads", type=positive, default=len(os.sched_getaffinity(0)))


def add_text_arguments(parser: argparse.ArgumentParser, default_limit: int) -> None:
    """The arguments that `texts_of` reads."""
    parser.add_argument(
        "texts",
        nargs="*",
        type=Path,
        help=".txt, .tsv, .csv or .jsonl, optionally .gz (default: the sample corpus)",
    )
    parser.add_argument("--column", default="text", help="columns or fields with texts, comma-separated")
    parser.add_argument(
        "--limit",
        type=positive,
        default=default_limit,
        help=f"number of distinct texts (default: {default_limit})",
    )


def texts_of(options: argparse.Namespace) -> list[str]:
    """The texts that the command line asks for, all distinct."""
    if options.texts:
        return read_texts(options.texts, options.column.split(","), options.limit)
    return sample_texts(options.limit)


def length_histogram(lengths: Sequence[int]) -> dict[str, Any]:
    """Histogram of token counts: mean, median, percentiles, and the number of texts in each range.

    Args:
        lengths: tokens of each text, special tokens included.
    """
    ends = (8, 16, 32, 64, 128, 256, 512)
    names = [*(f"{low + 1}-{high}" for low, high in zip((0, *ends), ends, strict=False)), f">{ends[-1]}"]
    counts = np.bincount(np.searchsorted(ends, lengths), minlength=len(names)).tolist()
    return {
        "texts": len(lengths),
        "tokens": sum(lengths),
        "mean": round(statistics.fmean(lengths), 2),
        "p50": percentile(lengths, 50),
        "p95": percentile(lengths, 95),
        "max": max(lengths),
        "counts": {name: n for name, n in zip(names, counts, strict=True) if n},
    }


def show_histogram(histogram: Mapping[str, Any]) -> str:
    """The histogram as text, with a bar per line."""
    counts: dict[str, int] = histogram["counts"]
    widest = max(counts.values())
    lines = [
        f"{histogram['texts']} texts, {histogram['tokens']} tokens including special tokens: "
        f"mean {histogram['mean']}, median {histogram['p50']:g}, "
        f"p95 {histogram['p95']:g}, longest {histogram['max']}"
    ]
    lines += [f"  {name:>8} {n:7d} {'#' * max(1, round(40 * n / widest))}" for name, n in counts.items()]
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------- machine


def machine_info() -> dict[str, Any]:
    """Processor, relevant flags, usable cores, memory, system, and load."""
    cpu = _cpuinfo()
    flags = set((cpu.get("flags") or cpu.get("Features") or "").split())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
        "cpu_family_model": f"{cpu.get('cpu family', '?')}/{cpu.get('model', '?')}",
        "cpu_flags": [f for f in CPU_FLAGS if f in flags],
        "cpus_usable": sorted(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": [round(x, 2) for x in os.getloadavg()],
    }


def bytes_saturate() -> bool:
    """Whether products of bytes are summed by ``vpmaddubsw``, which saturates at 16 bits: x86-64 without VNNI."""
    flags = machine_info()["cpu_flags"]
    return "avx2" in flags and not {"avx_vnni", "avx512_vnni"} & set(flags)


def embedkit_isa() -> str | None:
    """The instruction set of embedkit's kernels; None if embedkit is not installed."""
    try:
        from embedkit import active_isa
    except ImportError:
        return None
    return active_isa()


def built_in(model: object) -> dict[str, str]:
    """For a result: the fingerprint of the built-in model if it is measured, that is, if ``model`` is None."""
    if model is not None:
        return {}
    from embedkit import Encoder

    return {"built_in": Encoder(device="cpu").fingerprint}


def _cpuinfo() -> dict[str, str]:
    try:
        block = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    return {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in block.splitlines())}


def versions(packages: Iterable[str] = ()) -> dict[str, str]:
    """Versions of Python and of the installed ones of `packages` (distribution names)."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def show_machine(machine: Mapping[str, Any], found: Mapping[str, str]) -> str:
    """Machine and versions as two lines of text."""
    return (
        f"machine: {machine['cpu']} (family/model {machine['cpu_family_model']}), "
        f"CPUs {machine['cpus_usable']}, {machine['memory_gib']} GiB, {machine['system']}, "
        f"load {machine['load_before']}\n"
        f"flags:   {' '.join(machine['cpu_flags'])}\n"
        f"versions: {', '.join(f'{k} {v}' for k, v in found.items())}"
    )


# -------------------------------------------------------------------------------------------------- timing


@dataclass(frozen=True)
class Spread:
    """Median and range of repeated measurements, in the unit that was measured."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of `values` (at least one)."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def __str__(self) -> str:
        return f"{self.median:.4g} ({self.low:.4g}-{self.high:.4g})"


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile, which is always an observed value."""
    return np.percentile(values, percent, method="inverted_cdf").item()


def timed(run: Callable[[], object]) -> Callable[[], float]:
    """Wrap `run` in a function that returns its seconds."""

    def seconds() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return seconds


def alternate(runs: Mapping[Key, Callable[[], float]], rounds: int) -> dict[Key, list[float]]:
    """Call every run once per round, and collect the results.

    Alternating spreads a slow spell of the machine (a neighbor, a clock change) over all of them. Every other round
    goes backwards, so that no candidate always follows the same one.

    Args:
        runs: name -> function that returns its measurement, usually seconds (see `timed`).
        rounds: calls of each.
    """
    taken: dict[Key, list[float]] = {name: [] for name in runs}
    for turn in range(rounds):
        order = list(runs) if turn % 2 == 0 else list(reversed(runs))
        for name in order:
            taken[name].append(runs[name]())
    return taken


def in_process(script: str, options: argparse.Namespace, payload: object, threads: int) -> Any:
    """What `script` prints as ``--worker`` with `payload` as its input, both JSON.

    A process of its own, since OpenMP, `tokenizers` and torch read the number of threads when they start.
    """
    names = ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = {
        **os.environ,
        **dict.fromkeys(names, str(threads)),
        "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
    }
    command = [sys.executable, script, "--worker", str(threads), "--model", str(options.model)]
    command += ["--rounds", str(options.rounds)]
    done = subprocess.run(
        command, input=json.dumps(payload), stdout=subprocess.PIPE, env=environment, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"the process with {threads} threads failed (exit status {done.returncode})")
    return json.loads(done.stdout.splitlines()[-1])


def cosines(vectors: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """The cosine of each row with the same row of ``truth``. Vectors normalized in 16 bits are not of length 1."""
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(truth, axis=1)
    return np.sum(vectors * truth, axis=1) / lengths


# -------------------------------------------------------------------------------------------------- output


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table, padded for reading in a terminal."""
    cells = [[str(c) for c in row] for row in rows]
    widths = [max(len(h), *(len(r[i]) for r in cells)) if cells else len(h) for i, h in enumerate(headers)]

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"

    return "\n".join([line(headers), "|" + "|".join("-" * (w + 2) for w in widths) + "|", *map(line, cells)])


def report(benchmark: str, **content: Any) -> dict[str, Any]:
    """A result for `write_json`: the benchmark's name, date and arguments, then `content`."""
    return {
        "benchmark": benchmark,
        "date": now(),
        # File names only, without the folders of this machine.
        "arguments": [Path(a).name if os.sep in a else a for a in sys.argv[1:]],
        **content,
    }


def now() -> str:
    """The time in UTC, as ISO 8601 has it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def part_of(path: Path) -> Path:
    """Where the unfinished result of ``path`` is."""
    return path.with_suffix(".part.json")


def write_json(path: Path | None, result: Mapping[str, Any], *, finished: bool = True) -> None:
    """Write a result, one value per line, so that two runs can be compared with diff; nothing without a path.

    The file of an earlier run is replaced when this one has finished, never before: until then it is at `part_of`.
    """
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)

    def plain(value: Any) -> Any:
        return asdict(value) if isinstance(value, Spread) else str(value)

    text = json.dumps(result, indent=1, default=plain, ensure_ascii=False) + "\n"
    part_of(path).write_text(text, encoding="utf-8")
    if finished:
        part_of(path).replace(path)
