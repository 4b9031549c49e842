"""A generation of an index, opened for reading: its manifest and segments."""

from __future__ import annotations

import contextlib
import errno
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...documents.passages import document_of
from ...files import reason_of
from ...forking import cached_property, fork_lock
from ..errors import IndexDamagedError
from ..words.analyzer import Form, analyzer
from .document_store import StoredDocument
from .factory import codes_of
from .faiss_index import Float32Array, Int64Array
from .faiss_part import Bits, FaissPart
from .filters import Where, condition_of
from .layout import SEGMENTS_FOLDER, current_name, manifest_at
from .manifest import Manifest
from .raw import MISSING, best
from .search_parameters import SearchParameters
from .segment import Segment
from .where import compile_where, fields_of, names_time
from .words import Postings, attainable, common_from, weight_of

__all__ = ["OLD_WORDS", "Asked", "Chosen", "Generation", "by_segment", "open_generation"]

Chosen = list[Bits]
"""A bitmap per segment of the rows that match a condition and are not deleted."""

OLD_WORDS = (
    "an earlier embedkit made the words of {}, which this one does not read: meaning alone counts until embedkit-index "
    "compact makes them again"
)
"""What `Generation.has_old_words` means for searches of an index, to be formatted with its folder."""

_CONDITIONS_KEPT = 8
_IDS_AT_ONCE = 65_536
_RESCORED_WHERE_MIXED = 4
_MOST_WORDS = 64  # of a query that are scored


@dataclass(frozen=True, slots=True)
class Asked:
    """What the segments are asked for the words of a query.

    Attributes:
        words: for each segment, the postings of the words.
        weights: for each segment, those of the words, by how many documents of all segments hold each.
        average: words of a document, on average over all segments.
        attainable: what a text with the rarest words would score.
    """

    words: list[list[Postings]]
    weights: list[list[float]]
    average: float
    attainable: float


