"""``embedkit-index``: build an index of texts, query it, and look at it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from embedkit import __version__
from embedkit.arguments import check_positive, check_threads
from embedkit.index import (
    Index,
    IndexExistsError,
    IndexNotFoundError,
    InputError,
    ModelMismatchError,
)
from embedkit.index.faiss_index import import_faiss
from embedkit.index.manifest import METRICS
from embedkit.readers import FORMATS, Corpus
from embedkit.rerank import rerank
from embedkit.terminal import ProgressBar, printable, table

if TYPE_CHECKING:
    from embedkit import CrossEncoder, Encoder
    from embedkit.index import Hit
    from embedkit.index.ingest import OnError

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_REPORTED_LINES = 20  # malformed lines shown one by one; further ones are only counted
_QUERIES_AT_ONCE = 256

_EPILOG = """\
examples:
  embedkit-index build articles.jsonl notes.txt.gz -o my-index
  embedkit-index query my-index "how do I reset my password?" -k 3
  zcat big.jsonl.gz | embedkit-index build - --format jsonl --on-error skip -o my-index

exit codes:
  0  done
  1  failed while running: disk full, damaged index, another model, …
  2  wrong usage or input: no such file, a malformed line, an index that exists, …
  130  stopped by Ctrl-C
"""


class _CommandError(Exception):
    """Ends the command with a message and an exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``embedkit-index`` with ``argv`` (default: the process' arguments) and return its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who called, as by >&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    try:
        arguments = _parse(argv)
    except SystemExit as stop:  # argparse has printed help or what is wrong
        return int(stop.code or 0)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: _complain(f"warning: {message}")
            code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader (head, less) has seen enough. The interpreter flushes stdout once more when it exits.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except KeyboardInterrupt:
        _complain("interrupted")
        return EXIT_INTERRUPTED
    except _CommandError as error:
        _complain(str(error))
        return error.code
    except (InputError, IndexExistsError, IndexNotFoundError) as error:
        _complain(str(error))
        return EXIT_USAGE
    except MemoryError as error:
        _complain(f"out of memory: {error}".removesuffix(": "))
        return EXIT_FAILED
    except (ModelMismatchError, ImportError, OSError, RuntimeError, TypeError) as error:
        _complain(str(error))  # BuildError and IndexDamagedError are RuntimeErrors
        return EXIT_FAILED


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    # argparse ends a list of positionals at the first option; what comes after it belongs to the list too.
    more = {_query: "texts", _build: "inputs"}.get(arguments.run)
    if rest and (more is None or any(word.startswith("-") and word != "-" for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if more is not None:
        getattr(arguments, more).extend(rest)
    return arguments


def _add_threads(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--threads", type=_integer(check_threads), metavar="N", help="threads (default: all processors)"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="embedkit-index",
        description="Build an index of texts, and find the ones that mean the same as a query.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"embedkit-index {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    build = commands.add_parser(
        "build", help="encode texts and write an index", description=_BUILD_DESCRIPTION
    )
    build.set_defaults(run=_build)
    build.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help=".txt, .jsonl, .csv or .tsv, also with .gz; - is standard input",
    )
    build.add_argument("-o", "--output", required=True, metavar="INDEX", help="folder to write")
    build.add_argument("--overwrite", action="store_true", help="replace the index that is there")
    build.add_argument("--model", metavar="M", help="model folder or Hub id (default: the built-in model)")
    build.add_argument("--precision", default="auto", help="fp32, int8 or auto, the model's own (default)")
    build.add_argument(
        "--format", choices=FORMATS, help="format of every input (default: by name; txt for -)"
    )
    build.add_argument("--text-field", default="text", metavar="F", help="field or column to index (text)")
    build.add_argument(
        "--id-field",
        metavar="F",
        help="field or column of ids (default: id where there is one, else file:line)",
    )
    build.add_argument(
        "--factory",
        default="auto",
        help="Faiss index: Flat, IVF1024,Flat, …; auto (default) is Flat below 20,000 documents, else IVF",
    )
    build.add_argument("--metric", choices=METRICS, default="cosine", help="similarity (default: cosine)")
    _add_threads(build)
    build.add_argument(
        "--on-error", choices=("stop", "skip"), default="stop", help="at a malformed line (default: stop)"
    )

    query = commands.add_parser("query", help="find the documents closest to a text")
    query.set_defaults(run=_query)
    query.add_argument("index", metavar="INDEX", help="index folder")
    query.add_argument("texts", nargs="*", metavar="TEXT", help="a query")
    query.add_argument("--file", metavar="FILE", help="read a query per line from FILE; - is standard input")
    query.add_argument(
        "-k",
        type=_integer(partial(check_positive, "k")),
        default=10,
        help="documents per query (default: 10)",
    )
    query.add_argument(
        "--nprobe",
        type=_integer(partial(check_positive, "nprobe")),
        metavar="N",
        help="inverted lists to visit (default: as built)",
    )
    query.add_argument("--json", action="store_true", help="print a JSON object per document found")
    query.add_argument("--model", metavar="M", help="where the index' model is now, if it was moved")
    query.add_argument(
        "--rerank", metavar="M", help="order what is found by this cross-encoder, a folder or Hub id"
    )
    query.add_argument(
        "--candidates",
        type=_integer(partial(check_positive, "candidates")),
        default=50,
        metavar="N",
        help="documents per query that --rerank scores (default: 50)",
    )
    _add_threads(query)

    info = commands.add_parser("info", help="say what an index holds")
    info.set_defaults(run=_info)
    info.add_argument("index", metavar="INDEX", help="index folder")
    info.add_argument("--json", action="store_true", help="print a JSON object")
    info.add_argument("--verify", action="store_true", help="compare every file with its checksum first")
    return parser


_BUILD_DESCRIPTION = """Encode the texts of all inputs and write an index of them. Documents stream, so a
corpus may be larger than memory; the finished index' vectors must fit (4 bytes x dimension x documents).
Blank texts are skipped and counted. The index appears when it is complete, or not at all."""


def _integer(check: Callable[[Any], int]) -> Callable[[str], int]:
    """A type for argparse: an integer that ``check`` accepts."""

    def parse(text: str) -> int:
        value: int | str = text
        with contextlib.suppress(ValueError):  # then the check says what is wrong with the text
            value = int(text)
        try:
            return check(value)
        except (TypeError, ValueError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _build(arguments: argparse.Namespace) -> int:
    skipped = 0

    def skip(error: InputError) -> None:
        nonlocal skipped
        skipped += 1
        if skipped <= _REPORTED_LINES:
            _complain(f"skipped: {error}")
        if skipped == _REPORTED_LINES:
            _complain("further malformed lines are only counted")

    on_error: OnError = skip if arguments.on_error == "skip" else "stop"
    corpus = Corpus(
        arguments.inputs,
        format=arguments.format,
        text_field=arguments.text_field,
        id_field=arguments.id_field,
        on_error=on_error,
    )
    if not arguments.overwrite and os.path.exists(os.path.join(arguments.output, "CURRENT")):
        raise IndexExistsError(f"{arguments.output}: an index exists there; pass --overwrite to replace it")
    import_faiss()  # before the model is loaded: what is missing should be said at once
    encoder = _load_encoder(arguments.model, arguments.precision, arguments.threads)
    begin = time.perf_counter()
    try:
        with (
            ProgressBar(corpus.total_bytes) as bar,
            Index.build(
                arguments.output,
                corpus,
                encoder,
                factory=arguments.factory,
                metric=arguments.metric,
                overwrite=arguments.overwrite,
                threads=arguments.threads,
                on_error=on_error,
                progress=bar.update,
            ) as index,
        ):
            info = index.info()
    except KeyboardInterrupt:
        raise _CommandError(
            EXIT_INTERRUPTED, f"interrupted: nothing was written to {arguments.output}"
        ) from None
    except InputError as error:
        hint = "" if not error.skippable else " (--on-error skip leaves malformed lines out)"
        raise _CommandError(EXIT_USAGE, f"{error}{hint}; nothing was written to {arguments.output}") from None
    except (ModelMismatchError, IndexExistsError):
        raise
    except ValueError as error:  # the factory
        raise _CommandError(EXIT_USAGE, str(error)) from None
    seconds = time.perf_counter() - begin
    left_out = [
        f"{count:,} {what}{'' if count == 1 else 's'} skipped"
        for count, what in ((corpus.blank, "blank text"), (skipped, "malformed line"))
        if count
    ]
    _show(
        f"{printable(arguments.output)}: {info['documents']:,} documents in {seconds:.1f} s "
        f"({info['documents'] / seconds:,.0f}/s)"
        + "".join(f", {part}" for part in left_out)
        + f"; {info['factory']}, {info['dimension']} dimensions, {_size(info['bytes'])}"
    )
    return EXIT_OK


def _load_encoder(model: str | None, precision: str, threads: int | None) -> Encoder:
    from embedkit import Encoder

    try:
        return Encoder(model, precision=precision, threads=threads)
    except (ValueError, FileNotFoundError) as error:
        raise _CommandError(EXIT_USAGE, f"the model cannot be loaded: {error}") from error


def _query(arguments: argparse.Namespace) -> int:
    if bool(arguments.texts) == bool(arguments.file):
        raise _CommandError(EXIT_USAGE, "give queries as arguments or with --file, one of them")
    reranker = _open_reranker(arguments.rerank, arguments.threads)
    with Index.open(arguments.index, arguments.model, threads=arguments.threads) as index:
        texts: Iterator[str]
        if arguments.file is None:
            texts = (_checked_query(text, f"query {at}") for at, text in enumerate(arguments.texts, 1))
        else:
            texts = _queries_from(arguments.file)
        labelled = arguments.file is not None or len(arguments.texts) > 1
        number = 0
        while block := list(islice(texts, _QUERIES_AT_ONCE)):
            k = arguments.k if reranker is None else max(arguments.k, arguments.candidates)
            found = _search(index, block, arguments, k)
            if reranker is not None:
                found = rerank(reranker, block, found, arguments.k)
            for text, hits in zip(block, found, strict=True):
                number += 1
                if arguments.json:
                    _print_json_lines(text, hits)
                else:
                    _print_table(f"{number}. {text}" if labelled else None, hits, first=number == 1)
        if number == 0:
            raise _CommandError(EXIT_USAGE, f"{arguments.file}: no query in it")
    return EXIT_OK


def _open_reranker(model: str | None, threads: int | None) -> CrossEncoder | None:
    if model is None:
        return None
    from embedkit import CrossEncoder

    try:
        opened = CrossEncoder(model, threads=threads)
        rerank(opened, [], [], 1)  # refuses a model of several classes before anything is searched
    except (ValueError, FileNotFoundError) as error:
        raise _CommandError(EXIT_USAGE, f"the reranker cannot be loaded: {error}") from error
    return opened


def _search(index: Index, texts: list[str], arguments: argparse.Namespace, k: int) -> list[list[Hit]]:
    try:
        index.encoder  # noqa: B018 (loads the model)
    except (ValueError, FileNotFoundError) as error:
        if isinstance(error, ModelMismatchError):
            raise
        hint = "; if it was moved, say where with --model" if isinstance(error, FileNotFoundError) else ""
        raise _CommandError(EXIT_FAILED, f"the index' model cannot be loaded: {error}{hint}") from error
    try:
        return index.search(texts, k, nprobe=arguments.nprobe)
    except ValueError as error:
        raise _CommandError(EXIT_USAGE, str(error)) from None


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
        _show(printable(label))
    if not hits:
        print("no document found; try a larger --nprobe")
        return
    rows = [(str(hit.rank), f"{hit.score:.4f}", hit.id, hit.text) for hit in hits]
    for line in table(("rank", "score", "id", "text"), rows, columns):
        _show(line)


def _show(line: str) -> None:
    """Print ``line``, with ? for what stdout's encoding lacks."""
    encoding = sys.stdout.encoding or "utf-8"
    print(line.encode(encoding, "replace").decode(encoding))


def _print_json_lines(query: str, hits: Iterable[Hit]) -> None:
    for hit in hits:
        _print_json(
            {
                "query": query,
                "rank": hit.rank,
                "score": round(hit.score, 6),
                "id": hit.id,
                "text": hit.text,
                "metadata": hit.metadata,
            }
        )


def _print_json(value: dict[str, Any], indent: int | None = None) -> None:
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(value, ensure_ascii=not utf8, indent=indent)
    # JSON leaves DEL and the C1 controls as they are, and some terminals obey them
    print(re.sub("[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", text))


def _info(arguments: argparse.Namespace) -> int:
    with Index.open(arguments.index) as index:
        info = index.info()
        if arguments.verify:
            index.verify()
            info["verified"] = True
    if arguments.json:
        _print_json(info, indent=2)
        return EXIT_OK
    info["bytes"] = f"{info['bytes']} ({_size(info['bytes'])})"
    width = max(map(len, info))
    for name, value in info.items():
        if value is not None and value != "":
            _show(f"{name:<{width}}  {printable(str(value))}")
    return EXIT_OK


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _complain(message: str) -> None:
    # Ids, paths and JSON excerpts in messages come from files: none of it may steer the terminal.
    text = printable(message)
    with contextlib.suppress(OSError):
        print(f"embedkit-index: {text}", file=sys.stderr)
