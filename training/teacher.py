"""Teacher vectors, computed once and cached: h_t = W_t^T (e - mean).

Source: HPD (Zhao et al. 2022, arXiv:2203.07687), Algorithm 1: e are a teacher's sentence vectors, W_t the
principal components of a sample of them. The released code fits on 40,000 sentences and subtracts no mean.

Our own addition: with several teachers, e is the concatenation of their vectors.

The cache folder contains, shared by runs with other seeds, dimensions or parts of the data:

* ``vectors-…/``: the vectors e of all texts so far, in blocks that appear complete or not at all: a killed
  process loses one block; and ``ordered-….npy``, those of the texts of a task, in order, which training maps into
  memory;
* ``pca-….npz``: W_t and the mean;
* ``targets-….npy``: h_t of the texts of a task, likewise;
* ``related-….npy``: neighbors of the texts of a task, see `embedkit.training.neighbors`.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import Encoder
from ..inputs import progress
from .data.texts import Chain, KeyIndex, Keys, Rows, Selection, distinct, text_keys
from .linear_map import LinearMap, fit, sample_distinct
from .neighbors import near_and_far
from .processes import own_gpu
from .whole_file import write_array, write_whole

__all__ = [
    "STORAGES",
    "Reading",
    "TeacherOptions",
    "Teachers",
    "VectorStore",
    "by_example",
    "encode_prompted",
    "open_encoder",
    "variance_scale",
]

STORAGES = ("float16", "float32")
_LOG = logging.getLogger("embedkit")
_BLOCK = 2048  # texts per block
_CHUNK = 16384  # rows projected at once
_MINE_DIMENSION = 256  # of the vectors in which neighbors are searched


@dataclass(frozen=True)
class TeacherOptions:
    """One teacher.

    Attributes:
        path: folder or Hub name of a model that `embedkit.Encoder` loads.
        precision: ``fp32``, ``int8``, or ``auto`` for that of the folder.
        max_length: maximum number of tokens in a text, special tokens included; None for the folder's own.
        prompt: prefix of each text, as in the model's card (``"query: "``).
        prompt_words: the prompt precedes only texts of at most this many words, which read like queries; None for all.
        query_prompt: what the student reads queries with. The teacher reads texts that begin with it with ``prompt``
            in its place, and all others without; ``prompt_words`` does not count. None if there are no such texts.
        weight: relative weight of the teacher; its vectors are normalized and all teachers scaled to the same
            variance first. None uses the vectors as they are.
    """

    path: str
    precision: str = "auto"
    max_length: int | None = None
    prompt: str = ""
    prompt_words: int | None = None
    query_prompt: str | None = None
    weight: float | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.query_prompt == "":
            raise ValueError("a teacher's query_prompt must not be empty; leave it out if there is none")
        if self.prompt_words is not None and self.prompt_words < 1:
            raise ValueError(f"a teacher's prompt_words must be positive, not {self.prompt_words}")
        if self.weight is not None and not 0 < self.weight < math.inf:
            raise ValueError(f"a teacher's weight must be positive, not {self.weight}")

    @property
    def reading(self) -> Reading:
        """Which prompt precedes which text."""
        return Reading(self.prompt, self.prompt_words, self.query_prompt)


def open_encoder(path: str, *, precision: str = "auto", max_length: int | None = None) -> Encoder:
    """A model that encodes for a training: on this process's GPU if there is one and the model runs there."""
    if (device := own_gpu()) is not None:
        try:
            return Encoder(path, device=device, precision=precision, max_length=max_length)
        except (ValueError, ImportError) as error:  # a static model, or no Triton
            _LOG.info("%s encodes on the CPU: %s", path, error)
    return Encoder(path, precision=precision, max_length=max_length)


@dataclass(frozen=True)
class Reading:
    """How a teacher reads texts; the fields are those of `TeacherOptions`."""

    prompt: str = ""
    prompt_words: int | None = None
    query_prompt: str | None = None

    def groups(self, texts: Sequence[str]) -> list[tuple[str, Rows, int]]:
        """The prompts that occur, each with the rows of its texts and the characters that it takes the place of."""
        rows = np.arange(len(texts))
        if self.query_prompt is not None:
            query = np.fromiter((text.startswith(self.query_prompt) for text in texts), bool, len(texts))
            parts = [("", rows[~query], 0), (self.prompt, rows[query], len(self.query_prompt))]
        elif self.prompt and self.prompt_words is not None:
            words = self.prompt_words
            short = np.fromiter((len(text.split(None, words)) <= words for text in texts), bool, len(texts))
            parts = [("", rows[~short], 0), (self.prompt, rows[short], 0)]
        else:
            parts = [(self.prompt, rows, 0)]
        return [part for part in parts if len(part[1])]

    def names(self) -> list[Any]:
        """What tells these vectors of a model from others."""
        names: list[Any] = [self.prompt]
        if self.query_prompt is not None:
            return [*names, "query", self.query_prompt]
        return names if self.prompt_words is None else [*names, self.prompt_words]


