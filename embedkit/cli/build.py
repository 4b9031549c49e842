"""``embedkit-index build``, ``add`` and ``upsert``: encode documents and write them."""

from __future__ import annotations

import argparse
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..documents.document import Document
from ..documents.folders import Patterns
from ..documents.passages import Passages
from ..documents.readers import FORMATS, Corpus, Names
from ..index import BuildSettings, Index, InputError, Progress
from ..index.build.estimate import Estimate, estimate
from ..index.build.resume import check_output, resumable_rows
from ..index.storage.factory import check_rows
from ..index.storage.faiss_index import import_faiss
from ..index.storage.manifest import METRICS, ReadingEntry
from . import ray_engine
from .common import (
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    add_encoder,
    add_index_model,
    add_language,
    add_max_memory,
    add_threads,
    complain,
    duration,
    given,
    in_time,
    index_folder,
    load_encoder,
    load_index_encoder,
    plural,
    prompts_of,
    show,
    size,
)
from .outcome import (
    OTHER_INPUTS,
    Skipped,
    build_settings,
    check_choice,
    check_txt,
    counted,
    explained,
    show_choice,
    truncated,
)
from .terminal import ProgressBar, printable
from .tune import add_plot

if TYPE_CHECKING:
    from ..documents.errors import OnError
    from ..index import TextEncoder
    from ..index.build.settings import Mode
    from ..index.storage.manifest import Manifest

__all__ = ["add_commands"]

_DEDUP = "--dedup"
_SAMPLE = 2000  # documents for the estimate, or the first that have
_SAMPLE_CHARACTERS = 8 << 20
_SAMPLE_SECONDS = 4  # PDF files are slow to read, and the build reads them again

_BUILD_DESCRIPTION = """Encode the texts of all inputs and write an index of them. Documents are streamed, so a
corpus may be larger than memory. Blank texts are skipped and counted. The index appears when it is complete, or
not at all. To resume a build that was stopped, run the same command again."""
_ADD_DESCRIPTION = """Encode the texts of all inputs and add them to an index. Time and space depend on the new texts
only, not on the size of the index. Resumes as build does."""
_UPSERT_DESCRIPTION = """Encode the texts of all inputs and add them to an index, as add does. A document replaces the
one with the same id, and of several with the same id the last one is kept. A document whose text is unchanged keeps its
vector, also one that was given (build --vectors): reembed encodes it."""


def add_commands(commands: Any) -> None:
    """Add the commands to the parser."""
    build = commands.add_parser(
        "build", help="encode texts and write an index", description=_BUILD_DESCRIPTION
    )
    build.set_defaults(run=_build, more="inputs")
    _add_inputs(build)
    build.add_argument(
        "-o", "--output", required=True, metavar="INDEX", type=index_folder, help="folder to write to"
    )
    build.add_argument("--overwrite", action="store_true", help="replace an existing index")
    add_encoder(build)
    build.add_argument("--device", default="cpu", help="device to encode on: cpu (default), cuda, cuda:1, …")
    build.add_argument(
        "--factory",
        default="auto",
        help="Faiss index: Flat, IVF1024,Flat, …; auto (default) is Flat below 20,000 documents, else IVF; "
        "auto-int8 the same in a byte a column, auto-int6 in six bits: the default of models made for that",
    )
    build.add_argument(
        "--target-recall",
        type=float,
        metavar="R",
        help="with --factory auto: measure several kinds of index, and build the fastest whose recall@10 reaches R "
        "(e.g. 0.95) within --max-memory",
    )
    add_plot(build)
    build.add_argument("--metric", choices=METRICS, default="cosine", help="similarity (default: cosine)")
    build.add_argument(
        "--keep",
        choices=("fp32", "int8", "none"),
        help="how to keep the vectors of a quantized index for re-ranking, filters and compaction (default: fp32, but "
        "none for auto-int8 and auto-int6); none: its codes alone, which must be SQ6, SQ8 or SQfp16 of all columns",
    )
    build.add_argument(
        "--passages",
        type=_passages,
        metavar="TOKENS[:OVERLAP]",
        help="cut long texts into passages of the model's tokens, at sentence boundaries and headings, e.g. 120:30",
    )
    build.add_argument(
        "--max-length", type=int, metavar="TOKENS", help="maximum tokens of a text (default: the model's own)"
    )
    build.add_argument(
        "--on-overflow",
        choices=("truncate", "error", "window"),
        default="truncate",
        help="longer texts are cut and counted (default), an error, or encoded as the mean of their parts",
    )
    build.add_argument(
        "--dedup",
        metavar="exact|near:SIM",
        help="exact: leave out texts that repeat an earlier one (and its given vector); near:SIM (metric cosine): "
        "also those whose similarity to an earlier one is at least SIM, e.g. near:0.95; add and upsert compare no "
        "texts",
    )
    add_language(build, "auto", "language of the texts, for the words of hybrid search (default: auto)")
    ray_engine.add_options(build)
    for name, text, description in (
        ("add", "encode texts and add them to an index", _ADD_DESCRIPTION),
        ("upsert", "add texts, replacing those with the same ids", _UPSERT_DESCRIPTION),
    ):
        command = commands.add_parser(name, help=text, description=description)
        command.set_defaults(run=_add, more="inputs", change=name)
        command.add_argument("index", metavar="INDEX", type=index_folder, help="index folder")
        _add_inputs(command)
        add_index_model(command)


