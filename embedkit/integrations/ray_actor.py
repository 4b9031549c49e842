"""What runs on a Ray cluster: an actor with one encoder, which reads pieces of the input and writes shards."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..documents.document import Document, check_document
from ..documents.errors import InputError
from ..documents.readers import Corpus
from ..encoder import Encoder
from ..index.build.check import blocks, length_check
from ..index.build.encode import CHUNK_TEXTS, encode_texts
from ..index.errors import BuildError, ModelMismatchError
from .ray import encoder_options
from .ray_encoder import Description
from .ray_plan import Piece, source_of
from .ray_shards import Rejected, Shard, ShardStore

__all__ = ["EncodePieces", "Job", "raise_error"]


@dataclass(frozen=True, slots=True)
class Job:
    """What an actor needs to know.

    Attributes:
        model, options: arguments of `Encoder`.
        encoder: as another machine of the cluster has opened it.
        url: of the shards.
        name: of the job, carried by its shards.
        normalize: scale the vectors to length 1.
        text_field, id_field: as in `Corpus`.
        skip: leave out documents that cannot be used.
    """

    model: str | None
    options: dict[str, Any]
    encoder: Description
    url: str
    name: str
    normalize: bool
    text_field: str
    id_field: str | None
    skip: bool


class EncodePieces:
    """The actor: one encoder, which turns pieces into shards."""

    def __init__(self, job: Job) -> None:
        """Open the model; Ray calls this in the actor."""
        self._job = job
        self._encoder = Encoder(job.model, **encoder_options(job.options))
        self._store = ShardStore(job.url, job.name)
        self._mismatch = ""
        mine = Description.of(self._encoder)
        for name in ("fingerprint", "precision"):
            if getattr(mine, name) != getattr(job.encoder, name):
                self._mismatch = (
                    f"{os.uname().nodename}: the model there has the {name} {getattr(mine, name)}, and elsewhere in "
                    f"the cluster {getattr(job.encoder, name)}; use the same model everywhere, and set --precision"
                )

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Encode the piece of each row, and return what became of it (Ray would not pass on an exception whole)."""
        results = [
            self._result(int(number), pickle.loads(piece))
            for number, piece in zip(batch["number"], batch["piece"], strict=True)
        ]
        columns: dict[str, Any] = {
            name: np.array([row[name] for row in results]) for name in ("number", "rows", "blank")
        }
        for name in ("rejected", "error"):
            columns[name] = np.empty(len(results), object)
            columns[name][:] = [row[name] for row in results]
        return columns

    def _result(self, number: int, piece: Piece) -> dict[str, Any]:
        result: dict[str, Any] = {"number": number, "rows": 0, "blank": 0, "rejected": [], "error": [""]}
        try:
            if self._mismatch:
                raise ModelMismatchError(self._mismatch)
            shard = self._store.find(number) or self.encode(number, piece)
        except InputError as error:
            result["error"] = ["input", error.origin, error.reason, "skippable" if error.skippable else ""]
        except ModelMismatchError as error:
            result["error"] = ["model", str(error)]
        except BuildError as error:
            result["error"] = ["build", str(error)]
        else:
            result |= {"rows": shard.rows, "blank": shard.blank}
            result["rejected"] = [list(asdict(one).values()) for one in shard.rejected]
        return result

    def encode(self, number: int, piece: Piece) -> Shard:
        """Write the shard of ``piece``."""
        job = self._job
        rejected: list[Rejected] = []

        def reject(error: InputError) -> None:
            if not job.skip:
                raise error
            rejected.append(Rejected(error.origin, error.reason))

        corpus = Corpus.of_sources(
            [source_of(piece, reject)], text_field=job.text_field, id_field=job.id_field
        )
        usable = _usable(corpus, length_check(self._encoder, "build"), reject)
        with self._store.writer(number, job.encoder.dimension) as writer:
            for block in blocks(([document] for document in usable), CHUNK_TEXTS):
                chunk = [document for [document] in block]
                texts, origins = [one.text for one in chunk], [one.origin for one in chunk]
                vectors = encode_texts(
                    self._encoder, texts, origins, job.encoder.dimension, normalize=job.normalize
                )
                writer.add(chunk, [int(origin.rpartition(":")[2]) for origin in origins], vectors)
            writer.blank, writer.rejected = corpus.blank, rejected
        return Shard(number, writer.rows, corpus.blank, tuple(rejected))


def _usable(
    corpus: Iterable[Document],
    check_length: Callable[[Document], None],
    reject: Callable[[InputError], None],
) -> Iterator[Document]:
    """The documents that an index would accept."""
    for document in corpus:
        try:
            check_document(document)
            check_length(document)
        except InputError as error:
            reject(error)
        else:
            yield document


def raise_error(row: Mapping[str, Any]) -> None:
    """Raise the error that an actor has returned for a piece, if any."""
    kind, *arguments = row["error"]
    if kind == "input":
        origin, reason, skippable = arguments
        raise InputError(origin, reason, skippable=skippable == "skippable")
    if kind == "model":
        raise ModelMismatchError(arguments[0])
    if kind == "build":
        raise BuildError(arguments[0])
