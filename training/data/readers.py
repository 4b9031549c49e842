"""Reads the data sources of recipes into columns.

A source is one or several files (see `embedkit.training.data.files`) or a data set of the `datasets` package. Its texts
are kept in a file and need not fit in memory (see `embedkit.training.data.texts`).
"""

from __future__ import annotations

import difflib
import logging
import math
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ...files import expanded
from .checks import compared_fields, pair_keys
from .files import ABSENT, Rows, file_rows
from .sampler import balanced_fraction
from .texts import Selection, TextWriter

__all__ = ["Column", "Table", "check_not_drawn", "check_source", "read", "root_folder"]

Column = Sequence[str] | npt.NDArray[Any]

_LOG = logging.getLogger("embedkit")
_KEYS = (
    "path",
    "dataset",
    "config",
    "split",
    "streaming",
    "columns",
    "where",
    "skip_blank",
    "labels",
    "min_score",
    "max_score",
    "exclude",
    "limit",
    "balanced_fraction",
    "weighted_fraction",
    "prompts",
    "seed",
)


class Table:
    """Columns of equal length: texts as a sequence of str, labels as int64, scores as float64. Immutable.

    Attributes:
        labels: names of the classes in the order of their ids; empty if ``label`` is a number.
    """

    def __init__(self, columns: Mapping[str, Column], labels: Sequence[str] = ()) -> None:
        """Wrap columns.

        Raises:
            ValueError: their lengths differ.
        """
        sizes = {name: len(column) for name, column in columns.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"columns of different lengths: {sizes}")
        self._columns = dict(columns)
        self.labels = tuple(labels)
        self._size = next(iter(sizes.values()), 0)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._columns)

    def __len__(self) -> int:
        """The number of rows."""
        return self._size

    def __getitem__(self, name: str) -> Any:
        """A column.

        Raises:
            ValueError: there is none of this name.
        """
        if name not in self._columns:
            raise ValueError(
                f"there is no field {name!r}{_nearest(name, self._columns)}, only {', '.join(self._columns)}; "
                f"name its column in the source's `columns`"
            )
        return self._columns[name]

    @property
    def text_names(self) -> tuple[str, ...]:
        """The names of the columns of texts."""
        return tuple(name for name, column in self._columns.items() if not isinstance(column, np.ndarray))

    def texts(self, name: str) -> Sequence[str]:
        """A column of texts.

        Raises:
            TypeError: it contains numbers.
        """
        column: Column = self[name]
        if isinstance(column, np.ndarray):
            raise TypeError(f"the column {name!r} contains numbers, not texts")
        return column

    def select(self, indices: npt.ArrayLike) -> Table:
        """The rows at these indices, in order; texts as a view."""
        rows = np.asarray(indices, np.int64)
        return Table(
            {
                name: column[rows] if isinstance(column, np.ndarray) else Selection(column, rows)
                for name, column in self._columns.items()
            },
            self.labels,
        )


@dataclass(frozen=True)
class _Spec:
    """A checked source; see `read`."""

    columns: dict[str, str] | None
    where: dict[str, frozenset[str]]
    labels: dict[str, int] | None
    skip_blank: bool
    min_score: float
    max_score: float

    def fields(self, header: Sequence[str], origin: str) -> dict[str, str]:
        """Field -> column of the file; checks that every column exists."""
        fields = self.columns if self.columns is not None else {name: name for name in header if name}
        for name in (*fields.values(), *self.where):
            if name not in header:
                raise ValueError(
                    f"{origin}: no column {name!r}{_nearest(name, header)}; "
                    f"the columns are: {', '.join(header)}"
                )
        return fields


