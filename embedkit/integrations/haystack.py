"""Haystack: embedder components for queries and for documents.

Haystack loads a pipeline with components of other packages only if they are trusted:
``Pipeline.loads(text, allowed_modules=["embedkit.integrations.haystack"])``.
"""

from __future__ import annotations

import os
from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeVar

try:
    from haystack import Document, component, default_from_dict, default_to_dict
except ImportError as error:
    raise ImportError(
        "EmbedkitTextEmbedder and EmbedkitDocumentEmbedder need haystack-ai: pip install 'embedkit[haystack]'"
    ) from error

from ..encoder import Encoder
from .opening import check_options, open_encoder

__all__ = ["EmbedkitDocumentEmbedder", "EmbedkitTextEmbedder"]

_Made = TypeVar("_Made", bound="_Embedder")


class _Embedder:
    """What both components share: the model, opened on first use, and its serialization."""

    def __init__(
        self,
        model: str | os.PathLike[str] | None,
        options: dict[str, Any] | None,
        normalize_embeddings: bool,
    ) -> None:
        self.model, self.options = check_options(model, options)
        self.normalize_embeddings = normalize_embeddings
        self._encoder: Encoder | None = None

    def warm_up(self) -> None:
        """Open the model, unless it is open."""
        self._open()

    def to_dict(self) -> dict[str, Any]:
        """The component as Haystack saves it."""
        described: dict[str, Any] = default_to_dict(self, **deepcopy(self._parameters()))
        return described

    @classmethod
    def from_dict(cls: type[_Made], data: dict[str, Any]) -> _Made:
        """Restore a component from `to_dict`."""
        made: _Made = default_from_dict(cls, data)
        return made

    def _parameters(self) -> dict[str, Any]:
        """The arguments of ``__init__``."""
        return {
            "model": self.model,
            "options": self.options,
            "normalize_embeddings": self.normalize_embeddings,
        }

    def _open(self) -> Encoder:
        if self._encoder is None:
            self._encoder = open_encoder(self.model, self.options)
        return self._encoder


@component
class EmbedkitTextEmbedder(_Embedder):
    """Embeds a text with the model's prompt "query".

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
        """Store the parameters; `warm_up` opens the model."""
        _Embedder.__init__(
            self, model, options, normalize_embeddings
        )  # Haystack copies the class: no super()

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    def run(self, text: str) -> dict[str, Any]:
        """``embedding``, the vector of ``text``, and ``meta``, which names the model."""
        if not isinstance(text, str):
            raise TypeError(
                f"EmbedkitTextEmbedder expects a text, not {type(text).__name__}; "
                "EmbedkitDocumentEmbedder embeds documents"
            )
        encoder = self._open()
        vector = encoder.encode_query(text, normalize_embeddings=self.normalize_embeddings)
        return {"embedding": vector.tolist(), "meta": {"model": encoder._name}}


@component
class EmbedkitDocumentEmbedder(_Embedder):
    """Embeds documents with the model's prompt "document".

    Args:
        model, options, normalize_embeddings: as in `EmbedkitTextEmbedder`.
        meta_fields_to_embed: fields of a document's ``meta`` to put before its content.
        embedding_separator: separates these fields and the content.
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
        """Store the parameters; `warm_up` opens the model."""
        _Embedder.__init__(
            self, model, options, normalize_embeddings
        )  # Haystack copies the class: no super()
        if isinstance(meta_fields_to_embed, str):
            raise TypeError(f"meta_fields_to_embed must be a list of names; use [{meta_fields_to_embed!r}]")
        self.meta_fields_to_embed = list(meta_fields_to_embed or [])
        self.embedding_separator = embedding_separator
        self.progress_bar = progress_bar

    def _parameters(self) -> dict[str, Any]:
        return {
            **_Embedder._parameters(self),
            "meta_fields_to_embed": self.meta_fields_to_embed,
            "embedding_separator": self.embedding_separator,
            "progress_bar": self.progress_bar,
        }

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """``documents``, copies of the given ones with their vectors, and ``meta``, which names the model."""
        if not isinstance(documents, list) or not all(isinstance(item, Document) for item in documents):
            raise TypeError(
                "EmbedkitDocumentEmbedder expects a list of documents; EmbedkitTextEmbedder embeds a text"
            )
        encoder = self._open()
        vectors = encoder.encode_document(
            [self._text(document) for document in documents],
            normalize_embeddings=self.normalize_embeddings,
            show_progress_bar=self.progress_bar,
        )
        embedded = [
            replace(document, embedding=vector)
            for document, vector in zip(documents, vectors.tolist(), strict=True)
        ]
        return {"documents": embedded, "meta": {"model": encoder._name}}

    def _text(self, document: Document) -> str:
        fields = (document.meta.get(name) for name in self.meta_fields_to_embed)
        parts = [str(value) for value in fields if value is not None]
        return self.embedding_separator.join([*parts, document.content or ""])