class Generation:
    """The segments of one manifest, searched as one. Thread-safe.

    Rows are numbered through the segments in order, deleted ones included.

    Attributes:
        manifest: what the index stores about itself.
        segments: in the order of the manifest.
        faiss_parts: the Faiss indexes of all segments.
    """

    def __init__(self, manifest: Manifest, segments: list[Segment]) -> None:
        """Use `open_generation`."""
        self.manifest = manifest
        self.segments = segments
        self._starts = np.cumsum([0, *(segment.entry.rows for segment in segments)])
        self._chosen: OrderedDict[str, Chosen] = OrderedDict()
        self._lock = fork_lock()
        only = segments[0] if len(segments) == 1 else None
        whole = only is not None and only.dead is None and len(only.parts) == 1
        self._only = only if whole else None
        self.faiss_parts = [part for segment in segments for part in segment.parts]

    def read_faiss(self) -> None:
        """Read the Faiss indexes, which otherwise happens when one is needed (`IndexDamagedError`)."""
        for part in self.faiss_parts:
            part.index  # noqa: B018 (reads it)

    @cached_property
    def _mixed(self) -> bool:
        # Scores of codes cannot be compared with those of vectors or of other codes: if there are several kinds, the
        # hits of codes are scored again.
        kinds = {"" if part.exact else codes_of(part.entry.factory) for part in self.faiss_parts}
        return len(kinds) > 1

    @property
    def _keeps_several(self) -> bool:
        """Whether scores of codes can meet those of vectors: vectors read back from codes score as these do."""
        return self.manifest.kept != "none" and len(self.faiss_parts) > 1

    def _mixes(self, chosen: Chosen) -> bool:
        """Whether of the ``chosen`` rows some are compared by their vectors, as they are few, and others by codes."""
        if not self._keeps_several:
            return False
        compared = [
            segment.compares_vectors(bits) for segment, bits in zip(self.segments, chosen, strict=True)
        ]
        return len(set().union(*compared)) > 1

    @cached_property
    def _rescores(self) -> bool:
        """Whether hits can be scored again, as `Segment.rescores`; without documents, those that are added."""
        if not self.segments:
            return self.manifest.kept != "none"
        return any(segment.rescores for segment in self.segments)

    @cached_property
    def compares_all(self) -> bool:
        """Whether a search compares every vector as it is, so that a deeper one only adds hits."""
        return all(part.exact and part.nlist is None and part.ef is None for part in self.faiss_parts)

    @cached_property
    def nlist(self) -> int:
        """The largest number of inverted lists in any Faiss index; 0 if none has any."""
        return max((part.nlist or 0 for part in self.faiss_parts), default=0)

    @cached_property
    def ef(self) -> int:
        """The largest ``ef`` that a Faiss index searches with by default; 0 if none is HNSW."""
        return max((part.ef or 0 for part in self.faiss_parts), default=0)

    @property
    def rows(self) -> int:
        """Rows of all segments, deleted ones included."""
        return int(self._starts[-1])

    @property
    def largest(self) -> FaissPart | None:
        """The Faiss index with the most vectors; ``None`` in an index without documents."""
        return max(self.faiss_parts, key=lambda part: part.rows, default=None)

    @property
    def factory(self) -> str:
        """The Faiss factory string of the `largest`, or the one the index was built with."""
        return self.manifest.factory if self.largest is None else self.largest.entry.factory

    def with_defaults(self, parameters: SearchParameters) -> SearchParameters:
        """``parameters``, completed by the manifest's defaults and by what the segments need."""
        complete = self.with_stored(parameters)
        if not complete.rescore and self._mixed:
            return replace(complete, rescore=_RESCORED_WHERE_MIXED)
        return complete

    def with_stored(self, parameters: SearchParameters) -> SearchParameters:
        """``parameters``, completed by the manifest's defaults."""
        manifest = self.manifest
        return SearchParameters(
            manifest.nprobe if parameters.nprobe is None else parameters.nprobe,
            manifest.ef if parameters.ef is None else parameters.ef,
            manifest.rescore if parameters.rescore is None else parameters.rescore,
        )

    def check(self, parameters: SearchParameters) -> None:
        """Raise ValueError if a parameter is out of range or does not apply to this kind of index."""
        nprobe, ef, rescore = parameters.nprobe, parameters.ef, parameters.rescore
        if rescore and not self._rescores:
            build = "build one of its documents" if self.factory == "imported" else "build it"
            raise ValueError(
                f"rescore does not apply: the index is {self.factory} and keeps no vectors beside its codes; "
                f"{build} with --keep fp32 or int8"
            )
        if not self.segments:  # the documents that are added decide on the kind
            return
        if nprobe is not None and not self.nlist:
            raise ValueError(f"nprobe does not apply: the index is {self.factory}, without inverted lists")
        if nprobe is not None and nprobe > self.nlist:
            raise ValueError(f"nprobe must be from 1 to {self.nlist}, the lists of this index, not {nprobe}")
        if ef is not None and not self.ef:
            raise ValueError(f"ef does not apply: the index is {self.factory}, not HNSW")

    def choose(self, where: Where, *, limited: bool = True) -> Chosen:
        """The rows that match the condition ``where`` (`ValueError` if it is invalid); caches a few conditions.

        ``limited``: stop it when it takes too long (`ValueError`).
        """
        where = condition_of(where)
        with self._lock:
            known = self._chosen.get(where)
            if known is not None:
                self._chosen.move_to_end(where)
                return known
        chosen = []
        passages = self.manifest.passages is not None
        if not self.segments:
            compile_where(where, passages=passages)  # raises
        for segment in self.segments:
            flags = segment.documents.select(where, passages=passages, limited=limited)
            bits = np.packbits(flags, bitorder="little")
            living = segment.living()
            chosen.append(bits if living is None else bits & living)
        if names_time(where):  # its rows change by themselves
            return chosen
        with self._lock:
            self._chosen[where] = chosen
            while len(self._chosen) > _CONDITIONS_KEPT:
                self._chosen.popitem(last=False)
        return chosen

    def why_empty(self, where: str) -> str:
        """Why the condition ``where`` selects no document: fields that no document has, or a text in double quotes.

        Returns:
            An explanation; empty if there is none.
        """
        for field in fields_of(where):
            try:
                if not all(segment.documents.lacks(field) for segment in self.segments):
                    continue
            except ValueError:  # there are too many documents to look at
                return ""
            hint = f"; a text is written in single quotes: '{field.name}'" if field.quoted else ""
            if not field.quoted and "-" in where:
                hint = "; a field with '-' in its name is written in double quotes"
            return f"no document has the field {field.name!r}{hint}"
        return ""

    def search(
        self, vectors: Float32Array, k: int, parameters: SearchParameters, chosen: Chosen | None = None
    ) -> tuple[Float32Array, Int64Array]:
        """Scores and rows of the best ``k``, both (n, min(k, documents)); row -1 where fewer were found."""
        if chosen is not None and not parameters.rescore and self._mixes(chosen):
            parameters = replace(parameters, rescore=_RESCORED_WHERE_MIXED)
        if self._only is not None and chosen is None:
            return self._only.search(vectors, k, None, parameters)[:2]
        scores = np.empty((len(vectors), 0), np.float32)
        rows = np.empty((len(vectors), 0), np.int64)
        completed = np.zeros(len(vectors), np.bool_)
        for number, segment in enumerate(self.segments):
            bits = None if chosen is None else chosen[number]
            some, found, lacked = segment.search(vectors, k, bits, parameters)
            completed |= lacked
            found = np.where(found < 0, -1, found + self._starts[number])
            scores = np.concatenate([scores, some], axis=1)
            rows = np.concatenate([rows, found], axis=1)
        scores, rows = best(scores, rows, k)  # Faiss scores a missing hit -3.4e38
        missing = min(k, self.manifest.documents) - rows.shape[1]
        if missing > 0:
            columns = ((0, 0), (0, missing))
            scores = np.pad(scores, columns, constant_values=MISSING)
            rows = np.pad(rows, columns, constant_values=-1)
        again = np.flatnonzero(completed)
        if len(again) and not parameters.rescore and self._keeps_several:
            # one part compared their vectors, and another codes
            rescored = replace(parameters, rescore=_RESCORED_WHERE_MIXED)
            scores[again], rows[again] = self.search(vectors[again], k, rescored, chosen)
        return scores, rows

    @property
    def has_words(self) -> bool:
        """Whether the words of every segment are stored, as this version of embedkit makes them."""
        return all(segment.entry.has_words for segment in self.segments)

    @property
    def searches_words(self) -> bool:
        """Whether documents can be found by words: `has_words`, and there are some, as of vectors without texts not."""
        return self.has_words and (not self.segments or any(segment.words.any for segment in self.segments))

    @property
    def has_old_words(self) -> bool:
        """Whether an earlier version of embedkit made the words of a segment, which this one does not read."""
        return any(segment.entry.has_old_words for segment in self.segments)

    def asked(self, query: str) -> Asked:
        """The words of ``query``, as each segment is asked for them; `has_words` must hold."""
        languages = [segment.entry.words.language for segment in self.segments if segment.entry.words]
        forms = {
            language: self._rarest(language, analyzer(language).forms(query)) for language in set(languages)
        }
        every = {word for each in forms.values() for (word, _), _ in each}
        words = []
        held: Counter[tuple[str, int]] = Counter()  # documents with a word, whatever its stem
        for segment, language in zip(self.segments, languages, strict=True):
            own = forms[language]
            # what is a stop word in one language and asked for in another is counted in both
            left_out = every - {word for (word, _), _ in own}
            counted = [*own, *(form for word in left_out for form in analyzer(language).forms(word))]
            found = segment.words.find([term for _, term in counted])
            for (word, _), postings in zip(counted, found, strict=True):
                held[word] += postings.rows
            words.append(found[: len(own)])
        documents = sum(segment.words.documents for segment in self.segments)
        length = sum(segment.words.length for segment in self.segments)
        counts = {language: [held[word] for word, _ in each] for language, each in forms.items()}
        weights = {language: [weight_of(one, documents) for one in each] for language, each in counts.items()}
        most = common_from(documents)
        rarest = (attainable([one for one in each if one < most], documents) for each in counts.values())
        return Asked(
            words,
            [weights[language] for language in languages],
            length / max(documents, 1),
            max(rarest, default=0.0),
        )

    def _rarest(self, language: str, forms: list[Form]) -> list[Form]:
        """Those of ``forms`` that are in the fewest texts of ``language``, in order; what is in none tells nothing."""
        if len(forms) <= _MOST_WORDS:
            return forms
        counts = [0] * len(forms)
        for segment in self.segments:
            if segment.entry.words is not None and segment.entry.words.language == language:
                held = segment.words.count([term for _, term in forms])
                counts = [sum(both) for both in zip(counts, held, strict=True)]
        rarest = sorted(range(len(forms)), key=lambda at: (not counts[at], counts[at]))
        return [forms[at] for at in sorted(rarest[:_MOST_WORDS])]

    def keywords(self, asked: Asked, limit: int, chosen: Chosen | None) -> list[tuple[int, float]]:
        """The ``limit`` best rows for the words ``asked`` for and their BM25 scores, best first.

        The scores are those that one segment of all documents would give.
        """
        found: list[tuple[float, int]] = []
        for number, segment in enumerate(self.segments):
            bits = segment.living() if chosen is None else chosen[number]
            words, weights, start = asked.words[number], asked.weights[number], int(self._starts[number])
            some = segment.words.best(words, weights, asked.average, limit, bits)
            found += [(-score, start + row) for row, score in some]
        return [(row, -negative) for negative, row in sorted(found)[:limit]]

    def ids(self, rows: Int64Array) -> list[str]:
        """The ids of ``rows``; ``IndexError`` if one does not exist."""
        if len(rows) and (rows.min() < 0 or rows.max() >= self.rows):
            self._locate(int(rows.min() if rows.min() < 0 else rows.max()))
        if len(self.segments) == 1:
            return self.segments[0].ids.many(rows)
        result = np.empty(len(rows), object)
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        for number, segment in enumerate(self.segments):
            mine = np.flatnonzero(owners == number)
            result[mine] = segment.ids.many(rows[mine] - self._starts[number])
        return list(result)

    def living_ids(self) -> Iterator[list[str]]:
        """The ids of all documents, in blocks in order."""
        for segment in self.segments:
            yield from segment.living_ids()

    def places(self, ids: Iterable[str]) -> dict[str, list[tuple[int, int]]]:
        """Segment number and row of each document with one of ``ids``.

        In an index of passages an id is that of a document, which stands for all its passages, or else of a passage.
        """
        wanted = list(ids)
        found = {} if self.manifest.passages is None else self.find_passages(wanted)
        others = self.find([name for name in wanted if name not in found])
        return {**found, **{name: [place] for name, place in others.items()}}

    def find(self, ids: Iterable[str]) -> dict[str, tuple[int, int]]:
        """The segment number and the row in it of those ``ids`` that are in the index."""
        wanted = _possible(ids)
        found: dict[str, tuple[int, int]] = {}
        for number, segment in enumerate(self.segments):
            found.update({document_id: (number, row) for document_id, row in segment.find(wanted).items()})
        return found

    def find_passages(self, documents: Iterable[str]) -> dict[str, list[tuple[int, int]]]:
        """Segment number and row of the passages of those ``documents`` that are in the index, by their numbers."""
        wanted = _possible(documents)
        found: dict[str, list[tuple[int, int, int]]] = {}
        for number, segment in enumerate(self.segments):
            for passage, row in segment.documents.find_passages(wanted).items():
                if segment.alive(row):
                    document, _, place = passage.rpartition("#")
                    found.setdefault(document, []).append((int(place), number, row))
        return {name: [(number, row) for _, number, row in sorted(rows)] for name, rows in found.items()}

    @cached_property
    def whole_documents(self) -> int:
        """The number of documents whose passages this index holds."""
        rows = self.living_rows()
        blocks = (self.ids(rows[at : at + _IDS_AT_ONCE]) for at in range(0, len(rows), _IDS_AT_ONCE))
        return len({document_of(passage) for block in blocks for passage in block})

    def fetch(self, rows: Int64Array) -> dict[int, StoredDocument]:
        """The documents of all ``rows`` but -1, by row, with one query per segment."""
        places = map(self._locate, np.unique(rows[rows >= 0]).tolist())
        return {
            int(self._starts[number]) + row: document
            for (number, row), document in self.stored(places).items()
        }

    def stored(self, places: Iterable[tuple[int, int]]) -> dict[tuple[int, int], StoredDocument]:
        """The documents at ``places`` (segment numbers and rows in them), with one query per segment."""
        return {
            (number, row): document
            for number, rows in by_segment(places).items()
            for row, document in self.segments[number].documents.fetch(rows).items()
        }

    def vectors(self, rows: Int64Array) -> Float32Array:
        """The stored vectors of ``rows``: (n, dimension)."""
        result = np.empty((len(rows), self.manifest.dimension), np.float32)
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        for number, segment in enumerate(self.segments):
            mine = np.flatnonzero(owners == number)
            if len(mine):
                result[mine] = segment.raw.gather(rows[mine] - self._starts[number])
        return result

    def living_rows(self) -> Int64Array:
        """All rows that are not deleted, in order."""
        flags = np.ones(self.rows, np.bool_)
        for segment, start in zip(self.segments, self._starts.tolist(), strict=False):
            if segment.dead is not None:
                dead = np.unpackbits(segment.dead, count=segment.entry.rows, bitorder="little")
                flags[start : start + segment.entry.rows] = dead == 0
        return np.flatnonzero(flags)

    def _locate(self, row: int) -> tuple[int, int]:
        """Segment number and row in it."""
        if not 0 <= row < self.rows:
            raise IndexError(f"row {row} is not in the index of {self.manifest.documents} documents")
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        return number, int(row - self._starts[number])

    def close(self) -> None:
        """Close the files."""
        for segment in self.segments:
            segment.close()


