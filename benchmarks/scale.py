"""The CPU time per document on a Ray cluster, apart from encoding, from which `docs/scale.md` extrapolates.

    python benchmarks/scale.py TEXTS --limit 40000 --json OUT.json

Runs the code of an actor (read, encode, write a shard) and `Encoder.encode` alone, then the code that builds the
index from shards. It needs ray[data] but no cluster. Times are CPU seconds of the process, summed over threads,
which barely depend on the load of the machine.
"""

import argparse
import json
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import common

ENCODED = 4096  # texts of the first shard; the vectors of the others are random


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = common.parser(__doc__)
    common.add_text_arguments(parser, default_limit=40_000)
    parser.add_argument("--work", type=Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="write the results here")
    return parser.parse_args()


def measure(texts: list[str], folder: Path) -> dict[str, Any]:
    """Encode some of ``texts``, and index all."""
    import numpy as np

    from embedkit import Encoder
    from embedkit.index import Document, Index
    from embedkit.integrations import ray_actor, ray_index, ray_plan
    from embedkit.integrations.ray_encoder import Description
    from embedkit.integrations.ray_shards import JobHeader, Shard, ShardStore

    encoder = Encoder(threads=1)
    description = Description.of(encoder)
    dimension = description.dimension
    source = folder / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    store = ShardStore(str(folder / "shards"), "benchmark")
    store.begin(JobHeader("", "", "", "", dimension, "cosine", []), restart=True)
    (file,), _ = ray_plan.files([source])
    begin = time.process_time()
    pieces = ray_plan.pieces_of(file, ENCODED)
    plan = time.process_time() - begin

    job = ray_actor.Job(
        None,
        {"threads": 1},
        description,
        store.url,
        store.job,
        True,
        text_field="text",
        id_field=None,
        skip=False,
    )
    actor = ray_actor.EncodePieces(job)
    encoder.encode(texts[:1000])
    alone, acted = [], []
    for _ in range(3):
        begin = time.process_time()
        encoder.encode_document(texts[:ENCODED], normalize_embeddings=True)
        alone.append(time.process_time() - begin)
        begin = time.process_time()
        actor.encode(0, pieces[0])
        acted.append(time.process_time() - begin)

    rng = np.random.default_rng(0)
    shards = []
    for number in range(len(pieces)):
        some = texts[number * ENCODED : (number + 1) * ENCODED]
        vectors = rng.standard_normal((len(some), dimension), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        first = number * ENCODED
        documents = [Document(text, f"{file.name}:{first + at + 1}") for at, text in enumerate(some)]
        with store.writer(number, dimension) as writer:
            writer.add(documents, list(range(first + 1, first + len(some) + 1)), vectors)
        shards.append(Shard(number, len(some), 0))
    steps: dict[str, float] = {}
    before = time.process_time()

    def note(progress: Any) -> None:
        nonlocal before
        now = time.process_time()
        stage = "train" if progress.stage == "add" and "add" not in steps else progress.stage
        steps[stage] = steps.get(stage, 0.0) + now - before
        if progress.stage == "add":
            steps.setdefault("add", 0.0)
        before = now

    documents_of = ray_index.Documents(store, pieces, shards, "stop")
    with Index.build(folder / "index", documents_of, description, progress=note) as index:
        steps["finish"] = time.process_time() - before
        info = index.info()
    sizes = {path.name: path.stat().st_size for path in (folder / "index" / "segments").glob("*/*")}
    written = sum(path.stat().st_size for path in (folder / "shards").rglob("*.parquet"))
    count = len(texts)
    return {
        "documents": count,
        "dimension": dimension,
        "characters": round(sum(map(len, texts)) / count, 1),
        "factory": info["factory"],
        "encoded": ENCODED,
        "encode_us": common.Spread.of([s / ENCODED * 1e6 for s in alone]),
        "actor_us": common.Spread.of([s / ENCODED * 1e6 for s in acted]),
        "plan_us": round(plan / count * 1e6, 3),
        "index_us": {stage: round(s / count * 1e6, 2) for stage, s in steps.items()},
        "shard_bytes": round(written / count, 1),
        "index_bytes": {name: round(s / count, 1) for name, s in sizes.items()},
    }


def main() -> None:
    """Measure, print and write."""
    options = arguments()
    try:
        import_module("embedkit.integrations.ray")
    except ImportError as error:
        raise SystemExit(str(error)) from None
    texts = common.texts_of(options)
    machine, found = (
        common.machine_info(),
        common.versions(["embedkit", "faiss-cpu", "numpy", "ray", "pyarrow"]),
    )
    print(common.show_machine(machine, found))
    with tempfile.TemporaryDirectory(prefix="embedkit-bench-", dir=options.work) as work:
        result = measure(texts, Path(work))
    for name, part in result.items():
        print(f"{name}: {part}")
    if options.json:
        common.write_json(
            options.json,
            common.report(
                "scale", machine=machine, versions=found, **common.built_in(None), threads=1, **result
            ),
        )


if __name__ == "__main__":
    main()
