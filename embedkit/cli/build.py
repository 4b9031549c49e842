"""``embedkit-index build``, ``add`` and ``upsert``: encode documents and write them."""

from __future__ import annotations

import argparse
import os
import shutil
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..documents.readers import FORMATS, Corpus
from ..index import BuildSettings, Index, IndexExistsError, InputError
from ..index.build.estimate import Estimate, estimate
from ..index.build.resume import resumable_rows
from ..index.storage.faiss_index import import_faiss
from ..index.storage.manifest import METRICS
from . import ray_engine
from .common import (
    EXIT_OK,
    add_language,
    add_max_memory,
    add_threads,
    complain,
    duration,
    load_encoder,
    load_index_encoder,
    plural,
    show,
    size,
)
from .outcome import Skipped, build_settings, check_choice, explained, show_choice
from .terminal import ProgressBar, printable
from .tune import add_plot, add_target

if TYPE_CHECKING:
    from ..documents.errors import OnError
    from ..index import TextEncoder

__all__ = ["add_commands"]

_SAMPLE = 2000

_BUILD_DESCRIPTION = """Encode the texts of all inputs and write an index of them. Documents are streamed, so a
corpus may be larger than memory. Blank texts are skipped and counted. The index appears when it is complete, or
not at all. To resume a build that was stopped, run the same command again."""
_ADD_DESCRIPTION = """Encode the texts of all inputs and add them to an index. Time and space depend on the new texts
only, not on the size of the index. Resumes as build does."""


def add_commands(commands: Any) -> None:
    """Add the commands to the parser."""
    build = commands.add_parser(
        "build", help="encode texts and write an index", description=_BUILD_DESCRIPTION
    )
    build.set_defaults(run=_build, more="inputs")
    _add_inputs(build)
    build.add_argument("-o", "--output", required=True, metavar="INDEX", help="folder to write to")
    build.add_argument("--overwrite", action="store_true", help="replace an existing index")
    build.add_argument("--model", metavar="M", help="model folder or Hub id (default: the built-in model)")
    build.add_argument(
        "--precision",
        default="auto",
        help="fp32, bf16 or int8, on CUDA also fp16 or fp8; auto (default): the model's own, on CUDA a 16-bit type",
    )
    build.add_argument("--device", default="cpu", help="device to encode on: cpu (default), cuda, cuda:1, …")
    build.add_argument(
        "--factory",
        default="auto",
        help="Faiss index: Flat, IVF1024,Flat, …; auto (default) is Flat below 20,000 documents, else IVF",
    )
    add_target(
        build,
        None,
        "with --factory auto: measure several kinds of index, and build the fastest whose recall@10 reaches R "
        "(e.g. 0.95) within --max-memory",
    )
    add_plot(build)
    build.add_argument("--metric", choices=METRICS, default="cosine", help="similarity (default: cosine)")
    build.add_argument(
        "--keep",
        choices=("fp32", "int8"),
        default="fp32",
        help="how to keep the vectors of a quantized index for re-ranking, filters and compaction (default: fp32)",
    )
    add_language(build, "auto", "language of the texts, for the words of hybrid search (default: auto)")
    ray_engine.add_options(build)
    for name, text in (
        ("add", "encode texts and add them to an index"),
        ("upsert", "add texts, replacing those with the same ids"),
    ):
        command = commands.add_parser(name, help=text, description=_ADD_DESCRIPTION)
        command.set_defaults(run=_add, more="inputs", change=name)
        command.add_argument("index", metavar="INDEX", help="index folder")
        _add_inputs(command)
        command.add_argument("--model", metavar="M", help="the index's model, if it was moved")


def _add_inputs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help=".txt, .jsonl, .csv or .tsv, optionally .gz or .zst; .parquet; a folder or a pattern of such files; "
        "- for standard input",
    )
    command.add_argument(
        "--format", choices=FORMATS, help="format of all inputs (default: by file name; txt for -)"
    )
    command.add_argument(
        "--text-field", default="text", metavar="F", help="field or column to index (default: text)"
    )
    command.add_argument(
        "--id-field",
        metavar="F",
        help="field or column of ids (default: id if there is one, else file:line)",
    )
    command.add_argument("--vector-field", metavar="F", help="field or column of precomputed vectors")
    command.add_argument("--vectors", metavar="FILE.npy", help="precomputed vectors, one per document")
    command.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="what to do with a malformed line (default: stop)",
    )
    command.add_argument(
        "--restart", action="store_true", help="discard what an interrupted command has encoded"
    )
    add_max_memory(command)
    add_threads(command)


