"""Rewrites the tables of README.md and benchmarks/README.md from benchmarks/results: none is typed by hand.

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`, NAME being a result file without `.json`.
`--check` writes nothing and fails if one of them is out of date.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
from peers import peer_class

READMES = (common.ROOT / "README.md", common.ROOT / "benchmarks" / "README.md")


def _machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    flags = [f for f in ("amx_int8", "avx512_vnni", "avx_vnni", "avx2", "asimd") if f in machine["cpu_flags"]]
    return f"{machine['cpu']} ({flags[0] if flags else 'no vector flags known'}), {result['date'][:10]}"


def _named(result: dict[str, Any], packages: tuple[str, ...]) -> str:
    found = result["versions"]
    return next((f" {found[p]}" for p in packages if p in found), "")


def throughput(result: dict[str, Any]) -> str:
    """Sentences per second, quality, and the share of what the processor can do."""
    texts = result["texts"]
    rows = []
    for row in result["rows"]:
        own = row["peer"].startswith("embedkit")
        share = row["share_of_ceiling"]
        cells = [
            row["name"] + _named(result, peer_class(row["peer"]).packages[:1]),
            f"{row['sentences_per_s']['median']:,.0f}",
            f"{row['sentences_per_s']['low']:,.0f}-{row['sentences_per_s']['high']:,.0f}",
            f"{row['tokens_per_s']:,}",
            f"{row['cosine']:.4f}",
            "" if share is None else f"{share:.0%}",
        ]
        rows.append([f"**{c}**" if own and c else c for c in cells])
    headers = ["", "sentences/s", "range", "tokens/s", "cosine to fp32", "of the processor's peak"]
    caption = [
        f"{result['model']} ({result['shape']}), {result['threads']} threads,",
        f"{texts['texts']:,} distinct texts of {texts['mean']} tokens, tokenization counted,",
        f"median of {result['rounds']} alternating runs, each package at its best batch size, on {result['isa']}.",
        f"{_machine(result)}.",
    ]
    return "\n".join([*caption, "", common.table(headers, rows)])


def latency(result: dict[str, Any]) -> str:
    """One text at a time, the cold start, and embedkit's import time and memory."""
    singles = result["one_at_a_time"]
    cold = result["cold_start_s"]
    rows = []
    for key, row in sorted(singles.items(), key=lambda item: item[1]["p50_ms"]):
        kind = peer_class(key)
        start = f"{cold[key]['median']:.2f}" if key in cold else ""
        cells = [
            kind.name + _named(result, kind.packages[:1]),
            f"{row['p50_ms']:.2f}",
            f"{row['p99_ms']:.2f}",
            start,
        ]
        rows.append([f"**{c}**" if key.startswith("embedkit") and c else c for c in cells])
    lines = [
        f"One text of {result['tokens']} tokens at a time, {result['threads']} threads.",
        f"{_machine(result)}.\n",
        common.table(["", "p50 ms", "p99 ms", "process start to first vector, s"], rows),
    ]
    facts = [
        f"{name}: {spread['median']:.2f} s from process start to first vector"
        for name, spread in cold.items()
        if name not in singles
    ]
    if "import" in result:
        facts.append(f"`import embedkit`: {result['import']['seconds']['median']:.3f} s")
    facts += [
        f"`encode_iter` over {one['texts']:,} texts, int8 ({name}): {one['peak_mib']:.0f} MiB at most"
        for name, one in result.get("memory", {}).items()
    ]
    return "\n".join(lines) + "\n\n" + "\n".join(f"- {fact}" for fact in facts)


def kernels(result: dict[str, Any]) -> str:
    """Each kernel of the core against the ceiling of its instruction set."""
    rows = [
        [
            row["isa"],
            f"`{row['op']}`",
            row["shape"],
            f"{row['rate']:,.0f} {row['unit']}",
            f"{row['ceiling']:,.0f} {row['unit']}",
            f"{row['share_of_ceiling']:.0%}",
        ]
        for row in result["rows"]
    ]
    headers = ["instruction set", "operation", "shape", "one thread", "ceiling", "share"]
    return f"{_machine(result)}.\n\n{common.table(headers, rows)}"


def table_of_hpd(result: dict[str, Any]) -> str:
    """HPD's Table 1: size, dimension, speed."""
    keys = list(dict.fromkeys(key for row in result["rows"] for key in row["sentences_per_s"]))
    rows = [
        [
            row["model"],
            row["weights"],
            f"{row['parameters_m']:g} M",
            row["dimension"],
            *(f"{s['median']:,.0f}" if (s := row["sentences_per_s"].get(key)) else "" for key in keys),
            row["paper_sentences_per_s"] or "",
        ]
        for row in result["rows"]
    ]
    names = [f"{peer_class(key).name}, sentences/s" for key in keys]
    headers = ["model", "weights", "size", "dimension", *names, "the paper's"]
    texts = result["texts"]
    return (
        f"{texts['texts']:,} distinct texts of {texts['mean']} tokens (fewer of them for the large models), "
        f"{result['threads']} threads, tokenization counted. {_machine(result)}. "
        f"The paper's: {result['paper_hardware']}.\n\n{common.table(headers, rows)}"
    )


