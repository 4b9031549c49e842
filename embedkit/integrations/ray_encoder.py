"""The encoder of a Ray cluster, as seen by the machine that makes an index of its vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import ray
from ray.exceptions import RayTaskError

from ..encoder import Encoder
from ..index.encoder import describe_encoder, own_max_length, own_overflow, refuses_long
from .ray import encoder_options

__all__ = ["Description", "describe"]


@dataclass(frozen=True, slots=True)
class Description:
    """An encoder of the cluster, as a `embedkit.index.TextEncoder` that encodes nothing.

    Attributes:
        model, fingerprint, precision, prompts: of the encoder.
        dimension: columns of a vector.
        index_precision: in which an index keeps the vectors by default, if the model's folder says so.
        own_max_length, on_overflow: how it reads long texts, if not as its model does.
    """

    model: str
    fingerprint: str
    precision: str
    prompts: Mapping[str, str]
    dimension: int
    index_precision: str | None
    own_max_length: int | None
    on_overflow: str | None

    @classmethod
    def of(cls, encoder: Encoder) -> Description:
        """Of an open encoder."""
        entry = describe_encoder(encoder)
        dimension = encoder.get_embedding_dimension()
        return cls(
            entry.model,
            entry.fingerprint,
            entry.precision,
            dict(encoder.prompts),
            dimension,
            encoder.describe()["index_precision"],
            own_max_length(encoder),
            own_overflow(encoder) or ("error" if refuses_long(encoder) else None),
        )

    def get_embedding_dimension(self) -> int:
        """The number of columns of a vector."""
        return self.dimension

    def describe(self) -> dict[str, Any]:
        """``model`` and ``precision``, among others."""
        return asdict(self)

    def encode_document(self, sentences: list[str], *, normalize_embeddings: bool) -> NoReturn:
        """Not possible here: all documents come with their vectors."""
        raise AssertionError(f"{len(sentences)} documents without vectors")

    encode_query = encode_document


def describe(model: str | None, options: dict[str, Any], resources: Mapping[str, int]) -> Description:
    """The encoder as a machine of the cluster opens it (this one may have no GPU)."""
    try:
        description: Description = ray.get(ray.remote(_describe).options(**resources).remote(model, options))
    except RayTaskError as error:
        if isinstance(error.cause, (ValueError, FileNotFoundError, TypeError)):
            raise ValueError(f"the model cannot be loaded: {error.cause}") from None
        raise
    return description


def _describe(model: str | None, options: dict[str, Any]) -> Description:
    return Description.of(Encoder(model, **encoder_options(options)))
