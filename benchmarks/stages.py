"""Time in each stage of the core: `throughput.py --profile`.

The core's own clocks count the seconds of each stage, summed over threads. Fused work counts once: "quantize" is
the output of attention only, since GELU and layer norm quantize their results in the same pass ("element-wise",
which includes the embeddings). "hand-over" sorts sequences, lays out batches and writes vectors; "wait" is waiting
for other threads.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import common
import shapes

__all__ = ["plot", "run", "show"]

PRECISIONS = ("int8", "bf16", "fp32")


def run(options: argparse.Namespace, model: Path, texts: list[str]) -> dict[str, Any]:
    """Measure each precision in alternating rounds, with and without clocks."""
    machine = common.machine_info()
    from embedkit import Encoder, _core

    runs: dict[tuple[str, bool], Any] = {}
    taken: dict[str, list[dict[str, float]]] = {precision: [] for precision in PRECISIONS}
    tokens = 0
    for precision in PRECISIONS:
        encoder = Encoder(model, precision=precision, threads=options.threads)
        engine = encoder._engine
        tokenizer = engine.tokenizer
        arguments = _core.EncodeOptions(
            threads=options.threads,
            prefix_ids=list(tokenizer.prefix_ids),
            suffix_ids=list(tokenizer.suffix_ids),
            max_length=encoder.max_seq_length,
        )

        def call(
            clocked: bool, engine: Any = engine, arguments: Any = arguments, to: Any = taken[precision]
        ) -> int:
            given = arguments.replace(profile=clocked)
            if engine.tokenizer.core is not None:
                _, stats = engine.core.encode(texts, engine.tokenizer.core, given)
            else:
                _, stats = engine.core.encode_ids(engine.tokenizer.encode_batch(texts), given)
            if clocked:
                to.append(stats["stages"])
            return int(stats["tokens"])

        tokens = call(False)
        for clocked in (True, False):
            runs[precision, clocked] = common.timed(lambda call=call, clocked=clocked: call(clocked))
    seconds = common.alternate(runs, options.rounds)
    rows = []
    for precision in PRECISIONS:
        stages = {
            name: common.Spread.of([found[name] / options.threads for found in taken[precision]])
            for name in taken[precision][0]
        }
        rows.append(
            {
                "precision": precision,
                "stages_s": stages,
                "wall_s": common.Spread.of(seconds[precision, True]),
                "wall_without_clocks_s": common.Spread.of(seconds[precision, False]),
            }
        )
    return common.report(
        "stages",
        machine=machine,
        versions=common.versions(["embedkit"]),
        isa=_core.active_isa(),
        model=model.name,
        shape=shapes.describe(model),
        threads=options.threads,
        cpus=sorted(os.sched_getaffinity(0)),
        texts=len(texts),
        tokens=tokens,
        rows=rows,
    )


def show(result: dict[str, Any]) -> str:
    """One row per stage: milliseconds per thread and share of the call, for each precision."""
    names = list(result["rows"][0]["stages_s"])
    lines = [
        common.show_machine(result["machine"], result["versions"]),
        f"time in each stage of the core: {result['model']}, {result['isa']}, {result['threads']} threads, "
        f"{result['texts']} texts, {result['tokens']} tokens; median ms per thread over "
        f"{result['rows'][0]['wall_s'].runs} runs",
        "",
    ]
    headers = ["stage"]
    for row in result["rows"]:
        headers += [f"{row['precision']} ms", "share"]
    totals = [sum(spread.median for spread in row["stages_s"].values()) for row in result["rows"]]
    table = []
    for name in names:
        cells: list[str] = [name]
        for row, total in zip(result["rows"], totals, strict=True):
            median = row["stages_s"][name].median
            cells += [f"{1e3 * median:.1f}", f"{median / total:.1%}"]
        table.append(cells)
    for label, key in (("call", "wall_s"), ("call without clocks", "wall_without_clocks_s")):
        cells = [label]
        for row in result["rows"]:
            cells += [f"{1e3 * row[key].median:.1f}", ""]
        table.append(cells)
    return "\n".join([*lines, common.table(headers, table)])


def plot(result: dict[str, Any], path: Path) -> None:
    """A stacked bar for each precision."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 2.6), layout="constrained")
    colors = pyplot.get_cmap("tab10").colors
    labels = [row["precision"] for row in result["rows"]]
    left = [0.0] * len(labels)
    for number, name in enumerate(result["rows"][0]["stages_s"]):
        widths = [1e6 * row["stages_s"][name].median / result["tokens"] for row in result["rows"]]
        axes.barh(labels, widths, left=left, label=name, color=colors[number % len(colors)])
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_xlabel("µs per token and thread (median)")
    axes.set_title(
        f"Time in each stage of the core: {result['model']}, {result['texts']:,} texts, "
        f"{result['threads']} threads of {result['machine']['cpu']} ({result['isa']})",
        fontsize=10,
    )
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.35), frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
