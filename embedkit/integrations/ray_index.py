"""``embedkit-index build --engine ray``: an index of texts that a Ray cluster encodes.

1. The input is cut into pieces of some thousand documents (`ray_plan`).
2. Actors with one encoder each take a piece, read and encode it, and write a shard (`ray_actor`, `ray_shards`). If an
   actor is lost, Ray repeats its piece on another one; a job that is started again skips the shards that are there.
3. This process builds the index from the shards in the order of the input, as `Index.build` does from documents that
   come with their vectors: within its memory limit, and resuming after an interruption. So the index is the one that a
   single machine would have built.

Pieces are read with embedkit's own reader rather than `ray.data.read_json`, which reports no line numbers and converts
the fields of all records to columns of one type: ids and metadata would differ from those on one machine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

try:
    import ray
    import ray.data
    from ray.exceptions import RayError
except ImportError as error:
    raise ImportError("the engine ray needs ray[data]: pip install 'embedkit[cpu,ray]'") from error

from ..arguments import check_positive
from ..documents.document import Document, EncodedDocument
from ..documents.errors import InputError, OnError, reject
from ..documents.readers import check_fields
from ..files import expanded
from ..index import Index
from ..index.build.resume import check_output
from ..index.build.settings import BuildSettings, Progress, Report
from ..index.errors import BuildError
from ..index.storage.faiss_index import AUTOMATIC, create_index, import_faiss
from ..index.storage.layout import Writer
from .opening import check_options
from .ray_actor import EncodePieces, Job, raise_error
from .ray_encoder import describe
from .ray_plan import File, Piece, digest, files, pieces_of
from .ray_shards import JobHeader, Rejected, Shard, ShardStore

__all__ = ["SHARD_ROWS", "Built", "Cluster", "Documents", "build_index"]

SHARD_ROWS = 16_384
"""Lines or rows of a piece: about ten seconds of work, the most that is repeated if an actor is lost."""

_MOST_BLOCKS = 4096  # of Ray Data, each with pieces: one costs about a millisecond here
_MOST_THREADS = 4  # of an encoder by default: more encoders scale better than more threads
_DEFAULTS = BuildSettings()

_logger = logging.getLogger("embedkit")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where and how a job runs.

    Attributes:
        address: of the cluster ("auto": that of this machine); ``None``: Ray decides, by RAY_ADDRESS, or starts one
            on this machine alone. An existing Ray session is used in any case.
        shards: where the shards go and stay, a folder that all machines share or a URL; ``None``: to
            ``path`` + ".shards" until the index is complete.
        encoders: how many at once; ``None``: as many as the cluster has room for now.
        encoder_threads: threads of each, and the CPUs that Ray reserves for it; ``None``: up to 4.
        shard_rows: lines or rows of a piece.
    """

    address: str | None = None
    shards: str | None = None
    encoders: int | None = None
    encoder_threads: int | None = None
    shard_rows: int = SHARD_ROWS

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("encoders", "encoder_threads", "shard_rows"):
            if (value := getattr(self, name)) is not None:
                check_positive(name, value)


_THIS_MACHINE = Cluster()


@dataclass(frozen=True, slots=True)
class Built:
    """What `build_index` did.

    Attributes:
        documents: in the index.
        encoded: those encoded now, not by an earlier job that was interrupted.
        blank: left out because their text is blank.
    """

    documents: int
    encoded: int
    blank: int


def build_index(
    path: str | os.PathLike[str],
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    model: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    cluster: Cluster = _THIS_MACHINE,
    settings: BuildSettings = _DEFAULTS,
    text_field: str = "text",
    id_field: str | None = None,
    progress: Report | None = None,
) -> Built:
    """Encode the documents of ``inputs`` on a Ray cluster, and write an index of them to the folder ``path``.

    Args:
        path, progress: as in `Index.build`.
        inputs: ``.jsonl`` (with .gz or .zst: one piece each) and ``.parquet`` files (or one), folders or patterns,
            on a path that exists on every machine of the cluster, or URLs that fsspec knows (s3://…).
        model: as in `Encoder`; a folder must exist on every machine.
        options: further arguments of `Encoder`; with a CUDA device each encoder takes one GPU.
        cluster: where and how the texts are encoded.
        settings: as in `Index.build`; ``restart`` also discards the shards, and ``root`` follows from ``inputs``.
        text_field, id_field: as in `Corpus`.

    Raises:
        ValueError: the model cannot be loaded, or an argument is invalid.
        ResumeError: the shards there belong to another job.
        BuildError: Ray gave up on the job. Finished shards are kept, and the same call resumes.
        Others: as `Index.build`.
    """
    root = expanded(path)
    check_fields(text_field, id_field)
    name, given = check_options(model, options, saved=False)
    device = str(given.get("device", "cpu"))
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device={device!r}: Ray gives each encoder its own GPU; use 'cuda'")
    chosen, named_by = files(inputs)
    settings = replace(settings, root=named_by)
    check_output(root, overwrite=settings.overwrite, restart=settings.restart)
    with Writer(root, create=True):  # refuses all else that the build would, when everything is encoded
        import_faiss()
    with _session(cluster.address), _ray_errors(root):
        threads = cluster.encoder_threads or _default_threads()
        resources = {"num_cpus": threads, "num_gpus": int(device == "cuda")}
        given.setdefault("threads", threads)
        encoder = describe(name, given, resources)
        if settings.factory not in AUTOMATIC:
            create_index(settings.factory, encoder.dimension)
        pieces = _plan(chosen, cluster.shard_rows)
        header = JobHeader(
            digest(pieces),
            encoder.fingerprint,
            encoder.precision,
            encoder.prompts.get("document", ""),
            encoder.dimension,
            settings.metric,
            [text_field, id_field],
            encoder.own_max_length,
            encoder.on_overflow,
        )
        place = f"{root.absolute()}.shards" if cluster.shards is None else cluster.shards
        store = ShardStore(place, header.digest())
        store.begin(header, restart=settings.restart)
        job = Job(
            name,
            given,
            encoder,
            store.url,
            store.job,
            normalize=settings.metric == "cosine",
            text_field=text_field,
            id_field=id_field,
            skip=settings.on_error != "stop",
        )
        found = store.finished(len(pieces))
        encoded = 0
        report = progress or (lambda _: None)
        for shard in _encode(job, pieces, found, resources, encoders=cluster.encoders, report=report):
            found[shard.piece] = shard
            encoded += shard.rows
        store.sweep()
    shards = [found[number] for number in range(len(pieces))]
    documents = Documents(store, pieces, shards, settings.on_error)
    with Index.build_with(root, documents, encoder, settings, progress) as index:
        count = len(index)
    if cluster.shards is None:
        store.remove()
    return Built(count, encoded, sum(shard.blank for shard in shards))


