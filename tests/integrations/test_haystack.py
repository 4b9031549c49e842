"""The embedder components in Haystack: its protocols, pipelines and serialization."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from haystack import Document, Pipeline
from haystack.components.embedders.types import DocumentEmbedder, TextEmbedder
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.components.writers import DocumentWriter
from haystack.document_stores.in_memory import InMemoryDocumentStore

from embedkit import Encoder
from embedkit.integrations.haystack import EmbedkitDocumentEmbedder, EmbedkitTextEmbedder

TEXTS = ["Boil the lentils for half an hour.", "Restart the server after the update."]
OPTIONS: dict[str, Any] = {"prompts": {"query": "question: ", "document": "answer: "}, "truncate_dim": 24}
TRUSTED = ["embedkit.integrations.haystack"]


def test_vectors_are_the_encoders() -> None:
    encoder = Encoder(**OPTIONS)
    result = EmbedkitTextEmbedder(options=OPTIONS, normalize_embeddings=True).run("what to cook")
    assert result["embedding"] == encoder.encode_query("what to cook", normalize_embeddings=True).tolist()
    assert result["meta"] == {"model": "embedkit-256-int8"}
    documents = [Document(content=TEXTS[0], meta={"title": "Soup", "page": 3}), Document(content=TEXTS[1])]
    embedder = EmbedkitDocumentEmbedder(
        options=OPTIONS, meta_fields_to_embed=["title", "none", "page"], embedding_separator=" | "
    )
    embedded = embedder.run(documents)["documents"]
    expected = encoder.encode_document([f"Soup | 3 | {TEXTS[0]}", TEXTS[1]]).tolist()
    assert [document.embedding for document in embedded] == expected
    assert [document.id for document in embedded] == [document.id for document in documents]
    assert all(document.embedding is None for document in documents)  # the input is unchanged
    assert EmbedkitDocumentEmbedder().run([])["documents"] == []


def test_the_protocols_of_haystack_are_kept() -> None:
    for ours, theirs in (
        (EmbedkitTextEmbedder, TextEmbedder),
        (EmbedkitDocumentEmbedder, DocumentEmbedder),
    ):
        assert list(inspect.signature(ours.run).parameters) == list(inspect.signature(theirs.run).parameters)


def pipelines(store: InMemoryDocumentStore, model: str) -> tuple[Pipeline, Pipeline]:
    indexing, querying = Pipeline(), Pipeline()
    indexing.add_component("embedder", EmbedkitDocumentEmbedder(model))
    indexing.add_component("writer", DocumentWriter(store))
    indexing.connect("embedder.documents", "writer.documents")
    querying.add_component("embedder", EmbedkitTextEmbedder(model))
    querying.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=1))
    querying.connect("embedder.embedding", "retriever.query_embedding")
    return indexing, querying


def test_pipelines_run_and_are_read_back_from_yaml(tmp_path: Path) -> None:
    Encoder().save(tmp_path / "model")
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    indexing, querying = pipelines(store, str(tmp_path / "model"))
    indexing.run({"embedder": {"documents": [Document(content=text) for text in TEXTS]}})
    question = {"embedder": {"text": "what to cook"}}
    found = querying.run(question)["retriever"]["documents"]
    assert [document.content for document in found] == TEXTS[:1]

    copy = Pipeline.loads(indexing.dumps(), allowed_modules=TRUSTED)
    assert copy.get_component("embedder").to_dict() == indexing.get_component("embedder").to_dict()
    restored = Pipeline.loads(querying.dumps(), allowed_modules=TRUSTED)
    embedding = restored.get_component("embedder").run("what to cook")["embedding"]
    assert embedding == querying.get_component("embedder").run("what to cook")["embedding"]


def test_what_is_saved_leads_to_the_model_from_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Encoder().save(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    embedder = EmbedkitTextEmbedder("model", {"prompts": {"query": "question: "}})
    saved = embedder.to_dict()
    saved["init_parameters"]["options"]["prompts"].clear()
    assert embedder.options == {"prompts": {"query": "question: "}}
    monkeypatch.chdir("/")
    assert EmbedkitTextEmbedder.from_dict(embedder.to_dict()).run("a") == embedder.run("a")


def test_components_of_one_model_share_its_weights() -> None:
    text, documents = EmbedkitTextEmbedder(), EmbedkitDocumentEmbedder()
    text.warm_up()
    documents.warm_up()
    assert text._open()._engine is documents._open()._engine


def test_wrong_input_is_refused() -> None:
    with pytest.raises(TypeError, match="EmbedkitDocumentEmbedder embeds documents"):
        EmbedkitTextEmbedder().run([Document(content="a")])  # type: ignore[arg-type]
    for wrong in ("a", [Document(content="a"), "b"]):
        with pytest.raises(TypeError, match="EmbedkitTextEmbedder embeds a text"):
            EmbedkitDocumentEmbedder().run(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be a list of names; use \['title'\]"):
        EmbedkitDocumentEmbedder(meta_fields_to_embed="title")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="options must be a dict"):
        EmbedkitTextEmbedder(options="int8")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="model must be a name or a folder"):
        EmbedkitTextEmbedder(Encoder())  # type: ignore[arg-type]
