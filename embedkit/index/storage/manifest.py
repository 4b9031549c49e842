"""The manifest of a generation of an index: its content, how it was built, and the checksums of its files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from ...documents.folders import NamedBy
from ...documents.sources import FORMATS, Format
from ...files import file_sha256
from ..errors import IndexDamagedError
from ..words.languages import AUTO, check_language

__all__ = [
    "DOCUMENTS_FILE",
    "IDS_FILE",
    "METRICS",
    "RAW_FILE",
    "RAW_KINDS",
    "WORDS_VERSION",
    "EncoderEntry",
    "FileEntry",
    "Manifest",
    "Metric",
    "PartEntry",
    "Raw",
    "ReadingEntry",
    "SegmentEntry",
    "TombstonesEntry",
    "WordsEntry",
    "altered",
    "hash_file",
    "parse_manifest",
    "read_manifest",
    "segment_from_json",
    "truncated_of",
]

FORMAT = "embedkit-index"
FORMAT_VERSION = 2
WORDS_VERSION = 6
IDS_FILE = "keys"  # ids were called keys once
DOCUMENTS_FILE = "documents.sqlite"
RAW_FILE = "vectors.raw"

Metric = Literal["cosine", "dot"]
METRICS: tuple[Metric, ...] = ("cosine", "dot")
Raw = Literal["none", "fp32", "int8"]
RAW_KINDS: tuple[Raw, ...] = ("none", "fp32", "int8")

_MAX_BYTES = 64 << 20  # a manifest is a few kilobytes; a hostile one must not fill the memory
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PART_NAME = re.compile(r"vectors(-[0-9]{3,6})?\.faiss")
_TOMBSTONES_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.bits")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_T = TypeVar("_T")


@dataclass(frozen=True)
class FileEntry:
    """One file of a segment: its size in bytes and its SHA-256 in hexadecimal."""

    size: int
    sha256: str


@dataclass(frozen=True)
class PartEntry:
    """One Faiss index of a segment: its file, its number of vectors, and its factory string."""

    file: str
    rows: int  # a multiple of 8 in all parts but the last, so that bitmaps are cut between bytes
    factory: str


@dataclass(frozen=True)
class TombstonesEntry:
    """The deleted rows of a segment: a bitmap under ``tombstones/``, bit ``row % 8`` of byte ``row // 8``."""

    file: str
    deleted: int
    size: int
    sha256: str


@dataclass(frozen=True)
class WordsEntry:
    """How the words of a segment were made; see `embedkit.index.words.analyzer`.

    Attributes:
        version: of the rules and tables (see `WORDS_VERSION`). Earlier ones are not read.
        language: whose stems they are, or "none".
    """

    version: int
    language: str


@dataclass(frozen=True)
class SegmentEntry:
    """One segment.

    Attributes:
        name: of its folder under ``segments/``.
        rows: documents written, including deleted ones.
        parts: its Faiss indexes; the first holds the first rows, and so on.
        raw: how ``vectors.raw`` stores the vectors: as float32, as int8 with a scale per row, or not at all (if
            the Faiss index stores them unchanged).
        keywords: ``documents.sqlite`` has the words of the texts.
        files: the files in the folder.
        tombstones: the deleted rows; ``None`` if there are none.
        truncated: texts longer than the model takes, which were cut; ``None`` if it was not counted.
        words: how these were made; ``None`` if there are none, or the first embedkit made them.
    """

    name: str
    rows: int
    parts: tuple[PartEntry, ...]
    raw: Raw
    keywords: bool
    files: dict[str, FileEntry]
    tombstones: TombstonesEntry | None = None
    truncated: int | None = None
    words: WordsEntry | None = None

    @property
    def documents(self) -> int:
        """Rows that are not deleted."""
        return self.rows - (self.tombstones.deleted if self.tombstones else 0)

    @property
    def has_words(self) -> bool:
        """Whether its words are stored, as this version of embedkit makes them."""
        return self.words is not None and self.words.version == WORDS_VERSION

    @property
    def has_old_words(self) -> bool:
        """Whether an earlier version of embedkit made its words, which this one does not read."""
        return self.keywords and not self.has_words


