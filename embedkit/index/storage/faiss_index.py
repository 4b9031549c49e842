"""Faiss: its import, factory strings, search parameters and files."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...files import check_opens
from ..errors import BuildError, IndexDamagedError
from .factory import check_factory
from .search_parameters import SearchParameters

__all__ = [
    "AUTO",
    "AUTOMATIC",
    "AUTO_IVF_ROWS",
    "MIN_POINTS_PER_LIST",
    "READ_BACK",
    "Float32Array",
    "Int64Array",
    "SelectorError",
    "added_factory",
    "auto_nlist",
    "can_read_back",
    "create_index",
    "default_nprobe",
    "faiss_name",
    "faiss_parameters",
    "faiss_threads",
    "hnsw_of",
    "import_faiss",
    "inverted_lists",
    "is_codes_alone",
    "is_exact",
    "ivf_of",
    "layers",
    "read_index",
    "resolve_factory",
    "short",
    "train",
    "transforms",
    "write_index",
]

AUTO = "auto"
AUTOMATIC = {AUTO: "Flat", "auto-int8": "SQ8", "auto-int6": "SQ6"}
"""What may be asked for instead of a factory, and the codes of each; ``auto-int8`` and ``auto-int6`` are the default of
models that say so (`embedkit.index.build.publish.storage_of`)."""
READ_BACK = ("SQ6", "SQ8", "SQfp16", "Flat", *(name for name in AUTOMATIC if name != AUTO))
"""Ends of the factories whose codes vectors can be read back from, if all columns are coded."""
_REDUCTION = re.compile(r"PCA|RR|OPQ\d+_")  # to fewer columns

AUTO_IVF_ROWS = 20_000
"""``auto`` is an exact (Flat) index below this number of vectors, and an inverted file from that number on."""

MIN_POINTS_PER_LIST = 39  # below that, Faiss warns on stderr of poorly trained clusters
_MAX_NLIST = 65_536

Float32Array = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]


_forked = False


def _after_fork() -> None:
    """Keep Faiss to one thread: OpenMP's threads do not survive a fork, and it would wait for them forever."""
    global _forked  # noqa: PLW0603 (a fork is an event of the whole process)
    if "faiss" in sys.modules:
        _forked = True
        sys.modules["faiss"].omp_set_num_threads(1)


os.register_at_fork(after_in_child=_after_fork)


class SelectorError(Exception):
    """A Faiss index cannot restrict a search to given rows."""