def encode_prompted(encoder: Encoder, texts: Sequence[str], teacher: TeacherOptions) -> npt.NDArray[Any]:
    """A teacher's vectors (n, dimension) of texts, with its prompt before those that it precedes."""
    vectors = np.empty((len(texts), encoder.get_embedding_dimension()), np.float32)
    for prompt, rows, cut in teacher.reading.groups(texts):
        vectors[rows] = encoder.encode([texts[row][cut:] for row in rows.tolist()], prompt=prompt)
    return vectors


def variance_scale(vectors: npt.NDArray[Any], weight: float) -> float:
    """What to multiply a teacher's unit vectors (n, dimension) by, so that their standard deviation is ``weight``."""
    return weight / math.sqrt(float(vectors.var(0).sum()))


class VectorStore:
    """Vectors of texts on disk, keyed by the texts' hashes; missing ones are encoded and added.

    ``000000.npy`` contains the vectors (n, dimension) of a block and ``000000.keys.npy`` the hashes (n, 16) of
    its texts. The hashes are written last and by renaming: a block without them does not count.
    """

    def __init__(self, folder: Path, storage: str, reading: Reading = Reading()) -> None:
        """Open or create the store; ``storage`` is the vectors' type on disk."""
        self.folder = folder
        self._storage = storage
        self._reading = reading
        folder.mkdir(parents=True, exist_ok=True)
        self._keys: list[Keys] = []
        self._index: KeyIndex | None = None  # of all keys; made when it is asked
        self._blocks: list[npt.NDArray[Any]] = []
        self._starts = [0]
        self._load()

    @classmethod
    def of(cls, encoder: Encoder, cache: Path, storage: str, reading: Reading = Reading()) -> VectorStore:
        """The store of an encoder's vectors in a cache folder; its name contains all that affects a vector."""
        about = encoder.describe()
        parts = [encoder.fingerprint, about["precision"], about["max_length"], *reading.names()]
        return cls(cache / f"vectors-{_digest(*parts)}-{storage}", storage, reading)

    def __len__(self) -> int:
        """The number of texts."""
        return self._starts[-1]

    @property
    def dimension(self) -> int:
        """Width of the vectors; 0 while there are none."""
        return int(self._blocks[0].shape[1]) if self._blocks else 0

    def add(self, texts: Sequence[str], encoder: Encoder) -> None:
        """Encode the texts that are missing.

        Processes that add to the same store take turns; the second finds the results of the first.

        Args:
            texts: in any order, with repetitions.
            encoder: the encoder of this store.
        """
        if not self._missing(texts):
            return
        with _locked(self.folder / "lock"):
            self._load()
            missing = self._missing(texts)
            if not missing:
                return
            _LOG.info("%s: encoding %d of %d texts", self.folder.name, len(missing), len(texts))
            with progress(len(missing), None) as advance:
                for prompt, rows, cut in self._reading.groups(missing):
                    part, first = Selection(missing, rows), 0
                    read = map(itemgetter(slice(cut, None)), part)
                    for vectors in encoder.encode_iter(read, prompt=prompt, block_size=_BLOCK):
                        keys = text_keys(part[first : first + len(vectors)])
                        self._write(vectors, keys)
                        first += len(vectors)
                        if advance is not None:
                            advance(len(vectors))

    def rows(self, texts: Sequence[str]) -> Rows:
        """The rows (n,) of texts.

        Raises:
            KeyError: a text was never added.
        """
        rows = self._find(text_keys(texts))
        if (rows < 0).any():
            raise KeyError(f"{texts[int(rows.argmin())]!r:.80} was never added")
        return rows

    def read(self, rows: Rows) -> npt.NDArray[np.float32]:
        """The vectors (n, dimension) of ``rows`` (n,)."""
        vectors = np.empty((len(rows), self.dimension), np.float32)
        block_of = np.searchsorted(self._starts, rows, side="right") - 1
        for block in np.unique(block_of):
            here = block_of == block
            vectors[here] = self._blocks[block][rows[here] - self._starts[block]]
        return vectors

    def mapped(self, columns: Sequence[Sequence[str]]) -> npt.NDArray[Any]:
        """The vectors (n, columns, dimension) of n examples' texts, mapped read-only; `add` them first."""
        texts = Chain(columns)
        path = self.folder / f"ordered-{_text_digest(texts)[:16]}.npy"
        shape = (len(texts), self.dimension)
        vectors = _written(path, texts, shape, self._storage, lambda part: self.read(self.rows(part)))
        return by_example(vectors, len(columns))

    def _missing(self, texts: Sequence[str]) -> Sequence[str]:
        keys = text_keys(texts)
        first, _ = distinct(keys)
        return Selection(texts, first[self._find(keys[first]) < 0])

    def _find(self, keys: Keys) -> Rows:
        if self._index is None:
            self._index = KeyIndex(np.concatenate([np.empty((0, keys.shape[1]), np.uint8), *self._keys]))
        return self._index.find(keys)

    def _load(self) -> None:
        """Map the blocks that were added since the last call."""
        while (path := self._path(len(self._blocks), ".keys.npy")).is_file():
            self._append(np.load(self._path(len(self._blocks), ".npy"), mmap_mode="r"), np.load(path))

    def _write(self, vectors: npt.NDArray[Any], keys: Keys) -> None:
        number = len(self._blocks)
        write_array(self._path(number, ".npy"), vectors.astype(self._storage))
        write_array(self._path(number, ".keys.npy"), keys)
        self._load()

    def _append(self, vectors: npt.NDArray[Any], keys: Keys) -> None:
        start = self._starts[-1]
        self._keys.append(keys)
        self._index = None
        self._blocks.append(vectors)
        self._starts.append(start + len(vectors))

    def _path(self, number: int, suffix: str) -> Path:
        return self.folder / f"{number:06d}{suffix}"


