"""LlamaIndex: an embedding model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

try:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import Field, PrivateAttr, model_serializer
except ImportError as error:
    raise ImportError(
        "EmbedkitEmbedding needs llama-index-core: pip install 'embedkit[llama-index]'"
    ) from error

from ..encoder import Encoder
from .opening import check_options, open_encoder

__all__ = ["EmbedkitEmbedding"]

Vector = list[float]
_Self = TypeVar("_Self", bound="EmbedkitEmbedding")


class EmbedkitEmbedding(BaseEmbedding):
    """LlamaIndex's `BaseEmbedding` over an `Encoder`.

    Texts are encoded with the model's prompt "document", queries with "query".

    Args:
        model: as in `Encoder`: a name or a folder, or None for the built-in model.
        options: further arguments of `Encoder`, e.g. ``{"precision": "int8"}``.
        normalize_embeddings: scale every vector to length 1.
        embed_batch_size: texts per call from LlamaIndex, at most 2,048. The core forms its own batches and is
            faster the more texts it gets.
        settings: other fields of `BaseEmbedding` (callback_manager, num_workers, …). LlamaIndex finds a vector in an
            embeddings_cache by the text alone: use one only with a single model and options, whose queries are encoded
            as documents are. A ``fingerprint``, as `to_dict` saves it, is that of the model expected.
    """

    # Frozen: the encoder is open. LlamaIndex would save others, and hash them for its cache of vectors.
    model: str | None = Field(
        default=None, frozen=True, description="Model folder or Hub id; None: the built-in model."
    )
    options: dict[str, Any] = Field(
        default_factory=dict, frozen=True, description="Further arguments of Encoder."
    )
    normalize_embeddings: bool = Field(default=False, description="Scale every vector to length 1.")
    _encoder: Any = PrivateAttr()

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        normalize_embeddings: bool = False,
        embed_batch_size: int = 1024,
        **settings: Any,
    ) -> None:
        """Open the model; ValueError if it has changed since its ``fingerprint`` was saved."""
        # none in what earlier versions saved, or where it could not be told
        expected = settings.pop("fingerprint", None)
        for key in settings:
            if key not in type(self).model_fields and key != "class_name":  # which pydantic would drop
                raise TypeError(
                    f"EmbedkitEmbedding() got an unexpected keyword argument {key!r}; arguments of Encoder go into "
                    f"options, as options={{{key!r}: …}}"
                )
        name, given = check_options(model, options)
        encoder = open_encoder(name, given)
        if settings.setdefault("model_name", encoder._name) != encoder._name and model is None:
            raise TypeError(
                f"model_name={settings['model_name']!r} is only the name that LlamaIndex shows; give the model as the "
                "first argument, or as model"
            )
        if expected is not None and encoder.fingerprint != expected:
            raise ValueError(
                f"the model {encoder._name!r} is not the one that was saved: its fingerprint is "
                f"{encoder.fingerprint[:12]}…, not {expected[:12]}…; restore that model, or make a new "
                "EmbedkitEmbedding and embed the texts again"
            )
        super().__init__(
            model=name,
            options=given,
            normalize_embeddings=normalize_embeddings,
            embed_batch_size=embed_batch_size,
            **settings,
        )
        self._encoder = encoder

    def model_copy(self: _Self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> _Self:
        """A copy with the fields of ``update``; another ``model`` or other ``options`` are opened."""
        changed = dict(update or {})
        encoder = None
        if not changed.keys().isdisjoint(("model", "options")):
            name, given = check_options(
                changed.get("model", self.model), changed.get("options", self.options)
            )
            encoder = open_encoder(name, given)
            changed = {"model_name": encoder._name, **changed, "model": name, "options": given}
        made: _Self = super().model_copy(update=changed, deep=deep)
        if encoder is not None:
            made._encoder = encoder
        return made

    @model_serializer(mode="wrap")
    def custom_model_dump(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """What LlamaIndex saves, and hashes for its cache of vectors: the fields, and the model's fingerprint."""
        # None if the folder has changed since: older versions of LlamaIndex ask at every query
        fingerprint = self.encoder.describe()["fingerprint"]
        return {**handler(self), "class_name": self.class_name(), "fingerprint": fingerprint}

    @classmethod
    def from_dict(cls: type[_Self], data: dict[str, Any], **fields: Any) -> _Self:
        """Restore an embedding from `to_dict`, with other ``fields``; ValueError if its model has changed."""
        if not fields.keys().isdisjoint(("model", "options")):
            data = {key: value for key, value in data.items() if key not in ("model_name", "fingerprint")}
        made: _Self = super().from_dict(data, **fields)
        return made

    @classmethod
    def class_name(cls) -> str:
        """The name that LlamaIndex saves."""
        return "EmbedkitEmbedding"

    @property
    def encoder(self) -> Encoder:
        """The encoder; its weights are shared by all embeddings of the same model and options."""
        return cast(Encoder, self._encoder)

    def _get_query_embedding(self, query: str) -> Vector:
        vector = self.encoder.encode_query(query, normalize_embeddings=self.normalize_embeddings)
        return cast(Vector, vector.tolist())

    def _get_text_embedding(self, text: str) -> Vector:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[Vector]:
        vectors = self.encoder.encode_document(texts, normalize_embeddings=self.normalize_embeddings)
        return cast(list[Vector], vectors.tolist())

    async def _aget_query_embedding(self, query: str) -> Vector:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> Vector:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[Vector]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)