def _add_inputs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "inputs",
        nargs="+",
        type=given,
        metavar="INPUT",
        help=".txt, .md, .html, .json, .jsonl, .csv or .tsv, optionally .gz or .zst; .parquet, .pdf, .docx; a folder "
        "or a pattern of such files; - for standard input",
    )
    command.add_argument(
        "--format", choices=FORMATS, help="format of all inputs (default: by file name; txt for -)"
    )
    command.add_argument(
        "--text-field",
        type=given,
        default="text",
        metavar="F",
        help="field or column to index (default: text)",
    )
    command.add_argument(
        "--id-field",
        type=given,
        metavar="F",
        help="field or column of ids (default: id if a record has one, else file:line; of a file that is one text, "
        "its name)",
    )
    command.add_argument(
        "--include",
        action="append",
        type=given,
        default=[],
        metavar="PATTERN",
        help="of folders, read only files whose name or path matches, e.g. '*.md' (repeatable); with --format those "
        "of any type",
    )
    command.add_argument(
        "--exclude",
        action="append",
        type=given,
        default=[],
        metavar="PATTERN",
        help="of folders, leave out files and folders that match, e.g. drafts (repeatable)",
    )
    command.add_argument(
        "--root",
        type=given,
        metavar="FOLDER",
        help="folder that file names in ids are relative to (default: the folder given, or the one that all inputs "
        "share; then that of the index, without which documents need ids)",
    )
    command.add_argument(
        "--txt",
        choices=("lines", "whole"),
        help="a .txt file is one text per line, or one text (default: lines; in an index of passages whole, but not "
        "standard input)",
    )
    command.add_argument(
        "--vector-field", type=given, metavar="F", help="field or column of precomputed vectors"
    )
    command.add_argument(
        "--vectors", type=given, metavar="FILE.npy", help="precomputed vectors, one per document"
    )
    command.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="what to do with a malformed line or a document that cannot be indexed (default: stop)",
    )
    command.add_argument(
        "--restart", action="store_true", help="discard what an interrupted command has encoded"
    )
    add_max_memory(command)
    add_threads(command)


def _passages(text: str) -> Passages | None:
    try:
        return Passages.of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class _Input:
    """The documents named by the options, and the malformed ones among them."""

    def __init__(self, arguments: argparse.Namespace, base: Manifest | None = None) -> None:
        """``base``: the index that the documents are added to."""
        check_txt(arguments.txt, arguments.format)
        if arguments.root is not None and not os.path.isdir(arguments.root):
            reason = "is not a folder" if os.path.exists(arguments.root) else "no such folder"
            raise CommandError(EXIT_USAGE, f"--root {arguments.root}: {reason}")
        self._skipped = Skipped(arguments.on_error)
        self.on_error = self._skipped.on_error
        self._arguments = arguments
        self._new = base is None
        passages = getattr(arguments, "passages", None) if base is None else base.passages
        self._names = Names(
            arguments.root if arguments.root is not None or base is None else base.root,
            "root" if base is None or arguments.root is not None else base.named_by,
            patterns=Patterns(tuple(arguments.include), tuple(arguments.exclude)),
            whole_text=(arguments.txt or ("lines" if passages is None else "whole")) == "whole",
            whole_stdin=arguments.txt == "whole",
        )
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
            names=self._names,
        )

    def estimate(self, encoder: TextEncoder, settings: BuildSettings) -> Estimate | None:
        """What the build will need, from the first documents; ``None`` if the input can be read only once."""
        total = self.corpus.total_bytes
        if not total:
            return None
        corpus = self._corpus("skip" if self.on_error != "stop" else "stop")
        try:
            sample, whole = _sample(corpus)
        except InputError:  # the build reports it, and keeps what comes before
            return None
        if not sample:
            return None
        documents = len(sample)
        if not whole:
            documents = max(documents, round(documents * total / max(1, sample[-1].position)))
        elif self._new and settings.passages is None:  # no need to encode them to find out
            check_rows(settings.factory, documents)
        return estimate(sample, documents, encoder, settings)

    def left_out(self) -> str:
        """Counts of what was skipped, for the last line."""
        files = self.corpus.files.told()
        return self._skipped.left_out(self.corpus.blank) + (f", {printable(files)}" if files else "")


def _sample(corpus: Corpus) -> tuple[list[Document], bool]:
    """The first documents, so many that they take little memory and time, and whether they are all."""
    sample: list[Document] = []
    characters, until = 0, time.monotonic() + _SAMPLE_SECONDS
    for document in corpus:
        sample.append(document)
        characters += len(document.text)
        if len(sample) == _SAMPLE or characters >= _SAMPLE_CHARACTERS or time.monotonic() > until:
            return sample, False
    return sample, True


