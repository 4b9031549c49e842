"""The time of `embedkit-index sync` for a folder of many files of which few have changed.

    python benchmarks/sync.py --files 100000 --changed 100 --json OUT.json

Files of one line each are written to subfolders of 1,000, an index of them is built, and synced once; then `--changed`
of them are written anew and synced, `--rounds` times. Beside it, the time of encoding the changed texts alone, and of a
sync that finds nothing changed. CPU time is measured as well, as wall time depends on what else runs.
"""

import argparse
import cProfile
import io
import pstats
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np

WORDS = 400


def text_of(number: int, version: int) -> str:
    """A sentence of twelve words that no other file or version has."""
    chosen = random.Random(number * 1000 + version)
    return " ".join(f"word{chosen.randrange(WORDS)}" for _ in range(11)) + f" {number}v{version}\n"


def timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds, CPU seconds of all threads, and the result of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return time.perf_counter() - wall, time.process_time() - cpu, result


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Build, and sync again and again."""
    from embedkit import Encoder, Index
    from embedkit.documents.readers import Corpus
    from embedkit.index.build.settings import BuildSettings
    from embedkit.index.sync import FolderSettings, sync

    folder, place = work / "files", work / "index"
    paths = [folder / f"{number // 1000:04d}" / f"{number:07d}.txt" for number in range(options.files)]
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text_of(number, 0), encoding="utf-8")
    settings = FolderSettings(whole_text=True)
    encoder = Encoder(device="cpu", threads=options.threads)
    from embedkit.documents.readers import Names

    corpus = Corpus([folder], names=Names(whole_text=True))
    made = BuildSettings(threads=options.threads, root=corpus.files.root)
    built = timed(lambda: Index.build_with(place, corpus, encoder, made).close())[0]

    def synced() -> Any:
        with Index.open(place, encoder, threads=options.threads) as index:
            return sync(index, folder, settings)

    first = timed(synced)[0]
    nothing, changed, encoding = [], [], []
    for version in range(1, options.rounds + 1):
        nothing.append(timed(synced)[:2])
        some = random.Random(version).sample(range(options.files), options.changed)
        for number in some:
            paths[number].write_text(text_of(number, version), encoding="utf-8")
        profile = cProfile.Profile() if options.profile and version == options.rounds else None
        if profile is not None:
            profile.enable()
        wall, cpu, done = timed(synced)
        if profile is not None:
            profile.disable()
            text = io.StringIO()
            pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(25)
            print(text.getvalue())
        # files written just before a sync are read again by the next
        if (done.written, done.replaced, done.deleted) != (options.changed, options.changed, 0):
            raise SystemExit(f"expected {options.changed} changed files, got {done}")
        changed.append((wall, cpu))
        texts = [text_of(number, version) for number in some]
        encoding.append(timed(lambda texts=texts: encoder.encode_document(texts))[:2])
    return {
        "files": options.files,
        "changed": options.changed,
        "build_s": round(built, 2),
        "first_sync_s": round(first, 2),
        **{
            f"{name}_{kind}": round(float(np.median([one[at] for one in values])), 3)
            for name, values in (("nothing_changed", nothing), ("sync", changed), ("encoding", encoding))
            for at, kind in enumerate(("s", "cpu_s"))
        },
    }


def main() -> None:
    """Measure, print and write."""
    parser = common.parser(__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--changed", type=int, default=100)
    parser.add_argument("--rounds", type=common.positive, default=3)
    common.add_threads(parser)
    parser.add_argument("--profile", action="store_true", help="print where the time of the last sync goes")
    parser.add_argument(
        "--work", type=Path, help="where to create files and index (default: a temporary folder)"
    )
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    if options.changed > options.files:
        parser.error(f"--changed {options.changed}: there are only {options.files} files")
    machine, found = common.machine_info(), common.versions(["embedkit", "faiss-cpu", "numpy"])
    with tempfile.TemporaryDirectory(prefix="embedkit-sync-", dir=options.work) as work:
        result = measure(options, Path(work))
    print(result)
    if options.json:
        common.write_json(
            options.json,
            common.report(
                "sync",
                machine=machine,
                versions=found,
                **common.built_in(None),
                threads=options.threads,
                sync=result,
            ),
        )


if __name__ == "__main__":
    main()
