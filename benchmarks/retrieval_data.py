"""Data for `retrieval.py`: queries, stored texts, relevance judgments and vectors."""

import csv
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import numpy as np
import numpy.typing as npt
from judged import read_judged

__all__ = [
    "Collection",
    "Vectors",
    "cached_vectors",
    "cranfield",
    "question_pairs",
    "read_pairs",
    "truncated",
]

Vectors = npt.NDArray[np.float32]

#: Names of the three columns: of the data folder, and of Quora's and GLUE's own files.
PAIR_COLUMNS = (("text1", "text2", "label"), ("question1", "question2", "is_duplicate"))
_ENCODED_AT_ONCE = 8192


@dataclass(frozen=True)
class Collection:
    """Stored texts, queries, and relevant rows.

    Attributes:
        stored: the texts in the index.
        queries: the texts to search with.
        positives: for each query the relevant rows of ``stored``, with their gain (> 0).
        own_row: for each query the row of ``stored`` that is the query itself, -1 for none. It is removed from the
            ranking, neither right nor wrong.
        notes: counts.
    """

    stored: list[str]
    queries: list[str]
    positives: list[dict[int, float]]
    own_row: npt.NDArray[np.int64]
    notes: dict[str, int]


def question_key(text: str) -> str:
    """The letters and digits of a question in lower case; two questions with the same ones are the same.

    Part of the data is lower-cased and tokenized and repeats questions of the rest, so a copy of the right answer in
    another spelling would otherwise count as wrong.
    """
    return "".join(character for character in text.casefold() if character.isalnum())


def read_pairs(path: Path) -> Iterator[tuple[str, str, bool]]:
    """First question, second question, duplicates or not; from a .tsv or .tsv.gz with a header row.

    Files with Quora's own column names are quoted like CSV; those of the data folder are not quoted.
    """
    with common.open_text(path) as file:
        header = file.readline().rstrip("\r\n").replace('"', "").split("\t")
        columns = next((names for names in PAIR_COLUMNS if set(names) <= set(header)), None)
        if columns is None:
            raise SystemExit(
                f"{path}: needs the columns {' or '.join(map(', '.join, PAIR_COLUMNS))}; it has {', '.join(header)}"
            )
        at = [header.index(name) for name in columns]
        quoting = csv.QUOTE_NONE if columns == PAIR_COLUMNS[0] else csv.QUOTE_MINIMAL
        for number, row in enumerate(csv.reader(file, delimiter="\t", quoting=quoting), 2):
            if len(row) != len(header):
                raise SystemExit(f"{path}, row {number}: {len(row)} fields, and the header has {len(header)}")
            first, second, label = (row[i] for i in at)
            if label not in ("0", "1"):
                raise SystemExit(f"{path}, row {number}: the label is {label!r}; it must be 0 or 1")
            yield first, second, label == "1"


