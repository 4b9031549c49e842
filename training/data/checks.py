"""Duplicates in training data, and overlap of training and evaluation data."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .readers import Table

__all__ = ["Overlap", "Report", "check", "normalized"]

_EXAMPLES = 3
_PAIR = ("text1", "text2")

Pairs = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Overlap:
    """The overlap of an evaluation set with the training table.

    Attributes:
        pairs: of the evaluation set.
        leaked_pairs: training rows whose pair is in the evaluation set.
        sentences: distinct sentences of the evaluation set.
        seen_sentences: those that are also in the training table.
        examples: some of the leaked pairs, as in the training table.
    """

    pairs: int
    leaked_pairs: int
    sentences: int
    seen_sentences: int
    examples: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Report:
    """The result of `check`.

    Attributes:
        rows: of the training table.
        duplicates: rows whose texts are those of an earlier row.
        examples: some of the duplicates.
        overlaps: evaluation set -> its overlap with the table.
    """

    rows: int
    duplicates: int
    examples: tuple[tuple[str, ...], ...]
    overlaps: Mapping[str, Overlap]

    def summary(self) -> dict[str, int]:
        """The counts alone, for a run's results."""
        leaked = {f"also in {name}": found.leaked_pairs for name, found in self.overlaps.items()}
        seen = {f"sentences of {name} seen": found.seen_sentences for name, found in self.overlaps.items()}
        return {"rows": self.rows, "repeated": self.duplicates, **leaked, **seen}

    def lines(self) -> list[str]:
        """The report for a log."""
        lines = [f"{self.rows:,} training rows, {self.duplicates:,} of them repeated"]
        lines += [f"  repeated: {' | '.join(example):.160}" for example in self.examples]
        for name, found in self.overlaps.items():
            share = found.seen_sentences / max(1, found.sentences)
            lines.append(
                f"{name}: {found.leaked_pairs:,} training rows are among its {found.pairs:,} pairs; "
                f"{share:.1%} of its {found.sentences:,} sentences are in training"
            )
            lines += [f"  leaked: {' | '.join(example):.160}" for example in found.examples]
        return lines


def normalized(text: str) -> str:
    """The form in which texts are compared: NFKC, case-folded, white space collapsed."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def check(table: Table, evaluations: Mapping[str, Pairs], fields: Sequence[str] = _PAIR) -> Report:
    """Count the duplicates of a table and its overlap with evaluation sets.

    Texts are compared `normalized`, pairs regardless of their order.

    Args:
        table: the training data.
        evaluations: name -> pairs of sentences.
        fields: the text columns of the table; the first two are the pair. Single sentences cannot leak as pairs.
    """
    seen: set[int] = set()
    sentences: set[int] = set()
    duplicates: list[int] = []
    rows = np.empty(len(table), np.int64)
    for row, hashes in enumerate(_hashes(table, fields)):
        key = rows[row] = _key(hashes[: len(_PAIR)])
        if int(key) in seen:
            duplicates.append(row)
        seen.add(int(key))
        sentences.update(hashes)
    overlaps = {}
    for name, pairs in evaluations.items():
        own, keys, count = _evaluation(pairs)
        leaked = np.empty(0, np.int64)
        if len(fields) > 1:
            leaked = np.flatnonzero(np.isin(rows, np.fromiter(keys, np.int64, len(keys))))
        overlaps[name] = Overlap(
            count, len(leaked), len(own), len(own & sentences), _examples(table, fields, leaked)
        )
    return Report(len(table), len(duplicates), _examples(table, fields, duplicates), overlaps)


def _hashes(table: Table, fields: Sequence[str]) -> Iterator[tuple[int, ...]]:
    # 64-bit hashes instead of texts: a collision among a million texts has a probability of 3e-8.
    known: dict[str, int] = {}

    def of(text: str) -> int:
        found = known.get(text)
        if found is None:
            found = known[text] = hash(normalized(text))
        return found

    return zip(*([*map(of, table.texts(field))] for field in fields), strict=True)


def _key(hashes: Sequence[int]) -> int:
    return hash(tuple(sorted(hashes)))


def _evaluation(pairs: Pairs) -> tuple[set[int], set[int], int]:
    """Hashes of the sentences and of the pairs, and the number of pairs."""
    sentences: set[int] = set()
    keys: set[int] = set()
    count = 0
    for pair in pairs:
        hashes = [hash(normalized(text)) for text in pair]
        sentences.update(hashes)
        keys.add(_key(hashes))
        count += 1
    return sentences, keys, count


def _examples(
    table: Table, fields: Sequence[str], rows: Sequence[int] | npt.NDArray[np.int64]
) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(table.texts(field)[row] for field in fields) for row in rows[:_EXAMPLES])
