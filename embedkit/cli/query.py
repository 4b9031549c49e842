"""``embedkit-index query``: find documents."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..arguments import check_positive
from ..documents import InputError
from ..documents.readers import Corpus
from ..index import Index, SearchStats, rerank
from ..index.search.hits import hit_fields
from ..index.search.hybrid import check_weight
from ..index.search.rerank import CANDIDATES
from ..index.storage.faiss_gpu import check_gpu
from .common import (
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    add_index_model,
    add_threads,
    complain,
    given,
    integer,
    load_index_encoder,
    note_old_words,
    open_reranker,
    print_json,
    show_result,
)
from .terminal import printable, shown_id, table

if TYPE_CHECKING:
    from .. import CrossEncoder
    from ..index import Hit
    from ..index.search.hybrid import Parts

__all__ = ["add_commands"]

_QUERIES_AT_ONCE = 256


_REMEDIES = {
    ("texts", "length"): "shorten the query",
    ("pairs", "length"): "build --passages 120:30 makes shorter texts",
    ("texts", "script"): "an index of a multilingual model finds them: reembed --model {multilingual}",
}


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    query = commands.add_parser("query", help="find the documents closest to a text")
    query.set_defaults(run=_query, more="texts", remedies=_REMEDIES)
    query.add_argument("index", metavar="INDEX", type=given, help="index folder")
    query.add_argument("texts", nargs="*", metavar="TEXT", help="a query")
    query.add_argument(
        "--file", type=given, metavar="FILE", help="read queries from FILE, one per line; - is standard input"
    )
    _add_number(query, "-k", "documents per query (default: 10)", default=10)
    query.add_argument(
        "--where",
        metavar="CONDITION",
        help="find only documents that match, e.g. \"lang = 'en' and year > 2019\"",
    )
    query.add_argument(
        "--hybrid",
        action=argparse.BooleanOptionalAction,
        help="score by meaning and by words (BM25), or with --no-hybrid by meaning only (default: by both, if the "
        "index has the words)",
    )
    query.add_argument(
        "--per-document", action="store_true", help="of passages, find the best one of each document"
    )
    query.add_argument(
        "--words-weight",
        type=_weight,
        metavar="W",
        help="weight of the words in a hybrid score, 0 to 1 (default: 0.6)",
    )
    query.add_argument("--explain", action="store_true", help="show what each score is made of")
    _add_number(query, "--nprobe", "IVF: inverted lists to search (default: that of the index)")
    _add_number(query, "--ef", "HNSW: candidates to keep (default: that of the index)")
    _add_number(
        query,
        "--rescore",
        "quantized: rank N x k candidates by their vectors; 0 for none (default: that of the index)",
        zero=True,
    )
    query.add_argument(
        "--rerank", metavar="MODEL", help="rerank the results with this cross-encoder, a folder or Hub id"
    )
    _add_number(query, "--candidates", "documents per query to rerank, at least those of -k (default: 50)")
    query.add_argument("--json", action="store_true", help="print one JSON object per result")
    query.add_argument(
        "--stats", action="store_true", help="print queries per second and where the time went to stderr"
    )
    add_index_model(query)
    query.add_argument(
        "--force", action="store_true", help="accept a different model than the index's, with a warning"
    )
    query.add_argument(
        "--device",
        default="cpu",
        help="where to encode and search queries: cpu (default), cuda, cuda:1, …",
    )
    add_threads(query)


def _add_number(
    command: argparse.ArgumentParser,
    option: str,
    help: str,
    default: int | None = None,
    *,
    zero: bool = False,
) -> None:
    """Add an option that takes a positive integer, or with ``zero`` also 0."""
    check = partial(check_positive, option.lstrip("-"), least=0 if zero else 1)
    command.add_argument(option, type=integer(check), default=default, metavar="N", help=help)


def _weight(text: str) -> float:
    try:
        return check_weight(float(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 0 to 1") from None


def _query(arguments: argparse.Namespace) -> int:
    if bool(arguments.texts) == bool(arguments.file):
        raise CommandError(EXIT_USAGE, "give queries either as arguments or with --file")
    if arguments.hybrid is False and arguments.words_weight is not None:
        raise CommandError(
            EXIT_USAGE, "--words-weight is for a hybrid search, which --no-hybrid switches off"
        )
    if arguments.candidates is not None and arguments.rerank is None:
        raise CommandError(
            EXIT_USAGE, "--candidates is how many documents --rerank reranks: it needs both options"
        )
    try:
        check_gpu(arguments.device)
    except (ValueError, ImportError, RuntimeError) as error:  # wrong usage, as for build
        raise CommandError(EXIT_USAGE, str(error)) from None
    reranker = open_reranker(arguments.rerank, arguments.threads)
    stats = SearchStats()
    with Index.open(
        arguments.index,
        arguments.model,
        threads=arguments.threads,
        device=arguments.device,
        force=arguments.force,
    ) as index:
        texts: Iterator[str]
        if arguments.file is None:
            texts = (_checked_query(text, f"query {at}") for at, text in enumerate(arguments.texts, 1))
        else:
            texts = _queries_from(arguments.file)
        labeled = arguments.file is not None or len(arguments.texts) > 1
        asked: list[str] = []
        found = _search(index, texts, asked, arguments, reranker=reranker, stats=stats)
        empty = True
        for number, hits in enumerate(found, 1):
            empty = empty and not hits
            if arguments.json:
                _print_json_lines(asked[number - 1], hits, explain=arguments.explain)
            else:
                label = f"{number}. {asked[number - 1]}" if labeled else None
                _print_table(label, hits, first=number == 1, explain=arguments.explain)
        if empty and arguments.where is not None and (why := index.generation.why_empty(arguments.where)):
            complain(f"note: {why}")
    if not asked:
        raise CommandError(EXIT_USAGE, f"{arguments.file}: contains no queries")
    if arguments.stats:
        print(f"embedkit-index: {stats}", file=sys.stderr)
    return EXIT_OK


def _search(
    index: Index,
    texts: Iterator[str],
    asked: list[str],
    arguments: argparse.Namespace,
    *,
    reranker: CrossEncoder | None,
    stats: SearchStats,
) -> Iterator[list[Hit]]:
    """The hits of each text; a text is appended to ``asked`` before its hits are yielded."""
    load_index_encoder(index)
    if arguments.hybrid is not False:
        note_old_words(index, arguments.index)

    def blocks() -> Iterator[list[str]]:
        while block := list(islice(texts, _QUERIES_AT_ONCE)):
            asked.extend(block)
            yield block

    found = index.search_stream(
        blocks(),
        arguments.k if reranker is None else max(arguments.k, arguments.candidates or CANDIDATES),
        stats=stats,
        nprobe=arguments.nprobe,
        ef=arguments.ef,
        rescore=arguments.rescore,
        where=arguments.where,
        hybrid=arguments.hybrid if arguments.words_weight is None else arguments.words_weight,
        per_document=arguments.per_document,
    )
    done = 0
    for hits in found:
        queries = asked[done : done + len(hits)]
        done += len(hits)
        yield from hits if reranker is None else rerank(reranker, queries, hits, arguments.k)


def _checked_query(text: str, origin: str) -> str:
    if not text.strip():
        raise InputError(origin, "the query is empty")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError(origin, "the query is not valid UTF-8")
    return text


def _queries_from(path: str) -> Iterator[str]:
    """The queries in a file, without blank lines."""
    for document in Corpus([path], format="txt"):
        yield _checked_query(document.text, document.origin)


def _print_table(label: str | None, hits: list[Hit], *, first: bool, explain: bool) -> None:
    # nothing is cut in a file or a pipe
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if not first:
        show_result("")
    if label is not None:
        show_result(printable(label))
    if not hits:
        show_result("no document found")
        return
    explain = explain and hits[0].parts is not None
    header = ("rank", "score", *(_PARTS if explain else ()), "id", "text")
    rows = [
        (
            str(hit.rank),
            f"{hit.score:.4f}",
            *(_shown(hit.parts) if explain else ()),
            shown_id(hit.id),
            hit.text,
        )
        for hit in hits
    ]
    for line in table(header, rows, columns, numbers=len(header) - 2):
        show_result(line)


_PARTS = ("vector", "words", "similarity", "bm25")


def _shown(parts: Parts | None) -> tuple[str, ...]:
    values = [None if parts is None else getattr(parts, name) for name in _PARTS]
    return tuple("-" if value is None else f"{value:.4f}" for value in values)


def _print_json_lines(query: str, hits: Iterable[Hit], *, explain: bool) -> None:
    for hit in hits:
        fields = hit_fields(hit, explain=explain)
        print_json({"query": query, **fields, "score": round(hit.score, 6)})