def import_faiss() -> Any:
    """Import Faiss, or raise `ImportError` naming the extra that installs it."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError("Faiss is needed and not installed: pip install 'embedkit[cpu]'") from error
    return faiss


@contextlib.contextmanager
def faiss_threads(count: int | None, queries: int | None = None) -> Iterator[None]:
    """Let Faiss use ``count`` threads inside; ``None``: its default. (OpenMP keeps the number per calling thread.)

    At most as many threads are used as there are ``queries``: OpenMP's threads keep spinning after their work, on
    the cores that encode the next query (encoding a text after a search with two threads took 2.9 ms, not 1.1).

    In a process forked from one that had imported Faiss it is always one thread (see `_after_fork`).
    """
    faiss = import_faiss()
    before = faiss.omp_get_max_threads()
    wanted = before if count is None else count
    if queries is not None:
        wanted = max(1, min(wanted, queries))
    if _forked:
        wanted = 1
    if wanted == before:
        yield
        return
    faiss.omp_set_num_threads(wanted)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def resolve_factory(factory: str, rows: int) -> str:
    """The Faiss factory string for ``rows`` vectors: ``factory`` itself, or what ``auto`` means.

    From `AUTO_IVF_ROWS` on, ``auto`` is ``IVF{nlist},Flat`` with nlist ≈ 4·√rows, but at least 39 vectors per list
    and at most 65,536 lists. ``auto-int8`` has SQ8, a byte a column, in place of Flat, and ``auto-int6``
    SQ6, six bits a column.
    """
    codes = AUTOMATIC.get(factory)
    if codes is None:
        return factory
    return codes if rows < AUTO_IVF_ROWS else f"IVF{auto_nlist(rows)},{codes}"


def auto_nlist(rows: int) -> int:
    """The inverted lists of ``auto`` for ``rows`` vectors, or for `AUTO_IVF_ROWS` if these are fewer."""
    rows = max(rows, AUTO_IVF_ROWS)
    return min(round(4 * math.sqrt(rows)), rows // MIN_POINTS_PER_LIST, _MAX_NLIST)


def default_nprobe(nlist: int) -> int:
    """Lists that a search visits by default: a sixteenth of them, but at least 8.

    recall@10 (all-MiniLM-L6-v2) is 0.987 for 83,222 questions and 0.957 for 500,000 mixed sentences, whose nearest
    neighbors are far away; √nlist lists would give 0.975 and 0.856.
    """
    return min(nlist, max(8, nlist // 16))


def create_index(factory: str, dimension: int) -> Any:
    """An empty Faiss index for inner product over ``dimension`` columns.

    Raises:
        ValueError: embedkit does not accept ``factory``, or Faiss does not for this dimension.
    """
    check_factory(factory, dimension)
    faiss = import_faiss()
    try:
        return faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, MemoryError) as error:
        raise ValueError(
            f"Faiss does not accept the factory {factory!r} for {dimension} dimensions ({short(error)}); "
            "use 'auto', 'Flat', 'IVF1024,Flat' or another string of the Faiss index factory"
        ) from None


def train(index: Any, sample: Float32Array) -> None:
    """Train ``index`` on ``sample`` (n, dimension), so that codes which are decoded and coded again stay the same."""
    inner = _inner(index)
    for part in inner:
        if hasattr(part, "do_polysemous_training"):
            # minutes for a search by Hamming distance, which none here is
            part.do_polysemous_training = False
    _keep_products(index, sample)
    index.train(sample)
    for part in inner:
        if hasattr(part, "sq"):
            _round_to_nearest(part.sq)


def _keep_products(index: Any, sample: Float32Array) -> None:
    """Have the transforms of ``index`` take no mean from the vectors: what it adds to their products would be lost.

    Sentence vectors have one in common (mean cosine .57 of 900 sentences of bge-small): without it the cosines of
    PCA128 were .45 too small, and it found .74 of the ten nearest, not .96.
    """
    faiss = import_faiss()
    for transform in transforms(index):
        if isinstance(transform, faiss.PCAMatrix):
            transform.have_bias = False
        elif isinstance(transform, faiss.OPQMatrix) and transform.d_out < transform.d_in:
            # it chooses the columns to keep by vectors less their mean; that of vectors and opposites is zero
            signed = sample.copy()
            signed[::2] *= -1
            transform.train(signed)


def _inner(index: Any) -> list[Any]:
    """The indexes of which ``index`` is made, without what only wraps them."""
    faiss = import_faiss()
    if isinstance(index, faiss.IndexRefine):
        parts = (index.base_index, index.refine_index)
        return [inner for part in parts for inner in _inner(faiss.downcast_index(part))]
    if isinstance(index, faiss.IndexPreTransform):
        return _inner(faiss.downcast_index(index.index))
    if isinstance(index, faiss.IndexHNSW):
        return _inner(faiss.downcast_index(index.storage))
    return [index]


def _round_to_nearest(codes: Any) -> None:
    """Make the least and greatest trained value of each column values that codes decode to.

    Faiss rounds down and decodes to the middle of a step, half a step above the least value. Vectors that are decoded,
    trained on and coded once more, as a compaction does without others beside the codes, move up by as much each time
    (SQ6 of 336 columns: cosine .9995 the first time, .944 the eighth). Trained half a step lower, codes stay the same.
    """
    faiss = import_faiss()
    if codes.qtype not in (codes.QT_8bit, codes.QT_6bit, codes.QT_4bit):
        return
    low, width = np.split(faiss.vector_to_array(codes.trained), 2)
    half = 0.5 * width / ((1 << codes.bits) - 1)
    faiss.copy_array_to_vector(np.concatenate([low - half, width]).astype(np.float32), codes.trained)


def layers(index: Any) -> Iterator[Any]:
    """``index`` and what it wraps: the first index of a refinement, the one behind transforms, the storage of HNSW."""
    faiss = import_faiss()
    while True:
        yield index
        if isinstance(index, faiss.IndexRefine):
            index = faiss.downcast_index(index.base_index)
        elif isinstance(index, faiss.IndexPreTransform):
            index = faiss.downcast_index(index.index)
        elif isinstance(index, faiss.IndexHNSW):
            index = faiss.downcast_index(index.storage)
        else:
            return


def transforms(index: Any) -> Iterator[Any]:
    """The transforms that ``index`` applies to vectors."""
    faiss = import_faiss()
    for layer in layers(index):
        if isinstance(layer, faiss.IndexPreTransform):
            for number in range(layer.chain.size()):
                yield faiss.downcast_VectorTransform(layer.chain.at(number))


def hnsw_of(index: Any) -> Any | None:
    """The HNSW index inside ``index``, or ``None``."""
    return next((layer for layer in layers(index) if isinstance(layer, import_faiss().IndexHNSW)), None)


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


def added_factory(factory: str, rows: int, dimension: int) -> str:
    """The factory of a segment of ``rows`` documents that were added: exact search while they are few."""
    if factory in AUTOMATIC:
        return factory
    nlist = inverted_lists(create_index(factory, dimension)) or 0
    few = max(AUTO_IVF_ROWS, MIN_POINTS_PER_LIST * nlist)
    return "Flat" if rows < few else factory


def faiss_parameters(index: Any, parameters: SearchParameters, selector: Any = None) -> Any:
    """Faiss' object for one search (changing the index itself would not be thread-safe); ``None``: as built.

    What does not apply to ``index`` is ignored; nprobe is bounded by the lists there are, and ef by the vectors: Faiss
    makes room for as many candidates as it is told.

    Args:
        index: the Faiss index to search.
        parameters: how hard to search; ``rescore`` counts where there is a refinement, and 0 as 1.
        selector: a Faiss IDSelector over rows.

    Raises:
        SelectorError: ``index`` takes no selector.
    """
    faiss = import_faiss()
    given: dict[str, Any] = {} if selector is None else {"sel": selector}
    if isinstance(index, faiss.IndexPreTransform):
        inner = faiss_parameters(faiss.downcast_index(index.index), parameters, selector)
        return None if inner is None else faiss.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, faiss.IndexRefine):
        inner = faiss_parameters(faiss.downcast_index(index.base_index), parameters, selector)
        factor = parameters.rescore
        if factor is None:
            if inner is None:
                return None
            factor = index.k_factor
        return faiss.IndexRefineSearchParameters(k_factor=max(1, factor), base_index_params=inner)
    if isinstance(index, faiss.IndexHNSW):
        if parameters.ef is None and selector is None:
            return None
        ef = index.hnsw.efSearch if parameters.ef is None else min(parameters.ef, max(1, index.ntotal))
        return faiss.SearchParametersHNSW(efSearch=ef, **given)
    if isinstance(index, faiss.IndexIVF):
        if parameters.nprobe is None and selector is None:
            return None
        given["nprobe"] = index.nprobe if parameters.nprobe is None else min(parameters.nprobe, index.nlist)
        if isinstance(index, _types("IndexIVFRaBitQ", "IndexIVFRaBitQFastScan")):
            return faiss.IVFRaBitQSearchParameters(qb=getattr(index, "qb", 0), **given)
        if isinstance(index, faiss.IndexIVFPQ):
            return faiss.IVFPQSearchParameters(**given)
        return faiss.SearchParametersIVF(**given)
    if selector is None:
        return None
    if isinstance(index, (faiss.IndexPQ, faiss.IndexPQFastScan)):
        raise SelectorError(type(index).__name__)
    if isinstance(index, _types("IndexRaBitQ", "IndexRaBitQFastScan")):
        return faiss.RaBitQSearchParameters(qb=getattr(index, "qb", 0), **given)
    return faiss.SearchParameters(**given)


def _types(*names: str) -> tuple[Any, ...]:
    """The Faiss classes ``names``, as far as the installed version has them."""
    faiss = import_faiss()
    return tuple(getattr(faiss, name) for name in names if hasattr(faiss, name))


def write_index(index: Any, path: Path) -> None:
    """Write ``index`` to ``path``; `BuildError` or ``OSError``, e.g. if the disk is full."""
    faiss = import_faiss()
    try:
        # if the last buffer of its own file cannot be written, Faiss only prints it; closing our file raises
        with path.open("xb") as file:
            faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))
    except RuntimeError as error:
        raise BuildError(f"{path.name} cannot be written: {short(error)}") from None


def faiss_name(path: Path) -> str:
    """``path`` as Faiss takes names: in UTF-8, whatever the locale.

    Raises:
        ValueError: the name is no UTF-8.
    """
    try:
        return os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(
            f"{str(path)!a}: the name is not valid UTF-8, and Faiss opens no such file; rename it"
        ) from None


def read_index(path: Path, *, rows: int, dimension: int) -> Any:
    """Map an inner-product index of (rows, dimension); `IndexDamagedError` if it is anything else.

    Codes stay in the file until they are searched; kinds that Faiss cannot map are read here.
    """
    faiss = import_faiss()
    flags = getattr(faiss, "IO_FLAG_MMAP_IFC", 0)
    try:
        index = faiss.read_index(faiss_name(path), flags)
    except (RuntimeError, MemoryError) as error:  # a damaged length may demand any amount of memory
        check_opens(path)
        raise IndexDamagedError(
            f"{path}: Faiss cannot read it ({short(error)}); build the index again"
        ) from None
    found = (index.ntotal, index.d, index.metric_type)
    if found != (rows, dimension, faiss.METRIC_INNER_PRODUCT):
        raise IndexDamagedError(
            f"{path}: holds {index.ntotal} vectors of {index.d} dimensions (metric {index.metric_type}), "
            f"but the manifest says {rows} of {dimension}, inner product; build the index again"
        )
    return index


def is_codes_alone(factory: str) -> bool:
    """Whether an index of this factory keeps nothing beside its codes, unless told so."""
    return factory in AUTOMATIC and factory != AUTO


def can_read_back(factory: str) -> bool:
    """Whether vectors can be read back, nearly unchanged, from the codes of an index of this factory."""
    if factory.endswith("RFlat"):
        return True
    return factory.endswith(READ_BACK) and _REDUCTION.match(factory) is None


def is_exact(index: Any) -> bool:
    """Whether ``index`` stores the vectors unchanged, so that scores are exact and vectors can be read back."""
    faiss = import_faiss()
    if isinstance(index, faiss.IndexRefine):
        return is_exact(faiss.downcast_index(index.refine_index))
    if isinstance(index, faiss.IndexHNSW):
        return is_exact(faiss.downcast_index(index.storage))
    return isinstance(index, (faiss.IndexFlat, faiss.IndexIVFFlat))


def short(error: Exception) -> str:
    """Faiss' message without the C++ signature and line number it starts with."""
    lines = str(error).strip().splitlines()
    text = lines[-1] if lines else type(error).__name__
    for marker in ("failed: ", ": Error: ", "Error: "):
        _, found, rest = text.rpartition(marker)
        if found and rest:
            text = rest
            break
    return text.strip()
