"""``embedkit-train mine PAIRS OUT``: adds hard negatives to a file of pairs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ..cli.common import given, given_path

__all__ = ["add_arguments", "run"]

_FORMATS = (".tsv", ".jsonl")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("pairs", type=given_path, help="tsv, csv or jsonl, plain or .gz, or parquet")
    parser.add_argument("output", type=given_path, help="new file to write: .tsv or .jsonl")
    parser.add_argument("--model", help="encoder that finds the negatives (default: the built-in model)")
    parser.add_argument(
        "--anchor", type=given, default="anchor", help="column of the anchors (default: anchor)"
    )
    parser.add_argument(
        "--positive", type=given, default="positive", help="column of the positives (default: positive)"
    )
    parser.add_argument("--corpus", type=given_path, help="file of further texts that may be negatives")
    parser.add_argument("--corpus-column", type=given, help="its column (default: text)")
    parser.add_argument(
        "--skip-blank", action="store_true", help="leave out pairs with a blank text, which stop it otherwise"
    )
    parser.add_argument("--negatives", type=int, default=1, help="of each pair (default: 1)")
    parser.add_argument("--range-min", type=int, default=0, help="nearest negatives to skip (default: 0)")
    parser.add_argument("--range-max", type=int, help="nearest texts to consider")
    parser.add_argument(
        "--margin", type=float, help="a negative's score is at least this far below the positive's"
    )
    parser.add_argument("--relative-margin", type=float, help="the same as a share of the positive's score")
    parser.add_argument("--min-score", type=float, help="lowest score of a negative")
    parser.add_argument("--max-score", type=float, help="highest score of a negative")
    parser.add_argument("--cross-encoder", help="cross-encoder whose scores replace the cosines")
    parser.add_argument(
        "--random", action="store_true", help="draw the negatives instead of the nearest ones"
    )
    parser.add_argument("--seed", type=int, help="of the draw (default: 0)")
    parser.add_argument("--triplets", action="store_true", help="write a row for each negative")


def run(options: argparse.Namespace) -> int:
    """Mine and write; returns the exit status.

    Raises:
        FileExistsError: the file to write exists.
        ValueError, OSError: a file, a column or an option is wrong; the message names it.
    """
    from .. import CrossEncoder, Encoder
    from .data.readers import read
    from .hard_negatives import MineOptions, mine_negatives

    _check(options)
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(MineOptions)}
    chosen = MineOptions(**values | {"seed": options.seed or 0})
    columns = {"anchor": options.anchor, "positive": options.positive}
    pairs_source = {"path": str(options.pairs), "columns": columns, "skip_blank": options.skip_blank}
    table = read(pairs_source, root=Path())
    corpus: Sequence[str] = ()
    if options.corpus is not None:
        source = {
            "path": str(options.corpus),
            "columns": {"text": options.corpus_column or "text"},
            "skip_blank": True,
        }
        corpus = read(source, root=Path()).texts("text")
    pairs = list(zip(table.texts("anchor"), table.texts("positive"), strict=True))
    if options.output.suffix == ".tsv":
        for text in chain(*pairs, corpus):
            if set(text) & set("\t\r\n"):
                raise ValueError(
                    f"{options.output}: a tab or line break in {text!r:.80}, which .tsv cannot hold; write .jsonl"
                )
    judge = None if options.cross_encoder is None else CrossEncoder(options.cross_encoder)
    encoder = Encoder() if options.model is None else Encoder(options.model)
    mined = mine_negatives(pairs, encoder, chosen, corpus=corpus, cross_encoder=judge)
    if mined.left_out == len(pairs):
        raise ValueError(
            f"{options.pairs}: none of the {len(pairs):,} pairs has {options.negatives} negatives; nothing was "
            "written: ask for fewer, or loosen their limits"
        )
    written = mined.triplets() if options.triplets else mined.columns()
    count = _write(options.output, written)
    print(
        f"{options.output}: {count:,} rows of {len(pairs):,} pairs; {mined.left_out:,} pairs have fewer than "
        f"{options.negatives} negatives and are left out",
        file=sys.stderr,
    )
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.anchor == options.positive:
        raise ValueError(f"--anchor and --positive both name the column {options.anchor!r}; give two")
    if options.corpus_column is not None and options.corpus is None:
        raise ValueError("--corpus-column is of the file that --corpus names; give it, too")
    if options.seed is not None and not options.random:
        raise ValueError("--seed is of the draw of --random; give it, too")
    if options.output.suffix not in _FORMATS:
        raise ValueError(f"{options.output}: unknown kind of file; mine writes {' and '.join(_FORMATS)}")
    if not options.output.absolute().parent.is_dir():
        raise FileNotFoundError(f"{options.output}: its folder does not exist; create it first")
    if options.output.exists():
        raise FileExistsError(f"{options.output}: already exists; name another file")
    for path in (options.pairs, options.corpus):
        if path is not None and not path.is_file():
            raise FileNotFoundError(f"{path}: no such file")


def _write(path: Path, columns: Mapping[str, Sequence[Any]]) -> int:
    from .whole_file import write_text

    rows = list(zip(*columns.values(), strict=True))
    if path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) for row in rows]
    else:
        lines = ["\t".join(row) for row in [tuple(columns), *rows]]
    write_text(path, "".join(f"{line}\n" for line in lines))
    return len(rows)
