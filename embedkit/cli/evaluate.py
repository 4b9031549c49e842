"""``embedkit-index eval``: quality, speed and size of searches on one's own queries and judgments."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..arguments import check_positive
from ..documents import InputError
from ..documents.readers import FORMATS, Corpus
from ..files import link_or_copy
from ..index import BuildError, BuildSettings, Index
from ..index.build.memory import DEFAULT_MAX_MEMORY
from ..index.build.publish import storage_of
from ..index.evaluate import Judgments, Measured, Search, evaluate, read_judgments, read_pairs
from ..index.evaluate.plot import plot_quality
from ..index.figure import check_plot
from ..index.storage.faiss_index import AUTO, AUTOMATIC, create_index
from ..index.storage.layout import CURRENT_FILE
from .common import (
    EXIT_OK,
    EXIT_USAGE,
    TASKS,
    CommandError,
    add_language,
    add_max_memory,
    add_prompts,
    add_threads,
    complain,
    given,
    integer,
    load_encoder,
    load_index_encoder,
    note_old_words,
    open_reranker,
    plural,
    print_json,
    prompts_of_models,
    show,
    size,
)
from .terminal import table

__all__ = ["add_commands"]

_TEXT_FIELD = "text"

_DESCRIPTION = """Search for your own queries, and compare what is found with your own judgments. INPUT is an index, or
files of documents: then an index is built in a temporary folder for each model, precision and kind of index that is
named. Each is searched by vectors, by vectors and words, and with --rerank by both and a cross-encoder."""

_EPILOG = """\
--queries: BEIR's .jsonl (_id and text), or any table with id and text that build reads
--qrels:   lines of 'query 0 document relevance' (TREC) or 'query document relevance' (BEIR), or .jsonl with query_id,
           doc_id and relevance