@dataclass(frozen=True)
class EncoderEntry:
    """The encoder that computed the vectors, and its precision."""

    model: str
    fingerprint: str
    precision: str
    document_prompt: str  # what encode_document put before each text; "" for none
    query_prompt: str | None = None  # what encode_query does; None: not recorded, so that of the model

    @property
    def prompts(self) -> dict[str, str]:
        """Those that are recorded, as `embedkit.Encoder` names them."""
        known = {"query": self.query_prompt, "document": self.document_prompt}
        return {task: text for task, text in known.items() if text is not None}


@dataclass(frozen=True)
class ReadingEntry:
    """How ``embedkit-index build`` read its files, which ``sync`` does too; named as its options.

    ``alone`` is what ``sync`` cannot follow, if there is something: ``--dedup``, ``--vectors``, inputs other than one
    folder, what `reembed` and `merge` make of an index.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    txt: str | None = None
    text_field: str = "text"
    id_field: str | None = None
    vector_field: str | None = None
    format: Format | None = None
    alone: str | None = None


@dataclass(frozen=True)
class Manifest:
    """One generation of an index, as in ``manifests/000001.json``.

    Attributes:
        created: UTC, ISO 8601.
        documents: the number of documents, without deleted ones.
        factory: as given ("auto" stays "auto"); each part has its own.
        kept: how vectors are stored beside lossy codes: "fp32" or "int8".
        nprobe, ef, rescore: the default search parameters; ``None``: those of the Faiss index.
        tuning: the measurements of an automatic choice of parameters, if there was one.
        root: the absolute folder that the names of files in ids are relative to; ``None``: there is none, or they are
            of several.
        reading: how its files were read; ``None``: not by ``embedkit-index build``.
        passages: how documents are cut ("TOKENS:OVERLAP"); ``None``: they are whole.
        max_length: of the encoder, if it is not the model's own.
        on_overflow: "window" if the encoder reads texts beyond that so; ``None``: they are cut.
        language: of the words; "auto": not known yet.
        refuses_long: texts beyond ``max_length`` are refused, not cut.
        factory_given: ``factory`` is what was asked for, not "auto" or what a model has put in its place.
        built: the generation that ``build`` wrote; ``None``: by an earlier embedkit, or by another command.
        base_names: files in ids have their base names, as before an index had a root.
    """

    generation: int
    created: str
    embedkit_version: str
    documents: int
    dimension: int
    metric: Metric
    factory: str
    kept: Raw
    encoder: EncoderEntry
    segments: tuple[SegmentEntry, ...]
    nprobe: int | None = None
    ef: int | None = None
    rescore: int | None = None
    tuning: dict[str, Any] | None = None
    root: str | None = None
    reading: ReadingEntry | None = None
    passages: str | None = None
    max_length: int | None = None
    on_overflow: str | None = None
    language: str = AUTO
    built: int | None = None
    refuses_long: bool = False
    factory_given: bool = False
    base_names: bool = False

    @property
    def filename(self) -> str:
        """The manifest's name under ``manifests/``."""
        return manifest_name(self.generation)

    @property
    def named_by(self) -> NamedBy:
        """What names files that are added."""
        if self.root is not None:
            return "root"
        return "base" if self.base_names else "none"

    def with_segments(self, segments: tuple[SegmentEntry, ...]) -> Manifest:
        """The same index with other segments."""
        return replace(self, segments=segments, documents=sum(segment.documents for segment in segments))

    def to_json(self) -> bytes:
        """The manifest as JSON, in ASCII: the name of a folder that is not UTF-8 has lone surrogates."""
        content = {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)}
        return (json.dumps(content, indent=2) + "\n").encode("ascii")


def truncated_of(segments: Iterable[SegmentEntry]) -> int | None:
    """How many texts the model cut when they were encoded (deleted ones included); ``None`` if not known."""
    counts = [entry.truncated for entry in segments]
    return None if None in counts else sum(count or 0 for count in counts)


def manifest_name(generation: int) -> str:
    """The file name of a generation's manifest."""
    return f"{generation:06d}.json"


def hash_file(path: Path) -> FileEntry:
    """Size and SHA-256 of the file at ``path``."""
    return FileEntry(path.stat().st_size, file_sha256(path))


def read_manifest(path: Path) -> Manifest:
    """Read and check the manifest at ``path``.

    Raises:
        FileNotFoundError: no such file.
        IndexDamagedError: it is not a manifest, has another format version, or a field is wrong.
    """
    with path.open("rb") as file:
        return parse_manifest(path, file.read(_MAX_BYTES + 1))


