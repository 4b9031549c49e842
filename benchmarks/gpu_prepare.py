"""Prepares what `gpu_suite.py` needs on a bare machine without network: at most 64 MiB, the checkout included.

    python benchmarks/gpu_prepare.py OUT --model FOLDER --texts FILE [--sts FILE] [--python python3.12] [--core FILE]

The folder OUT receives ``core/`` (the compiled core for the other machine's Python), ``model/`` (the model in int8,
which the suite multiplies out to fp32: not the original's weights, but its shape and speed), ``texts.txt.gz`` and
``sts.tsv.gz``. The core is built with ``--python``, which needs pip, a C++ compiler, and an index with
scikit-build-core and pybind11; or is given as a wheel or ``_core*.so``.
"""

import argparse
import gzip
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import common

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 64 << 20
TEXTS = 40_000


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = common.parser(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--model", type=common.model_folder, required=True, help="all-MiniLM-L6-v2, in fp32 or int8"
    )
    parser.add_argument("--texts", type=Path, required=True, help=".txt, .tsv or .jsonl, optionally .gz")
    parser.add_argument(
        "--column", default="text", help="columns of the texts, comma-separated (default: text)"
    )
    parser.add_argument(
        "--sts", type=Path, help="scored pairs: sentence1, sentence2, score, optionally task and split"
    )
    parser.add_argument("--python", default="python3.12", help="builds the core (default: python3.12)")
    parser.add_argument("--core", type=Path, help="a wheel or _core*.so in place of building one")
    return parser.parse_args()


def prepare_core(options: argparse.Namespace, folder: Path) -> None:
    """The core for the other machine's Python; compressed in its wheel."""
    folder.mkdir(parents=True)
    if options.core is not None:
        shutil.copy(options.core, folder)
        return
    if shutil.which(options.python) is None:
        raise SystemExit(
            f"no {options.python} to build the core with; give another --python, or the --core itself"
        )
    with tempfile.TemporaryDirectory() as scratch:
        command = [options.python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", scratch, str(ROOT)]
        subprocess.run(command, check=True)
        (wheel,) = Path(scratch).glob("embedkit-*.whl")
        # The compiled part alone: the rest is in the checkout.
        subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), scratch], check=True)
        (core,) = (Path(scratch) / "embedkit").glob("_core*.so")
        shutil.copy(core, folder)


def prepare_model(source: Path, folder: Path) -> None:
    """The model in int8."""
    from embedkit import Encoder

    Encoder(str(source), device="cpu").save(folder, precision="int8")


def prepare_texts(options: argparse.Namespace, path: Path) -> None:
    """Distinct texts, a line each, in random order: repeatable."""
    texts = {" ".join(text.split()) for text in common.read_texts([options.texts], options.column.split(","))}
    chosen = sorted(text for text in texts if text)
    random.Random(0).shuffle(chosen)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(text + "\n" for text in chosen[:TEXTS])


def folder_bytes(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    return sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())


def tracked() -> int:
    """Bytes of the files that git knows."""
    names = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True
    ).stdout
    return sum((ROOT / name).stat().st_size for name in names.split("\0") if name and (ROOT / name).is_file())


def main() -> None:
    """Prepare, and report the sizes."""
    options = arguments()
    if options.out.exists():
        raise SystemExit(f"{options.out} exists; give a new folder")
    options.out.mkdir(parents=True)
    prepare_core(options, options.out / "core")
    prepare_model(options.model, options.out / "model")
    prepare_texts(options, options.out / "texts.txt.gz")
    if options.sts is not None:
        shutil.copy(options.sts, options.out / "sts.tsv.gz")
    parts = {part.name: folder_bytes(part) for part in sorted(options.out.iterdir())}
    parts["the checkout"] = tracked()
    for name, size in parts.items():
        print(f"{name:14} {size / 2**20:6.1f} MiB")
    print(f"{'together':14} {sum(parts.values()) / 2**20:6.1f} MiB of {LIMIT >> 20}")
    if sum(parts.values()) > LIMIT:
        raise SystemExit("more than the limit: leave out --sts, or carry the model's folder alone")


if __name__ == "__main__":
    main()
