"""Haystack: the embedder components, one for queries and one for documents.

Haystack reads a pipeline with components of other packages only where it is told to trust them:
``Pipeline.loads(text, allowed_modules=["embedkit.integrations.haystack"])``.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

try:
    from haystack import Document, component, default_from_dict, default_to_dict
except ImportError as error:
    raise ImportError(
        "EmbedkitTextEmbedder and EmbedkitDocumentEmbedder need haystack-ai: pip install 'embedkit[haystack]'"
    ) from error

from ..encoder import Encoder
from .opening import check_options, open_encoder

__all__ = ["EmbedkitDocumentEmbedder", "EmbedkitTextEmbedder"]


@component
class EmbedkitTextEmbedder:
    """The vector of a text, with the model's prompt "query".

    Args:
        model: as in `Encoder`: a name or a folder, or None for the built-in model.
        options: further arguments of `Encoder`, e.g. ``{"precision": "int8"}``.
        normalize_embeddings: scale every vector to length 1.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        options: dict[str, Any] | None = None,
        *,
        normalize_embeddings: bool = False,
    ) -> None:
        """Keep the parameters; `warm_up` opens the model."""
        self.options = dict(options or {})
        self.model = check_options(model, self.options)
        self.normalize_embeddings = normalize_embeddings
        self._encoder: Encoder | None = None

    def warm_up(self) -> None:
        """Open the model, unless it is open."""
        if self._encoder is None:
            self._encoder = open_encoder(self.model, self.options)

    def to_dict(self) -> dict[str, Any]:
        """The component as Haystack writes it down."""
        described: dict[str, Any] = default_to_dict(
            self, model=self.model, options=self.options, normalize_embeddings=self.normalize_embeddings
        )
        return described

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> EmbedkitTextEmbedder:
        """The component that `to_dict` wrote down."""
        made: EmbedkitTextEmbedder = default_from_dict(cls, data)
        return made

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    def run(self, text: str) -> dict[str, Any]:
        """``embedding``, the vector of ``text``, and ``meta``, which names the model."""
        if not isinstance(text, str):
            raise TypeError(
                f"EmbedkitTextEmbedder expects a text, not {type(text).__name__}; "
                "EmbedkitDocumentEmbedder embeds documents"
            )
        encoder = _warm(self)
        vector = encoder.encode_query(text, normalize_embeddings=self.normalize_embeddings)
        return {"embedding": vector.tolist(), "meta": {"model": encoder.describe()["model"]}}


@component
class EmbedkitDocumentEmbedder:
    """Documents with their vectors, with the model's prompt "document".

    Args:
        model, options, normalize_embeddings: as in `EmbedkitTextEmbedder`.
        meta_fields_to_embed: fields of a document's ``meta`` that are put before its content.
        embedding_separator: what stands between these and the content.
        progress_bar: show one on a terminal.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        options: dict[str, Any] | None = None,
        *,
        normalize_embeddings: bool = False,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
        progress_bar: bool = False,
    ) -> None:
        """Keep the parameters; `warm_up` opens the model."""
        self.options = dict(options or {})
        self.model = check_options(model, self.options)
        self.normalize_embeddings = normalize_embeddings
        self.meta_fields_to_embed = list(meta_fields_to_embed or [])
        self.embedding_separator = embedding_separator
        self.progress_bar = progress_bar
        self._encoder: Encoder | None = None

    def warm_up(self) -> None:
        """Open the model, unless it is open."""
        if self._encoder is None:
            self._encoder = open_encoder(self.model, self.options)

    def to_dict(self) -> dict[str, Any]:
        """The component as Haystack writes it down."""
        described: dict[str, Any] = default_to_dict(
            self,
            model=self.model,
            options=self.options,
            normalize_embeddings=self.normalize_embeddings,
            meta_fields_to_embed=self.meta_fields_to_embed,
            embedding_separator=self.embedding_separator,
            progress_bar=self.progress_bar,
        )
        return described

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> EmbedkitDocumentEmbedder:
        """The component that `to_dict` wrote down."""
        made: EmbedkitDocumentEmbedder = default_from_dict(cls, data)
        return made

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """``documents``, copies of those given with their vectors, and ``meta``, which names the model."""
        if not isinstance(documents, list) or not all(isinstance(item, Document) for item in documents):
            raise TypeError(
                "EmbedkitDocumentEmbedder expects a list of documents; EmbedkitTextEmbedder embeds a text"
            )
        encoder = _warm(self)
        vectors = encoder.encode_document(
            [self._text(document) for document in documents],
            normalize_embeddings=self.normalize_embeddings,
            show_progress_bar=self.progress_bar,
        )
        embedded = [
            replace(document, embedding=vector)
            for document, vector in zip(documents, vectors.tolist(), strict=True)
        ]
        return {"documents": embedded, "meta": {"model": encoder.describe()["model"]}}

    def _text(self, document: Document) -> str:
        fields = (document.meta.get(name) for name in self.meta_fields_to_embed)
        parts = [str(value) for value in fields if value is not None]
        return self.embedding_separator.join([*parts, document.content or ""])


def _warm(embedder: EmbedkitTextEmbedder | EmbedkitDocumentEmbedder) -> Encoder:
    embedder.warm_up()
    assert embedder._encoder is not None
    return embedder._encoder
