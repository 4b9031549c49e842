"""The manifest of one generation of an index: what it holds, how it was made, and its files' checksums."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from embedkit.index.errors import IndexDamagedError

FORMAT = "embedkit-index"
FORMAT_VERSION = 1
SEGMENT_FILES = ("vectors.faiss", "keys", "documents.sqlite")
METRICS = ("cosine", "dot")

Metric = Literal["cosine", "dot"]

_MAX_BYTES = 16 << 20  # a manifest is a few kilobytes; a hostile one must not fill the memory
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_T = TypeVar("_T")


@dataclass(frozen=True)
class FileEntry:
    """One file of a segment: its size in bytes and its SHA-256 in hexadecimal."""

    size: int
    sha256: str


@dataclass(frozen=True)
class SegmentEntry:
    """One segment: the folder's name under ``segments/``, its number of rows, and its files."""

    name: str
    rows: int
    files: dict[str, FileEntry]


@dataclass(frozen=True)
class EncoderEntry:
    """The encoder and the numerics that made the vectors."""

    model: str
    fingerprint: str
    precision: str
    document_prompt: str  # what encode_document put before each text; "" for none


@dataclass(frozen=True)
class Manifest:
    """One generation of an index, as in ``manifests/000001.json``."""

    generation: int
    created: str  # UTC, ISO 8601
    embedkit_version: str
    documents: int
    dimension: int
    metric: Metric
    factory: str  # what the Faiss index is, with "auto" resolved
    nlist: int | None  # inverted lists, for an IVF index
    nprobe: int | None  # lists visited by a search that does not say otherwise, for an IVF index
    encoder: EncoderEntry
    segments: tuple[SegmentEntry, ...]

    @property
    def filename(self) -> str:
        """The manifest's name under ``manifests/``."""
        return manifest_name(self.generation)

    def to_json(self) -> bytes:
        """The manifest as UTF-8 JSON."""
        content = {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)}
        return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def manifest_name(generation: int) -> str:
    """The file name of a generation's manifest."""
    return f"{generation:06d}.json"


def hash_file(path: Path) -> FileEntry:
    """Size and SHA-256 of the file at ``path``."""
    digest = hashlib.sha256()
    size = 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
    return FileEntry(size, digest.hexdigest())


def read_manifest(path: Path) -> Manifest:
    """Read and check the manifest at ``path``.

    Raises:
        FileNotFoundError: no such file.
        IndexDamagedError: it is not a manifest, has another format version, or a field is wrong.
    """
    with path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise _damaged(path, f"larger than {_MAX_BYTES >> 20} MiB")
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"not valid JSON ({error})") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _damaged(path, "not the manifest of an embedkit index")
    if data.get("format_version") != FORMAT_VERSION:
        raise IndexDamagedError(
            f"{path}: format version {data.get('format_version')!r}, and this embedkit reads version "
            f"{FORMAT_VERSION}; open the index with the embedkit that built it, or build it again"
        )
    return _Parser(path).manifest(data)


def _damaged(path: Path, reason: str) -> IndexDamagedError:
    return IndexDamagedError(f"{path}: {reason}; the manifest is damaged: build the index again")


class _Parser:
    """Turns parsed JSON into a `Manifest`, naming the file and field of whatever does not fit."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def field(self, data: dict[str, Any], name: str, kind: type[_T]) -> _T:
        value = data.get(name)
        # bool is a subclass of int
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _damaged(self.path, f"field {name!r} is missing or not of type {kind.__name__}")
        return value

    def count(self, data: dict[str, Any], name: str, least: int = 1) -> int:
        value = self.field(data, name, int)
        if not least <= value < 1 << 48:
            raise _damaged(self.path, f"field {name!r} is out of range ({value})")
        return value

    def optional_count(self, data: dict[str, Any], name: str) -> int | None:
        return None if data.get(name) is None else self.count(data, name)

    def manifest(self, data: dict[str, Any]) -> Manifest:
        metric = self.field(data, "metric", str)
        if metric not in METRICS:
            raise _damaged(self.path, f"unknown metric {metric!r}")
        encoder = self.field(data, "encoder", dict)
        segments = tuple(self.segment(entry) for entry in self.field(data, "segments", list))
        if len({segment.name for segment in segments}) != len(segments):
            raise _damaged(self.path, "a segment is named twice")
        manifest = Manifest(
            generation=self.count(data, "generation"),
            created=self.field(data, "created", str),
            embedkit_version=self.field(data, "embedkit_version", str),
            documents=self.count(data, "documents"),
            dimension=self.count(data, "dimension"),
            metric="cosine" if metric == "cosine" else "dot",
            factory=self.field(data, "factory", str),
            nlist=self.optional_count(data, "nlist"),
            nprobe=self.optional_count(data, "nprobe"),
            encoder=EncoderEntry(
                **{
                    name: self.field(encoder, name, str)
                    for name in ("model", "fingerprint", "precision", "document_prompt")
                }
            ),
            segments=segments,
        )
        if sum(segment.rows for segment in segments) != manifest.documents:
            raise _damaged(self.path, "the rows of the segments do not add up to 'documents'")
        return manifest

    def segment(self, data: object) -> SegmentEntry:
        if not isinstance(data, dict):
            raise _damaged(self.path, "a segment is not an object")
        name = self.field(data, "name", str)
        # the name becomes part of a path: nothing that could lead out of the index
        if not _NAME.fullmatch(name):
            raise _damaged(self.path, f"segment name {name!r} is not allowed")
        files = self.field(data, "files", dict)
        if set(files) != set(SEGMENT_FILES):
            raise _damaged(self.path, f"segment {name!r} must list exactly {', '.join(SEGMENT_FILES)}")
        return SegmentEntry(
            name, self.count(data, "rows"), {key: self.file(files[key]) for key in SEGMENT_FILES}
        )

    def file(self, data: object) -> FileEntry:
        if not isinstance(data, dict):
            raise _damaged(self.path, "a file entry is not an object")
        sha256 = self.field(data, "sha256", str)
        if not _SHA256.fullmatch(sha256):
            raise _damaged(self.path, "a SHA-256 is not 64 hexadecimal digits")
        return FileEntry(self.count(data, "size"), sha256)