def read(
    spec: Mapping[str, Any],
    *,
    root: str | os.PathLike[str] | None = None,
    folder: Path | None = None,
) -> Table:
    """Read a source.

    Args:
        spec: of a recipe:
            ``path``: a file or a list of files, relative to `root`; or ``dataset``, a name of the `datasets`
            package with ``config`` and ``split``. ``streaming`` reads it over the network row by row, and no more than
            the first ``limit`` rows, without storing it first.
            ``columns``: field -> column of the file; by default all columns under their own names.
            ``where``: column -> value or list of values; rows with other values are skipped.
            ``skip_blank``: true skips rows with a text that is empty, blank or null, which are an error otherwise.
            ``labels``: names of the classes in the order of their ids, for the field ``label``; without it
            ``label`` and ``score`` are numbers between ``min_score`` and ``max_score``.
            ``exclude``: another source; rows whose texts (text1 and text2 or the fields of another objective, else the
            first two columns of texts; in any order) are those of one of its rows are skipped, as test pairs must be.
            ``limit``: maximum number of rows, drawn with ``seed`` (0), except of a source with ``streaming``.
            ``balanced_fraction``: of these, a fraction with equally many rows of each of the ``labels``, drawn with
            ``seed``, see `embedkit.training.data.sampler.balanced_fraction`.
            ``weighted_fraction``: of training data: an epoch draws this fraction of the rows, with replacement and each
            of the ``labels`` equally often (torch's ``WeightedRandomSampler``); unused here.
            ``prompts``: field -> text that the trained model reads before the field's texts; unused here.
        root: None for the environment variable EMBEDKIT_DATA, else the current directory.
        folder: where the texts are kept, in a file without a name; None for the system's temporary folder.

    Returns:
        The table; fields other than ``label`` and ``score`` are texts, non-empty and valid Unicode.

    Raises:
        ValueError: the specification or a row is wrong; the message names the file, the line and the remedy.
        FileNotFoundError: a file is missing.
        ImportError: `pyarrow` or `datasets` is needed and missing.
    """
    checked = _checked(spec)
    rows = _Columns(checked, folder)
    if "dataset" in spec:
        rows.collect(_dataset_rows(spec), spec.get("limit") if spec.get("streaming") else None)
    else:
        base = root_folder(root)
        paths = spec["path"] if isinstance(spec["path"], list) else [spec["path"]]
        if not paths:
            raise ValueError("path is an empty list; name at least one file")
        wrong = [path for path in paths if not isinstance(path, str | os.PathLike)]
        if wrong:
            raise ValueError(f"path is {spec['path']!r:.80}; name a file, or a list of files")
        for path in paths:
            try:
                opened = file_rows(base / path)
            except FileNotFoundError as error:
                raise FileNotFoundError(
                    f"{error}. Relative paths start at the folder of --data (or EMBEDKIT_DATA); "
                    "`embedkit-train RECIPE --show` lists the files that a recipe reads"
                ) from None
            rows.collect(opened)
    table = rows.table()
    if not len(table):
        source = spec.get("path", spec.get("dataset"))
        where = dict(spec.get("where") or {})
        if rows.blank:
            remedy = f"{rows.blank:,} have a blank text, which `skip_blank` leaves out"
        elif where:
            remedy = f"loosen `where`: {where}"
        else:
            remedy = "it has a header and no rows; give data"
        raise ValueError(f"{source}: no row is left; {remedy}")
    if "exclude" in spec:
        table = _without(table, read(spec["exclude"], root=root, folder=folder))
    limit = spec.get("limit")
    if limit is not None and limit < len(table):
        table = table.select(np.random.default_rng(spec.get("seed", 0)).permutation(len(table))[:limit])
    fraction = spec.get("balanced_fraction")
    if fraction is not None:
        table = table.select(balanced_fraction(table["label"], fraction, seed=spec.get("seed", 0)))
    return table


def _without(table: Table, excluded: Table) -> Table:
    """The rows whose texts are not those of a row of ``excluded``."""
    fields = [compared_fields(one) for one in (table, excluded)]
    if len(fields[0]) != len(fields[1]) or not fields[0]:
        own, others = (", ".join(names) or "no text" for names in fields)
        raise ValueError(
            f"exclude: its rows would be compared by {others}, those of the source by {own}; name the fields of both "
            "in `columns`"
        )
    left = np.flatnonzero(~np.isin(pair_keys(table), pair_keys(excluded)))
    if not len(left):
        raise ValueError("exclude: every row of the source is excluded; give other data")
    return table.select(left)


