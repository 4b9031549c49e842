"""A deterministic encoder of words, for tests that are not about the encoder."""

from __future__ import annotations

import zlib
from typing import Any, ClassVar

import numpy as np


class FakeEncoder:
    """Each word adds ±1 to one column, so texts that share words are close."""

    prompts: ClassVar = {"query": "", "document": ""}

    def __init__(
        self,
        model: str | None = None,
        *,
        device: str = "cpu",
        precision: str = "auto",
        threads: int | None = None,
        truncate_dim: int = 32,
    ) -> None:
        if model == "missing":
            raise FileNotFoundError("missing: no such model folder")
        self.model = model or "fake"
        self.precision = "fp32" if precision == "auto" else precision
        self.dimension = truncate_dim

    @property
    def fingerprint(self) -> str:
        return f"fake-{zlib.crc32(self.model.encode()):08x}"

    def get_embedding_dimension(self) -> int:
        return self.dimension

    def describe(self) -> dict[str, Any]:
        return {"model": self.model, "precision": self.precision, "fingerprint": self.fingerprint}

    def encode_document(self, sentences: list[str], *, normalize_embeddings: bool = False) -> np.ndarray:
        vectors = np.zeros((len(sentences), self.dimension), np.float32)
        for row, text in enumerate(sentences):
            for word in text.lower().split():
                value = zlib.crc32(word.encode())
                vectors[row, value % self.dimension] += 1.0 if value & 0x10000 else -1.0
            vectors[row, zlib.crc32(text.encode()) % self.dimension] += 0.01
        if normalize_embeddings:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    encode_query = encode_document


class Counting(FakeEncoder):
    """Counts the documents that it encodes."""

    texts = 0

    def encode_document(self, sentences: list[str], **options: Any) -> Any:
        self.texts += len(sentences)
        return super().encode_document(sentences, **options)
