"""From an index to points, clusters and their names."""

from __future__ import annotations

import importlib.util
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...documents.errors import InputError
from ..storage.faiss_index import Float32Array, Int64Array, faiss_threads, import_faiss
from ..storage.vectors import normalize_rows
from ..words.analyzer import runs_and_words
from ..words.languages import AUTO, NONE, detect_language, stop_words

if TYPE_CHECKING:
    from ..index import Index

__all__ = ["LAYOUTS", "Layout", "Picture", "layout_of", "make_picture", "name_clusters"]

Layout = Literal["auto", "pca", "umap"]
LAYOUTS: tuple[Layout, ...] = ("auto", "pca", "umap")

_SEED = 20240
_LEAST_OF_UMAP = 4
_MOST_CLUSTERS = 12
_WORDS_OF_A_NAME = 3
_LETTERS = re.compile(r"[^\W\d]\D*")  # of a word, its marks included, without its numbers
_HANGUL = re.compile("[\uac00-\ud7a3]")
_TEXT_CHARACTERS = 240
_MOST_VALUES = 9  # of a field that get a color of their own
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Picture:
    """Documents as points.

    Attributes:
        points: (n, 2) float32.
        layout: how they came about: "PCA, 23 % of the variance" or "UMAP".
        ids: of the documents.
        texts: the beginnings of the documents' texts.
        clusters: (n,) the cluster of each document.
        names: the most telling words of each cluster.
        groups: what colors the points: the cluster's name, or the value of a field.
        color: the name of that field; ``None``: clusters.
        values: (n,) the values of a field of numbers, NaN where there is none; ``None``: groups are colored.
        total: documents in the index, of which these may be a sample.
        whole: the documents that these are passages of; ``None``: they are whole.
    """

    points: Float32Array
    layout: str
    ids: list[str]
    texts: list[str]
    clusters: Int64Array
    names: list[str]
    groups: list[str]
    color: str | None
    values: np.ndarray[Any, Any] | None
    total: int
    whole: int | None = None