def tokenizer(result: dict[str, Any]) -> str:
    """Texts per second beside the `tokenizers` package, by kind of text and number of threads."""
    rows = []
    for threads, kinds in result["threads"].items():
        for kind, one in kinds.items():
            speed = {name: spread["median"] for name, spread in one["texts_per_second"].items()}
            times = one["times_encode_batch_fast"]
            rows.append(
                [
                    kind,
                    threads,
                    *(f"{value:,.0f}" for value in speed.values()),
                    f"{times['median']:.1f} ({times['low']:.1f}-{times['high']:.1f})",
                ]
            )
    names = list(next(iter(result["threads"]["1"].values()))["texts_per_second"])
    headers = ["texts", "threads", *(f"{name}, texts/s" for name in names), "times encode_batch_fast"]
    versions = f"tokenizers {result['versions']['tokenizers']}"
    return f"Tokenizing alone, beside {versions}. {_machine(result)}.\n\n{common.table(headers, rows)}"


def retrieval(result: dict[str, Any]) -> str:
    """Quality and time of searching duplicate questions, and of `Index` beside Faiss alone."""
    rows = []
    for row in result["rows"]:
        over = row.get("against_faiss", {}).get("times_faiss_in_batches")
        texts = row.get("text_to_answer")
        rows.append(
            [
                f"{row['model']}, {row['dimension']}",
                row["kind"],
                f"{row['factory']} {row['setting']}".strip(),
                f"{row['mrr_at_10']:.4f}",
                f"{row['recall_at_10_of_exact']:.3f}",
                f"{row['ms_per_1000']['median']:,.0f}",
                f"{row['index_mb']:.0f}",
                "" if over is None else f"{over['median']:.2f}",
                "" if texts is None else f"{texts['one_query_p50_ms']:.2f}",
            ]
        )
    headers = ["model, dimension", "index", "Faiss factory", "MRR@10", "recall@10 of exact", "ms per 1,000"]
    headers += ["MB", "time / Faiss alone", "a text to its answer, p50 ms"]
    questions = result["questions"]
    return (
        f"{questions['queries']:,} questions searched among {questions['stored']:,}, {result['threads']} thread. "
        f"{_machine(result)}.\n\n{common.table(headers, rows)}"
    )


def auto_index(result: dict[str, Any]) -> str:
    """The index that ``--target-recall`` chose beside inverted files of the same recall."""
    rows = [
        [
            row["name"],
            f"{row['factory']}, {row['setting']}",
            f"{row['recall_at_10']:.3f}",
            f"{row['ms_per_query']['median']:.3f}",
            f"{row['times_auto']:.1f}",
        ]
        for row in result["results"]
    ]
    headers = ["", "Faiss factory, setting", "recall@10", "ms a query", "times auto"]
    return (
        f"{result['rows']:,} vectors of {result['dimension']} dimensions in {result['clusters']:,} clusters, "
        f"recall@10 of {result['choice']['target_recall']} asked for. {_machine(result)}.\n\n"
        f"{common.table(headers, rows)}"
    )


RENDER: dict[str, Callable[[dict[str, Any]], str]] = {
    "auto_index": auto_index,
    "kernels-cpu": kernels,
    "latency": latency,
    "retrieval": retrieval,
    "throughput": throughput,
    "throughput-hpd": table_of_hpd,
    "tokenizer": tokenizer,
}


def main() -> None:
    """Rewrites, or checks, every marked table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only tell whether the README is up to date")
    options = parser.parse_args()
    stale = [path for path in READMES if not _update(path, write=not options.check)]
    if stale and options.check:
        sys.exit(
            f"{', '.join(str(p.relative_to(common.ROOT)) for p in stale)} out of date: run `make readme`"
        )
    print("up to date" if not stale else f"rewritten: {', '.join(path.name for path in stale)}")


def _update(path: Path, *, write: bool) -> bool:
    """Whether the tables of a file are those of the results; if not, and with ``write``, they are after it."""
    before = path.read_text(encoding="utf-8")

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        file = common.RESULTS / f"{name}.json"
        if not file.exists():  # nothing measured, nothing shown
            return f"<!-- {name} -->\n<!-- /{name} -->"
        result = json.loads(file.read_text(encoding="utf-8"))
        return f"<!-- {name} -->\n{RENDER[result['benchmark']](result)}\n<!-- /{name} -->"

    after = re.sub(r"<!-- (?P<name>[\w-]+) -->\n.*?<!-- /(?P=name) -->", fill, before, flags=re.DOTALL)
    if after != before and write:
        path.write_text(after, encoding="utf-8")
    return after == before


if __name__ == "__main__":
    main()
