"""Rewrite the tables of both READMEs, docs/scale.md, docs/serve.md and the model card from benchmarks/results.

A table is everything between `<!-- NAME -->` and `<!-- /NAME -->`, where NAME is a result file without `.json`.
`--check` writes nothing, and fails if a table is out of date.
"""

import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import common
from peers import peer_class
from readme_cells import best_batch, built_in, machine, named, not_measured, note, rate
from readme_cpu import processor
from readme_gpu import kernels_on_a_gpu, throughput_on_a_gpu

READMES = tuple(
    common.ROOT / name
    for name in (
        "README.md",
        "benchmarks/README.md",
        "docs/scale.md",
        "docs/serve.md",
        "embedkit/models/embedkit-256-int8/README.md",
    )
)


def throughput(result: dict[str, Any]) -> str:
    """Sentences per second, quality, and the share of the processor's peak."""
    texts = result["texts"]
    distinct = "distinct " if texts["distinct"] else ""
    rows = []
    for row in result["rows"]:
        own = row["peer"].startswith("embedkit")
        share = row["share_of_ceiling"]
        cells = [
            row["name"] + named(result, peer_class(row["peer"]).packages[:1]),
            rate(row["sentences_per_s"]["median"]),
            f"{rate(row['sentences_per_s']['low'])}-{rate(row['sentences_per_s']['high'])}",
            f"{row['tokens_per_s']:,}",
            f"{row['cosine']:.4f}",
            "" if share is None else f"{share:.0%}",
        ]
        rows.append([f"**{c}**" if own and c else c for c in cells])
    headers = ["", "sentences/s", "range", "tokens/s", "cosine to fp32", "share of the processor's peak"]
    runs = "one run" if result["rounds"] == 1 else f"median of {result['rounds']} alternating runs"
    caption = [
        f"Throughput of {result['model']} ({result['shape']})",
        f"on {texts['texts']:,} {distinct}texts of {texts['mean']} tokens on average, tokenization included;",
        f"{result['threads']} threads, {result['isa']}, {runs}, each package at",
        f"{best_batch(result['rows'])}. {machine(result)}.",
    ]
    return "\n".join([*caption, not_measured(result), common.table(headers, rows)])


def latency(result: dict[str, Any]) -> str:
    """Latency of single texts, cold start, and embedkit's import time and memory."""
    singles = result["one_at_a_time"]
    cold = result["cold_start_s"]
    rows = []
    for key, row in sorted(singles.items(), key=lambda item: item[1]["p50_ms"]):
        kind = peer_class(key)
        start = f"{cold[key]['median']:.2f}" if key in cold else ""
        cells = [
            kind.name + named(result, kind.packages[:1]),
            f"{row['p50_ms']:.2f}",
            f"{row['p99_ms']:.2f}",
            start,
        ]
        rows.append([f"**{c}**" if key.startswith("embedkit") and c else c for c in cells])
    lines = [
        f"Latency of {result['model']} on single texts of {result['tokens']} tokens, {result['threads']} threads.",
        f"{machine(result)}.\n",
        common.table(["", "p50, ms", "p99, ms", "process start to first vector, s"], rows),
    ]
    facts = [
        f"{name.replace('built-in', built_in(result))}: {spread['median']:.2f} s from process start to first vector"
        for name, spread in cold.items()
        if name not in singles
    ]
    if "import" in result:
        facts.append(f"`import embedkit`: {result['import']['seconds']['median']:.3f} s")
    facts += [
        f"peak memory of `encode_iter` over {one['texts']:,} texts, int8, "
        f"{result['model'] if name == 'the folder' else f'{built_in(result)} model'}: {one['peak_mib']:.0f} MiB"
        for name, one in result.get("memory", {}).items()
    ]
    return "\n".join(lines) + "\n\n" + "\n".join(f"- {fact}" for fact in facts)


