"""``embedkit-index``: build an index of texts, change it, query it, and look at it."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence

from .. import __version__
from ..index import IndexExistsError, IndexNotFoundError, ModelMismatchError
from . import build, change, evaluate, picture, query, sync, tune
from .common import FAILURES, Parser, given, run

__all__ = ["main"]

_EPILOG = """\
examples:
  embedkit-index build articles.jsonl notes.txt.gz -o my-index
  embedkit-index query my-index "how do I reset my password?" -k 3 --where "lang = 'en'"
  embedkit-index upsert my-index changed.jsonl
  embedkit-index build notes -o notes-index --passages 120:30 && embedkit-index sync notes notes-index
  embedkit-index delete my-index --where "year < 2010"
  embedkit-index build big.jsonl -o big-index --target-recall 0.95
  zcat big.jsonl.gz | embedkit-index build - --format jsonl --on-error skip -o my-index

exit codes:
  0  done
  1  failed while running: disk full, damaged index, wrong model, another writer, …
  2  wrong usage or input: no such file, malformed line, index already exists, …
  130  interrupted by Ctrl-C; 143  by SIGTERM: both save what is done
"""

_REMEDIES = {
    ("texts", "length"): (
        "build --passages 120:30 finds what is in all of a text, and --on-overflow window (of build and reembed) "
        "encodes all of it"
    ),
    ("pairs", "length"): "build --passages 120:30 makes shorter texts",
    ("texts", "script"): "use a multilingual model for them: --model {multilingual} (of build and reembed)",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``embedkit-index`` with ``argv`` (default: the process's arguments) and return its exit code."""
    # It tells of damage without the file, which our own errors name.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    return run(
        "embedkit-index",
        lambda: _parse(argv),
        usage=(ValueError, IndexExistsError, IndexNotFoundError),
        failed=(*FAILURES, ModelMismatchError),
        remedies=_REMEDIES,
    )


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    # argparse ends a list of positionals at the first option; what follows also belongs to the list, and after "--"
    # whatever it looks like.
    more = getattr(arguments, "more", None)
    end = rest.index("--") if "--" in rest else len(rest)
    words = rest[:end]
    if rest and (more is None or any(word.startswith("-") and word != "-" for word in words)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if more is not None:
        words += rest[end + 1 :]
        try:
            getattr(arguments, more).extend(words if more in ("ids", "texts") else map(given, words))
        except argparse.ArgumentTypeError as error:
            parser.error(f"argument {more}: {error}")
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="embedkit-index",
        description="Build an index of texts, and find those closest in meaning to a query.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"embedkit-index {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    build.add_commands(commands)
    query.add_commands(commands)
    change.add_commands(commands)
    tune.add_commands(commands)
    sync.add_commands(commands)
    evaluate.add_commands(commands)
    picture.add_commands(commands)
    return parser
