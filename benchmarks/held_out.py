"""Test collections of the University of Glasgow as tables, for ``card.py --held-out``.

    python benchmarks/held_out.py COLLECTIONS -o OUT [--texts texts.jsonl]

COLLECTIONS holds the files as they are distributed, in folders of the collections' names: ``npl/doc-text``,
``query-text`` and ``rlv-ass`` (National Physical Laboratory, 11,429 abstracts), ``cisi/CISI.ALL``, ``CISI.QRY`` and
``CISI.REL``, ``adi/ADI.ALL``, ``ADI.QRY`` and ``ADI.REL`` (the American Documentation Institute, 82 papers),
``lisa/LISA*.*01``, ``LISA.QUE`` and ``LISA.REL`` (Library and Information Science Abstracts, 6,004), and
``time/TIME.ALL``, ``TIME.QUE`` and ``TIME.REL`` (423 articles of a magazine of 1963). OUT receives ``docs.tsv.gz``,
``queries.tsv.gz`` and ``qrels.tsv.gz``. What is written in capitals is lower-cased. With ``--texts`` it counts the
documents that share eight words in a row with a text of that file.
"""

import argparse
import csv
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_WORDS = re.compile(r"[a-z0-9]+")
_SHINGLE = 8


class Tables(NamedTuple):
    """Rows of the three files, without the name of the collection."""

    docs: list[tuple[str, str, str]]
    queries: list[tuple[str, str]]
    qrels: list[tuple[str, str, str]]


def _read(path: Path) -> str:
    return path.read_text(encoding="latin-1").replace("\r", "").replace("\x1a", "")


def _line(text: str) -> str:
    return " ".join(text.split())


def npl(folder: Path) -> Tables:
    """Entries of a number and lines, each ended by a slash."""

    def entries(name: str) -> Iterator[tuple[str, str]]:
        for entry in re.split(r"^\s*/\s*$", _read(folder / name), flags=re.M):
            number, _, text = entry.strip().partition("\n")
            if text.strip():
                yield number.strip(), _line(text).lower()

    return Tables(
        [(number, "", text) for number, text in entries("doc-text")],
        list(entries("query-text")),
        [(number, found, "1") for number, text in entries("rlv-ass") for found in text.split()],
    )


def cisi(folder: Path) -> Tables:
    """See `_fielded`."""
    return _fielded(folder, "CISI")


def adi(folder: Path) -> Tables:
    """See `_fielded`."""
    return _fielded(folder, "ADI")


def _fielded(folder: Path, stem: str) -> Tables:
    """Entries of fields, each after a line of a dot and a letter."""

    def entries(name: str) -> Iterator[tuple[str, dict[str, str]]]:
        for entry in re.split(r"^\.I ", _read(folder / f"{stem}.{name}"), flags=re.M)[1:]:
            number, _, rest = entry.partition("\n")
            parts = re.split(r"^\.([A-Z])[ \t]*\n", rest, flags=re.M)[1:]
            yield number.strip(), dict(zip(parts[::2], map(_line, parts[1::2]), strict=True))

    judged = [line.split() for line in _read(folder / f"{stem}.REL").splitlines()]
    return Tables(
        [(number, own.get("T", ""), own.get("W", "")) for number, own in entries("ALL")],
        [(n, _line(f"{own.get('T', '')} {own.get('W', '')}")) for n, own in entries("QRY")],
        [(row[0], row[1], "1") for row in judged if len(row) > 1],
    )


def lisa(folder: Path) -> Tables:
    """Documents of a number, a title and, after an empty line, a text, between rows of asterisks."""
    docs = []
    for path in sorted(folder.glob("LISA[0-9].[0-9]*")):
        for entry in re.split(r"^\*{20,}\s*$", _read(path), flags=re.M):
            found = re.match(r"\s*Document\s+(\d+)\s*\n(.*?)\n\s*\n(.*)", entry, flags=re.S)
            if found:
                docs.append((found[1], _line(found[2]).lower(), _line(found[3]).lower()))
    queries = re.findall(r"\s*(\d+)\s*\n([^#]*)#", _read(folder / "LISA.QUE"))
    judged = re.findall(r"Query\s+(\d+)\s*\n.*?Refs:\s*\n(.*?)-1", _read(folder / "LISA.REL"), flags=re.S)
    return Tables(
        list({row[0]: row for row in docs}.values()),
        [(number, _line(text).lower()) for number, text in queries],
        [(number, found, "1") for number, text in judged for found in text.split()],
    )


def time(folder: Path) -> Tables:
    """Articles and queries after lines of an asterisk; judgments name articles by their place in the file."""
    articles = re.split(r"^\*TEXT .*\n", _read(folder / "TIME.ALL"), flags=re.M)[1:]
    queries = re.findall(r"^\*FIND +(\d+)\s*\n([^*]*)", _read(folder / "TIME.QUE"), flags=re.M)
    judged = [line.split() for line in _read(folder / "TIME.REL").splitlines()]
    return Tables(
        [(str(i + 1), "", _line(text.partition("\n*STOP")[0]).lower()) for i, text in enumerate(articles)],
        [(number, _line(text).lower()) for number, text in queries],
        [(row[0], found, "1") for row in judged for found in row[1:] if int(found) <= len(articles)],
    )


def shared(docs: list[tuple[str, ...]], texts: Path) -> Counter[str]:
    """Documents of each collection with eight words in a row of a text."""

    def shingles(text: str) -> set[tuple[str, ...]]:
        words = _WORDS.findall(text.lower())
        return {tuple(words[i : i + _SHINGLE]) for i in range(len(words) - _SHINGLE + 1)}

    documents: dict[tuple[str, ...], list[int]] = {}
    for number, row in enumerate(docs):
        for shingle in shingles(" ".join(row[2:])):
            documents.setdefault(shingle, []).append(number)
    found: set[int] = set()
    with texts.open(encoding="utf-8") as file:
        for line in file:
            for shingle in shingles(json.loads(line)["text"]):
                found.update(documents.get(shingle, ()))
    return Counter(docs[number][0] for number in found)


def main() -> None:
    """Convert the collections that are there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collections", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--texts", type=Path, help="training texts, as builtin_texts.py writes them")
    options = parser.parse_args()
    rows: dict[str, list[tuple[str, ...]]] = {"docs": [], "queries": [], "qrels": []}
    for read in (npl, cisi, lisa, time, adi):
        name = read.__name__
        if not (options.collections / name).is_dir():
            print(f"left out: {name} is not in {options.collections}")
            continue
        for part, own in read(options.collections / name)._asdict().items():
            rows[part] += [(name, *row) for row in own]
            print(f"{name}: {len(own):,} {part}")
    if not rows["docs"]:
        raise SystemExit(f"no collection in {options.collections}")
    columns = {
        "docs": ("dataset", "doc_id", "title", "text"),
        "queries": ("dataset", "query_id", "text"),
        "qrels": ("dataset", "query_id", "doc_id", "rel"),
    }
    options.output.mkdir(parents=True, exist_ok=True)
    for part, names in columns.items():
        path = options.output / f"{part}.tsv.gz"
        with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
            writer = csv.writer(
                file, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n"
            )
            writer.writerow(names)
            writer.writerows(rows[part])
    if options.texts is not None:
        print(f"documents that share eight words with a text: {dict(shared(rows['docs'], options.texts))}")


if __name__ == "__main__":
    main()