def concurrency(result: dict[str, Any]) -> str:
    """Threads and processes at once, against one call."""
    one, *others = result["sentences_per_s"].values()
    _, threads, processes = result["sentences_per_s"]
    shares = [f"{spread['median'] / one['median']:.2f}" for spread in others]
    return (
        f"{threads} that share an encoder encode {shares[0]} times as many sentences a second in total as one call on "
        f"{result['threads']} threads;\n{processes} with an encoder of {result['threads']} threads each, {shares[1]} "
        f"times ({result['model']} in {result['precision']}, {result['texts']:,} questions,\n"
        f"`benchmarks/concurrency.py`; {machine(result)})."
    )


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
    return (
        f"Speed of each kernel of the core on one thread, and its share of the ceiling. {machine(result)}.\n\n"
        f"{common.table(headers, rows)}"
    )


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
    headers = ["model", "weights", "parameters", "dimension", *names, "in the paper"]
    texts = result["texts"]
    return (
        f"Throughput of the models of HPD's Table 1 on {texts['texts']:,} distinct texts of {texts['mean']} tokens on "
        f"average (fewer texts for large models), {result['threads']} threads, tokenization included. "
        f"{machine(result)}. In the paper: {result['paper_hardware']}.\n"
        f"{note(result)}\n{common.table(headers, rows)}"
    )


def static(result: dict[str, Any]) -> str:
    """Texts per second of static models, and the lead by CPU time."""
    rows = []
    for threads, one in result["threads"].items():
        peer = one["processor_seconds"]["model2vec"]
        for name, used in one["processor_seconds"].items():
            speed = common.Spread.of([one["texts"] / seconds for seconds in one["seconds"][name]])
            lead = common.Spread.of([other / own for own, other in zip(used, peer, strict=True)])
            cells = [threads, name + named(result, (name,)), f"{speed.median:,.0f}", f"{lead.median:.3g}"]
            rows.append([f"**{c}**" if name.startswith("embedkit") else c for c in cells])
    texts = next(iter(result["threads"].values()))["texts"]
    caption = (
        f"A static model of 256 dimensions on {texts:,} distinct questions, tokenization included; median of "
        f"{result['rounds']} alternating runs. {machine(result)}."
    )
    headers = ["threads", "", "texts/s", "times model2vec by CPU time"]
    return "\n".join([caption, "", common.table(headers, rows)])


def tokenizer(result: dict[str, Any]) -> str:
    """Texts per second of embedkit and the `tokenizers` package, by kind of text and number of threads."""
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
    headers = ["texts", "threads", *(f"{name}, texts/s" for name in names), "speed-up over encode_batch_fast"]
    kinds = {"wordpiece": "WordPiece", "bpe": "Byte-level BPE", "unigram": "Unigram"}
    kind = kinds[result.get("kind", "wordpiece")]
    version = result["versions"]["tokenizers"]
    return (
        f"{kind}: speed of embedkit's tokenizer and of tokenizers {version}. {machine(result)}.\n\n"
        f"{common.table(headers, rows)}"
    )


