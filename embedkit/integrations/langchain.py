"""LangChain: embeddings."""

from __future__ import annotations

import os
from typing import Any, cast

try:
    from langchain_core.embeddings import Embeddings
except ImportError as error:
    raise ImportError("EmbedkitEmbeddings needs langchain-core: pip install 'embedkit[langchain]'") from error

from embedkit.encoder import Encoder

__all__ = ["EmbedkitEmbeddings"]


class EmbedkitEmbeddings(Embeddings):
    """LangChain's `Embeddings` over an `Encoder`.

    Documents get the model's prompt "document", queries its prompt "query". The asynchronous methods run on a
    thread of LangChain's executor, and the encoder leaves the GIL to others while it works.

    Args:
        model: as in `Encoder`, or an `Encoder`.
        normalize_embeddings: scale every vector to length 1.
        options: further arguments of `Encoder`; none if an `Encoder` is given.

    Attributes:
        encoder: the `Encoder`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Encoder | None = None,
        *,
        normalize_embeddings: bool = False,
        **options: Any,
    ) -> None:
        """Open the model."""
        if isinstance(model, Encoder):
            if options:
                raise ValueError(
                    f"{next(iter(options))} is a matter of the Encoder that was given; set it there"
                )
            self.encoder = model
        else:
            self.encoder = Encoder(model, **options)
        self.normalize_embeddings = normalize_embeddings

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """The vectors of documents, in their order."""
        vectors = self.encoder.encode_document(texts, normalize_embeddings=self.normalize_embeddings)
        return cast(list[list[float]], vectors.tolist())

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        vector = self.encoder.encode_query(text, normalize_embeddings=self.normalize_embeddings)
        return cast(list[float], vector.tolist())
