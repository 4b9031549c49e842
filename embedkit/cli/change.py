"""``embedkit-index delete``, ``compact``, ``merge``, ``verify``, ``info``, ``import`` and ``export``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

from ..arguments import check_positive
from ..documents.readers import Corpus
from ..documents.sources import STDIN
from ..index import Index
from ..index.build.memory import DEFAULT_MAX_MEMORY
from ..index.storage.manifest import METRICS
from .common import (
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    add_index_model,
    add_language,
    add_max_memory,
    add_prompts,
    add_threads,
    complain,
    given,
    integer,
    load_encoder,
    load_index_encoder,
    plural,
    print_json,
    prompts_of,
    show,
    size,
)
from .outcome import counted
from .terminal import ProgressBar, printable

__all__ = ["add_commands"]


def add_commands(commands: Any) -> None:
    """Add the commands to the parser."""
    delete = commands.add_parser("delete", help="delete documents by id or by condition")
    delete.set_defaults(run=_delete, more="ids")
    _add_index(delete)
    delete.add_argument("ids", nargs="*", metavar="ID", help="id of a document")
    delete.add_argument(
        "--ids-file", type=given, metavar="FILE", help="read ids from FILE, one per line; - is standard input"
    )
    delete.add_argument(
        "--where", metavar="CONDITION", help="delete all that match, e.g. \"lang = 'en' and year < 2010\""
    )
    delete.add_argument("--missing-ok", action="store_true", help="ignore unknown ids")

    compact = commands.add_parser(
        "compact", help="merge all segments into one without deleted documents; nothing is encoded"
    )
    compact.set_defaults(run=_compact)
    _add_index(compact)
    compact.add_argument("--factory", help="Faiss index to build (default: as before)")
    add_language(
        compact,
        None,
        "language of the texts, whose words are made again (default: as before, unless there are several)",
    )
    add_max_memory(compact)
    add_threads(compact)

    verify = commands.add_parser(
        "verify",
        help="check the files against their checksums, ids and counts, and some vectors against the model",
    )
    verify.set_defaults(run=_verify)
    _add_index(verify)
    verify.add_argument(
        "--sample",
        type=integer(partial(check_positive, "sample", least=0)),
        default=32,
        metavar="N",
        help="documents to encode again; 0 for none, without loading the model (default: 32)",
    )
    add_index_model(verify)

    merge = commands.add_parser("merge", help="merge indexes of the same model into a new one")
    merge.set_defaults(run=_merge, more="indexes")
    merge.add_argument("indexes", nargs="+", metavar="INDEX", type=given, help="index folders")
    merge.add_argument("-o", "--output", required=True, metavar="INDEX", type=given, help="folder to write")

    info = commands.add_parser("info", help="describe an index")
    info.set_defaults(run=_info)
    _add_index(info)
    info.add_argument("--json", action="store_true", help="print a JSON object")
    info.add_argument("--verify", action="store_true", help="check every file against its checksum first")

    take = commands.add_parser("import", help="build an index from a Faiss file")
    take.set_defaults(run=_import, more="documents")
    take.add_argument(
        "file", metavar="FILE.faiss", type=given, help="a Faiss index with the inner product metric"
    )
    take.add_argument(
        "documents",
        nargs="*",
        type=given,
        metavar="INPUT",
        help="files of texts, in the order of the vectors or with their ids (default: no texts); without ids, those in "
        "FILE.faiss.ids.jsonl are taken if export has written it",
    )
    take.add_argument("-o", "--output", required=True, metavar="INDEX", type=given, help="folder to write")
    take.add_argument("--model", metavar="MODEL", help="model of the vectors (default: the built-in model)")
    add_prompts(take)
    take.add_argument(
        "--precision", default="auto", help="fp32, bf16, int8 or auto (default): that of the model"
    )
    take.add_argument("--metric", choices=METRICS, default="cosine", help="similarity (default: cosine)")
    take.add_argument(
        "--text-field",
        type=given,
        default="text",
        metavar="FIELD",
        help="field or column of the text (default: text)",
    )
    take.add_argument(
        "--id-field", type=given, metavar="FIELD", help="field or column of the id (default: id)"
    )

    export = commands.add_parser(
        "export",
        help="write the vectors to a Faiss file and their ids beside it, or everything to a parquet file",
    )
    export.set_defaults(run=_export)
    _add_index(export)
    export.add_argument(
        "file",
        type=given,
        metavar="FILE",
        help="file to write: .parquet (id, text, metadata, vector), or any other name for a Faiss index",
    )
    add_max_memory(export)
    add_threads(export)


def _add_index(command: argparse.ArgumentParser) -> None:
    command.add_argument("index", metavar="INDEX", type=given, help="index folder")


def _delete(arguments: argparse.Namespace) -> int:
    given = [bool(arguments.ids), arguments.ids_file is not None, arguments.where is not None]
    if sum(given) != 1:
        raise CommandError(EXIT_USAGE, "select documents by ids, by --ids-file or by --where")
    with Index.open(arguments.index) as index:
        ids = _lines(arguments.ids_file) if arguments.ids_file is not None else arguments.ids
        count = index.delete(
            None if arguments.where is not None else ids,
            where=arguments.where,
            missing_ok=arguments.missing_ok,
        )
        whole = index.generation.manifest.passages is None
        left = f"{len(index):,}" if whole else counted(index.info())
        show(f"{printable(arguments.index)}: {plural(count, 'document')} deleted; {left} in all")
        if not count and arguments.where is not None and (why := index.generation.why_empty(arguments.where)):
            complain(f"note: {why}")
    return EXIT_OK


def _lines(path: str) -> Iterator[str]:
    for document in Corpus([path], format="txt"):
        yield document.text


def _compact(arguments: argparse.Namespace) -> int:
    with Index.open(arguments.index, threads=arguments.threads) as index, ProgressBar(None) as bar:
        before = index.info()
        compacted = index.compact(
            factory=arguments.factory,
            language=arguments.language,
            max_memory=arguments.max_memory,
            progress=bar.update,
        )
        after = index.info()
    if not compacted:
        show(f"{printable(arguments.index)}: nothing to compact")
    else:
        show(
            f"{printable(arguments.index)}: {plural(before['segments'], 'segment')} and "
            f"{plural(before['deleted'], 'deleted document')} compacted to one segment of "
            f"{plural(after['documents'], 'document')}; {after['factory']}, {size(after['bytes'])}"
        )
    return EXIT_OK


def _verify(arguments: argparse.Namespace) -> int:
    with Index.open(arguments.index, arguments.model) as index:
        if arguments.sample:
            load_index_encoder(index)
        found = index.verify(arguments.sample)
    agreement = ""
    if found.get("encoded"):
        agreement = f"; {found['encoded']} encoded again, cosine ≥ {found['agreement']:.4f}"
    elif "encoded" in found:
        agreement = "; none encoded again: no text is stored beside its vector"
    show(
        f"{printable(arguments.index)}: {plural(found['files'], 'file')} and "
        f"{plural(found['documents'], 'document')} verified{agreement}"
    )
    return EXIT_OK


def _merge(arguments: argparse.Namespace) -> int:
    with Index.merge(arguments.output, arguments.indexes) as index:
        info = index.info()
        rootless = index.generation.manifest.named_by == "none"
    needed = (
        "; no root of file names is common to them: add and upsert need --root for files whose documents have no ids"
        if rootless
        else ""
    )
    show(
        f"{printable(arguments.output)}: {plural(info['documents'], 'document')} in "
        f"{plural(info['segments'], 'segment')}; 'embedkit-index compact' merges them{needed}"
    )
    return EXIT_OK


def _info(arguments: argparse.Namespace) -> int:
    with Index.open(arguments.index) as index:
        info = index.info()
        if arguments.verify:
            index.verify()
            info["verified"] = True
    if arguments.json:
        print_json(info, indent=2)
        return EXIT_OK
    if (tuning := info.pop("tuning")) is not None:  # the table is in the JSON
        info["target_recall"] = tuning.get("tuned", tuning).get("target_recall")
    info["words"] = info["words"] or "none"
    if info["truncated"] is None:
        info["truncated"] = "unknown"
    info["bytes"] = f"{info['bytes']} ({size(info['bytes'])})"
    width = max(map(len, info))
    for name, value in info.items():
        if value is not None and value != "":
            show(f"{name:<{width}}  {printable(str(value))}")
    return EXIT_OK


def _import(arguments: argparse.Namespace) -> int:
    documents = None
    if not arguments.documents and (arguments.text_field != "text" or arguments.id_field is not None):
        raise CommandError(
            EXIT_USAGE, "--text-field and --id-field say how INPUT is read; name its files, too"
        )
    if arguments.documents:
        documents = Corpus(
            arguments.documents,
            text_field=arguments.text_field,
            id_field=arguments.id_field,
            options=("--text-field", "--id-field"),
        )
    encoder = load_encoder(
        arguments.model,
        arguments.precision,
        None,
        prompts=prompts_of(arguments.query_prompt, arguments.document_prompt),
    )
    with Index.import_faiss(
        arguments.output, arguments.file, encoder, documents, metric=arguments.metric
    ) as index:
        show(f"{printable(arguments.output)}: {plural(len(index), 'document')} imported")
    return EXIT_OK


def _export(arguments: argparse.Namespace) -> int:
    if arguments.file == STDIN:
        raise CommandError(EXIT_USAGE, "export does not write to standard output; name a file")
    name = printable(arguments.file)
    parquet = arguments.file.lower().endswith(".parquet")
    if parquet and arguments.max_memory != DEFAULT_MAX_MEMORY:
        raise CommandError(
            EXIT_USAGE, "--max-memory is for a Faiss file; a parquet file is written piece by piece"
        )
    with Index.open(arguments.index, threads=arguments.threads) as index, ProgressBar(None) as bar:
        if parquet:
            rows = index.export_parquet(arguments.file, progress=bar.update)
            told = f"{name}: {plural(rows, 'document')}"
        else:
            rows = index.export_faiss(arguments.file, max_memory=arguments.max_memory, progress=bar.update)
            told = f"{name}: {plural(rows, 'vector')}; ids in {name}.ids.jsonl"
    show(told)
    return EXIT_OK