def retrieval(result: dict[str, Any]) -> str:
    """Quality and time of finding duplicate questions, with `Index` and with Faiss alone."""
    rows = []
    for row in result["rows"]:
        over = row.get("against_faiss", {}).get("times_faiss_in_batches")
        texts = row.get("text_to_answer")
        rows.append(
            [
                f"{built_in(result) if row['model'] == 'built-in' else row['model']}, {row['dimension']}",
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
    headers += ["MB", "time / Faiss alone", "text to hits, p50 ms"]
    questions = result["questions"]
    subset = ", a subset of Quora's data" if result["subset_of_quora"] else ""
    return (
        f"Duplicate questions of Quora: {questions['queries']:,} queries among {questions['stored']:,} questions of "
        f"{questions['pairs']:,} pairs{subset}, {result['threads']} thread. "
        f"{machine(result)}.\n\n{common.table(headers, rows)}"
    )


#: Rows of `card.json` -> how the table names them.
_CARD_ROWS = {
    "built-in": "**built-in model**",
    "built-in:128": "built-in model, first 128 dimensions",
    "minilm": "all-MiniLM-L6-v2",
    "mpnet": "all-mpnet-base-v2",
    "bge-small": "bge-small-en-v1.5",
    "bge-small-prompted": "bge-small-en-v1.5, queries with its prompt",
}


def _mean(row: dict[str, Any], names: Sequence[str], kind: str) -> float:
    """nDCG@10, the mean over collections."""
    return float(sum(row["search"][name][kind] for name in names) / len(names))


def card(result: dict[str, Any]) -> str:
    """The built-in model beside others: similarity, pairs, search."""
    held_out = [name for name in result["rows"]["BM25"]["search"] if name not in common.DEVELOPMENT]

    def mean(row: dict[str, Any], names: Sequence[str], kind: str) -> str:
        return f"{_mean(row, names, kind):.3f}"

    rows = []
    for name, label in _CARD_ROWS.items():
        row = result["rows"][name]
        size = row["dimension"] * (1 if name.startswith("built-in") else 4)
        cells = [
            label,
            f"{row['dimension']}",
            f"{size:,}",
            f"{row['sts']['average']:.2f}",
            f"{row['quora_ap']:.1f}",
            *(
                mean(row, names, kind)
                for names in (common.DEVELOPMENT, held_out)
                for kind in ("vectors", "hybrid")
            ),
        ]
        rows.append([cells[0], *(f"**{c}**" for c in cells[1:])] if name == "built-in" else cells)
    words = result["rows"]["BM25"]
    rows.append(
        [
            "BM25 alone",
            "",
            "",
            "",
            "",
            mean(words, common.DEVELOPMENT, "bm25"),
            "",
            mean(words, held_out, "bm25"),
            "",
        ]
    )
    headers = [
        "",
        "dimension",
        "bytes a vector",
        "STS",
        "Quora, AP",
        "search, dev",
        "hybrid, dev",
        "search",
        "hybrid",
    ]
    names = ", ".join(name.upper() for name in held_out)
    return (
        "Weights in int8. STS: mean Spearman x 100 over STS12-16, STS-B and SICK-R. Quora: average precision of the"
        "\ncosine of pairs of questions. Search and hybrid search (vectors and words): mean nDCG@10 on collections that"
        f"\nthe built-in model was chosen on (dev: Cranfield, MED, CACM, NPL) and on others ({names})."
        f"\n\n{common.table(headers, rows)}"
    )


#: Rows of `card.json` -> columns of the whole table.
_CARD_COLUMNS = {
    "built-in": "**built-in**",
    "built-in:int8": "stored in int8",
    "built-in:128": "first 128",
    "built-in:64": "first 64",
    "former": "former, 128",
    "minilm": "MiniLM-L6, 384",
    "minilm:pca256": "its 256 components",
    "bge-small": "bge-small, 384",
    "bge-small-prompted": "… prompted",
    "mpnet": "mpnet, 768",
}


#: What a row of `card.json` has besides search, and its decimals.
_SCORES: dict[str, tuple[Callable[[dict[str, Any]], float], int]] = {
    "**STS, mean**": (lambda row: row["sts"]["average"], 2),
    "… without pairs of dev sets": (lambda row: row["sts"]["unseen"], 2),
    "STS-B dev": (lambda row: row["sts"]["stsb_dev"], 2),
    "Quora, average precision": (lambda row: row["quora_ap"], 2),
    "SST-5, accuracy": (lambda row: row["probes"]["sst5"], 1),
    "topics of glosses, accuracy": (lambda row: row["probes"]["topics"], 1),
    "… clustered, V-measure": (lambda row: row["probes"]["topics_clustered"], 1),
    "captions by image, V-measure": (lambda row: row["probes"]["captions_clustered"], 1),
}


def whole_card(result: dict[str, Any]) -> str:
    """Every figure of the built-in model's card, a model a column."""
    columns = [result["rows"][name] for name in _CARD_COLUMNS]
    lines = [
        [f"STS, {name}", *(f"{row['sts']['sets'][name]:.2f}" for row in columns)]
        for name in columns[0]["sts"]["sets"]
    ]
    lines += [
        [label, *(f"{score(row):.{digits}f}" for row in columns)]
        for label, (score, digits) in _SCORES.items()
    ]
    words = result["rows"]["BM25"]["search"]
    for name, bm25 in words.items():
        dev = " (dev)" if name in common.DEVELOPMENT else ""
        for kind, label in (("vectors", f"{name.upper()}{dev}"), ("hybrid", "… hybrid")):
            lines.append([label, *(f"{row['search'][name][kind]:.3f}" for row in columns)])
        lines[-2][0] += f"; BM25 {bm25['bm25']:.3f}"
    where = machine(columns[0]["speed"])
    speeds = [row["speed"] if "speed" in row and machine(row["speed"]) == where else None for row in columns]
    lines.append(
        [f"texts a second, {where}", *(f"{one['texts_per_s']:,.0f}" if one else "" for one in speeds)]
    )
    lines.append([f"one query, ms, {where}", *(f"{one['query_ms']:.2f}" if one else "" for one in speeds)])
    return f"{machine(result)}.\n\n{common.table(['', *_CARD_COLUMNS.values()], lines)}"


#: Collections whose mean the table of seeds has.
_SEARCHES = {
    "CISI, LISA, TIME, ADI": ("cisi", "lisa", "time", "adi"),
    "Cranfield, MED, CACM, NPL (dev)": common.DEVELOPMENT,
}


def seeds(result: dict[str, Any]) -> str:
    """Models of the same recipe with other seeds, beside the one that ships."""
    shipped = json.loads((common.RESULTS / "card.json").read_text(encoding="utf-8"))["rows"]["built-in"]
    columns = {name: row for name, row in result["rows"].items() if name != "BM25"}
    scores = dict(_SCORES)
    for label, names in _SEARCHES.items():
        scores[f"search, {label}"] = (partial(_mean, names=names, kind="vectors"), 4)
    lines = []
    for label, (score, digits) in scores.items():
        found = [score(row) for row in columns.values()]
        cells = [*found, max(found) - min(found), score(shipped)]
        lines.append([label, *(f"{value:.{digits}f}" for value in cells)])
    return f"{machine(result)}.\n\n{common.table(['', *columns, 'spread', 'shipped'], lines)}"


def auto_index(result: dict[str, Any]) -> str:
    """The index that ``--target-recall`` chose, and inverted files of the same recall."""
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
    headers = ["", "Faiss factory, parameters", "recall@10", "ms per query", "time / auto"]
    return (
        f"Search time at a recall@10 of {result['choice']['target_recall']}: {result['rows']:,} synthetic vectors of "
        f"{result['dimension']} dimensions in {result['clusters']:,} clusters. {machine(result)}.\n\n"
        f"{common.table(headers, rows)}"
    )


_SCALES = (100_000_000, 10_000_000_000)
_PRICE = 0.04  # of a core-hour, an example
_FLEET = 1000  # cores, an example


def scale(result: dict[str, Any]) -> str:
    """Time, disk and money of 100 million and 10 billion texts, from one machine's figures."""
    cpu = json.loads((common.RESULTS / "cpu-zen4.json").read_text(encoding="utf-8"))["cases"][0]
    encoder = next(row for row in cpu["rows"] if row["peer"] == "embedkit-int8")
    rate = encoder["sentences_per_s"]["median"] / cpu["threads"]
    over = result["actor_us"]["median"] / result["encode_us"]["median"]
    core_hours = [count / rate * over / 3600 for count in _SCALES]
    index = _index_hours(result, _SCALES[0])
    shard = result["shard_bytes"]
    kept = {name: size for name, size in result["index_bytes"].items() if not name.endswith(".faiss")}
    documents = sum(kept.values()) - kept.get("vectors.raw", 0)
    flat, codes = 4 * result["dimension"] + 8, 2 * result["dimension"] + 12
    rows = [
        ["encode and write shards, core-hours", *(f"{hours:,.0f}" for hours in core_hours)],
        [f"… on {_FLEET:,} cores", *(_hours(hours / _FLEET) for hours in core_hours)],
        [f"… at ${_PRICE:.2f} a core-hour", *(f"${hours * _PRICE:,.0f}" for hours in core_hours)],
        ["size of the shards", *(_bytes(count * shard) for count in _SCALES)],
        ["index: read shards, write ids, documents and words (one core)", _hours(index["documents"]), ""],
        ["… train the lists, core-hours on all cores", f"{index['train']:.1f}", ""],
        ["… fill the lists, core-hours on all cores", f"{index['add']:.1f}", ""],
        ["… on disk with `IVF…,Flat`", _bytes(_SCALES[0] * (flat + documents)), ""],
        ["… on disk with `IVF…,SQ8 --keep int8`", _bytes(_SCALES[0] * (codes + documents)), ""],
    ]
    headers = ["", *(f"{_millions(count)} texts" for count in _SCALES)]
    sentences = [
        f"Time, disk and cost, extrapolated. Encoding: {rate:,.0f} texts/s per core ({cpu['model']} int8, "
        f"{cpu['texts']['mean']} tokens per text,",
        f"from {cpu['threads']} threads; {machine(cpu)}); an actor takes {over:.2f} times the CPU of the encoder.",
        f"Index: {sum(result['index_us'].values()):,.0f} µs of CPU per text, measured on {result['documents']:,} texts",
        f"of {result['characters']:.0f} characters, {result['dimension']} dimensions ({built_in(result)} model), "
        f"`{result['factory']}` ({machine(result)}). The time to",
        "fill lists grows with their number (4·√n), the time to train them also with the sample. Networks, object",
        "stores and Ray's own overhead are not included. The price is an example.",
    ]
    return "\n".join([*sentences, "", common.table(headers, rows)])


def _index_hours(result: dict[str, Any], count: int) -> dict[str, float]:
    """CPU hours of each step of building an index of ``count`` documents, extrapolated by its own law."""
    steps = {stage: us * 1e-6 / 3600 for stage, us in result["index_us"].items()}
    before, lists = result["documents"], (_lists(result["documents"]), _lists(count))
    samples = [
        min(rows, max(39 * nlist, min(max(65_536, 64 * nlist), (256 << 20) // (4 * result["dimension"]))))
        for rows, nlist in zip((before, count), lists, strict=True)
    ]
    return {
        "documents": (steps["encode"] + steps["finish"]) * count,
        "add": steps["add"] * lists[1] / lists[0] * count,
        "train": steps["train"] * before * (samples[1] * lists[1]) / (samples[0] * lists[0]),
    }


def _lists(rows: int) -> int:
    """Number of lists of the factory ``auto`` (`embedkit.index.storage.faiss_index.resolve_factory`)."""
    return min(round(4 * rows**0.5), rows // 39, 65_536)


def _millions(count: int) -> str:
    return f"{count // 10**9} billion" if count >= 10**9 else f"{count // 10**6} million"


def _hours(hours: float) -> str:
    return f"{hours * 60:.0f} min" if hours < 1.5 else f"{hours:,.1f} h"


def _bytes(size: float) -> str:
    return f"{size / 1e12:,.1f} TB" if size >= 1e12 else f"{size / 1e9:,.0f} GB"


def sts(result: dict[str, Any]) -> str:
    """Spearman of each set and their mean, a model a row."""
    sets = list(result["rows"][0]["sts"]["sets"])
    rows = [
        [
            row["model"],
            f"{row['dimension']}",
            *(f"{row['sts']['sets'][name]['spearman']:.2f}" for name in sets),
            f"{row['sts']['average']:.2f}",
        ]
        for row in result["rows"]
    ]
    return common.table(["", "dimension", *sets, "mean"], rows)


def serve(result: dict[str, Any]) -> str:
    """Servers under load."""
    servers = {
        name: {(row["words"], row["texts"], row["connections"]): row for row in rows}
        for name, rows in result["servers"].items()
    }
    rows = []
    for name, loads in servers.items():
        cells = [
            name,
            f"{loads['short', 1, 1]['p50_ms']:.1f} ms",
            f"{loads['short', 1, 64]['texts_per_second']:,.0f}",
            f"{loads['long', 1, 64]['texts_per_second']:,.0f}",
            f"{loads['short', 32, 16]['texts_per_second']:,.0f}",
            f"{loads['short', 1, 64]['event_loop_cpu_ms_per_request']:.2f} ms",
        ]
        rows.append([f"**{cell}**" if name.startswith("embedkit") else cell for cell in cells])
    headers = [
        "",
        "lone text, p50",
        "64 connections",
        "64, 200 tokens",
        "16, lists of 32",
        "event loop a request",
    ]
    encoder, own = result["encoder"], servers["embedkit-serve"]
    share = own["short", 1, 64]["texts_per_second"] / encoder["short_texts_per_second"]
    more = own["short", 1, 1]["p50_ms"] - encoder["short_single_p50_ms"]
    caption = [
        f"Texts a second of {result['model']}, where a connection sends its next request when it has its answer; the",
        f"client shares the processor. {result['seconds']:g} s a load, median of {result['runs']} alternating runs.",
        f"{machine(result)}.",
        f"In the folder's own precision, 64 connections get {share:.0%} of what `Encoder.encode` does with both cores;",
        f"a lone request takes {more:.1f} ms more than `encode` of a text.",
    ]
    return "\n".join([*caption, "", common.table(headers, rows)])


RENDER: dict[str, Callable[[dict[str, Any]], str]] = {
    "auto_index": auto_index,
    "card": card,
    "card:seeds": seeds,
    "card:whole": whole_card,
    "concurrency": concurrency,
    "kernels-cpu": kernels,
    "kernels-cuda": kernels_on_a_gpu,
    "latency": latency,
    "processor": processor,
    "retrieval": retrieval,
    "throughput": throughput,
    "throughput-cuda": throughput_on_a_gpu,
    "throughput-hpd": table_of_hpd,
    "scale": scale,
    "serve": serve,
    "static": static,
    "sts": sts,
    "tokenizer": tokenizer,
}


def main() -> None:
    """Rewrite, or check, every marked table."""
    parser = common.parser(__doc__)
    parser.add_argument("--check", action="store_true", help="only check that the tables are up to date")
    options = parser.parse_args()
    stale = [path for path in READMES if not _update(path, write=not options.check)]
    if stale and options.check:
        sys.exit(
            f"{', '.join(str(p.relative_to(common.ROOT)) for p in stale)} out of date: run `make readme`"
        )
    print("up to date" if not stale else f"rewritten: {', '.join(path.name for path in stale)}")


def _update(path: Path, *, write: bool) -> bool:
    """Return whether the tables of a file are up to date; with ``write``, update them if not."""
    before = path.read_text(encoding="utf-8")

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        stem, _, variant = name.partition(":")
        file = common.RESULTS / f"{stem}.json"
        if not file.exists():  # not measured yet
            return f"<!-- {name} -->\n<!-- /{name} -->"
        result = json.loads(file.read_text(encoding="utf-8"))
        kind = ":".join(filter(None, (result["benchmark"], variant)))
        if kind not in RENDER:
            sys.exit(f"{path.name} wants a table of {file.name}, but a result of {kind} has none")
        render = RENDER[kind]
        return f"<!-- {name} -->\n{render(result)}\n<!-- /{name} -->"

    after = re.sub(r"<!-- (?P<name>[\w:-]+) -->\n.*?<!-- /(?P=name) -->", fill, before, flags=re.DOTALL)
    if after != before and write:
        path.write_text(after, encoding="utf-8")
    return after == before


if __name__ == "__main__":
    main()
