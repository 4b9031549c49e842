"""Everything that touches Faiss: the import, the choice of factory, training, and search parameters."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embedkit.index.errors import BuildError, IndexDamagedError
from embedkit.index.factory import check_factory

AUTO = "auto"
AUTO_IVF_ROWS = 20_000
"""``auto`` builds an exact (Flat) index below this number of vectors and an inverted file from here on."""

_MIN_POINTS_PER_LIST = 39  # below, Faiss warns on stderr that the clusters are poorly trained
_POINTS_PER_LIST = 64
_MIN_SAMPLE_ROWS = 65_536  # for codecs without lists (PQ, SQ, OPQ)
_MAX_SAMPLE_BYTES = 256 << 20
_MAX_NLIST = 65_536
_ADD_ROWS = 16_384
_SEED = 20240

Float32Array = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]


def import_faiss() -> Any:
    """Import Faiss, or raise `ImportError` naming the extra that brings it."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            "an index needs Faiss, which is not installed: pip install 'embedkit[cpu]'"
        ) from error
    return faiss


@contextlib.contextmanager
def faiss_threads(count: int | None) -> Iterator[None]:
    """Let Faiss use ``count`` threads inside, ``None``: its default. (OpenMP keeps it per calling thread.)"""
    if count is None:
        yield
        return
    faiss = import_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def resolve_factory(factory: str, rows: int) -> str:
    """The Faiss factory string for ``rows`` vectors: ``factory`` itself, or what ``auto`` stands for.

    From `AUTO_IVF_ROWS` on, ``auto`` is ``IVF{nlist},Flat`` with nlist ≈ 4·√rows, at least 39 vectors a list,
    at most 65,536 lists.
    """
    if factory != AUTO:
        return factory
    if rows < AUTO_IVF_ROWS:
        return "Flat"
    nlist = min(round(4 * math.sqrt(rows)), rows // _MIN_POINTS_PER_LIST, _MAX_NLIST)
    return f"IVF{nlist},Flat"


def default_nprobe(nlist: int) -> int:
    """Lists that a search visits unless told otherwise: a sixteenth of them, but at least 8."""
    return min(nlist, max(8, nlist // 16))


def create_index(factory: str, dimension: int) -> Any:
    """An empty Faiss index for inner product over ``dimension`` columns.

    Raises:
        ValueError: ``factory`` is not one that embedkit takes, or Faiss refuses it for this dimension.
    """
    check_factory(factory, dimension)
    faiss = import_faiss()
    try:
        return faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, MemoryError) as error:
        raise ValueError(
            f"Faiss does not accept the factory {factory!r} for {dimension} dimensions ({_short(error)}); "
            "use 'auto', 'Flat', 'IVF1024,Flat' or another string of the Faiss index factory"
        ) from None


def build_index(
    factory: str,
    vectors: Float32Array,
    *,
    threads: int | None,
    progress: Callable[[str, int, int], None],
) -> Any:
    """Train and fill a Faiss index.

    Args:
        factory: a Faiss factory string (``auto`` resolved).
        vectors: (rows, dimension), C-contiguous; may be memory-mapped, is read in blocks unless the index is
            Flat.
        threads: OpenMP threads, ``None`` for Faiss' default.
        progress: called with "train" or "add", the rows done and the rows in all.

    Raises:
        BuildError: too few vectors to train on, or Faiss failed.
    """
    faiss = import_faiss()
    rows, dimension = vectors.shape
    index = create_index(factory, dimension)
    with faiss_threads(threads):
        try:
            if not index.is_trained:
                sample = training_sample(vectors, inverted_lists(index))
                progress("train", 0, len(sample))
                ivf = ivf_of(index)
                if ivf is not None:
                    ivf.cp.min_points_per_centroid = (
                        1  # a small sample is the caller's choice: no warning on stderr
                    )
                index.train(sample)
            # a Flat index reserves its memory in one call, where blocks would make it grow by copying
            step = rows if isinstance(index, faiss.IndexFlat) else _ADD_ROWS
            for begin in range(0, rows, step):
                index.add(vectors[begin : begin + step])
                progress("add", min(begin + step, rows), rows)
        except RuntimeError as error:
            hint = "; use Flat, or fewer lists or bits" if "training points" in str(error) else ""
            raise BuildError(
                f"Faiss cannot build {factory!r} from {rows} vectors: {_short(error)}{hint}"
            ) from None
    ivf = ivf_of(index)
    if ivf is not None:
        ivf.nprobe = default_nprobe(ivf.nlist)
    return index


def training_sample(vectors: Float32Array, nlist: int | None) -> Float32Array:
    """Rows to train on: a bounded random sample of all (a corpus is often sorted), the same every time."""
    rows, dimension = vectors.shape
    least = _MIN_POINTS_PER_LIST * (nlist or 0)
    wanted = max(_MIN_SAMPLE_ROWS, _POINTS_PER_LIST * (nlist or 0))
    wanted = max(least, min(wanted, _MAX_SAMPLE_BYTES // (4 * dimension)))
    if wanted >= rows:
        return vectors
    chosen = np.random.default_rng(_SEED).choice(rows, wanted, replace=False)
    sample: Float32Array = vectors[np.sort(chosen)]
    return sample


def ivf_of(index: Any) -> Any | None:
    """The inverted-file index inside ``index``, or ``None``."""
    try:
        return import_faiss().extract_index_ivf(index)
    except RuntimeError:
        return None


def inverted_lists(index: Any) -> int | None:
    """The number of inverted lists, or ``None`` for an index without."""
    ivf = ivf_of(index)
    return None if ivf is None else int(ivf.nlist)


def search_parameters(index: Any, nprobe: int) -> Any:
    """Parameters to visit ``nprobe`` lists in one call (setting the index' own would not be thread-safe)."""
    faiss = import_faiss()
    if isinstance(index, faiss.IndexPreTransform):
        return faiss.SearchParametersPreTransform(
            index_params=search_parameters(faiss.downcast_index(index.index), nprobe)
        )
    if isinstance(index, faiss.IndexRefine):
        return faiss.IndexRefineSearchParameters(
            k_factor=index.k_factor,
            base_index_params=search_parameters(faiss.downcast_index(index.base_index), nprobe),
        )
    if isinstance(index, faiss.IndexIVFPQ):
        return faiss.IVFPQSearchParameters(nprobe=nprobe)
    return faiss.SearchParametersIVF(nprobe=nprobe)


def write_index(index: Any, path: Path) -> None:
    """Write ``index`` to ``path``; `BuildError` or ``OSError`` if the disk does not take it."""
    faiss = import_faiss()
    try:
        # Faiss only prints it when the last buffer of its own file cannot be written. Closing ours raises.
        with path.open("xb") as file:
            faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))
    except RuntimeError as error:
        raise BuildError(f"{path.name} cannot be written: {_short(error)}") from None


def read_index(path: Path, *, rows: int, dimension: int) -> Any:
    """Read an inner-product index that must hold (rows, dimension), else `IndexDamagedError`."""
    faiss = import_faiss()
    try:
        index = faiss.read_index(str(path))
    except (RuntimeError, MemoryError) as error:  # a damaged length may ask for any amount of memory
        raise IndexDamagedError(
            f"{path}: Faiss cannot read it ({_short(error)}); build the index again"
        ) from None
    found = (index.ntotal, index.d, index.metric_type)
    if found != (rows, dimension, faiss.METRIC_INNER_PRODUCT):
        raise IndexDamagedError(
            f"{path}: holds {index.ntotal} vectors of {index.d} dimensions (metric {index.metric_type}), "
            f"and the manifest says {rows} of {dimension}, inner product; build the index again"
        )
    return index


def _short(error: Exception) -> str:
    """Faiss' message without the C++ signature and line number it starts with."""
    lines = str(error).strip().splitlines()
    text = lines[-1] if lines else type(error).__name__
    for marker in ("failed: ", ": Error: ", "Error: "):
        _, found, rest = text.rpartition(marker)
        if found and rest:
            text = rest
            break
    return text.strip()