def question_pairs(pairs: Iterator[tuple[str, str, bool]], stored: int) -> Collection:
    """HPD's Table 3: store the second questions, search with the first ones.

    * Questions with the same `question_key` are one question, in its first spelling.
    * Stored: all second questions, then other questions up to ``stored``: first those that are no queries, in the order
      of the file, then those that are.
    * Queries: the first question of every pair of duplicates, unless both are the same question.
    * Positives: all stored questions that a pair labels a duplicate of the query, in either order. Pairs are not
      chained, so an unlabeled duplicate counts as wrong.
    """
    spelling: dict[str, str] = {}
    seconds: dict[str, None] = {}  # ordered sets
    asking: dict[str, None] = {}
    duplicates: dict[str, set[str]] = {}
    total = same = blank = 0
    for first, second, duplicate in pairs:
        total += 1
        left, right = question_key(first), question_key(second)
        if not left or not right:
            blank += 1
            continue
        spelling.setdefault(left, first)
        spelling.setdefault(right, second)
        seconds.setdefault(right)
        if duplicate and left == right:
            same += 1
        elif duplicate:
            asking.setdefault(left)
            duplicates.setdefault(left, set()).add(right)
            duplicates.setdefault(right, set()).add(left)
    others = [key for key in spelling if key not in seconds]
    padding = [key for key in others if key not in asking] + [key for key in others if key in asking]
    padding = padding[: max(0, stored - len(seconds))]
    rows = {key: row for row, key in enumerate((*seconds, *padding))}
    return Collection(
        stored=[spelling[key] for key in rows],
        queries=[spelling[key] for key in asking],
        positives=[
            {rows[other]: 1.0 for other in sorted(duplicates[key]) if other in rows} for key in asking
        ],
        own_row=np.array([rows.get(key, -1) for key in asking], np.int64),
        notes={
            "pairs": total,
            "distinct_questions": len(spelling),
            "second_questions": len(seconds),
            "padding": len(padding),
            "padding_that_also_searches": sum(key in asking for key in padding),
            "stored": len(rows),
            "queries": len(asking),
            "queries_also_stored": sum(key in rows for key in asking),
            "duplicate_pairs_of_identical_texts": same,
            "pairs_with_a_blank_question": blank,
        },
    )


def cranfield(data: Path) -> Collection:
    """Cranfield: abstracts, queries, and judgments above 0 as gains. Queries without any are left out.

    An index leaves out blank texts. Two abstracts are blank: they get the rows after those that are stored, so that one
    which is relevant counts as not found.
    """
    judged = read_judged(data / "retrieval")["cranfield"]
    order = sorted(range(len(judged.texts)), key=lambda row: not judged.texts[row].strip())
    stored = [text for text in judged.texts if text.strip()]
    row_of = {row: number for number, row in enumerate(order)}
    return Collection(
        stored=stored,
        queries=judged.queries,
        positives=[{row_of[row]: gain for row, gain in gains.items()} for gains in judged.gains],
        own_row=np.full(len(judged.queries), -1, np.int64),
        notes={"stored": len(stored), "queries": len(judged.queries)},
    )


# ----------------------------------------------------------------------------------------------------- vectors


def cached_vectors(
    folder: Path, encoder: Any, texts: Sequence[str], encode: Callable[[list[str]], Any], kind: str
) -> Vectors:
    """The vectors of ``texts``, (n, dimension), cached in ``folder``.

    The file name contains the model, its precision, and a hash of fingerprint, kind and texts. If the process is
    stopped, the next run continues where it was.

    Args:
        folder: of the cache.
        encoder: identifies the model.
        texts: encoded in this order.
        encode: texts of one window -> vectors.
        kind: "query" or "document", which may have different prompts.
    """
    about = encoder.describe()
    digest = hashlib.sha256("\0".join([encoder.fingerprint, about["precision"], kind]).encode())
    for text in texts:
        digest.update(text.encode() + b"\0")
    model = Path(str(about["model"])).name
    path = folder / f"{model}-{about['precision']}-{kind}-{digest.hexdigest()[:12]}.f32"
    dimension = encoder.get_embedding_dimension()
    folder.mkdir(parents=True, exist_ok=True)
    row_bytes = 4 * dimension
    with path.open("ab") as file:
        done = file.tell() // row_bytes
        os.truncate(file.fileno(), done * row_bytes)
        for start in range(done, len(texts), _ENCODED_AT_ONCE):
            window = list(texts[start : start + _ENCODED_AT_ONCE])
            vectors = np.asarray(encode(window), "<f4")
            if vectors.shape != (len(window), dimension):
                raise SystemExit(f"{model}: returned {vectors.shape} for {len(window)} texts")
            file.write(vectors.tobytes())
            file.flush()
    return np.fromfile(path, "<f4").reshape(len(texts), dimension)


def truncated(vectors: Vectors, dimension: int) -> Vectors:
    """The first ``dimension`` columns, normalized again."""
    part = np.ascontiguousarray(vectors[:, :dimension])
    return part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), np.finfo(np.float32).tiny)
