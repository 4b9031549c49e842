"""Semantic textual similarity, English (STS12-16, STS-B, SICK-R) and Chinese.

STS12-16 are scored in the setting "all" of SimCSE (Gao et al. 2021, appendix B): the pairs of all subsets
of a year are concatenated and scored with one Spearman correlation. The mean over subsets, which SentEval also
reports, is a different metric. The seven columns and their mean are those of HPD's Table 1 (Zhao et al. 2022).

The Chinese columns are those of the table in Su Jianlin's post on RoFormer-Sim-FT, with AFQMC dev in place of ATEC:
Spearman's correlation of the cosine with the label, also for labels 0 and 1. `SetScore.source` names the split of a
column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ..data.checks import normalized
from .pairs import Pair, PairSet, StsResult, score_pairs
from .tables import Data, Row, data_folder, read_table
from .vectors import TextEncoder

__all__ = [
    "chinese",
    "chinese_sets",
    "sts",
    "sts_dev",
    "sts_dev_sets",
    "sts_sets",
    "sts_unseen_sets",
    "sts_wide_dev_sets",
]


class _Wanted(NamedTuple):
    """The rows of a table that make up a column, and their expected number."""

    name: str  # in the table's column "task" or "source"
    split: str
    pairs: int


# The counts are SentEval's. The pairs have the original casing, which reproduces the published figures, not the
# lower-cased, tokenized form of SentEval, which cased models would not see in use.
_STS = {
    "STS12": _Wanted("STS12", "test", 3108),
    "STS13": _Wanted("STS13", "test", 1500),
    "STS14": _Wanted("STS14", "test", 3750),
    "STS15": _Wanted("STS15", "test", 3000),
    "STS16": _Wanted("STS16", "test", 1186),
    "STS-B": _Wanted("STSB", "test", 1379),
    "SICK-R": _Wanted("SICKR", "test", 4927),
}
_STS_DEV = {"STS-B dev": _Wanted("STSB", "dev", 1500)}
_STS12_TRAIN = {"STS12 train": _Wanted("STS12", "train", 2234)}
_WIDE_DEV = {
    "STS-B train": _Wanted("STSB", "train", 5749),
    "SICK train": _Wanted("SICKR", "train", 4500),
    "SICK dev": _Wanted("SICKR", "dev", 500),
}

# Of ATEC, the data has training pairs only. AFQMC was drawn from ATEC: if a pair of its dev split is among them
# (1,682 of 4,316), the label is the same. When training on ATEC, exclude those pairs.
_CHINESE_PAIRS = {
    "AFQMC dev": _Wanted("AFQMC", "dev", 4316),
    "BQ": _Wanted("BQ", "test", 10000),
    "LCQMC": _Wanted("LCQMC", "test", 12500),
    "PAWS-X": _Wanted("PAWSX", "test", 2000),
}
_CHINESE_STS = {"STS-B": _Wanted("CNSD_STSB", "test", 1361)}


def sts(encoder: TextEncoder, data: Data = None) -> StsResult:
    """The seven test sets STS12, STS13, STS14, STS15, STS16, STS-B and SICK-R.

    Args:
        encoder: similarity is the cosine of its vectors.
        data: folder with ``sts_en/sts_en.tsv.gz``; None for ``EMBEDKIT_DATA``.

    Raises:
        FileNotFoundError: the folder or the table does not exist.
        ValueError: a row is malformed, the size of a set differs from the published one, or a vector is
            unusable.
    """
    return score_pairs(encoder, sts_sets(data))


def sts_dev(encoder: TextEncoder, data: Data = None) -> float:
    """Spearman's correlation × 100 on the pairs of `sts_dev_sets`, for model selection without the test sets.

    Arguments and errors are those of `sts`.
    """
    return score_pairs(encoder, sts_dev_sets(data)).average


def chinese(encoder: TextEncoder, data: Data = None) -> StsResult:
    """AFQMC dev (drawn from ATEC) and the test splits of BQ, LCQMC, PAWS-X and STS-B, in Chinese.

    Args:
        encoder: similarity is the cosine of its vectors.
        data: folder with ``zh/zh_pairs.tsv.gz`` and ``zh/zh_sts.tsv.gz``; None for
            ``EMBEDKIT_DATA``.

    Raises:
        FileNotFoundError, ValueError: as for `sts`.
    """
    return score_pairs(encoder, chinese_sets(data))


def sts_sets(data: Data = None) -> dict[str, PairSet]:
    """The pairs of `sts`, by column."""
    return _scored_sets(data_folder(data) / "sts_en" / "sts_en.tsv.gz", _STS)


def sts_dev_sets(data: Data = None) -> dict[str, PairSet]:
    """The pairs of `sts_dev`, as the column "STS-B dev": those that no set of `sts_sets` contains.

    STS-B was drawn from STS12-17, so most of its dev pairs are in the test sets of those years. Pairs are compared
    `normalized` (case, white space) and regardless of their order.
    """
    return _untested(data_folder(data) / "sts_en", _STS_DEV)


def sts_wide_dev_sets(data: Data = None) -> dict[str, PairSet]:
    """More pairs that no set of `sts_sets` contains, for models that were not trained on them.

    Those of `sts_dev_sets`, of STS-B train, STS12 train, and SICK train and dev.
    """
    folder = data_folder(data) / "sts_en"
    return _untested(folder, {**_STS_DEV, **_WIDE_DEV}, _STS12_TRAIN)


def _untested(
    folder: Path, wanted: Mapping[str, _Wanted], of_2012: Mapping[str, _Wanted] | None = None
) -> dict[str, PairSet]:
    """The pairs of sets that no test set contains; ``of_2012`` are in the table of STS12 train."""
    sets = _scored_sets(folder / "sts_en.tsv.gz", {**_STS, **wanted})
    tested = [pair for name in _STS for pair in sets[name].pairs]
    if of_2012:
        sets |= _scored_sets(folder / "sts12_train.tsv.gz", of_2012)
    return _without(sets, (*wanted, *(of_2012 or ())), tested, "the test sets")


def sts_unseen_sets(data: Data = None) -> dict[str, PairSet]:
    """The pairs of `sts_sets` that are neither in STS-B dev nor in STS12 train, by column.

    For a model that was selected by these: 1,130 of the 1,497 distinct STS-B dev pairs are in the sets STS12-16.

    Args:
        data: as for `sts`; also contains ``sts_en/sts12_train.tsv.gz``.
    """
    folder = data_folder(data) / "sts_en"
    sets = _scored_sets(folder / "sts_en.tsv.gz", {**_STS, **_STS_DEV})
    selected = [*sets["STS-B dev"].pairs]
    for one in _scored_sets(folder / "sts12_train.tsv.gz", _STS12_TRAIN).values():
        selected += one.pairs
    return _without(sets, _STS, selected, "STS-B dev and STS12 train")


def _without(
    sets: Mapping[str, PairSet], names: Iterable[str], pairs: Iterable[Pair], what: str
) -> dict[str, PairSet]:
    """The sets ``names`` without ``pairs``, which are those of ``what``."""
    left_out = {_pair_key(pair) for pair in pairs}
    return {
        name: PairSet(
            [pair for pair in sets[name].pairs if _pair_key(pair) not in left_out],
            f"{sets[name].source}, without pairs of {what}",
        )
        for name in names
    }


def _pair_key(pair: Pair) -> tuple[str, str]:
    first, second = sorted((normalized(pair.left), normalized(pair.right)))
    return first, second


def chinese_sets(data: Data = None) -> dict[str, PairSet]:
    """The pairs of `chinese`, by column."""
    folder = data_folder(data) / "zh"
    sets = _labeled_sets(folder / "zh_pairs.tsv.gz", _CHINESE_PAIRS)
    return sets | _scored_sets(folder / "zh_sts.tsv.gz", _CHINESE_STS)


def _scored_sets(path: Path, wanted: Mapping[str, _Wanted]) -> dict[str, PairSet]:
    """Columns of a table of task, split, score (0 to 5), sentence1, sentence2."""
    return _sets(
        path, wanted, "task", ("sentence1", "sentence2", "score"), lambda row: row.number("score", 0, 5)
    )


def _labeled_sets(path: Path, wanted: Mapping[str, _Wanted]) -> dict[str, PairSet]:
    """Columns of a table of source, split, text1, text2, label (0 or 1)."""
    return _sets(path, wanted, "source", ("text1", "text2", "label"), lambda row: float(row.label("label")))


def _sets(
    path: Path,
    wanted: Mapping[str, _Wanted],
    name: str,
    columns: tuple[str, str, str],
    score: Callable[[Row], float],
) -> dict[str, PairSet]:
    """Read the rows of ``wanted``, in the order of the file; the subsets of a year form one list.

    Args:
        path: the table.
        wanted: column of the result -> its rows.
        name: the column of the table with `_Wanted.name`; the split is in "split".
        columns: of the two texts and the score.
        score: reads the score of a row.
    """
    found: dict[str, list[Pair]] = {column: [] for column in wanted}
    column_of = {(one.name, one.split): column for column, one in wanted.items()}
    for row in read_table(path, (name, "split", *columns)):
        column = column_of.get((row[name], row["split"]))
        if column is not None:
            found[column].append(Pair(row.text(columns[0]), row.text(columns[1]), score(row)))
    for column, one in wanted.items():
        if len(found[column]) != one.pairs:
            raise ValueError(
                f"{path}: {len(found[column])} pairs of {one.name} {one.split}, expected {one.pairs}; "
                "scores on other pairs would not be comparable"
            )
    return {
        column: PairSet(found[column], f"{path.parent.name}/{path.name}: {one.name} {one.split}")
        for column, one in wanted.items()
    }
