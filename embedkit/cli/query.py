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
from ..index import Index, ModelMismatchError, SearchStats, rerank
from ..index.search.device import DEVICES
from .common import (
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    add_threads,
    integer,
    load_index_encoder,
    print_json,
    show,
)
from .terminal import printable, table

if TYPE_CHECKING:
    from .. import CrossEncoder
    from ..index import Hit

_QUERIES_AT_ONCE = 256


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    query = commands.add_parser("query", help="find the documents closest to a text")
    query.set_defaults(run=_query, more="texts")
    query.add_argument("index", metavar="INDEX", help="index folder")
    query.add_argument("texts", nargs="*", metavar="TEXT", help="a query")
    query.add_argument("--file", metavar="FILE", help="read a query per line from FILE; - is standard input")
    query.add_argument(
        "-k",
        type=integer(partial(check_positive, "k")),
        default=10,
        help="documents per query (default: 10)",
    )
    query.add_argument(
        "--where",
        metavar="CONDITION",
        help="only documents whose fields fulfil it, such as \"lang = 'en' and year > 2019\"",
    )
    query.add_argument(
        "--hybrid", action="store_true", help="also search for the words, and fuse the two rankings"
    )
    query.add_argument(
        "--nprobe",
        type=integer(partial(check_positive, "nprobe")),
        metavar="N",
        help="inverted lists to visit (default: as built)",
    )
    query.add_argument(
        "--ef",
        type=integer(partial(check_positive, "ef")),
        metavar="N",
        help="candidates that HNSW keeps (default: as built)",
    )
    query.add_argument(
        "--rescore",
        type=integer(partial(check_positive, "rescore")),
        metavar="F",
        help="take F x k documents by their quantized codes, and rank them by their vectors",
    )
    query.add_argument(
        "--rerank", metavar="M", help="order what is found by this cross-encoder, a folder or Hub id"
    )
    query.add_argument(
        "--candidates",
        type=integer(partial(check_positive, "candidates")),
        default=50,
        metavar="N",
        help="documents per query that --rerank scores (default: 50)",
    )
    query.add_argument("--json", action="store_true", help="print a JSON object per document found")
    query.add_argument(
        "--stats", action="store_true", help="say on stderr how many queries a second, and where time went"
    )
    query.add_argument("--model", metavar="M", help="where the index' model is now, if it was moved")
    query.add_argument("--force", action="store_true", help="take another model than the index', and warn")
    query.add_argument(
        "--device",
        choices=DEVICES,
        default="cpu",
        help="where queries are encoded and searched (default: cpu)",
    )
    add_threads(query)


def _query(arguments: argparse.Namespace) -> int:
    if bool(arguments.texts) == bool(arguments.file):
        raise CommandError(EXIT_USAGE, "give queries as arguments or with --file, one of them")
    reranker = _open_reranker(arguments.rerank, arguments.threads)
    index = Index.open(
        arguments.index,
        arguments.model,
        threads=arguments.threads,
        device=arguments.device,
        force=arguments.force,
    )
    stats = SearchStats()
    with index:
        texts: Iterator[str]
        if arguments.file is None:
            texts = (_checked_query(text, f"query {at}") for at, text in enumerate(arguments.texts, 1))
        else:
            texts = _queries_from(arguments.file)
        labelled = arguments.file is not None or len(arguments.texts) > 1
        asked: list[str] = []
        try:
            found = _search(index, texts, asked, arguments, reranker=reranker, stats=stats)
            for number, hits in enumerate(found, 1):
                if arguments.json:
                    _print_json_lines(asked[number - 1], hits)
                else:
                    _print_table(
                        f"{number}. {asked[number - 1]}" if labelled else None, hits, first=number == 1
                    )
        except (InputError, ModelMismatchError):
            raise
        except ValueError as error:  # k, nprobe, the condition, …
            raise CommandError(EXIT_USAGE, str(error)) from None
    if not asked:
        raise CommandError(EXIT_USAGE, f"{arguments.file}: no query in it")
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
    """The hits of each text; ``asked`` gets the texts, before their hits come."""
    load_index_encoder(index)

    def blocks() -> Iterator[list[str]]:
        while block := list(islice(texts, _QUERIES_AT_ONCE)):
            asked.extend(block)
            yield block

    found = index.search_stream(
        blocks(),
        arguments.k if reranker is None else max(arguments.k, arguments.candidates),
        stats=stats,
        nprobe=arguments.nprobe,
        ef=arguments.ef,
        rescore=arguments.rescore,
        where=arguments.where,
        hybrid=arguments.hybrid,
    )
    done = 0
    for hits in found:
        queries = asked[done : done + len(hits)]
        done += len(hits)
        yield from hits if reranker is None else rerank(reranker, queries, hits, arguments.k)


def _open_reranker(model: str | None, threads: int | None) -> CrossEncoder | None:
    if model is None:
        return None
    from .. import CrossEncoder

    try:
        opened = CrossEncoder(model, threads=threads)
        rerank(opened, [], [], 1)  # refuses a model of several classes before anything is searched
    except (ValueError, FileNotFoundError) as error:
        raise CommandError(EXIT_USAGE, f"the reranker cannot be loaded: {error}") from error
    return opened


def _checked_query(text: str, origin: str) -> str:
    if not text.strip():
        raise InputError(origin, "the query is empty")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError(origin, "the query is not valid UTF-8")
    return text


def _queries_from(path: str) -> Iterator[str]:
    """The queries in a file, blank lines left out."""
    for document in Corpus([path], format="txt"):
        yield _checked_query(document.text, document.origin)


def _print_table(label: str | None, hits: list[Hit], *, first: bool) -> None:
    # without a terminal (a file, a pipe) nothing is cut
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if not first:
        print()
    if label is not None:
        show(printable(label))
    if not hits:
        print("no document found")
        return
    rows = [(str(hit.rank), f"{hit.score:.4f}", hit.id, hit.text) for hit in hits]
    for line in table(("rank", "score", "id", "text"), rows, columns):
        show(line)


def _print_json_lines(query: str, hits: Iterable[Hit]) -> None:
    for hit in hits:
        print_json(
            {
                "query": query,
                "rank": hit.rank,
                "score": round(hit.score, 6),
                "id": hit.id,
                "text": hit.text,
                "metadata": hit.metadata,
            }
        )