def _announce(expected: Estimate | None, path: str) -> None:
    if expected is None:
        return
    documents = plural(expected.documents, "document")
    if expected.passages is not None:
        documents = f"{plural(expected.passages, 'passage')} of {documents}"
    show(
        f"estimate: {documents}, {duration(expected.seconds)}, "
        f"{size(expected.disk)} on disk ({size(expected.disk_while_building)} while building), "
        f"{size(expected.memory)} of memory"
    )
    folder = Path(path).absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < expected.disk_while_building:
        complain(f"warning: {folder} has {size(free)} free, which may not be enough")


def _what_is_left(path: str, mode: Mode) -> str:
    rows = resumable_rows(Path(path), mode)
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
    resumed = check_output(Path(path), overwrite=arguments.overwrite, restart=arguments.restart)
    import_faiss()  # before the model is loaded: if it is missing, say so at once
    encoder = load_encoder(
        arguments.model,
        arguments.precision,
        arguments.threads,
        arguments.device,
        max_length=arguments.max_length,
        on_overflow=arguments.on_overflow,
        prompts=prompts_of(arguments.query_prompt, arguments.document_prompt),
    )
    begin = time.perf_counter()

    with explained(
        path,
        lambda: _what_is_left(path, "build"),
        f"the index {path} is complete",
        skips=arguments.vectors is None,
    ):
        settings = replace(
            build_settings(arguments, source.on_error),
            root=source.corpus.files.root,
            reading=ReadingEntry(
                tuple(arguments.include),
                tuple(arguments.exclude),
                arguments.txt,
                arguments.text_field,
                arguments.id_field,
                arguments.vector_field,
                arguments.format,
                _not_followed(arguments, whole=source.corpus.files.whole),
            ),
        )
        _announce(source.estimate(encoder, settings), path)
        _say_resumed(resumed)
        with (
            ProgressBar(source.corpus.total_bytes) as bar,
            Index.build_with(path, source.corpus, encoder, settings, bar.update) as index,
        ):
            info = index.info()
            repeated = index.written.repeated if index.written else 0
        left_out = source.left_out()
        if repeated:
            left_out += f", {plural(repeated, 'repeated text')} left out"
        show_choice(arguments, info)
        seconds = time.perf_counter() - begin
        show(
            f"{printable(path)}: {counted(info)} {in_time(seconds, info['documents'] - resumed)}{left_out}"
            f"{_strange(encoder)}; {info['factory']}, {info['dimension']} dimensions, {size(info['bytes'])}"
            f"{truncated(info)}"
        )
    return EXIT_OK


def _not_followed(arguments: argparse.Namespace, *, whole: bool) -> str | None:
    """What makes the index one that ``sync`` cannot follow."""
    if arguments.vectors or arguments.dedup:
        return _DEDUP if arguments.dedup else "--vectors"
    return None if whole else OTHER_INPUTS


def _strange(encoder: TextEncoder) -> str:
    """How many texts were in a script that the model does not know, for the last line."""
    count = int(encoder.describe().get("unknown", 0))
    return f", {plural(count, 'text')} in a script that the model does not know" if count else ""


def _say_resumed(rows: int) -> None:
    if rows:
        show(f"resuming: {plural(rows, 'document')} already encoded")


def _add(arguments: argparse.Namespace) -> int:
    path = arguments.index
    begin = time.perf_counter()

    with (
        explained(
            path,
            lambda: _what_is_left(path, arguments.change),
            f"all documents are in {path}",
            skips=arguments.vectors is None,
        ) as begun,
        Index.open(path, arguments.model, threads=arguments.threads) as index,
    ):
        source = _Input(arguments, index.generation.manifest)
        load_index_encoder(index)
        manifest = index.generation.manifest
        if manifest.reading is not None and manifest.reading.alone == _DEDUP:
            complain(f"note: {path} was built with {_DEDUP}; {arguments.change} leaves out no repeated texts")
        settings = BuildSettings(
            manifest.factory, max_memory=arguments.max_memory, passages=Passages.of(manifest.passages)
        )
        _announce(source.estimate(index.encoder, settings), path)
        _say_resumed(0 if arguments.restart else resumable_rows(Path(path), arguments.change))
        write = index.add if arguments.change == "add" else index.upsert
        with ProgressBar(source.corpus.total_bytes) as bar:

            def report(progress: Progress) -> None:
                begun(progress)
                bar.update(progress)

            written = write(
                source.corpus,
                restart=arguments.restart,
                max_memory=arguments.max_memory,
                on_error=source.on_error,
                progress=report,
            )
        replaced = (
            f", {written.replaced:,} earlier {'one' if written.replaced == 1 else 'ones'} replaced"
            if written.replaced
            else ""
        )
        if written.unchanged:
            replaced += f", {written.unchanged:,} unchanged"
        what = "passage" if index.generation.manifest.passages else "document"
        left_out = f"{source.left_out()}{_strange(index.encoder)}"
        show(
            f"{printable(path)}: {plural(written.documents, what)} added{replaced} "
            f"{in_time(time.perf_counter() - begin, written.documents)}{left_out}; {len(index):,} in all"
        )
    return EXIT_OK