def root_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder of relative data paths: ``given``, else the variable EMBEDKIT_DATA, else the current directory."""
    return expanded(given if given is not None else os.environ.get("EMBEDKIT_DATA", "."))


def check_source(spec: Mapping[str, Any]) -> None:
    """Check a source without reading it.

    Raises:
        ValueError: a key is unknown (a similar one is suggested), or a value has the wrong type.
    """
    _checked(spec)


def check_not_drawn(spec: Mapping[str, Any]) -> None:
    """Check that a source which is read whole is not one of training data.

    Raises:
        ValueError: it has ``weighted_fraction``.
    """
    if spec.get("weighted_fraction") is not None:
        raise ValueError(
            "weighted_fraction is of training data, drawn again in each epoch; use balanced_fraction, or remove it"
        )


def _check_keys(spec: Mapping[str, Any]) -> None:
    for key in spec:
        if key not in _KEYS:
            raise ValueError(f"a source has no key {key!r}{_nearest(key, _KEYS)}; keys: {', '.join(_KEYS)}")
    if ("path" in spec) == ("dataset" in spec):
        raise ValueError("a source needs either `path` or `dataset`")
    limit, seed = spec.get("limit"), spec.get("seed", 0)
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError(f"limit is {limit!r}; give a number of rows from 1")
    for key in ("balanced_fraction", "weighted_fraction"):
        fraction = spec.get(key)
        if fraction is not None and (
            type(fraction) not in (int, float) or not 0 < fraction <= 1 or "labels" not in spec
        ):
            raise ValueError(
                f"{key} is {fraction!r}; give a number above 0 and up to 1, and the classes in `labels`"
            )
    if "exclude" in spec:
        if not isinstance(spec["exclude"], Mapping):
            raise ValueError(f"exclude is {spec['exclude']!r}; give a source: {{path: FILE}}")
        try:
            check_source(spec["exclude"])
            check_not_drawn(spec["exclude"])
        except ValueError as error:
            raise ValueError(f"exclude: {error}") from None
    for key in ("streaming", "skip_blank"):
        if type(spec.get(key, False)) is not bool:
            raise ValueError(f"{key} is {spec[key]!r}; give true or false")
    for key in ("split", "config"):
        if spec.get(key) is not None and "dataset" not in spec:
            hint = (
                f"; to take some rows of a file, give where: {{split: {spec[key]}}}" if key == "split" else ""
            )
            raise ValueError(f"{key} is for a `dataset`{hint}")
    if spec.get("streaming") and "dataset" not in spec:
        raise ValueError("streaming is for a `dataset`; files are always read row by row")
    prompts = spec.get("prompts")
    if prompts is not None and (
        not isinstance(prompts, Mapping) or not all(isinstance(text, str) for text in prompts.values())
    ):
        raise ValueError(f"prompts is {prompts!r}; give a mapping of our field to a text")
    if type(seed) is not int or seed < 0:
        raise ValueError(f"seed is {seed!r}; give an integer from 0")


def _checked(spec: Mapping[str, Any]) -> _Spec:
    _check_keys(spec)
    columns, where, labels = spec.get("columns"), spec.get("where") or {}, spec.get("labels")
    if columns is not None and (not isinstance(columns, Mapping) or not columns):
        raise ValueError(f"columns is {columns!r}; give a mapping of our field to a column of the file")
    if not isinstance(where, Mapping):
        raise ValueError(f"where is {where!r}; give a mapping of a column to its allowed values")
    if labels is not None and (not isinstance(labels, list) or len(set(map(str, labels))) < len(labels)):
        raise ValueError(f"labels is {labels!r}; give a list of different names in the order of class ids")
    bounds = []
    for key, default in (("min_score", -math.inf), ("max_score", math.inf)):
        value = spec.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{key} is {value!r}; give a number")
        bounds.append(default if value is None else float(value))
    return _Spec(
        None if columns is None else {str(name): str(column) for name, column in columns.items()},
        {
            str(name): frozenset(
                text
                for value in (allowed if isinstance(allowed, list) else [allowed])
                for text in _spellings(value)
            )
            for name, allowed in where.items()
        },
        None if labels is None else {str(label): i for i, label in enumerate(labels)},
        bool(spec.get("skip_blank", False)),
        *bounds,
    )


def _spellings(value: Any) -> tuple[str, ...]:
    """A value of ``where`` as files may write it: true and false of YAML in lower case as well."""
    return (str(value), str(value).lower()) if isinstance(value, bool) else (str(value),)


class _Columns:
    """Collects the columns of a source; ``blank`` rows were left out."""

    def __init__(self, spec: _Spec, folder: Path | None) -> None:
        self._spec, self._folder = spec, folder
        self.blank = 0
        self._columns: dict[str, TextWriter | array[Any]] = {}

    def collect(self, source: Rows, most: int | None = None) -> None:
        """Add the rows of a file, or the first ``most`` that are kept."""
        origin = source.origin
        fields = self._spec.fields(source.header, origin)
        if self._columns and list(self._columns) != list(fields):
            raise ValueError(
                f"{origin}: the columns are {', '.join(fields)}, those of the files before "
                f"{', '.join(self._columns)}; name the common ones in `columns`"
            )
        where = self._spec.where
        readers = []
        for name, column in fields.items():
            if name not in self._columns:
                self._columns[name] = self._column(name)
            readers.append((column, _converter(name, self._spec), self._columns[name].append))
        count = blank = 0
        texts = [at for at, name in enumerate(fields, len(where)) if name not in ("label", "score")]
        for line, values in source.of([*where, *fields.values()]):
            if any(str(value) not in allowed for value, allowed in zip(values, where.values(), strict=False)):
                continue
            if self._spec.skip_blank and any(_is_blank(values[at]) for at in texts):
                blank += 1
                continue
            for value, (column, convert, append) in zip(values[len(where) :], readers, strict=True):
                if value is ABSENT:
                    raise ValueError(
                        f"{origin}:{line}: no field {column!r}, which the first line has; add it, or leave out rows "
                        "without a text by `skip_blank: true`"
                    )
                try:
                    append(convert(value))
                except ValueError as error:
                    raise ValueError(f"{origin}:{line}: column {column!r}: {error}") from None
            count += 1
            if count == most:
                break
        self.blank += blank
        if blank:
            _LOG.info("%s: %d rows with a blank text are left out", origin, blank)

    def table(self) -> Table:
        """The columns; call it once."""
        columns: dict[str, Column] = {}
        for name, values in self._columns.items():
            columns[name] = values.close() if isinstance(values, TextWriter) else np.array(values)
        return Table(columns, tuple(self._spec.labels or ()))

    def _column(self, name: str) -> TextWriter | array[Any]:
        if name == "label" and self._spec.labels is not None:
            return array("q")
        return array("d") if name in ("label", "score") else TextWriter(self._folder)


def _converter(name: str, spec: _Spec) -> Callable[[Any], Any]:
    if name == "label" and spec.labels is not None:
        labels = spec.labels

        def to_class(value: Any) -> int:
            found = labels.get(str(value))
            if found is None:
                booleans = {"True", "False"} & labels.keys()
                hint = "; YAML reads no and yes as false and true: put them into quotes" if booleans else ""
                raise ValueError(
                    f"unknown label {value!r:.80}; `labels` are {', '.join(labels)}: add it, or leave "
                    f"the row out with `where`{hint}"
                )
            return found

        return to_class
    if name in ("label", "score"):

        def to_number(value: Any) -> float:
            try:
                number = math.nan if isinstance(value, bool) else float(value)
            except (TypeError, ValueError, OverflowError):
                number = math.nan
            if not math.isfinite(number):
                raise ValueError(
                    f"{value!r:.80} is not a finite number; repair it, or name classes in `labels`"
                )
            if not spec.min_score <= number <= spec.max_score:
                raise ValueError(
                    f"{number} is not within {spec.min_score} and {spec.max_score}; repair it, or change "
                    "`min_score` and `max_score`"
                )
            return number

        return to_number
    return _text


def _is_blank(value: Any) -> bool:
    return value is None or value is ABSENT or (isinstance(value, str) and (not value or value.isspace()))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.80} is not a text; leave it out of `columns`, or repair the row")
    if _is_blank(value):
        raise ValueError(
            "the text is empty; repair the row, or leave such rows out: `skip_blank: true` of a recipe's source, "
            "--skip-blank of mine"
        )
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"a lone surrogate at position {error.start}, no Unicode; repair the text"
            ) from None
    return value


def _dataset_rows(spec: Mapping[str, Any]) -> Rows:
    name, split = spec["dataset"], spec.get("split")
    if not isinstance(split, str):
        raise ValueError(f"the data set {name!r} needs a `split`, e.g. split: train")
    try:
        import datasets
    except ImportError:
        raise ImportError(f"the data set {name!r} needs the datasets package: pip install datasets") from None
    failures = (OSError, ValueError, datasets.exceptions.DatasetsError)
    try:
        data = datasets.load_dataset(
            name, spec.get("config"), split=split, streaming=spec.get("streaming", False)
        )
        # a stream may name its columns only in its rows
        header = list(data.column_names or next(iter(data), {}))
    except failures as error:  # offline, damaged, unknown name, configuration or split
        _refuse_dataset(name, error)

    def of(columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
        try:
            chosen = data.select_columns(list(dict.fromkeys(columns))) if data.column_names else data
            for number, row in enumerate(chosen, 1):
                yield number, [row.get(column, ABSENT) for column in columns]
        except failures as error:
            _refuse_dataset(name, error)

    return Rows(header, f"{name} ({split})", of)


def _refuse_dataset(name: str, error: Exception) -> NoReturn:
    reason = str(error.__cause__ or error).strip()
    raise ValueError(
        f"the data set {name!r} cannot be loaded ({reason}). Repair its files; without network, put it on disk first "
        "and name the file in `path` (parquet, tsv or jsonl)"
    ) from error


def _nearest(name: Any, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(str(name), list(names), 1, 0.6)
    return f" (did you mean {found[0]!r}?)" if found else ""