def _possible(ids: Iterable[str]) -> list[str]:
    """Those ``ids`` that a document can have; SQLite compares no further than a null character."""
    return [name for name in ids if "\0" not in name]


def by_segment(places: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """The rows of ``places`` (segment numbers and rows in them) by segment number."""
    rows: dict[int, list[int]] = {}
    for number, row in places:
        rows.setdefault(number, []).append(row)
    return rows


def open_generation(root: Path, accept: Callable[[Manifest], None], *, searches: bool = False) -> Generation:
    """Open the live generation of the index at ``root``, unless ``accept`` raises for its manifest.

    With ``searches`` its Faiss indexes are read now, and not when one is needed.

    Raises:
        IndexNotFoundError: no finished index is there.
        IndexDamagedError: a file is missing, has the wrong size, or cannot be read.
        OSError: the system does not open a file now, as when this process has too many.
    """
    try:
        return _open_live(root, accept, searches)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        raise OSError(errno.EMFILE, reason_of(error), error.filename) from None


def _open_live(root: Path, accept: Callable[[Manifest], None], searches: bool) -> Generation:
    while True:
        name = current_name(root)
        try:
            manifest = manifest_at(root, name)
            accept(manifest)
            # files are read later, too, when the process may have gone to another folder
            generation = Generation(manifest, _open_segments(root.absolute(), manifest))
            with contextlib.ExitStack() as opened:
                opened.callback(generation.close)
                if searches:
                    generation.read_faiss()
                opened.pop_all()
            return generation
        except (FileNotFoundError, IndexDamagedError) as error:
            # a writer may have replaced the generation since its name was read; then open the new one
            if current_name(root) != name:
                continue
            if isinstance(error, FileNotFoundError):
                raise IndexDamagedError(
                    f"{error.filename}: missing, though the index lists it; build the index again"
                ) from None
            raise


def _open_segments(root: Path, manifest: Manifest) -> list[Segment]:
    with contextlib.ExitStack() as opened:
        segments = []
        for entry in manifest.segments:
            segment = Segment(root, root / SEGMENTS_FOLDER / entry.name, entry, dimension=manifest.dimension)
            opened.callback(segment.close)
            segments.append(segment)
        opened.pop_all()
    return segments