class _Input:
    """The documents named by the options, and the malformed ones among them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._skipped = Skipped(arguments.on_error)
        self.on_error = self._skipped.on_error
        self._arguments = arguments
        self.corpus = self._corpus(self.on_error)

    def _corpus(self, on_error: OnError) -> Corpus:
        arguments = self._arguments
        return Corpus(
            arguments.inputs,
            format=arguments.format,
            text_field=arguments.text_field,
            id_field=arguments.id_field,
            vector_field=arguments.vector_field,
            vectors=arguments.vectors,
            on_error=on_error,
        )

    def estimate(self, encoder: TextEncoder, settings: BuildSettings) -> Estimate | None:
        """What the build will need, from the first documents; ``None`` if the input can be read only once."""
        total = self.corpus.total_bytes
        if not total:
            return None
        corpus = self._corpus("skip" if self.on_error != "stop" else "stop")
        try:
            sample = list(islice(corpus, _SAMPLE))
        except InputError:  # the build reports it, and keeps what comes before
            return None
        if not sample:
            return None
        documents = len(sample)
        if documents == _SAMPLE:
            documents = max(documents, round(documents * total / max(1, sample[-1].position)))
        return estimate(sample, documents, encoder, settings)

    def left_out(self) -> str:
        """Counts of what was skipped, for the last line."""
        return self._skipped.left_out(self.corpus.blank)


def _announce(expected: Estimate | None, path: str) -> None:
    if expected is None:
        return
    show(
        f"estimate: {plural(expected.documents, 'document')}, {duration(expected.seconds)}, "
        f"{size(expected.disk)} on disk ({size(expected.disk_while_building)} while building), "
        f"{size(expected.memory)} of memory"
    )
    folder = Path(path).absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < expected.disk_while_building:
        complain(f"warning: {folder} has {size(free)} free, which may not be enough")


def _what_is_left(path: str) -> str:
    rows = resumable_rows(Path(path))
    if rows == 0:
        return f"nothing was written to {path}"
    return (
        f"{plural(rows, 'document')} of {path} are encoded; run the same command again to resume, or with "
        "--restart to start over"
    )


def _build(arguments: argparse.Namespace) -> int:
    ray_engine.check_options(arguments)
    check_choice(arguments)
    if arguments.engine == "ray":
        return ray_engine.build(arguments)
    source = _Input(arguments)
    path = arguments.output
    resumed = 0 if arguments.restart else resumable_rows(Path(path))
    if not arguments.overwrite and not resumed and os.path.exists(os.path.join(path, "CURRENT")):
        raise IndexExistsError(f"{path}: an index exists there; pass --overwrite to replace it")
    import_faiss()  # before the model is loaded: if it is missing, say so at once
    encoder = load_encoder(arguments.model, arguments.precision, arguments.threads, arguments.device)
    begin = time.perf_counter()

    with explained(lambda: _what_is_left(path)):
        settings = build_settings(arguments, source.on_error)
        _announce(source.estimate(encoder, settings), path)
        _say_resumed(resumed)
        unknown = _unknown(encoder)
        with (
            ProgressBar(source.corpus.total_bytes) as bar,
            Index.build_with(path, source.corpus, encoder, settings, bar.update) as index,
        ):
            info = index.info()
        show_choice(arguments, info)
        seconds = time.perf_counter() - begin
        show(
            f"{printable(path)}: {plural(info['documents'], 'document')} in {seconds:.1f} s "
            f"({(info['documents'] - resumed) / seconds:,.0f}/s){source.left_out()}"
            f"{_strange(encoder, unknown)}; {info['factory']}, {info['dimension']} dimensions, {size(info['bytes'])}"
        )
    return EXIT_OK


def _unknown(encoder: TextEncoder) -> int:
    """How many texts so far were in a script that the model does not know."""
    return int(encoder.describe().get("unknown", 0))


def _strange(encoder: TextEncoder, before: int) -> str:
    """How many more there are now, for the last line."""
    count = _unknown(encoder) - before
    return f", {plural(count, 'text')} in a script that the model does not know" if count else ""


def _say_resumed(rows: int) -> None:
    if rows:
        show(f"resuming: {plural(rows, 'document')} already encoded")


def _add(arguments: argparse.Namespace) -> int:
    source = _Input(arguments)
    path = arguments.index
    begin = time.perf_counter()

    with (
        explained(lambda: _what_is_left(path)),
        Index.open(path, arguments.model, threads=arguments.threads) as index,
    ):
        load_index_encoder(index)
        settings = BuildSettings(index.generation.manifest.factory, max_memory=arguments.max_memory)
        _announce(source.estimate(index.encoder, settings), path)
        _say_resumed(0 if arguments.restart else resumable_rows(Path(path)))
        unknown = _unknown(index.encoder)
        write = index.add if arguments.change == "add" else index.upsert
        with ProgressBar(source.corpus.total_bytes) as bar:
            written = write(
                source.corpus,
                restart=arguments.restart,
                max_memory=arguments.max_memory,
                on_error=source.on_error,
                progress=bar.update,
            )
        replaced = f", {written.replaced:,} of them replacing earlier ones" if written.replaced else ""
        left_out = f"{source.left_out()}{_strange(index.encoder, unknown)}"
        show(
            f"{printable(path)}: {plural(written.documents, 'document')} added{replaced} in "
            f"{time.perf_counter() - begin:.1f} s{left_out}; {len(index):,} in all"
        )
    return EXIT_OK