class Teachers:
    """One or several teachers, and the projection of their vectors."""

    def __init__(self, teachers: Sequence[TeacherOptions], cache: Path, storage: str = "float16") -> None:
        """Open the teachers; nothing is encoded yet.

        Raises:
            FileNotFoundError, ValueError: a teacher does not exist, or an option is wrong.
        """
        self._cache = cache
        self._storage = storage
        self._encoders = [
            open_encoder(teacher.path, precision=teacher.precision, max_length=teacher.max_length)
            for teacher in teachers
        ]
        self._stores = [
            VectorStore.of(encoder, cache, storage, teacher.reading)
            for encoder, teacher in zip(self._encoders, teachers, strict=True)
        ]
        self._weights = [teacher.weight for teacher in teachers]
        self._map: LinearMap | None = None
        self._map_key = ""

    @property
    def dimension(self) -> int:
        """Width of the teachers' concatenated vectors."""
        return sum(encoder.get_embedding_dimension() for encoder in self._encoders)

    def fit(
        self, texts: Sequence[str], dimension: int, *, samples: int = 100_000, center: bool = True
    ) -> LinearMap:
        """Compute W_t and the mean from a sample of the distinct texts; encodes all of them.

        Args:
            texts: the training texts.
            dimension: of h_t.
            samples: texts of the sample, drawn without replacement; all if there are fewer.
            center: whether the mean is subtracted.

        Raises:
            ValueError: the teachers have fewer dimensions, or there are too few texts.
        """
        if dimension > self.dimension:
            raise ValueError(
                f"the teachers have {self.dimension} dimensions, fewer than the {dimension} to learn; set "
                "objective.teacher_dimension, or without it model.projection.dimension, to at most "
                f"{self.dimension}, or add a teacher"
            )
        sample = sample_distinct(texts, samples)
        self._map_key = _digest(self._names(), _text_digest(sample), dimension, center)
        path = self._cache / f"pca-{self._map_key}.npz"
        self._add(texts)
        if not path.is_file():
            with _locked(path.with_suffix(".lock")):
                if not path.is_file():
                    fitted = self._fit(self._read(sample), dimension, center)
                    write_whole(path, lambda file: np.savez(file, weight=fitted.weight, mean=fitted.mean))
        with np.load(path) as stored:
            self._map = LinearMap(stored["weight"], stored["mean"])
        return self._map

    def targets(self, texts: Sequence[str]) -> npt.NDArray[Any]:
        """h_t of ``texts``, (n, dimension), mapped read-only; call `fit` first."""
        if self._map is None:
            raise RuntimeError("Teachers.targets needs the projection; call fit first")
        path = self._cache / f"targets-{_digest(self._map_key, _text_digest(texts))}.npy"
        self._add(texts)
        projection = self._map
        shape = (len(texts), projection.weight.shape[1])
        return _written(path, texts, shape, self._storage, lambda part: projection(self._read(part)))

    def related(self, texts: Sequence[str]) -> Rows:
        """`near_and_far` of distinct texts: (m, 3) rows of them, mapped read-only; kept in the cache."""
        path = self._cache / f"related-{_digest(self._names(), _text_digest(texts))}.npy"
        if not path.is_file():
            self.fit(texts, min(_MINE_DIMENSION, self.dimension, len(texts) - 1), center=False)
            vectors = self.targets(texts)
            with _locked(path.with_suffix(".lock")):
                if not path.is_file():
                    write_array(path, near_and_far(vectors))
        rows: Rows = np.load(path, mmap_mode="r")
        return rows

    def close(self) -> None:
        """Free the teachers' memory; computed vectors can still be read."""
        for encoder in self._encoders:
            encoder.close()

    def _names(self) -> list[Any]:
        return [
            [store.folder.name, weight] for store, weight in zip(self._stores, self._weights, strict=True)
        ]

    def _add(self, texts: Sequence[str]) -> None:
        for store, encoder in zip(self._stores, self._encoders, strict=True):
            store.add(texts, encoder)

    def _fit(self, vectors: npt.NDArray[np.float32], dimension: int, center: bool) -> LinearMap:
        """The components of the weighted vectors, as a map of the unweighted vectors."""
        scales = np.ones(vectors.shape[1], np.float32)
        start = 0
        for store, weight in zip(self._stores, self._weights, strict=True):
            columns = slice(start, start := start + store.dimension)
            if weight is not None:
                scales[columns] = variance_scale(vectors[:, columns], weight)
        fitted = fit(vectors * scales, dimension, center=center)
        return LinearMap(fitted.weight * scales[:, None], fitted.mean / scales)

    def _read(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        parts = []
        for store, weight in zip(self._stores, self._weights, strict=True):
            vectors = store.read(store.rows(texts))
            if weight is not None:
                vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            parts.append(vectors)
        return np.concatenate(parts, axis=1)


def by_example(vectors: npt.NDArray[Any], columns: int) -> npt.NDArray[Any]:
    """A view (n, columns, d) of the vectors (columns * n, d) of n examples' texts, column after column."""
    return vectors.reshape(columns, len(vectors) // columns, -1).swapaxes(0, 1)


def _written(
    path: Path,
    texts: Sequence[str],
    shape: tuple[int, int],
    storage: str,
    vectors_of: Callable[[Sequence[str]], npt.NDArray[Any]],
) -> npt.NDArray[Any]:
    """The vectors of texts in order, mapped read-only from the file ``path``, which is written if there is none."""
    if not path.is_file():
        with _locked(path.with_suffix(".lock")):
            if not path.is_file():
                part = path.with_name(f".{path.name}")
                written = np.lib.format.open_memmap(part, "w+", storage, shape)
                _reserve(part)
                for start in range(0, len(texts), _CHUNK):
                    written[start : start + _CHUNK] = vectors_of(texts[start : start + _CHUNK])
                written.flush()
                part.replace(path)
    mapped: npt.NDArray[Any] = np.load(path, mmap_mode="r")
    return mapped


def _reserve(path: Path) -> None:
    """Claim the space of a mapped file, which has holes: on a full disk, writing to them would kill the process.

    Raises:
        OSError: there is too little.
    """
    size = path.stat().st_size
    try:
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # the file system cannot do that
            return
        path.unlink()
        raise OSError(
            f"{path.parent} has no room for {size:,} bytes of teachers' vectors ({error.strerror}); free space, or "
            "choose another output or cache"
        ) from error


def _text_digest(texts: Sequence[str]) -> str:
    return hashlib.sha256(text_keys(texts).tobytes()).hexdigest()


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a file: one process at a time; the system releases the lock of a process that dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