--pairs:   lines of a query, a tab and the id of a document that answers it, or .jsonl with query and id
"""


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "eval",
        help="measure quality, speed and size with your own queries",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=_evaluate, more="inputs")
    command.add_argument(
        "inputs", nargs="+", metavar="INPUT", type=given, help="an index folder, or files of documents"
    )
    command.add_argument("--queries", type=given, metavar="FILE", help="queries with their ids")
    command.add_argument("--qrels", type=given, metavar="FILE", help="judgments of these queries")
    command.add_argument(
        "--pairs", type=given, metavar="FILE", help="instead of both: queries with the id of an answer"
    )
    command.add_argument(
        "--model",
        action="append",
        metavar="M",
        help="model folder or Hub id; may be repeated (default: built-in)",
    )
    add_prompts(command, "; once for all models, or once for each --model", action="append")
    command.add_argument(
        "--precision",
        action="append",
        metavar="P",
        help="fp32, bf16, int8 or auto (default); may be repeated",
    )
    command.add_argument(
        "--factory",
        action="append",
        metavar="F",
        help="Faiss index as in build (default: auto); may be repeated",
    )
    command.add_argument("--rerank", metavar="MODEL", help="rerank with this cross-encoder, too")
    count = integer(partial(check_positive, "k"))
    command.add_argument(
        "-k",
        type=count,
        action="append",
        metavar="N",
        help="measure recall@N; may be repeated (default: 10, 100)",
    )
    command.add_argument("--format", choices=FORMATS, help="format of the documents (default: by file name)")
    command.add_argument(
        "--text-field", type=given, default=_TEXT_FIELD, metavar="F", help="field of the text (default: text)"
    )
    command.add_argument("--id-field", type=given, metavar="F", help="field of the id (default: id)")
    add_language(command, AUTO, "language of the texts, for the words of hybrid search (default: auto)")
    command.add_argument(
        "--plot", type=given, metavar="FILE", help="plot quality against time (.png, .svg or .pdf)"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object per line of the table")
    add_max_memory(command)
    add_threads(command)


def _evaluate(arguments: argparse.Namespace) -> int:
    judgments = _judgments(arguments)
    if arguments.plot is not None:
        check_plot(arguments.plot)
    searches = [Search("vectors", hybrid=False), Search("hybrid", hybrid=True)]
    reranker = open_reranker(arguments.rerank, arguments.threads)
    if reranker is not None:
        searches.append(Search("reranked", hybrid=True, reranker=reranker))
    ks = arguments.k or [10, 100]
    rows: list[dict[str, Any]] = []
    for index, about in _indexes(arguments):
        words = index.generation.searches_words  # without them, what is reranked is found by vectors
        usable = [
            replace(one, hybrid=one.hybrid and words)
            for one in searches
            if words or not one.hybrid or one.reranker is not None
        ]
        try:
            rows += [{**about, **_flat(measured)} for measured in evaluate(index, judgments, usable, ks=ks)]
        except InputError as error:
            if _is_index(arguments):
                raise
            raise InputError(
                "", f"{error}; --id-field says which field of the documents holds them"
            ) from None
    if not rows:
        raise CommandError(EXIT_USAGE, "no index could be built")
    try:  # before the table, whose reader may be gone
        if arguments.plot is not None:
            points = [(_name(row, rows), row["search"], row["ms"], row["ndcg@10"]) for row in rows]
            title = f"{plural(len(judgments.queries), 'query')}, {plural(rows[0]['documents'], 'document')}"
            plot_quality(arguments.plot, points, title=title)
    finally:
        if arguments.json:
            for row in rows:
                print_json(row)
        else:
            _show_table(rows, ks, judgments)
    return EXIT_OK


def _judgments(arguments: argparse.Namespace) -> Judgments:
    both = arguments.queries is not None and arguments.qrels is not None
    either = arguments.queries is not None or arguments.qrels is not None
    if (arguments.pairs is not None) == either or (either and not both):
        raise CommandError(EXIT_USAGE, "give --queries and --qrels, or --pairs")
    if arguments.pairs is not None:
        return read_pairs(arguments.pairs)
    return read_judgments(arguments.queries, arguments.qrels)


def _indexes(arguments: argparse.Namespace) -> Iterator[tuple[Index, dict[str, Any]]]:
    """Each index to measure, and what the table says of it."""
    if _is_index(arguments):
        folder = Path(arguments.inputs[0])
        _check_options_of_an_index(arguments, folder)
        model = arguments.model[0] if arguments.model else None
        with Index.open(folder, model, threads=arguments.threads) as index:
            load_index_encoder(index)
            note_old_words(index, folder)
            yield index, _about(index, None)
        return
    factories = list(dict.fromkeys(arguments.factory or [AUTO]))
    models = arguments.model or [None]
    each = zip(models, prompts_of_models(arguments, len(models)), strict=True)
    for model, prompts in {(model, *prompts.items()): (model, prompts) for model, prompts in each}.values():
        for precision in dict.fromkeys(arguments.precision or ["auto"]):
            encoder = load_encoder(model, precision, arguments.threads, prompts=prompts)
            for factory in factories:  # a misspelled one fails before anything is encoded
                if factory not in AUTOMATIC:
                    create_index(factory, encoder.get_embedding_dimension())
            with tempfile.TemporaryDirectory(prefix="embedkit-eval-") as work:
                named = [storage_of(encoder, BuildSettings(factory))[0] for factory in factories]
                yield from _built(arguments, encoder, list(dict.fromkeys(named)), Path(work) / "index")


def _is_index(arguments: argparse.Namespace) -> bool:
    return len(arguments.inputs) == 1 and (Path(arguments.inputs[0]) / CURRENT_FILE).exists()


def _check_options_of_an_index(arguments: argparse.Namespace, folder: Path) -> None:
    """Refuse options that say how an index is built."""
    unset = {"text_field": _TEXT_FIELD, "language": AUTO, "max_memory": DEFAULT_MAX_MEMORY}
    for name in (
        "query_prompt",
        "document_prompt",
        "precision",
        "factory",
        "format",
        "text_field",
        "id_field",
        "language",
        "max_memory",
    ):
        if getattr(arguments, name) != unset.get(name):
            option = name.replace("_", "-")
            raise CommandError(EXIT_USAGE, f"--{option} does not apply: {folder} is an index")
    if len(arguments.model or ()) > 1:
        raise CommandError(EXIT_USAGE, f"give --model once: {folder} is an index, which has one model")


def _built(
    arguments: argparse.Namespace, encoder: Any, factories: list[str], path: Path
) -> Iterator[tuple[Index, dict[str, Any]]]:
    """An index of the documents as each kind; they are encoded once."""
    corpus = Corpus(
        arguments.inputs,
        format=arguments.format,
        text_field=arguments.text_field,
        id_field=arguments.id_field,
        options=("--format", "--text-field", "--id-field"),
    )
    settings = BuildSettings(
        "Flat", max_memory=arguments.max_memory, threads=arguments.threads, language=arguments.language
    )
    begin = time.perf_counter()
    with Index.build_with(path, corpus, encoder, settings) as index:
        rate = len(index) / (time.perf_counter() - begin)
    for number, factory in enumerate(factories):
        # each is made of the vectors as they were encoded: one before it may have kept only their codes
        own = path.with_name(f"{path.name}-{number}")
        shutil.copytree(path, own, copy_function=link_or_copy)
        with Index.open(own, encoder, threads=arguments.threads) as index:
            try:
                index.compact(factory=factory, max_memory=arguments.max_memory)
            except BuildError as error:  # too few documents for its lists
                complain(f"{factory}: left out: {error}")
            else:
                yield index, _about(index, rate)
        shutil.rmtree(own)


def _about(index: Index, rate: float | None) -> dict[str, Any]:
    info = index.info()
    return {
        "model": Path(info["model"]).name,
        "precision": info["precision"],
        **{f"{task}_prompt": info[f"{task}_prompt"] for task in TASKS},
        "factory": info["factory"],
        "documents": info["documents"],
        "bytes": info["bytes"],
        "documents_per_s": None if rate is None else round(rate, 1),
    }


def _flat(measured: Measured) -> dict[str, Any]:
    fields = asdict(measured)
    recalls = fields.pop("recall")
    return {
        "search": fields["search"],
        "queries": fields["queries"],
        "ndcg@10": round(fields["ndcg"], 4),
        "mrr@10": round(fields["mrr"], 4),
        **{f"recall@{k}": round(value, 4) for k, value in recalls.items()},
        "ms": round(fields["ms"], 3),
    }


def _show_table(rows: list[dict[str, Any]], ks: list[int], judgments: Judgments) -> None:
    figures = ["ndcg@10", "mrr@10", *(f"recall@{k}" for k in ks)]
    prompts = _prompts_that_differ(rows)
    told = (name.replace("_", " ") for name in prompts)
    header = (*figures, "ms/query", "docs/s", "size", "model", *told, "precision", "index", "search")
    cells = [
        (
            *(f"{row[name]:.4f}" for name in figures),
            f"{row['ms']:.2f}",
            "-" if row["documents_per_s"] is None else f"{row['documents_per_s']:,.0f}",
            size(row["bytes"]),
            row["model"],
            *(repr(row[name]) for name in prompts),
            row["precision"],
            row["factory"],
            row["search"],
        )
        for row in rows
    ]
    for line in table(header, cells, None, numbers=len(figures) + 3):
        show(line)
    best = max(row["ndcg@10"] for row in rows)
    left_out = f"; {judgments.left_out:,} without an answer left out" if judgments.left_out else ""
    show(
        f"{plural(len(judgments.queries), 'query')}, "
        f"{plural(rows[0]['documents'], 'document')}; best nDCG@10 {best:.4f}"
        f"{left_out}"
    )


def _name(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The index of ``row``, by what differs between the rows."""
    names = [name for name in ("model", "precision", "factory") if len({one[name] for one in rows}) > 1]
    prompts = (repr(row[name]) for name in _prompts_that_differ(rows))
    return " ".join((*(row[name] for name in names or ["model"]), *prompts))


def _prompts_that_differ(rows: list[dict[str, Any]]) -> list[str]:
    """The fields of prompts in which rows of one model differ, which are told apart by nothing else."""
    models = {row["model"] for row in rows}
    names = [f"{task}_prompt" for task in TASKS]
    return [name for name in names if len({(row["model"], row[name]) for row in rows}) > len(models)]
