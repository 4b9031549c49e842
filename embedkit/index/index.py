"""`Index`: a folder of vectors and documents, to build, search and change."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..arguments import check_positive, check_threads
from ..documents.document import Document
from ..documents.errors import OnError
from ..documents.passages import Passages
from ..files import expanded
from .auto.measure import check_recall
from .auto.stored import check_tuning
from .auto.tune import Tuned, tune
from .build import build as building
from .build import change, transfer
from .build.memory import DEFAULT_MAX_MEMORY
from .build.settings import BuildSettings, Mode, Report, Written
from .encoder import TextEncoder, check_reading, opened
from .search.queries import Queries, are_vectors, query_texts, query_vectors
from .search.searcher import PathLike, Searcher, encoded
from .search.verify import verify
from .storage.faiss_gpu import check_gpu
from .storage.faiss_index import AUTO, faiss_threads
from .storage.filters import Where
from .storage.manifest import Metric, Raw
from .storage.search_parameters import SearchParameters

__all__ = ["Index"]


class Index(Searcher):
    """An index of texts in a folder.

    A search sees one complete generation of it: the one opened, or that of the last change or `refresh` made through
    this object, whatever other processes write meanwhile. Searching is thread-safe. Vectors are memory-mapped if
    Faiss can; texts stay on disk and are read for hits only.

    Examples:
        >>> index = Index.build("cities", ["Paris is in France.", "Rome is in Italy."], encoder)
        >>> index.search("Where is Rome?", k=1)[0][0].text
        'Rome is in Italy.'

    Attributes:
        written: what `build` has stored, replaced and left out; None of an index that was opened.
    """

    written: Written | None = None

    @classmethod
    def open(
        cls,
        path: PathLike,
        encoder: TextEncoder | PathLike | None = None,
        *,
        threads: int | None = None,
        device: str = "cpu",
        half: bool = False,
        force: bool = False,
    ) -> Index:
        """Open the live generation of the index at ``path``.

        Args:
            path: the index folder.
            encoder: encodes queries. ``None``: the model named in the index, with the prompts and the maximum
                length of the one that built it, loaded when the first text is searched; a path or name: where that
                model is now. An `embedkit.Encoder` must have the fingerprint and the dimension of the one that built
                the index.
            threads: threads of Faiss (and of an encoder loaded here); ``None``: all.
            device: "cpu", or "cuda" (or e.g. "cuda:1") to search with faiss-gpu, and to encode there if the encoder is
                loaded here. Faiss visits at most 2,048 inverted lists there; searches for more than 2,048 hits run on
                the CPU.
            half: store vectors in float16 on the GPU: half the memory, and scores to three digits.
            force: accept an encoder with another fingerprint, with a warning.

        Raises:
            IndexNotFoundError: there is no finished index.
            IndexDamagedError: a file is missing, has the wrong size, or cannot be read, or a Faiss file does not
                match its checksum. (`verify` also compares the checksums of the others.)
            ModelMismatchError: ``encoder`` is another model.
            ValueError: Faiss cannot search an index of this kind on a GPU, or ``half`` is for a GPU only.
            ImportError: Faiss is not installed, or for "cuda" without GPU support.
        """
        if threads is not None:
            check_threads(threads)
        check_gpu(device)
        if half and device == "cpu":
            raise ValueError("half=True stores vectors in float16 on a GPU: give device='cuda', too")
        index = cls.__new__(cls)
        index._open(_place(path), encoder, threads, device=device, half=half, force=force)
        return index

    @classmethod
    def build(
        cls,
        path: PathLike,
        documents: Iterable[str | Document],
        encoder: TextEncoder | PathLike | None = None,
        *,
        factory: str = AUTO,
        metric: Metric = "cosine",
        kept: Raw | None = None,
        target_recall: float | None = None,
        overwrite: bool = False,
        restart: bool = False,
        max_memory: int = DEFAULT_MAX_MEMORY,
        threads: int | None = None,
        on_error: OnError = "stop",
        language: str = "auto",
        passages: Passages | int | tuple[int, int] | str | None = None,
        dedup: str | None = None,
        progress: Report | None = None,
    ) -> Index:
        """Encode ``documents`` and write an index of them to the folder ``path``, then open it.

        Documents stream. What is encoded is recorded on disk: a build that was stopped by Ctrl-C, a full disk or
        `kill -9` resumes where it was when it is called again with the same documents. If the Faiss index of all
        vectors would not fit ``max_memory``, an inverted file is merged on disk from shards, and any other index is
        made in parts that are searched as one.

        Args:
            path: a new or empty folder, or with ``overwrite`` an index, which stays readable until the new one is
                complete.
            documents: texts (their ids are "0", "1", …) or `Document` objects. Blank texts are left out with a
                warning.
            encoder: computes the vectors; a path or name: that model, ``None``: the built-in one.
            factory: a Faiss index factory string; ``auto`` is exact search (``Flat``) below 20,000 documents, and
                from there an inverted file ``IVF{4·√n},Flat``, of which a search visits a sixteenth. ``auto-int8`` is
                the same with a byte a column (SQ8) and nothing beside it, ``auto-int6`` with six bits (SQ6); they are
                what ``auto`` means for a model whose folder says ``"index_precision": "int8"`` or ``"int6"``.
            metric: "cosine" (vectors are normalized) or "dot".
            kept: if the Faiss index quantizes the vectors, how they are also kept for re-ranking, filters and
                compaction: "fp32", "int8", or "none" where the codes (SQ6, SQ8, SQfp16) do for that. ``None``: "none"
                for ``auto-int8`` and ``auto-int6``, otherwise "fp32".
            target_recall: for the factory ``auto``: several kinds of index are built from a sample and measured,
                and the fastest whose recall@10 reaches this within ``max_memory`` is built
                (`embedkit.index.auto`). The measurements are stored in the index: ``info()["tuning"]``.
            overwrite: replace an existing index.
            restart: discard what an interrupted build has encoded.
            max_memory: bytes of memory that the process may take in all, without the pages of mapped files (programs,
                an index that is open), which the system drops when it needs them.
            threads: threads of Faiss; ``None``: all.
            on_error: "stop" raises at the first document that cannot be used, "skip" leaves it out, a callable is
                called with the `InputError`, and the document is left out if it returns.
            language: whose words are stemmed for hybrid search: "english", "de", … (`LANGUAGES` in
                `embedkit.index.words.languages`), or "none"; "auto": the one that the texts are in.
            passages: cut texts into passages of so many of the model's tokens (``256``, or ``(256, 32)`` with an
                overlap), at borders of sentences and headings; hits are passages (`Hit.passage`), and deleting or
                upserting a document means all its passages. ``None``: texts are whole, and the model cuts long ones.
            dedup: "exact" leaves out texts that repeat an earlier one (and its vector, if one is given), "near:0.95"
                also those whose vectors are at least so similar (among each one's 64 nearest; with the metric cosine).
                `add` and `upsert` leave out none.
            progress: called after each step, on the caller's thread.

        Raises:
            InputError: a document cannot be used (not a string, a NUL, a lone surrogate, a duplicate id, metadata
                that is not JSON, a text that an encoder with ``on_overflow="error"`` refuses), or there are none.
            IndexExistsError: ``path`` contains an index, or something else.
            BuildError: the disk is full, the encoder returned NaN, there is too little memory, or (seen at the end of
                a stream) too few vectors to build ``factory``. An index that was there is not touched.
            ResumeError: there is an interrupted build of other documents or with other settings.
            BlockingIOError: another process is writing to the index; names it.
            TypeError: ``documents`` is one text or not iterable, or a setting has the wrong type.
            ValueError: ``factory``, ``metric`` or another setting is invalid, or a list holds too few documents for
                ``factory``.
            ImportError: Faiss is not installed.
        """
        settings = BuildSettings(
            factory,
            metric,
            kept,
            target_recall,
            overwrite,
            restart,
            max_memory,
            threads,
            on_error,
            language,
            passages=Passages.of(passages),
            dedup=dedup,
        )
        return cls.build_with(path, documents, encoder, settings, progress)

    @classmethod
    def build_with(
        cls,
        path: PathLike,
        documents: Iterable[str | Document],
        encoder: TextEncoder | PathLike | None,
        settings: BuildSettings,
        progress: Report | None = None,
    ) -> Index:
        """`build`, with all ``settings`` in one object."""
        root = _place(path)
        encoder = opened(encoder, settings.threads)
        written = building.build(root, documents, encoder, mode="build", settings=settings, report=progress)
        index = cls.open(root, encoder, threads=settings.threads)
        index.written = written
        target, tuning = settings.target_recall, index.generation.manifest.tuning
        if target is not None and tuning is not None and tuning["sample_rows"] < tuning["rows"]:
            index.tune(target)  # chosen on a sample, so measured on the whole
        return index

    @classmethod
    def merge(cls, path: PathLike, indexes: Sequence[PathLike]) -> Index:
        """Merge several indexes into a new one at ``path``, without encoding, and open it.

        Their files are hard-linked, or copied. `compact` merges them into one segment. Of the prompts of their queries,
        the model's own is used if they differ; the root of their file names is kept if it is one.

        Raises:
            ModelMismatchError: their models, dimensions, metrics or precisions differ.
            InputError: two of them contain the same id.
            IndexExistsError: ``path`` contains an index, or something else.
        """
        if isinstance(indexes, (str, os.PathLike)):
            raise TypeError(f"indexes must be a list of paths, not one path: {os.fspath(indexes)!r}")
        change.merge(_place(path), [_place(source) for source in indexes])
        return cls.open(path)

    @classmethod
    def import_faiss(
        cls,
        path: PathLike,
        file: PathLike,
        encoder: TextEncoder | PathLike | None,
        documents: Iterable[str | Document] | None = None,
        *,
        metric: Metric = "cosine",
    ) -> Index:
        """Create an index at ``path`` from a Faiss file with vectors of ``encoder``, and open it.

        Args:
            path: a new or empty folder.
            file: a Faiss index of inner products. The ids of an IndexIDMap become the documents' ids.
                Those of another index, without ``documents`` or where these have no ids, are in ``file.ids.jsonl``
                if `export_faiss` has written it; else they are numbers.
            encoder: computed the vectors; a path or name: that model, ``None``: the built-in one.
            documents: in the order of the vectors, or with the file's ids; ``None``: no texts.
            metric: "cosine" if the vectors are normalized, else "dot".

        Raises:
            InputError: the file cannot be used, or does not match the documents.
        """
        encoder = opened(encoder, None)
        transfer.import_faiss_file(_place(path), _place(file), encoder, documents, metric=metric)
        return cls.open(path, encoder)

    def export_faiss(
        self, file: PathLike, *, max_memory: int = DEFAULT_MAX_MEMORY, progress: Report | None = None
    ) -> int:
        """Write the live documents' vectors to ``file`` in Faiss' format; returns the number of rows.

        ``file.ids.jsonl`` gets the id of each row, one JSON string per line. Where too few documents are left to train
        the index's kind, the file is one of exact search.
        """
        settings = BuildSettings(max_memory=max_memory, threads=self._threads)
        return transfer.export_faiss_file(self.path, _place(file), settings, progress)

    def export_parquet(self, file: PathLike, *, progress: Report | None = None) -> int:
        """Write the live documents with their vectors to ``file``, for vector databases; returns their number.

        Columns: ``id``, ``text``, ``metadata`` (a JSON object, or null) and ``vector``, a fixed-size list of float32:
        the vectors as they are kept, normalized if the metric is cosine. Needs ``embedkit[parquet]``.
        """
        return transfer.export_parquet_file(self.path, _place(file), progress)

    def add(
        self,
        documents: Iterable[Document],
        *,
        restart: bool = False,
        max_memory: int = DEFAULT_MAX_MEMORY,
        on_error: OnError = "stop",
        progress: Report | None = None,
    ) -> Written:
        """Encode ``documents`` and add them; time and space depend on them only, not on the size of the index.

        They need ids that are not in the index. Interruption and errors are as for `build`.

        Returns:
            How many were added.

        Raises:
            InputError: a document cannot be used, or its id is already in the index.
            TypeError: ``documents`` is one text or not iterable.
            ModelMismatchError: the encoder is another model, even with ``force``, or reads documents with another
                prompt or maximum length.
        """
        settings = BuildSettings(
            restart=restart, max_memory=max_memory, threads=self._threads, on_error=on_error
        )
        return self._write("add", documents, settings, progress)

    def upsert(
        self,
        documents: Iterable[Document],
        *,
        restart: bool = False,
        max_memory: int = DEFAULT_MAX_MEMORY,
        on_error: OnError = "stop",
        progress: Report | None = None,
    ) -> Written:
        """`add`, but a document replaces the one with the same id; of several with the same id, the last one wins.

        A document without a vector whose text is unchanged keeps the one it has, also if that was given.
        """
        settings = BuildSettings(
            restart=restart, max_memory=max_memory, threads=self._threads, on_error=on_error
        )
        return self._write("upsert", documents, settings, progress)

    def reembed(
        self,
        encoder: TextEncoder | PathLike | None,
        *,
        restart: bool = False,
        max_memory: int = DEFAULT_MAX_MEMORY,
        progress: Report | None = None,
    ) -> Written:
        """Encode all documents again with another model, in place; the old generation answers until all is encoded.

        Interruption and errors are as for `build`. Passages stay as they were cut. Search defaults are dropped, as
        they were measured on other vectors.

        Args:
            encoder: computes the vectors; a path or name: that model, ``None``: the built-in one. Such a model reads
                long texts as the one before did (``max_length``, ``on_overflow``); if it is the index's own, it also
                keeps its prompts and dimensions (``truncate_dim``).
            restart, max_memory, progress: as for `build`.

        Raises:
            ValueError: the words of a merged index are in several languages (see `compact`).
            (and what `build` raises)
        """
        encoder = opened(encoder, self._threads, self._open_generation().manifest)
        settings = BuildSettings(
            overwrite=True, restart=restart, max_memory=max_memory, threads=self._threads
        )
        written = building.build(self.path, [], encoder, mode="reembed", settings=settings, report=progress)
        self._refresh(encoder)
        return written

    def delete(
        self, ids: str | Iterable[str] | None = None, *, where: Where | None = None, missing_ok: bool = False
    ) -> int:
        """Delete the documents with ``ids`` (one, or several), or those that match the condition ``where``.

        In an index of passages, a document whose passage is named or matches is deleted with all its passages.

        Returns:
            How many documents were deleted.

        Raises:
            InputError: one of ``ids`` is not in the index, unless ``missing_ok``; nothing was deleted.
            ValueError: the condition is invalid, or not exactly one of the two is given.
        """
        accept = self._open_live()[1].check
        count = change.delete(self.path, ids, where, missing_ok=missing_ok, accept=accept)
        self.refresh()
        return count

    def compact(
        self,
        *,
        factory: str | None = None,
        language: str | None = None,
        max_memory: int = DEFAULT_MAX_MEMORY,
        progress: Report | None = None,
    ) -> bool:
        """Fold all segments into one, without the deleted documents; nothing is encoded.

        Where an automatic index gets another number of lists, the default ``nprobe`` keeps its share of them, and what
        was measured is dropped.

        Args:
            factory: of the Faiss index, as in `build`; ``None``: as the index was built.
            language: of the words, as in `build`; ``None``: as before, unless a merged index has several. Words of an
                earlier version are renewed.
            max_memory: as for `build`.
            progress: called after each step.

        Returns:
            Whether there was anything to fold or to build as another kind, or in an index without documents to change.

        Raises:
            ValueError: the words are in several languages, and ``language`` is not given; or an argument is invalid.
        """
        accept = self._open_live()[1].check
        settings = BuildSettings(max_memory=max_memory, threads=self._threads)
        folded = change.compact(self.path, factory, settings, progress, language=language, accept=accept)
        self.refresh()
        return folded

    def set_search_defaults(
        self,
        *,
        nprobe: int | None = None,
        ef: int | None = None,
        rescore: int | None = None,
        tuning: dict[str, Any] | None = None,
    ) -> None:
        """Store the index's default search parameters; ``tuning``: the measurements they were chosen from.

        What is not given stays as it is, except the measurements of another ``nprobe`` or ``ef``; without any
        argument, none is stored any more. ``rescore`` 0 stores none: off, or 4 where the index has a refinement
        (``…,RFlat``); there 1 is the least.

        Raises:
            ValueError: a parameter is out of range (also one in ``tuning``), or does not apply to this kind of index,
                or ``tuning`` holds NaN or infinity; nothing was stored.
            TypeError: a parameter is not an integer, or ``tuning`` not a dict of JSON.
        """
        parameters = SearchParameters.given(nprobe, ef, rescore)
        if tuning is not None:
            check_tuning(tuning)
        change.set_search_defaults(self.path, parameters, tuning, self._open_live()[1].check)
        self.refresh()

    def tune(
        self, target_recall: float = 0.95, queries: Queries | None = None, *, store: bool = True
    ) -> Tuned | None:
        """Find the smallest nprobe or ef that reaches ``target_recall``, and make it the index's default.

        Args:
            target_recall: recall@10 against exact search.
            queries: typical queries, as texts or vectors (n, dimension); ``None``: up to 1,000 stored vectors,
                each excluded from its own hits.
            store: store it in the index; else only measure.

        Returns:
            What was measured; ``None`` if every vector is compared, so that there is nothing to tune.

        Raises:
            ValueError: ``target_recall`` is out of range, there are no documents or no queries, or one is empty.
            TypeError: ``target_recall`` is not a number.
            BuildError: another process has made another kind of index of it meanwhile; nothing was stored.
        """
        check_recall(target_recall)
        generation, encoder = self._open_live()
        if not (generation.nlist or generation.ef):
            return None
        vectors = None
        if queries is not None:
            given = (
                queries
                if are_vectors(queries)
                else encoded(encoder, query_texts(queries), generation.manifest)
            )
            vectors = query_vectors(given, generation.manifest)
            if not len(vectors):
                raise ValueError("there are no queries to tune the index with")
        with faiss_threads(self._threads):
            tuned = tune(generation, target_recall, vectors)
        if store:
            change.store_tuned(self.path, tuned, generation.manifest)
            self.refresh()
        return tuned

    def verify(self, sample: int = 0) -> dict[str, Any]:
        """Check every file's hash, compare ids and counts, and encode ``sample`` documents again.

        Returns:
            What was checked: ``files``, ``documents``, ``encoded`` and the lowest cosine, ``agreement``.

        Raises:
            IndexDamagedError: names the first file or document that does not match.
            ModelMismatchError: the encoder reads documents otherwise than the one that built the index (another
                document prompt or maximum length), so that its vectors tell nothing.
        """
        generation, encoder = self._open_live()
        if sample:
            check_positive("sample", sample)
            check_reading(self.path, encoder.get(), generation.manifest)
        return verify(generation, encoder.get() if sample else None, sample)

    def _write(
        self, mode: Mode, documents: Iterable[Document], settings: BuildSettings, progress: Report | None
    ) -> Written:
        self._open_generation()
        try:
            written = building.build(
                self.path, documents, self.encoder, mode=mode, settings=settings, report=progress
            )
        except BaseException:
            with contextlib.suppress(Exception):  # an addition that fails may have folded segments before
                self.refresh()
            raise
        self.refresh()
        return written


def _place(path: PathLike) -> Path:
    """``path``, in which ``~`` is the home folder, as where models are opened and saved."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path is the folder of the index, a str or a Path, not {type(path).__name__}")
    return expanded(path)
