"""``embedkit-index build --engine ray``: an index whose texts a Ray cluster encodes.

1. The input is cut into pieces of some thousand documents (`ray_plan`).
2. Actors, one encoder each, take a piece, read and encode it and write a shard (`ray_shards`). Ray repeats the piece
   on another actor where one is lost, and a job that is started again leaves out the shards that are there.
3. This process makes the index of the shards, in the order of the input, as `Index.build` does of documents that bring
   their vectors: it trains on a sample, fills and merges inverted lists on disk within its bound of memory, and
   goes on where it was after an interruption. So the index is the one that a single machine would have built.

Pieces are read with embedkit's own reader rather than `ray.data.read_json`, which knows no line numbers, and turns the
fields of all records into columns of one type: ids and metadata would be others than on one machine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

try:
    import ray
    import ray.data
    from ray.exceptions import RayError
except ImportError as error:
    raise ImportError("the engine ray needs ray[data]: pip install 'embedkit[cpu,ray]'") from error

from ..documents.document import Document, check_document
from ..documents.errors import InputError, OnError, reject
from ..documents.readers import Corpus
from ..encoder import Encoder
from ..index import Index
from ..index.build.build import resumable_rows
from ..index.build.ingest import Progress
from ..index.build.memory import DEFAULT_MAX_MEMORY
from ..index.encoder import describe_encoder
from ..index.errors import BuildError, IndexExistsError, ModelMismatchError
from ..index.storage.faiss_index import AUTO, create_index, import_faiss
from ..index.storage.layout import CURRENT_FILE
from ..index.storage.manifest import Metric, Raw
from ..index.storage.vectors import check_encoded
from .opening import check_options
from .ray import encoder_options
from .ray_encoder import Description, describe
from .ray_plan import File, Piece, digest, files, pieces_of, source_of
from .ray_shards import Rejected, Shard, ShardStore, digest_of

__all__ = ["SHARD_ROWS", "Built", "Documents", "EncodePieces", "Job", "build_index"]

SHARD_ROWS = 16_384
"""Lines or rows of a piece: some ten seconds of work, and what is repeated at most where an actor is lost."""

_CHUNK = 2048
_MOST_BLOCKS = 4096  # of Ray Data, each with pieces: one costs about a millisecond here
_MOST_THREADS = 4  # of an encoder, unless told otherwise: more encoders scale better than more threads

_logger = logging.getLogger("embedkit")


@dataclass(frozen=True, slots=True)
class Built:
    """What `build_index` did.

    Attributes:
        documents: in the index.
        encoded: those encoded now, rather than by a job before that was interrupted.
        blank: left out because their text is blank.
    """

    documents: int
    encoded: int
    blank: int


@dataclass(frozen=True, slots=True)
class Job:
    """What an actor needs to know."""

    model: str | None
    options: dict[str, Any]
    description: dict[str, Any]
    url: str
    name: str
    normalize: bool
    text_field: str
    id_field: str | None
    skip: bool


def build_index(
    path: str | os.PathLike[str],
    inputs: Sequence[str | os.PathLike[str]],
    model: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    address: str | None = None,
    shards: str | None = None,
    encoders: int | None = None,
    encoder_threads: int | None = None,
    shard_rows: int = SHARD_ROWS,
    text_field: str = "text",
    id_field: str | None = None,
    factory: str = AUTO,
    metric: Metric = "cosine",
    kept: Raw = "fp32",
    target_recall: float | None = None,
    overwrite: bool = False,
    restart: bool = False,
    max_memory: int = DEFAULT_MAX_MEMORY,
    threads: int | None = None,
    on_error: OnError = "stop",
    progress: Callable[[Progress], None] | None = None,
) -> Built:
    """Encode the documents of ``inputs`` on a Ray cluster, and write an index of them to the folder ``path``.

    Args:
        path, factory, metric, kept, target_recall, overwrite, restart, max_memory, threads, on_error, progress: as in
            `Index.build`; ``restart`` discards the shards, too.
        inputs: ``.jsonl`` (also with .gz or .zst: one piece each) and ``.parquet`` files, folders or patterns of
            them, on a path that every machine of the cluster has, or as URLs that fsspec knows (s3://…).
        model: as in `Encoder`; a folder must be there on every machine.
        options: further arguments of `Encoder`; with a CUDA device each encoder takes one GPU.
        address: of the cluster ("auto": the one of this machine); ``None``: Ray decides, by RAY_ADDRESS, or starts
            one of this machine alone. A session of Ray that is there already is used in any case.
        shards: where the shards go, a folder that every machine has or a URL, and stay; ``None``: to
            ``path`` + ".shards" until the index is complete.
        encoders: how many at once; ``None``: as many as the cluster has room for now.
        encoder_threads: threads of each, and the CPUs that Ray counts for it; ``None``: up to 4.
        shard_rows: lines or rows of a piece.
        text_field, id_field: as in `Corpus`.

    Raises:
        ValueError: the model cannot be loaded, or an argument is wrong.
        ResumeError: the shards there are of another job.
        BuildError: Ray gave up on the job. What is finished is kept, and the same call goes on.
        Others: as `Index.build`.
    """
    root = Path(path)
    given = dict(options or {})
    name = check_options(model, given)
    if name is not None and os.path.isdir(name):
        name = os.path.abspath(name)  # actors work in other folders
    device = str(given.get("device", "cpu"))
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device={device!r}: Ray gives each encoder a GPU of its own; say 'cuda'")
    chosen = files(inputs)
    if not overwrite and not resumable_rows(root) and (root / CURRENT_FILE).exists():
        raise IndexExistsError(f"{root}: an index exists there; name another folder, or pass overwrite=True")
    import_faiss()
    report = progress or (lambda _: None)
    with _cluster(address), _ray_errors(root):
        threads_each = encoder_threads or _default_threads()
        resources = {"num_cpus": threads_each, "num_gpus": int(device == "cuda")}
        given.setdefault("threads", threads_each)
        description = describe(name, given, resources)
        if factory != AUTO:
            create_index(factory, description["dimension"])
        pieces = _plan(chosen, shard_rows)
        header = {
            "input": digest(pieces),
            "fingerprint": description["fingerprint"],
            "precision": description["precision"],
            "document_prompt": description["prompts"].get("document", ""),
            "dimension": description["dimension"],
            "metric": metric,
            "fields": [text_field, id_field],
        }
        place = f"{root.absolute()}.shards" if shards is None else shards
        store = ShardStore(place if "://" in place else os.path.abspath(place), digest_of(header))
        store.begin(header, restart=restart)
        job = Job(
            name,
            given,
            description,
            store.url,
            store.job,
            metric == "cosine",
            text_field,
            id_field,
            skip=on_error != "stop",
        )
        found = store.finished(len(pieces))
        encoded = 0
        for shard in _encode(job, pieces, found, resources, encoders=encoders, report=report):
            found[shard.piece] = shard
            encoded += shard.rows
        store.sweep()
    documents = Documents(store, pieces, [found[number] for number in range(len(pieces))], on_error)
    with Index.build(
        root,
        documents,
        Description(description),
        factory=factory,
        metric=metric,
        kept=kept,
        target_recall=target_recall,
        overwrite=overwrite,
        restart=restart,
        max_memory=max_memory,
        threads=threads,
        on_error=on_error,
        progress=progress,
    ) as index:
        count = len(index)
    if shards is None:
        store.remove()
    return Built(count, encoded, sum(shard.blank for shard in found.values()))


@contextlib.contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    """A session of Ray, begun here unless there is one."""
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
    """Say what became of the job where Ray gave up on it."""
    try:
        yield
    except RayError as error:
        raise BuildError(
            f"{root}: the cluster could not finish: {_reason(error)}; the shards that are finished stay, and the "
            "same command goes on from there"
        ) from error


def _reason(error: BaseException) -> str:
    """What was raised on the cluster, without what Ray wraps around it."""
    while (cause := getattr(error, "cause", None) or error.__cause__) is not None and cause is not error:
        error = cause
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _default_threads() -> int:
    cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    return max(1, min([_MOST_THREADS, *(count for count in cpus if count)]))


def _plan(chosen: Sequence[File], rows: int) -> list[Piece]:
    """All pieces, in the order of the input; each file is looked at by a task of its own."""
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
    report: Callable[[Progress], None],
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
        _logger.info("%d of %d shards are there already", len(found), len(pieces))
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
        _raise(row)
        rejected = tuple(Rejected(*one) for one in row["rejected"])
        shard = Shard(int(row["number"]), int(row["rows"]), int(row["blank"]), rejected)
        rows += shard.rows
        report(Progress("encode", rows, None))
        yield shard


def _raise(row: Mapping[str, Any]) -> None:
    """Raise what an actor has found wrong with a piece."""
    kind, *arguments = row["error"]
    if kind == "input":
        origin, reason, skippable = arguments
        raise InputError(origin, reason, skippable=skippable == "skippable")
    if kind == "model":
        raise ModelMismatchError(arguments[0])
    if kind == "build":
        raise BuildError(arguments[0])


class EncodePieces:
    """The actor: one encoder, which turns pieces into shards."""

    def __init__(self, job: Job) -> None:
        """Open the model; Ray calls this in the actor."""
        self._job = job
        self._encoder = Encoder(job.model, **encoder_options(job.options))
        self._store = ShardStore(job.url, job.name)
        self._mismatch = ""
        mine = describe_encoder(self._encoder)
        for what, value in (("fingerprint", mine.fingerprint), ("precision", mine.precision)):
            if value != job.description[what]:
                self._mismatch = (
                    f"{os.uname().nodename}: the model there has the {what} {value}, and elsewhere in the cluster "
                    f"{job.description[what]}; use the same model everywhere, and name --precision"
                )

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Encode the piece of each row, and tell what became of it (an exception would reach no one whole)."""
        told = [
            self._told(int(number), pickle.loads(piece))
            for number, piece in zip(batch["number"], batch["piece"], strict=True)
        ]
        columns: dict[str, Any] = {
            name: np.array([row[name] for row in told]) for name in ("number", "rows", "blank")
        }
        for name in ("rejected", "error"):
            columns[name] = np.empty(len(told), object)
            columns[name][:] = [row[name] for row in told]
        return columns

    def _told(self, number: int, piece: Piece) -> dict[str, Any]:
        told: dict[str, Any] = {"number": number, "rows": 0, "blank": 0, "rejected": [], "error": [""]}
        try:
            if self._mismatch:
                raise ModelMismatchError(self._mismatch)
            shard = self._store.find(number) or self.encode(number, piece)
        except InputError as error:
            told["error"] = ["input", error.origin, error.reason, "skippable" if error.skippable else ""]
        except ModelMismatchError as error:
            told["error"] = ["model", str(error)]
        except BuildError as error:
            told["error"] = ["build", str(error)]
        else:
            told |= {"rows": shard.rows, "blank": shard.blank}
            told["rejected"] = [list(asdict(one).values()) for one in shard.rejected]
        return told

    def encode(self, number: int, piece: Piece) -> Shard:
        """Write the shard of ``piece``."""
        job = self._job
        rejected: list[Rejected] = []

        def note(error: InputError) -> None:
            if not job.skip:
                raise error
            rejected.append(Rejected(error.origin, error.reason))

        corpus = Corpus.of_sources([source_of(piece, note)], text_field=job.text_field, id_field=job.id_field)
        usable = _usable(corpus, note)
        with self._store.writer(number, job.description["dimension"]) as writer:
            while chunk := list(islice(usable, _CHUNK)):
                encoded = self._encoder.encode_document(
                    [document.text for document in chunk], normalize_embeddings=job.normalize
                )
                vectors, unusable = check_encoded(encoded, len(chunk), job.description["dimension"])
                if len(unusable):
                    raise BuildError(
                        f"{chunk[unusable[0]].origin}: the encoder returned NaN or infinity for this text; check "
                        "the model's weights"
                    )
                lines = [int(document.origin.rpartition(":")[2]) for document in chunk]
                writer.add(chunk, lines, vectors)
            writer.blank, writer.rejected = corpus.blank, rejected
        return Shard(number, writer.rows, corpus.blank, tuple(rejected))


def _usable(corpus: Iterable[Document], note: Callable[[InputError], None]) -> Iterator[Document]:
    """Those documents that an index would take."""
    for document in corpus:
        try:
            check_document(document)
        except InputError as error:
            note(error)
        else:
            yield document


class Documents:
    """The documents of all shards in the order of the input, and what was left out."""

    def __init__(
        self, store: ShardStore, pieces: Sequence[Piece], shards: Sequence[Shard], on_error: OnError
    ) -> None:
        """Read ``shards``, one for each of ``pieces``, and treat what was left out as ``on_error`` says."""
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
                yield Document(
                    document.text,
                    document.id,
                    document.metadata,
                    f"{piece.file.path}:{line}",
                    vector=document.vector,
                )
