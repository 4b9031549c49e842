"""`EmbedkitEmbeddingFunction` in Chroma: its own validation, collections, and reopening one."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromadb
import numpy as np
import pytest
from chromadb.api.types import validate_embedding_function, validate_embeddings
from chromadb.config import Settings
from chromadb.utils.embedding_functions import config_to_embedding_function, known_embedding_functions

from embedkit import Encoder
from embedkit.integrations import chroma, opening
from embedkit.integrations.chroma import EmbedkitEmbeddingFunction

TEXTS = ["Boil the lentils for half an hour.", "Restart the server after the update."]
PROMPTS: dict[str, Any] = {"prompts": {"query": "question: ", "document": "answer: "}, "truncate_dim": 24}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    yield chromadb.PersistentClient(str(tmp_path / "chroma"), Settings(anonymized_telemetry=False))
    chromadb.api.shared_system_client.SharedSystemClient.clear_system_cache()


def reopened(tmp_path: Path) -> Any:
    """A client as in a new process."""
    chromadb.api.shared_system_client.SharedSystemClient.clear_system_cache()
    return chromadb.PersistentClient(str(tmp_path / "chroma"), Settings(anonymized_telemetry=False))


def test_vectors_are_the_encoders_and_pass_chromas_validation() -> None:
    function = EmbedkitEmbeddingFunction(normalize_embeddings=True, **PROMPTS)
    encoder = Encoder(**PROMPTS)
    documents, queries = function(TEXTS), function.embed_query(TEXTS)
    np.testing.assert_array_equal(documents, encoder.encode_document(TEXTS, normalize_embeddings=True))
    np.testing.assert_array_equal(queries, encoder.encode_query(TEXTS, normalize_embeddings=True))
    validate_embedding_function(function)
    validate_embeddings(queries)
    assert function.embed_with_retries(TEXTS)[0].tolist() == documents[0].tolist()


def test_it_is_registered_and_not_a_legacy_function() -> None:
    function = EmbedkitEmbeddingFunction(**PROMPTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not function.is_legacy()
    assert known_embedding_functions["embedkit"] is EmbedkitEmbeddingFunction
    copy = config_to_embedding_function({"name": "embedkit", "config": function.get_config()})
    assert copy.get_config() == function.get_config()
    assert copy.encoder._engine is function.encoder._engine
    assert function.max_tokens() == function.encoder.max_seq_length


@pytest.mark.parametrize(
    ("similarity", "space"), [("cosine", "cosine"), ("dot", "ip"), ("euclidean", "l2"), ("manhattan", "l2")]
)
def test_the_space_is_that_of_the_models_similarity(similarity: str, space: str) -> None:
    assert EmbedkitEmbeddingFunction(similarity_fn_name=similarity).default_space() == space


def test_a_collection_finds_by_meaning_and_opens_its_model_again(client: Any, tmp_path: Path) -> None:
    Encoder().save(tmp_path / "model")
    function = EmbedkitEmbeddingFunction(tmp_path / "model")
    collection = client.create_collection("notes", embedding_function=function)
    collection.add(ids=["a", "b"], documents=TEXTS)
    found = collection.query(query_texts=["what to cook"], n_results=1)
    assert found["ids"] == [["a"]]
    again = reopened(tmp_path).get_collection("notes")  # without saying what embeds
    assert again.query(query_texts=["what to cook"], n_results=1) == found
    assert again.configuration["hnsw"]["space"] == "cosine"


def test_a_reopened_collection_keeps_its_model_open(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_collection("notes", embedding_function=EmbedkitEmbeddingFunction(**PROMPTS)).add(
        ids=["a", "b"], documents=TEXTS
    )
    chroma._restored.clear()
    gc.collect()
    opened: list[Encoder] = []

    def counted(*arguments: Any, **options: Any) -> Encoder:
        encoder = Encoder(*arguments, **options)
        opened.append(weakref.proxy(encoder))
        return encoder

    monkeypatch.setattr(opening, "Encoder", counted)
    collection = reopened(tmp_path).get_collection("notes")
    for _ in range(3):
        collection.query(query_texts=["cooking"], n_results=1)
        gc.collect()
    assert len(opened) == 1


def test_settings_that_change_no_vector_can_be_changed(client: Any) -> None:
    collection = client.create_collection("notes", embedding_function=EmbedkitEmbeddingFunction())
    same = EmbedkitEmbeddingFunction(on_overflow="truncate", prompts={}, threads=1)
    collection.modify(configuration={"embedding_function": same})


def test_a_folder_is_stored_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Encoder().save(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    assert EmbedkitEmbeddingFunction("model").get_config()["model"] == str(tmp_path / "model")


def test_a_model_that_was_replaced_is_refused() -> None:
    config = EmbedkitEmbeddingFunction().get_config()
    with pytest.raises(ValueError, match="is not the one that computed the vectors"):
        EmbedkitEmbeddingFunction.build_from_config({**config, "fingerprint": "0" * 64})


def test_a_collection_keeps_what_its_vectors_depend_on(client: Any) -> None:
    collection = client.create_collection("notes", embedding_function=EmbedkitEmbeddingFunction())
    collection.add(ids=["a"], documents=TEXTS[:1])
    collection.modify(configuration={"embedding_function": EmbedkitEmbeddingFunction(threads=1)})
    with pytest.raises(ValueError, match="truncate_dim cannot be changed"):
        collection.modify(configuration={"embedding_function": EmbedkitEmbeddingFunction(truncate_dim=8)})


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(TypeError, match="model must be a name or a folder"):
        EmbedkitEmbeddingFunction(Encoder())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has None for 'fingerprint'"):
        EmbedkitEmbeddingFunction.build_from_config({"model": None})
