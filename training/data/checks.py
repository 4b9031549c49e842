"""Duplicates in training data, and overlap of training and evaluation data."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .readers import Table

__all__ = ["Overlap", "Report", "check", "compared_fields", "normalized", "pair_keys"]

_EXAMPLES = 3
_PAIR = ("text1", "text2")
# what objectives read; columns of other names beside them, like an id, are no texts to compare
_FIELDS = (_PAIR, ("anchor", "positive"), ("text", "near"), ("text",), ("text1",))

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


def compared_fields(table: Table) -> tuple[str, ...]:
    """The fields that an objective reads as a pair or a single text; in a table without them, the first two texts."""
    names = table.text_names
    return tuple(next((known for known in _FIELDS if set(known) <= set(names)), names[: len(_PAIR)]))


def pair_keys(table: Table) -> npt.NDArray[np.int64]:
    """A hash of each row's `compared_fields`, `normalized` and regardless of order; differs between processes."""
    return _keys(np.stack([_hashes(table.texts(field)) for field in compared_fields(table)], axis=1))


def check(table: Table, evaluations: Mapping[str, Pairs], fields: Sequence[str] = _PAIR) -> Report:
    """Count the duplicates of a table and its overlap with evaluation sets.

    Texts are compared `normalized`, pairs regardless of their order.

    Args:
        table: the training data.
        evaluations: name -> pairs of sentences.
        fields: the text columns of the table; the first two are the pair. Single sentences cannot leak as pairs.
    """
    # 64-bit hashes instead of texts: a collision among a million texts has a probability of 3e-8.
    hashes = np.stack([_hashes(table.texts(field)) for field in fields], axis=1)
    _, first = np.unique(_keys(hashes), return_index=True)
    repeated = np.ones(len(hashes), bool)
    repeated[first] = False
    duplicates = np.flatnonzero(repeated)
    keys = _keys(hashes[:, : len(_PAIR)])
    sentences = np.unique(hashes)
    overlaps = {}
    for name, pairs in evaluations.items():
        given = [tuple(pair) for pair in pairs]
        columns = np.stack(
            [_hashes(column) for column in zip(*given, strict=True)] or [_hashes([])] * 2, axis=1
        )
        own = np.unique(columns)
        leaked = np.empty(0, np.int64)
        if len(fields) > 1:
            leaked = np.flatnonzero(np.isin(keys, _keys(columns)))
        seen = int(np.isin(own, sentences).sum())
        overlaps[name] = Overlap(len(given), len(leaked), len(own), seen, _examples(table, fields, leaked))
    return Report(len(table), len(duplicates), _examples(table, fields, duplicates), overlaps)


def _hashes(texts: Iterable[str]) -> npt.NDArray[np.int64]:
    return np.fromiter((hash(normalized(text)) for text in texts), np.int64)


def _keys(hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """A hash of each row (n, texts), whatever the order of the pair that it begins with."""
    pair, others = np.split(hashes, [len(_PAIR)], axis=1)
    rows = np.concatenate([np.sort(pair, axis=1), others], axis=1)
    return np.fromiter(map(hash, map(tuple, rows.tolist())), np.int64, len(rows))


def _examples(
    table: Table, fields: Sequence[str], rows: npt.NDArray[np.int64]
) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(table.texts(field)[row] for field in fields) for row in rows[:_EXAMPLES])
