"""The encoder that a Ray cluster has, as the machine sees it that makes an index of its vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import ray
from ray.exceptions import RayTaskError

from ..encoder import Encoder
from ..index.encoder import describe_encoder
from .ray import encoder_options

__all__ = ["Description", "describe"]


def describe(model: str | None, options: dict[str, Any], resources: Mapping[str, int]) -> dict[str, Any]:
    """The encoder as a machine of the cluster opens it (this one may have no GPU)."""
    try:
        description: dict[str, Any] = ray.get(
            ray.remote(_describe).options(**resources).remote(model, options)
        )
    except RayTaskError as error:
        if isinstance(error.cause, (ValueError, FileNotFoundError, TypeError)):
            raise ValueError(f"the model cannot be loaded: {error.cause}") from None
        raise
    return description


def _describe(model: str | None, options: dict[str, Any]) -> dict[str, Any]:
    encoder = Encoder(model, **encoder_options(options))
    entry = describe_encoder(encoder)
    return {
        "model": entry.model,
        "fingerprint": entry.fingerprint,
        "precision": entry.precision,
        "prompts": dict(encoder.prompts),
        "dimension": encoder.get_embedding_dimension(),
    }


class Description:
    """An encoder of the cluster's, as far as an index asks for it that encodes nothing."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        """Of what `_describe` told."""
        self._description = description

    @property
    def fingerprint(self) -> str:
        """Identifies the model."""
        return str(self._description["fingerprint"])

    @property
    def prompts(self) -> Mapping[str, str]:
        """Prompts by name."""
        prompts: Mapping[str, str] = self._description["prompts"]
        return prompts

    def get_embedding_dimension(self) -> int:
        """The number of columns of a vector."""
        return int(self._description["dimension"])

    def describe(self) -> dict[str, Any]:
        """``model`` and ``precision``, among others."""
        return dict(self._description)

    def encode_document(self, sentences: list[str], *, normalize_embeddings: bool) -> NoReturn:
        """Not for this one."""
        raise AssertionError(f"{len(sentences)} documents without vectors")

    encode_query = encode_document