def make_picture(
    index: Index,
    *,
    layout: Layout = "auto",
    color: str | None = None,
    clusters: int | None = None,
    sample: int = 10_000,
) -> Picture:
    """Lay out the documents of ``index``, or ``sample`` of them, in two dimensions.

    Args:
        index: with at least three documents, or passages.
        layout: "pca" (the two directions of the largest variance), "umap" (McInnes et al. 2018, needs umap-learn), or
            "auto": UMAP if it is installed.
        color: the field that colors the points (``author.name`` reaches into objects); ``None``: clusters.
        clusters: how many; ``None``: by the number of documents, at most 12.
        sample: most documents to draw.

    Raises:
        InputError: there are fewer than three documents, or none has the field ``color``.
        ImportError: "umap" is not installed.
        ValueError: an argument is out of range.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, not {layout!r}")
    if clusters is not None and clusters < 1:
        raise ValueError(f"clusters must be at least 1, not {clusters}")
    generation = index.generation
    rows = generation.living_rows()
    if len(rows) < 3:
        what = "documents" if generation.manifest.passages is None else "passages"
        raise InputError(str(index.path), f"a picture needs at least 3 {what}, the index has {len(rows)}")
    if len(rows) > sample:
        rows = np.sort(np.random.default_rng(_SEED).choice(rows, max(3, sample), replace=False))
    vectors = generation.vectors(rows)
    if generation.manifest.metric == "cosine":
        vectors = normalize_rows(vectors)
    found = generation.fetch(rows)
    documents = [found[row] for row in rows.tolist()]
    points, how = layout_of(vectors, layout)
    count = min(clusters or _clusters_for(len(rows)), len(rows))
    of = _cluster(vectors, count)
    texts = [document.text for document in documents]
    names = name_clusters(texts, of, int(of.max()) + 1)  # some may be empty, the last ones
    groups, values = [names[cluster] for cluster in of.tolist()], None
    if color is not None:
        groups, values = _colored(color, [document.metadata for document in documents])
    return Picture(
        points,
        how,
        [document.id for document in documents],
        [" ".join(text[:_TEXT_CHARACTERS].split()) for text in texts],
        of,
        names,
        groups,
        color,
        values,
        generation.manifest.documents,
        None if generation.manifest.passages is None else generation.whole_documents,
    )


def layout_of(vectors: Float32Array, layout: Layout) -> tuple[Float32Array, str]:
    """Points (n, 2) of ``vectors`` (n, dimension), and how they came about: fewer than four have no neighborhoods."""
    if layout == "umap" and importlib.util.find_spec("umap") is None:
        raise ImportError(
            "the layout 'umap' needs umap-learn, which is not installed: pip install umap-learn"
        )
    if layout == "pca" or len(vectors) < _LEAST_OF_UMAP or importlib.util.find_spec("umap") is None:
        centered = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
        variances, axes = np.linalg.eigh(centered.T @ centered)
        axes = axes[:, ::-1][:, :2]
        axes = axes * np.where(
            axes[np.abs(axes).argmax(axis=0), range(axes.shape[1])] < 0, -1, 1
        )  # of one sign
        points = np.zeros((len(vectors), 2), np.float32)
        points[:, : axes.shape[1]] = centered @ axes
        share = variances[::-1][:2].sum() / max(variances.sum(), 1e-30)
        return points, f"PCA, {share:.0%} of the variance"
    import umap

    reducer = umap.UMAP(
        n_neighbors=min(15, len(vectors) - 1), metric="cosine", random_state=_SEED, n_jobs=1, init="pca"
    )
    return np.asarray(reducer.fit_transform(vectors), np.float32), "UMAP"


def _clusters_for(documents: int) -> int:
    return max(2, min(_MOST_CLUSTERS, round(math.sqrt(documents / 2))))


def _cluster(vectors: Float32Array, count: int) -> Int64Array:
    """The cluster of each vector, by k-means; numbered by size, the largest first."""
    faiss = import_faiss()
    with faiss_threads(1):  # the same clusters every time
        means = faiss.Kmeans(
            vectors.shape[1], count, niter=25, nredo=3, seed=_SEED, min_points_per_centroid=1, spherical=True
        )
        means.train(np.ascontiguousarray(vectors, np.float32))
        _, nearest = means.index.search(np.ascontiguousarray(vectors, np.float32), 1)
    found = nearest[:, 0].astype(np.int64)
    order = np.argsort(-np.bincount(found, minlength=count), kind="stable")
    rank = np.empty(count, np.int64)
    rank[order] = np.arange(count)
    result: Int64Array = rank[found]
    return result


def name_clusters(texts: Sequence[str], clusters: Int64Array, count: int) -> list[str]:
    """The three words that tell each cluster from all, without function words.

    A word t in cluster c weighs p(t | c) · log(p(t | c) / p(t)), its part of the Kullback-Leibler divergence of the
    cluster's words from those of all: a word that is as common everywhere weighs nothing. Each text counts a word once.
    """
    language = detect_language(texts[:: max(1, len(texts) // 1000)])
    stops = stop_words("english" if language in (AUTO, NONE) else language) | stop_words("english")
    counts: list[Counter[str]] = [Counter() for _ in range(count)]
    for text, cluster in zip(texts, clusters.tolist(), strict=True):
        counts[cluster].update(_words_of(text, stops))
    everywhere: Counter[str] = Counter()
    for one in counts:
        everywhere.update(one)
    words_in_all = max(1, sum(everywhere.values()))
    names: list[str] = []
    for number, one in enumerate(counts):
        total = max(1, sum(one.values()))
        least = min(2, max(one.values(), default=0))  # a word of a single text tells of that text
        weights = {
            word: times / total * math.log(times / total * words_in_all / everywhere[word])
            for word, times in one.items()
            if times >= least
        }
        words: list[str] = []
        for word in sorted(weights, key=lambda word: (-weights[word], -one[word], word)):
            if not any(_alike(word, other) for other in words):  # "cell" beside "cells" tells nothing
                words.append(word)
            if len(words) == _WORDS_OF_A_NAME:
                break
        name = ", ".join(words) or f"cluster {number + 1}"
        names.append(name if name not in names else f"{name} ({number + 1})")
    return names


def _words_of(text: str, stops: frozenset[str]) -> set[str]:
    runs, others = runs_and_words(text)
    words = {piece for word in others for piece in _LETTERS.findall(word) if len(piece) > 2}
    for letters in runs:
        run = "".join(letters)
        if _HANGUL.search(run) is None:  # no spaces between words: their pairs of letters
            words.update(one + two for one, two in pairwise(letters))
        elif len(letters) > 1:
            words.add(run)
    return words - stops


def _alike(one: str, two: str) -> bool:
    short, long = sorted((one, two), key=len)
    return len(short) > 3 and long.startswith(short[: max(4, len(short) - 1)]) and len(long) - len(short) < 4


def _colored(color: str, metadata: Sequence[dict[str, Any]]) -> tuple[list[str], np.ndarray[Any, Any] | None]:
    """The group of each document by its field ``color``, and the values if they are many numbers."""
    found = [_field(fields, color) for fields in metadata]
    given = [value for value in found if value is not None]
    if not given:
        raise InputError("", f"no document has the field {color!r}")
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in given)
    if numbers and len(set(given)) > _MOST_VALUES:
        values = np.array([_number(value) for value in found])
        if np.isfinite(values).any():  # else there is nothing to color by
            return [
                "" if value is None else "nan" if np.isnan(number) else f"{value}"
                for value, number in zip(found, values, strict=True)
            ], values
    names = ["none" if value is None else value if isinstance(value, str) else f"{value}" for value in found]
    most = [name for name, _ in Counter(names).most_common(_MOST_VALUES)]
    return [name if name in most else OTHER for name in names], None


def _number(value: Any) -> float:
    """Of a field: not a number for one that is missing, or beyond what a float holds."""
    try:
        return math.nan if value is None else float(value)
    except OverflowError:
        return math.nan


def _field(fields: Any, name: str) -> Any:
    if isinstance(fields, dict) and name in fields:
        return fields[name]
    for step in name.split("."):
        fields = fields.get(step) if isinstance(fields, dict) else None
    return fields