@contextlib.contextmanager
def _session(address: str | None) -> Iterator[None]:
    """A Ray session, started here unless there is one."""
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(address=address, include_dashboard=None if address else False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError) as error:
        raise BuildError(f"no Ray cluster can be reached at {address}: {error}") from error
    for handler in logging.getLogger("ray.data").handlers:
        if handler.name == "console":
            handler.setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _ray_errors(root: Path) -> Iterator[None]:
    """Turn errors of Ray into one that says what became of the job."""
    try:
        yield
    except RayError as error:
        raise BuildError(
            f"{root}: the cluster could not finish: {_reason(error)}; finished shards are kept, and the same "
            "command resumes from there"
        ) from error


def _reason(error: BaseException) -> str:
    """The error raised on the cluster, without Ray's wrappers."""
    while (cause := getattr(error, "cause", None) or error.__cause__) is not None and cause is not error:
        error = cause
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _default_threads() -> int:
    cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    return max(1, min([_MOST_THREADS, *(count for count in cpus if count)]))


def _plan(chosen: Sequence[File], rows: int) -> list[Piece]:
    """All pieces, in the order of the input; each file is planned by a task of its own."""
    look = ray.remote(_look).options(num_cpus=1)
    plans = ray.get([look.remote(file, rows) for file in chosen])
    pieces: list[Piece] = []
    for file, found in zip(chosen, plans, strict=True):
        if isinstance(found, str):
            raise InputError(file.path, found)
        pieces += found
    return pieces


def _look(file: File, rows: int) -> list[Piece] | str:
    try:
        return pieces_of(file, rows)
    except InputError as error:
        return error.reason


def _encode(
    job: Job,
    pieces: Sequence[Piece],
    found: Mapping[int, Shard],
    resources: Mapping[str, int],
    *,
    encoders: int | None,
    report: Report,
) -> Iterator[Shard]:
    """The shards of the pieces that are not ``found``, as they become ready."""
    missing = [
        {"number": number, "piece": pickle.dumps(piece)}
        for number, piece in enumerate(pieces)
        if number not in found
    ]
    rows = sum(shard.rows for shard in found.values())
    if found:
        report(Progress("encode", rows, None))
        _logger.info("%d of %d shards are already there", len(found), len(pieces))
    if not missing:
        return
    room = int(ray.cluster_resources().get("CPU", 1)) // max(1, resources["num_cpus"])
    if resources["num_gpus"]:
        room = int(ray.cluster_resources().get("GPU", 0))
    most = encoders or max(1, min(room, len(missing)))
    dataset = ray.data.from_items(missing, override_num_blocks=min(len(missing), _MOST_BLOCKS)).map_batches(
        EncodePieces,
        fn_constructor_args=(job,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=most),
        **resources,
    )
    dataset.context.enable_progress_bars = False
    for row in dataset.iter_rows():
        raise_error(row)
        rejected = tuple(Rejected(*one) for one in row["rejected"])
        shard = Shard(int(row["number"]), int(row["rows"]), int(row["blank"]), rejected)
        rows += shard.rows
        report(Progress("encode", rows, None))
        yield shard


class Documents:
    """The documents of all shards, in the order of the input."""

    def __init__(
        self, store: ShardStore, pieces: Sequence[Piece], shards: Sequence[Shard], on_error: OnError
    ) -> None:
        """Read ``shards``, one for each of ``pieces``; ``on_error`` decides about documents that cannot be used."""
        self._store = store
        self._pieces = pieces
        self._shards = shards
        self._on_error = on_error

    def __iter__(self) -> Iterator[Document]:
        """Read shard after shard."""
        for piece, shard in zip(self._pieces, self._shards, strict=True):
            for one in shard.rejected:
                reject(one.error(), self._on_error)
            for document, line in self._store.read(shard):
                yield EncodedDocument(
                    document.text,
                    document.id,
                    document.metadata,
                    f"{piece.file.path}:{line}",
                    vector=document.vector,
                )
