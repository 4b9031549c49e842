"""Building an index: read and store documents, encode them, fill Faiss, publish.

Reading (and writing documents to SQLite) runs ahead on a background thread where the source allows it,
encoding on the caller's thread, so that Ctrl-C reaches it; both let go of the GIL for their long parts.
"""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Protocol

from embedkit.arguments import check_threads
from embedkit.index import faiss_index
from embedkit.index.documents import Document
from embedkit.index.errors import BuildError, InputError
from embedkit.index.layout import BuildArea
from embedkit.index.manifest import METRICS, EncoderEntry, Manifest, Metric
from embedkit.index.prefetch import prefetch
from embedkit.index.segment import SegmentWriter, check_vectors

OnError = Literal["stop", "skip"] | Callable[[InputError], None]
"""What to do with a document that cannot be used: raise, skip it, or call (and skip it if that returns)."""

_CHUNK_TEXTS = 2048
_CHUNK_CHARACTERS = 4 << 20
_CHUNKS_AHEAD = 2


class TextEncoder(Protocol):
    """What an index needs of an encoder; `embedkit.Encoder` has it."""

    @property
    def fingerprint(self) -> str:
        """Identifies the model."""

    @property
    def prompts(self) -> Mapping[str, str]:
        """Prompts by name; "document" goes before each text to be found."""

    def get_embedding_dimension(self) -> int:
        """The number of columns of a vector."""

    def describe(self) -> dict[str, Any]:
        """At least ``model`` and ``precision``."""

    def encode_document(self, sentences: list[str], *, normalize_embeddings: bool) -> Any:
        """Encode texts to be found: float32 (n, dimension)."""

    def encode_query(self, sentences: list[str], *, normalize_embeddings: bool) -> Any:
        """Encode texts to search with: float32 (n, dimension)."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a build is.

    Attributes:
        stage: "encode", "train" or "add".
        done: documents encoded, or vectors trained on or added.
        total: of how many; ``None`` while encoding, where the number of documents is not known.
        position: bytes of input behind the documents encoded, when they were read from files.
    """

    stage: str
    done: int
    total: int | None
    position: int = 0


@dataclass(slots=True)
class _Chunk:
    texts: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    characters: int = 0
    position: int = 0


def reject(error: InputError, on_error: OnError) -> None:
    """Treat ``error`` as ``on_error`` says."""
    if on_error == "stop":
        raise error
    if on_error != "skip":
        on_error(error)


def build(
    root: Path,
    documents: Iterable[str | Document],
    encoder: TextEncoder,
    *,
    factory: str,
    metric: Metric,
    overwrite: bool,
    threads: int | None,
    on_error: OnError,
    progress: Callable[[Progress], None] | None,
    read_ahead: bool,
) -> Manifest:
    """Build an index, as `Index.build` says; ``read_ahead`` iterates ``documents`` on another thread."""
    if metric not in METRICS:
        raise ValueError(f"metric must be 'cosine' or 'dot', not {metric!r}")
    if isinstance(on_error, str) and on_error not in ("stop", "skip"):
        raise ValueError(f"on_error must be 'stop', 'skip' or a callable, not {on_error!r}")
    if threads is not None:
        check_threads(threads)
    report = progress or (lambda _: None)
    dimension = encoder.get_embedding_dimension()
    if factory != faiss_index.AUTO:
        faiss_index.create_index(factory, dimension)  # a bad string fails now, not after hours of encoding
    else:
        faiss_index.import_faiss()
    with _disk_errors(root), BuildArea(root, overwrite=overwrite) as area:
        writer = SegmentWriter(area.staging, dimension)
        with contextlib.closing(writer):
            chunks = _stored_chunks(documents, writer, on_error)
            if read_ahead:
                chunks = prefetch(chunks, _CHUNKS_AHEAD)
            with contextlib.closing(chunks):
                _encode(
                    chunks, encoder, writer, normalize=metric == "cosine", dimension=dimension, report=report
                )
            if writer.rows == 0:
                raise InputError("", "no document to index: the input is empty, or every line was skipped")
            segment, factory, nlist, nprobe = writer.finish(
                area.segment_name,
                factory,
                threads=threads,
                progress=lambda stage, done, total: report(Progress(stage, done, total)),
            )
        manifest = Manifest(
            generation=area.generation,
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            embedkit_version=version("embedkit"),
            documents=segment.rows,
            dimension=dimension,
            metric=metric,
            factory=factory,
            nlist=nlist,
            nprobe=nprobe,
            encoder=describe_encoder(encoder),
            segments=(segment,),
        )
        area.publish(manifest)
    return manifest


def describe_encoder(encoder: TextEncoder) -> EncoderEntry:
    """The part of the manifest that says which encoder made the vectors."""
    description = encoder.describe()
    model = str(description["model"])
    return EncoderEntry(
        # a folder must be found again from another working directory
        model=str(Path(model).resolve()) if Path(model).is_dir() else model,
        fingerprint=encoder.fingerprint,
        precision=str(description["precision"]),
        document_prompt=encoder.prompts.get("document", ""),
    )


def _stored_chunks(
    documents: Iterable[str | Document], writer: SegmentWriter, on_error: OnError
) -> Generator[_Chunk, None, None]:
    """Store each document, and yield the texts to encode, in chunks of bounded size."""
    chunk = _Chunk()
    for position, item in enumerate(documents):
        document = item if isinstance(item, Document) else Document(item)
        if document.key is None:
            document = replace(document, key=str(position), origin=document.origin or f"document {position}")
        try:
            writer.add_document(document)
        except InputError as error:
            reject(error, on_error)
            continue
        chunk.texts.append(document.text)
        chunk.origins.append(document.origin or f"document {document.key}")
        chunk.characters += len(document.text)
        chunk.position = document.position
        if len(chunk.texts) == _CHUNK_TEXTS or chunk.characters >= _CHUNK_CHARACTERS:
            yield chunk
            chunk = _Chunk()
    if chunk.texts:
        yield chunk


def _encode(
    chunks: Iterator[_Chunk],
    encoder: TextEncoder,
    writer: SegmentWriter,
    *,
    normalize: bool,
    dimension: int,
    report: Callable[[Progress], None],
) -> None:
    done = 0
    for chunk in chunks:
        encoded = encoder.encode_document(chunk.texts, normalize_embeddings=normalize)
        vectors, unusable = check_vectors(encoded, len(chunk.texts), dimension)
        if len(unusable):
            origin = chunk.origins[unusable[0]]
            raise BuildError(
                f"{origin}: the encoder returned NaN or infinity for this text; check the model's weights"
            )
        writer.add_vectors(vectors)
        done += len(chunk.texts)
        report(Progress("encode", done, None, chunk.position))


@contextlib.contextmanager
def _disk_errors(root: Path) -> Iterator[None]:
    """Say which index could not be written, and that nothing was left of it."""
    try:
        yield
    except (sqlite3.OperationalError, BuildError) as error:
        raise BuildError(f"{root}: the build failed and was undone: {error}") from error
    except OSError as error:
        if error.errno is None or isinstance(error, BlockingIOError):  # ours, with a message of their own
            raise
        raise BuildError(f"{root}: the build failed and was undone: {error.strerror}") from error