def parse_manifest(path: Path, content: bytes) -> Manifest:
    """`read_manifest` of the ``content`` of ``path``."""
    if len(content) > _MAX_BYTES:
        raise _damaged(path, f"larger than {_MAX_BYTES >> 20} MiB")
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"not valid JSON ({error})") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _damaged(path, "not the manifest of an embedkit index")
    version = data.get("format_version")
    if version != FORMAT_VERSION:
        raise IndexDamagedError(
            f"{path}: format version {version!r}, and this embedkit reads version {FORMAT_VERSION}; "
            "open the index with the embedkit that built it, or build it again"
        )
    return _Parser(path).manifest(data)


def altered(path: Path) -> IndexDamagedError:
    """The error for a file whose content is not what the manifest says."""
    return IndexDamagedError(
        f"{path}: the content does not match its SHA-256 in the manifest; build the index again"
    )


def segment_from_json(path: Path, data: object) -> SegmentEntry:
    """The segment that ``asdict`` turned into ``data``; errors name ``path``."""
    return _Parser(path).segment(data)


def _damaged(path: Path, reason: str) -> IndexDamagedError:
    return IndexDamagedError(f"{path}: {reason}; the manifest is damaged: build the index again")


class _Parser:
    """Turns parsed JSON into a `Manifest`, naming the file and field of whatever does not fit."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def field(self, data: dict[str, Any], name: str, kind: type[_T]) -> _T:
        value = data.get(name)
        # bool is a subclass of int
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _damaged(self.path, f"field {name!r} is missing or not of type {kind.__name__}")
        return value

    def optional(self, data: dict[str, Any], name: str, kind: type[_T]) -> _T | None:
        return None if data.get(name) is None else self.field(data, name, kind)

    def one_of(self, data: dict[str, Any], name: str, known: Sequence[_T]) -> _T:
        value = data.get(name)
        for one in known:
            if value == one:
                return one
        raise _damaged(self.path, f"field {name!r} is {value!r}, not one of {', '.join(map(str, known))}")

    def optional_of(self, data: dict[str, Any], name: str, known: Sequence[_T]) -> _T | None:
        return None if data.get(name) is None else self.one_of(data, name, known)

    def count(self, data: dict[str, Any], name: str, least: int = 1) -> int:
        value = self.field(data, name, int)
        if not least <= value < 1 << 48:
            raise _damaged(self.path, f"field {name!r} is out of range ({value})")
        return value

    def optional_count(self, data: dict[str, Any], name: str, least: int = 1) -> int | None:
        return None if data.get(name) is None else self.count(data, name, least)

    def flag(self, data: dict[str, Any], name: str) -> bool:
        return bool(self.optional(data, name, bool))

    def manifest(self, data: dict[str, Any]) -> Manifest:
        encoder = self.field(data, "encoder", dict)
        segments = tuple(self.segment(entry) for entry in self.field(data, "segments", list))
        if len({segment.name for segment in segments}) != len(segments):
            raise _damaged(self.path, "a segment is named twice")
        manifest = Manifest(
            generation=self.count(data, "generation"),
            created=self.field(data, "created", str),
            embedkit_version=self.field(data, "embedkit_version", str),
            documents=self.count(data, "documents", least=0),
            dimension=self.count(data, "dimension"),
            metric=self.one_of(data, "metric", METRICS),
            factory=self.field(data, "factory", str),
            kept=self.one_of(data, "kept", RAW_KINDS),
            encoder=EncoderEntry(
                **{
                    name: self.field(encoder, name, str)
                    for name in ("model", "fingerprint", "precision", "document_prompt")
                },
                query_prompt=self.optional(encoder, "query_prompt", str),
            ),
            segments=segments,
            nprobe=self.optional_count(data, "nprobe"),
            ef=self.optional_count(data, "ef"),
            rescore=self.optional_count(data, "rescore", least=0) or None,  # 0: an earlier embedkit wrote it
            tuning=self.optional(data, "tuning", dict),
            root=self.optional(data, "root", str),
            reading=None if data.get("reading") is None else self.reading(self.field(data, "reading", dict)),
            passages=self.optional(data, "passages", str),
            max_length=self.optional_count(data, "max_length"),
            on_overflow=self.optional_of(data, "on_overflow", ("window",)),
            language=AUTO if data.get("language") is None else self.language(data),
            built=self.optional_count(data, "built"),
            refuses_long=self.flag(data, "refuses_long"),
            factory_given=self.flag(data, "factory_given"),
            base_names="root" not in data or self.flag(data, "base_names"),
        )
        if sum(segment.documents for segment in segments) != manifest.documents:
            raise _damaged(self.path, "the rows of the segments do not add up to 'documents'")
        return manifest

    def reading(self, data: dict[str, Any]) -> ReadingEntry:
        def patterns(name: str) -> tuple[str, ...]:
            found = self.field(data, name, list)
            if not all(isinstance(pattern, str) for pattern in found):
                raise _damaged(self.path, f"field {name!r} is not a list of strings")
            return tuple(found)

        return ReadingEntry(
            patterns("include"),
            patterns("exclude"),
            self.optional(data, "txt", str),
            self.field(data, "text_field", str),
            self.optional(data, "id_field", str),
            self.optional(data, "vector_field", str),
            self.optional_of(data, "format", FORMATS),
            self.optional(data, "alone", str),
        )

    def segment(self, data: object) -> SegmentEntry:
        if not isinstance(data, dict):
            raise _damaged(self.path, "a segment is not an object")
        name = self.field(data, "name", str)
        # the name becomes part of a path: nothing that could lead out of the index
        if not _NAME.fullmatch(name):
            raise _damaged(self.path, f"segment name {name!r} is not allowed")
        rows = self.count(data, "rows")
        raw = self.one_of(data, "raw", RAW_KINDS)
        parts = tuple(self.part(entry) for entry in self.field(data, "parts", list))
        if sum(part.rows for part in parts) != rows or any(part.rows % 8 for part in parts[:-1]):
            raise _damaged(self.path, f"the parts of segment {name!r} do not make {rows} rows")
        files = self.field(data, "files", dict)
        expected = [part.file for part in parts] + [IDS_FILE, DOCUMENTS_FILE]
        expected += [RAW_FILE] if raw != "none" else []
        if set(files) != set(expected) or len(set(expected)) != len(expected):
            raise _damaged(self.path, f"segment {name!r} must list exactly {', '.join(expected)}")
        tombstones = data.get("tombstones")
        return SegmentEntry(
            name,
            rows,
            parts,
            raw,
            self.field(data, "keywords", bool),
            {name: self.file(files[name]) for name in expected},
            None if tombstones is None else self.tombstones(tombstones, rows),
            self.optional_count(data, "truncated", least=0),
            None if data.get("words") is None else self.words(self.field(data, "words", dict)),
        )

    def language(self, data: dict[str, Any]) -> str:
        try:
            return check_language(data.get("language"))
        except (TypeError, ValueError) as error:
            raise _damaged(self.path, str(error)) from None

    def words(self, data: dict[str, Any]) -> WordsEntry:
        version = self.count(data, "version")
        if version > WORDS_VERSION:
            raise _damaged(self.path, f"words of version {version}, and this embedkit reads {WORDS_VERSION}")
        return WordsEntry(version, self.language(data))

    def part(self, data: object) -> PartEntry:
        if not isinstance(data, dict):
            raise _damaged(self.path, "a part is not an object")
        file = self.field(data, "file", str)
        if not _PART_NAME.fullmatch(file):
            raise _damaged(self.path, f"part name {file!r} is not allowed")
        return PartEntry(file, self.count(data, "rows"), self.field(data, "factory", str))

    def tombstones(self, data: object, rows: int) -> TombstonesEntry:
        if not isinstance(data, dict):
            raise _damaged(self.path, "tombstones are not an object")
        file = self.field(data, "file", str)
        if not _TOMBSTONES_NAME.fullmatch(file):
            raise _damaged(self.path, f"tombstones name {file!r} is not allowed")
        entry = self.file(data)
        deleted = self.count(data, "deleted")
        if deleted > rows or entry.size != (rows + 7) // 8:
            raise _damaged(self.path, f"the tombstones {file!r} do not fit {rows} rows")
        return TombstonesEntry(file, deleted, entry.size, entry.sha256)

    def file(self, data: object) -> FileEntry:
        if not isinstance(data, dict):
            raise _damaged(self.path, "a file entry is not an object")
        sha256 = self.field(data, "sha256", str)
        if not _SHA256.fullmatch(sha256):
            raise _damaged(self.path, "a SHA-256 is not 64 hexadecimal digits")
        return FileEntry(self.count(data, "size"), sha256)
