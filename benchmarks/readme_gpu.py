"""The tables of readme.py that were measured on a GPU."""

from typing import Any

import common
from peers import peer_class
from readme_cells import best_batch, machine, named, not_measured, note, rate

__all__ = ["kernels_on_a_gpu", "throughput_on_a_gpu"]


def throughput_on_a_gpu(result: dict[str, Any]) -> str:
    """Sentences per second with and without tokenization, one query, and quality."""
    texts, scored = result["texts"], result.get("reference_sts")
    distinct = "distinct " if texts["distinct"] else ""
    rows = []
    for row in sorted(result["rows"], key=lambda row: -row["sentences_per_s"]["median"]):
        alone, query, sts = (
            row.get(part, {}) for part in ("alone", "one_query", "sts")
        )  # without them: it failed
        cells = [
            row["name"] + named(result, peer_class(row["peer"]).packages[:1]),
            rate(row["sentences_per_s"]["median"]),
            f"{rate(row['sentences_per_s']['low'])}-{rate(row['sentences_per_s']['high'])}",
            rate(alone["sentences_per_s"]["median"]) if alone else "",
            f"{alone['mfu']:.1%}" if "mfu" in alone else "",
            f"{query['p50_ms']:.2f}" if query else "",
            f"{query['p99_ms']:.2f}" if query else "",
            f"{row['cosine']:.6f}",
            f"{sum(sts.values()) / len(sts):.2f}" if sts else "",
        ]
        rows.append([f"**{c}**" if row["peer"].startswith("embedkit") and c else c for c in cells])
    headers = [
        "", "sentences/s", "range", "without tokenization", "of the data sheet's peak", "one query: p50, ms", "p99, ms",
        "cosine to fp32", "STS (dev sets)",
    ]  # fmt: skip
    caption = [
        f"Throughput of {result['model']} ({result['shape']})",
        f"on {texts['texts']:,} {distinct}texts of {texts['mean']} tokens on average, tokenization by",
        f"{result['threads']} threads included, median of {result['rounds']} alternating runs, each package at its",
        f"{best_batch(result['rows']).removeprefix('its ')}. {result['machine']['gpu']}; {machine(result)}.",
    ]
    if any("alone" in row for row in result["rows"]):
        caption.append(
            "Without tokenization: embedkit from tokens to vectors in memory, with packing and both copies, one\n"
            "window after the other; sentence-transformers the model alone, on padded batches that are on the GPU."
        )
    if scored:
        mean = sum(scored.values()) / len(scored)
        caption.append(
            f"STS: mean of STS12-16 and the dev sets of STS-B and SICK-R; of fp32 on the CPU {mean:.2f}."
        )
    return "\n".join([*caption, note(result) + not_measured(result), common.table(headers, rows)])


def kernels_on_a_gpu(result: dict[str, Any]) -> str:
    """Each Triton kernel against its roofline and torch."""
    ours: dict[tuple[str, str], dict[str, Any]] = {}
    theirs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in result["rows"]:
        key = row["op"], row["shape"]
        if row["form"] == "embedkit":
            ours[key] = row
        elif "sums only" not in row["form"]:
            theirs.setdefault(key, []).append(row)
    rows = []
    for (op, shape), row in ours.items():
        best = min(theirs[op, shape], key=lambda other: other["us"])
        cells = [f"{row['us']:,.0f}", f"{row['share_of_roofline']:.0%} ({row['bound']})", best["form"]]
        rows.append([f"`{op}`", shape, *cells, f"{best['us'] / row['us']:.2f}"])
    headers = ["kernel", "shape", "µs", "of the roofline", "fastest in torch", "its time / ours"]
    return (
        f"Kernels in {result['sizes']['dtype']}: time, share of what moving the bytes or the products alone would "
        f"take, and the fastest way in torch. {result['device']}, {result['date'][:10]}.\n\n"
        f"{common.table(headers, rows)}"
    )
