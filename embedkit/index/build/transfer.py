"""Import and export: Faiss files with their ids, and parquet files of an index's contents."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ...documents.document import Document
from ...documents.errors import InputError
from ...documents.folders import index_around
from ...documents.readers import Corpus
from ...documents.sources import format_of
from ..encoder import TextEncoder
from ..errors import IndexExistsError
from ..several import several_documents
from ..storage.document_store import DocumentWriter
from ..storage.factory import fitting_factory
from ..storage.faiss_index import (
    faiss_name,
    import_faiss,
    is_exact,
    ivf_of,
    layers,
    read_index,
    short,
    write_index,
)
from ..storage.generation import Generation, open_generation
from ..storage.layout import Writer
from ..storage.manifest import DOCUMENTS_FILE, IDS_FILE, Metric, PartEntry, SegmentEntry, hash_file
from ..storage.raw import FaissVectors
from ..storage.search_parameters import SearchParameters
from ..storage.spool import Spool, SpoolWriter
from ..storage.vector_table import VectorTable, write_parquet
from ..storage.vectors import normalize_rows
from .build_parts import VECTORS_FILE, build_parts
from .publish import dated, in_language_of, new_manifest
from .resume import change_errors, check_new
from .settings import BuildSettings, Progress, Report

__all__ = ["IMPORTED", "export_faiss_file", "export_parquet_file", "import_faiss_file"]

_AT_ONCE = 65_536  # vectors

_ROWS_OF_A_GROUP = 8192  # of a parquet file

IMPORTED = "imported"
"""The factory of vectors imported from a Faiss file."""


def import_faiss_file(
    root: Path,
    path: Path,
    encoder: TextEncoder,
    documents: Iterable[str | Document] | None,
    *,
    metric: Metric,
) -> None:
    """Create an index from a Faiss file; see `Index.import_faiss`."""
    settings = BuildSettings(metric=metric)
    documents = None if documents is None else several_documents(documents)
    index, ids = _read(path)
    rows, dimension = int(index.ntotal), int(index.d)
    if dimension != encoder.get_embedding_dimension():
        raise InputError(
            str(path),
            f"its vectors have {dimension} dimensions, the encoder's have {encoder.get_embedding_dimension()}",
        )
    _check_finite(path, index)
    if metric == "cosine":
        _check_unit(path, index)
    with change_errors(root, "the import"), Writer(root, create=True) as writer:
        check_new(writer)
        name = writer.new_name()
        folder = writer.stage(name)
        store = DocumentWriter(folder)
        with contextlib.closing(store):
            for document in _rows(path, ids, rows, documents):
                store.add(document)
            words = store.finish()
        write_index(index, folder / VECTORS_FILE)
        files = {file: hash_file(folder / file) for file in (VECTORS_FILE, IDS_FILE, DOCUMENTS_FILE)}
        parts = (PartEntry(VECTORS_FILE, rows, IMPORTED),)
        entry = SegmentEntry(name, rows, parts, "none", words is not None, files, words=words)
        # factory "auto": segments added later, and compaction, take the kind of index that suits their size
        manifest = in_language_of(new_manifest(encoder, settings).with_segments((entry,)), entry)
        writer.publish(dated(manifest, writer.generation), {name: folder})


def _read(path: Path) -> tuple[Any, list[int] | None]:
    """The Faiss index in the file, and its ids if it has any."""
    faiss = import_faiss()
    if not path.is_file():
        raise InputError(str(path), "is a folder, not a Faiss file" if path.is_dir() else "no such file")
    try:
        # of lists in a file of their own, which would otherwise be opened for writing
        index = faiss.read_index(faiss_name(path), faiss.IO_FLAG_READ_ONLY)
    except (RuntimeError, MemoryError) as error:
        raise InputError(str(path), f"Faiss cannot read it ({short(error)})") from None
    ids = None
    if isinstance(index, (faiss.IndexIDMap, faiss.IndexIDMap2)):
        ids = faiss.vector_to_array(index.id_map).tolist()
        index.own_fields = False
        index = faiss.downcast_index(index.index)
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise InputError(
            str(path),
            "its metric is not the inner product; embedkit scores by inner product (of normalized vectors for "
            "cosine), so build the Faiss index with METRIC_INNER_PRODUCT",
        )
    if index.ntotal == 0:
        raise InputError(str(path), "contains no vectors")
    if any(isinstance(layer, (faiss.IndexIDMap, faiss.IndexIDMap2)) for layer in layers(index)):
        raise InputError(
            str(path),
            "ids are mapped within its index (IDMap), where embedkit finds none; wrap the whole index as IDMap",
        )
    ivf = ivf_of(index)
    if ivf is not None:
        ivf = faiss.downcast_index(ivf)
        if isinstance(ivf, faiss.IndexIVFFlatDedup):
            raise InputError(
                str(path),
                "its IndexIVFFlatDedup lists equal vectors once, and Faiss cannot reconstruct them by their rows; "
                "import an index of another kind",
            )
        _lists_in_memory(ivf)
        ids = _number_rows(path, ivf) or ids
    if isinstance(ivf, faiss.IndexIVFFastScan) and not isinstance(index, faiss.IndexRefine):
        # reconstruct_batch of Faiss 1.15 reads beyond its lists there
        raise InputError(
            str(path),
            f"Faiss cannot reconstruct the vectors of {type(ivf).__name__}, which filters and compaction need; "
            "import an index with a refinement (…,RFlat) or of another kind",
        )
    _check_readable(path, index)
    return index, ids


def _check_readable(path: Path, index: Any) -> None:
    """Refuse an index that does not give its vectors back, such as one behind an ITQ transform."""
    try:
        FaissVectors([index], [0, index.ntotal], index.d).gather(np.zeros(1, np.int64))
    except RuntimeError as error:
        raise InputError(
            str(path),
            f"Faiss cannot reconstruct its vectors ({short(error)}), which filters, additions and compaction need; "
            "import an index of another kind",
        ) from None
    ivf = ivf_of(index)
    if ivf is not None:
        ivf.set_direct_map_type(import_faiss().DirectMap.NoMap)  # which would be written with the lists


def _lists_in_memory(ivf: Any) -> None:
    """Copy inverted lists that lie in a file of their own: Faiss would write its name instead of them."""
    faiss = import_faiss()
    lists = faiss.downcast_InvertedLists(ivf.invlists)
    if not isinstance(lists, faiss.OnDiskInvertedLists):
        return
    copied = faiss.ArrayInvertedLists(lists.nlist, lists.code_size)
    lists.copy_subset_to(copied, faiss.InvertedLists.SUBSET_TYPE_INVLIST, 0, lists.nlist)
    copied.this.disown()  # it is the index's now; the binding of replace_invlists does not say so
    ivf.replace_invlists(copied, True)


def _number_rows(path: Path, ivf: Any) -> list[int] | None:
    """Replace ids that an inverted file keeps in its lists by the rows 0, 1, …; the ids of the rows, if they differ.

    Faiss stores there what ``add_with_ids`` was given.
    """
    faiss = import_faiss()
    lists = faiss.downcast_InvertedLists(ivf.invlists)
    kept = [
        faiss.rev_swig_ptr(lists.get_ids(number), size)
        for number in range(lists.nlist)
        if (size := lists.list_size(number))
    ]
    ids = np.concatenate(kept)
    order = np.argsort(ids, kind="stable")
    if np.array_equal(ids[order], np.arange(len(ids))):
        return None
    if not isinstance(lists, faiss.ArrayInvertedLists):
        raise InputError(
            str(path),
            f"its lists ({type(lists).__name__}) hold ids of its own, which cannot be replaced there; wrap the index "
            "as IDMap",
        )
    rows = np.empty_like(ids)
    rows[order] = np.arange(len(ids))
    for part, new in zip(kept, np.split(rows, np.cumsum([len(part) for part in kept])[:-1]), strict=True):
        part[:] = new
    ivf.set_direct_map_type(faiss.DirectMap.NoMap)
    own: list[int] = ids[order].tolist()
    return own


def _check_finite(path: Path, index: Any) -> None:
    """Refuse NaN and infinity in an index that keeps vectors unchanged: no search would find them."""
    if not is_exact(index):
        return
    vectors = FaissVectors([index], [0, index.ntotal], index.d)
    for begin in range(0, index.ntotal, _AT_ONCE):
        block = vectors.gather(np.arange(begin, min(begin + _AT_ONCE, index.ntotal)))
        wrong = np.flatnonzero(~np.isfinite(block).all(axis=1))
        if len(wrong):
            raise InputError(str(path), f"vector {begin + wrong[0]} holds NaN or infinity")


def _check_unit(path: Path, index: Any) -> None:
    """Refuse vectors that are not normalized; checks only a sample if the index keeps them unchanged."""
    if not is_exact(index):
        return
    rows = np.unique(np.linspace(0, index.ntotal - 1, 256).astype(np.int64))
    norms = np.linalg.norm(FaissVectors([index], [0, index.ntotal], index.d).gather(rows), axis=1)
    wrong = np.flatnonzero((np.abs(norms - 1) > 1e-2) & (norms > 0))
    if len(wrong):
        row = wrong[0]
        raise InputError(
            str(path),
            f"vector {rows[row]} has length {norms[row]:.4g}, but cosine needs length 1; normalize the vectors, or "
            "import them with the metric dot",
        )


def _ids_path(path: Path) -> Path:
    """Where an export to the Faiss file ``path`` writes the ids of its rows."""
    return path.with_name(f"{path.name}.ids.jsonl")


def _exported_ids(path: Path, rows: int) -> list[str] | None:
    """The ids that an export has written beside the Faiss file ``path``; ``None`` if it has not."""
    file = _ids_path(path)
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return None
    ids = []
    for number, line in enumerate(lines, 1):
        try:
            name = json.loads(line)
        except ValueError:  # or not UTF-8
            name = None
        if not isinstance(name, str):
            raise InputError(
                f"{file}:{number}",
                "the line is not a JSON string, as the ids of an export are; fix it, or move the file away to "
                "number the documents",
            )
        ids.append(name)
    if len(ids) != rows:
        raise InputError(
            str(file),
            f"holds {len(ids)} ids, and {path} {rows} vectors: it is of another export; move it away to number the "
            "documents",
        )
    return ids


def _rows(
    path: Path, ids: list[int] | None, rows: int, documents: Iterable[str | Document] | None
) -> Iterable[Document]:
    """The document of each row: by id if both the file and the documents have ids, else in order.

    The ids of a file that has none are those beside it, unless the documents have others.
    """
    wanted = [str(number) for number in (range(rows) if ids is None else ids)]
    beside = _exported_ids(path, rows) if ids is None else None
    if documents is None:
        return [Document("", document_id, origin=str(path)) for document_id in beside or wanted]
    given = [item if isinstance(item, Document) else Document(item) for item in documents]
    if len(given) != rows:
        raise InputError(str(path), f"holds {rows} vectors, and {len(given)} documents are given")
    named = documents.named if isinstance(documents, Corpus) else any(item.id is not None for item in given)
    own = {document.id for document in given}
    joined = beside is not None and None not in own and not own.isdisjoint(beside)
    if beside is not None and (joined or not named):
        wanted = beside
    if not joined and (ids is None or not named):
        keeps = ids is None and (named or beside is None)
        return [
            document
            if keeps and document.id is not None
            else Document(document.text, document_id, document.metadata)
            for document_id, document in zip(wanted, given, strict=True)
        ]
    by_id = {document.id: document for document in given}
    missing = next((document_id for document_id in wanted if document_id not in by_id), None)
    if missing is not None:
        raise InputError(str(path), f"holds the id {missing}, which no document has")
    return [by_id[document_id] for document_id in wanted]


def _exists(path: Path) -> IndexExistsError:
    return IndexExistsError(f"{path}: already exists; name another file")


def _check_target(path: Path) -> None:
    """Refuse to write ``path`` where something is, or where no folder is."""
    if os.path.lexists(path):
        raise _exists(path)
    if not path.absolute().parent.is_dir():
        raise InputError(str(path), f"there is no folder {path.absolute().parent}")
    if (index := index_around(path)) is not None:
        raise InputError(str(path), f"lies in the folder of the index {index}; name a file elsewhere")


@contextlib.contextmanager
def _taken(*paths: Path) -> Iterator[None]:
    """Empty files at ``paths``, to be replaced; removed on failure.

    Another process may have made such a file since `_check_target`: that is neither replaced nor removed.
    """
    taken: list[Path] = []
    try:
        for path in paths:
            try:
                path.touch(exist_ok=False)
            except FileExistsError:
                raise _exists(path) from None
            taken.append(path)
        yield
    except BaseException:
        for path in taken:
            path.unlink(missing_ok=True)
        raise


def _unless_removed() -> contextlib.suppress:
    """For checks of files that another process may have replaced by now; what is open of them can be read."""
    return contextlib.suppress(FileNotFoundError)


def _copied(base: Generation, path: Path) -> bool:
    """Whether ``base`` is one Faiss file, now copied; not if a compaction has just removed that file."""
    only = base.segments[0] if len(base.segments) == 1 else None
    if only is None or only.dead is not None or len(only.parts) > 1:
        return False
    try:
        shutil.copyfile(only.folder / only.parts[0].entry.file, path)
    except FileNotFoundError:
        return False
    return True


def export_faiss_file(root: Path, path: Path, settings: BuildSettings, report: Report | None = None) -> int:
    """Write an index's vectors as a Faiss file; see `Index.export_faiss`. Returns their number.

    Of ``settings``, ``max_memory`` and ``threads`` are used.
    """
    report = report or (lambda _: None)
    _check_target(path)
    known = format_of(path.name)[0]
    if known is not None:
        raise InputError(
            str(path),
            f"export writes a Faiss index, or .parquet with texts, metadata and vectors, not .{known}; give the file "
            "another name, such as vectors.faiss",
        )
    ids_path = _ids_path(path)
    _check_target(ids_path)
    with (
        change_errors(path, "the export"),
        contextlib.closing(open_generation(root, lambda _: None, searches=True)) as base,
    ):
        rows = base.living_rows()
        for segment in base.segments:
            with _unless_removed():
                segment.check_files()
        if len(rows) == 0:
            raise InputError(str(root), "the index contains no documents")
        work = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")  # of this export alone
        work.mkdir()
        try:
            if not _copied(base, work / VECTORS_FILE):
                _rebuilt(root, base, work, settings, report)
            with (work / IDS_FILE).open("x", encoding="utf-8") as file:
                for name in chain.from_iterable(base.living_ids()):
                    file.write(json.dumps(name, ensure_ascii=False) + "\n")
            with _taken(path, ids_path):
                (work / VECTORS_FILE).replace(path)
                (work / IDS_FILE).replace(ids_path)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return int(np.size(rows))


def _rebuilt(root: Path, base: Generation, work: Path, settings: BuildSettings, report: Report) -> None:
    """Make one Faiss file in ``work`` of the vectors of the living documents."""
    manifest, rows = base.manifest, base.living_rows()
    spool = SpoolWriter(work / "vectors.f32", manifest.dimension)
    with contextlib.closing(spool):
        for begin in range(0, len(rows), 4096):
            spool.add(base.vectors(rows[begin : begin + 4096]))
            report(Progress("copy", spool.rows, len(rows)))
    parts = build_parts(
        Spool(spool.path, len(rows), manifest.dimension),
        work,
        replace(settings, factory=fitting_factory(manifest.factory, len(rows))),
        SearchParameters(),
        report,
    )
    if len(parts) > 1:
        raise InputError(
            str(root),
            "its Faiss index does not fit the memory limit and would be split into several files; raise --max-memory",
        )
    read_index(work / VECTORS_FILE, rows=len(rows), dimension=manifest.dimension)


def export_parquet_file(root: Path, path: Path, report: Report | None = None) -> int:
    """Write an index's documents and vectors; see `Index.export_parquet`. Returns their number."""
    report = report or (lambda _: None)
    _check_target(path)
    with (
        change_errors(path, "the export"),
        contextlib.closing(open_generation(root, lambda _: None, searches=True)) as base,
    ):
        total = base.manifest.documents
        if total == 0:
            raise InputError(str(root), "the index contains no documents")
        rows = VectorTable(base.manifest.dimension)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")  # of this export alone
        done = 0
        try:
            with temporary.open("xb") as file, write_parquet(file, rows.schema) as writer:
                for segment in base.segments:
                    with _unless_removed():
                        segment.check_rows()
                    for documents, vectors in segment.scan(_ROWS_OF_A_GROUP):
                        # codes give a length of about 1
                        exported = normalize_rows(vectors) if base.manifest.metric == "cosine" else vectors
                        writer.write_table(rows.make(documents, exported))
                        done += len(documents)
                        report(Progress("copy", done, total))
            with _taken(path):
                temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        return done
