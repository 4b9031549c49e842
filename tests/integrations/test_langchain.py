"""`EmbedkitEmbeddings` in LangChain's standard suites, and in a store of LangChain's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests

from embedkit import Encoder
from embedkit.integrations.langchain import EmbedkitEmbeddings


class TestStandardUnit(EmbeddingsUnitTests):
    @property
    def embeddings_class(self) -> type[EmbedkitEmbeddings]:
        return EmbedkitEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"threads": 1}


class TestStandardIntegration(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[EmbedkitEmbeddings]:
        return EmbedkitEmbeddings


def test_vectors_are_the_encoders() -> None:
    encoder = Encoder(prompts={"query": "question: ", "document": "answer: "}, truncate_dim=32)
    embeddings = EmbedkitEmbeddings(encoder, normalize_embeddings=True)
    assert embeddings.embed_query("a") == encoder.encode("question: a", normalize_embeddings=True).tolist()
    vectors = embeddings.embed_documents(["a", "b"])
    np.testing.assert_array_equal(
        vectors, encoder.encode(["answer: a", "answer: b"], normalize_embeddings=True)
    )
    assert embeddings.embed_documents([]) == []
    with pytest.raises(ValueError, match="truncate_dim is a matter of the Encoder"):
        EmbedkitEmbeddings(encoder, truncate_dim=3)


def test_a_store_of_langchain_finds_by_meaning() -> None:
    store = InMemoryVectorStore(EmbedkitEmbeddings())
    store.add_texts(["Boil the lentils for half an hour.", "Restart the server after the update."])
    found = store.as_retriever(search_kwargs={"k": 1}).invoke("what to cook")
    assert [document.page_content for document in found] == ["Boil the lentils for half an hour."]
