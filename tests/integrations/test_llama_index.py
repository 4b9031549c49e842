"""`EmbedkitEmbedding` in LlamaIndex: an index over it, ingestion, cache, serialization, both ways of calling."""

from __future__ import annotations

import asyncio
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager
from llama_index.core.callbacks.schema import CBEventType
from llama_index.core.callbacks.simple_llm_handler import SimpleLLMHandler
from llama_index.core.embeddings.utils import resolve_embed_model
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SemanticSplitterNodeParser
from llama_index.core.schema import MetadataMode, QueryBundle, TextNode
from llama_index.core.storage.kvstore import SimpleKVStore

from embedkit import Encoder
from embedkit.integrations.llama_index import EmbedkitEmbedding

TEXTS = ["Boil the lentils for half an hour.", "Restart the server after the update."]
PROMPTS = {"prompts": {"query": "question: ", "document": "answer: "}, "truncate_dim": 24}


def test_every_way_of_embedding_gives_the_encoders_vectors() -> None:
    embedding = EmbedkitEmbedding(options=PROMPTS, embed_batch_size=2)
    encoder = Encoder(**PROMPTS)
    query = encoder.encode_query("what to cook").tolist()
    texts = encoder.encode_document([*TEXTS, "a third"]).tolist()
    assert embedding.get_query_embedding("what to cook") == query
    assert embedding.get_text_embedding(TEXTS[0]) == texts[0]
    assert embedding.get_text_embedding_batch([*TEXTS, "a third"]) == texts
    assert embedding.get_agg_embedding_from_queries(["what to cook"]) == pytest.approx(query)

    async def calls() -> list[Any]:
        return [
            await embedding.aget_query_embedding("what to cook"),
            await embedding.aget_text_embedding(TEXTS[0]),
            await embedding.aget_text_embedding_batch([*TEXTS, "a third"]),
        ]

    assert asyncio.run(calls()) == [query, texts[0], texts]


def test_an_index_finds_by_meaning() -> None:
    nodes = [TextNode(text=text, id_=str(i)) for i, text in enumerate(TEXTS)]
    index = VectorStoreIndex(nodes, embed_model=EmbedkitEmbedding())
    found = index.as_retriever(similarity_top_k=1).retrieve(QueryBundle("what to cook"))
    assert [hit.node.node_id for hit in found] == ["0"]


def test_ingestion_gives_nodes_their_vectors() -> None:
    embedding = EmbedkitEmbedding()
    nodes = [TextNode(text=text, metadata={"page": i}) for i, text in enumerate(TEXTS)]
    done = IngestionPipeline(transformations=[embedding]).run(nodes=nodes)
    expected = Encoder().encode([node.get_content(MetadataMode.EMBED) for node in nodes]).tolist()
    assert [node.embedding for node in done] == expected


def test_it_is_serialized_and_restored(tmp_path: Path) -> None:
    Encoder().save(tmp_path / "model")
    embedding = EmbedkitEmbedding(tmp_path / "model", options=PROMPTS, normalize_embeddings=True)
    query = embedding.get_query_embedding("a")
    for copy in (
        EmbedkitEmbedding.from_json(embedding.to_json()),
        EmbedkitEmbedding.from_dict(embedding.to_dict()),
        EmbedkitEmbedding(**embedding.to_dict()),
        EmbedkitEmbedding.model_validate(embedding.to_dict()),
        EmbedkitEmbedding.model_validate_json(embedding.model_dump_json()),
        pickle.loads(pickle.dumps(embedding)),
        embedding.model_copy(),
    ):
        assert copy.get_query_embedding("a") == query
        assert copy.normalize_embeddings and copy.model == str(tmp_path / "model")
    assert EmbedkitEmbedding.from_dict(embedding.to_dict()).encoder._engine is embedding.encoder._engine
    assert EmbedkitEmbedding(options=PROMPTS).encoder._engine is not embedding.encoder._engine


def test_a_model_trained_anew_in_its_folder_is_another(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    Encoder(truncate_dim=32).save(folder)
    pipeline = IngestionPipeline(transformations=[EmbedkitEmbedding(folder)])
    saved = pipeline.transformations[0].to_json()
    nodes = [TextNode(text=TEXTS[0])]
    assert len(pipeline.run(nodes=nodes)[0].embedding or []) == 32
    shutil.rmtree(folder)
    Encoder(truncate_dim=16).save(folder)
    anew = IngestionPipeline(transformations=[EmbedkitEmbedding(folder)], cache=pipeline.cache)
    assert len(anew.run(nodes=nodes)[0].embedding or []) == 16
    with pytest.raises(ValueError, match="model' is not the one that was saved: its fingerprint is"):
        EmbedkitEmbedding.from_json(saved)


def test_an_embedding_within_another_component_is_saved_with_its_fingerprint() -> None:
    embedding = EmbedkitEmbedding()
    parser = SemanticSplitterNodeParser.from_defaults(embed_model=embedding)
    saved = embedding.to_dict()
    assert saved["fingerprint"] == embedding.encoder.fingerprint
    assert parser.to_dict()["embed_model"] == saved


def test_a_folder_that_changes_after_opening(tmp_path: Path) -> None:
    """Older versions of LlamaIndex ask for what is saved at every query."""
    folder = tmp_path / "model"
    Encoder().save(folder, "fp32", dequantize=True)
    (folder / "embedkit.json").unlink()  # it holds the fingerprint
    embedding = EmbedkitEmbedding(folder)
    shutil.rmtree(folder)
    saved = embedding.to_dict()
    assert saved["fingerprint"] is None
    Encoder().save(folder, "fp32", dequantize=True)
    assert len(EmbedkitEmbedding.from_dict(saved).get_text_embedding("a")) == 256


def test_restored_with_another_model(tmp_path: Path) -> None:
    Encoder(truncate_dim=8).save(tmp_path / "model")
    saved = EmbedkitEmbedding(embed_batch_size=7).to_dict()
    made = EmbedkitEmbedding.from_dict(saved, model=tmp_path / "model")
    assert made.embed_batch_size == 7 and made.model_name == made.encoder._name
    assert len(made.get_text_embedding("a")) == 8
    with pytest.raises(ValueError, match="is not the one that was saved"):
        EmbedkitEmbedding.model_validate({**saved, "model": str(tmp_path / "model")})


def test_what_it_says_is_what_it_computes_with() -> None:
    embedding = EmbedkitEmbedding()
    for name, value in (("model", "another"), ("options", {"truncate_dim": 8})):
        with pytest.raises(ValueError, match="frozen"):
            setattr(embedding, name, value)
    embedding.callback_manager = CallbackManager([SimpleLLMHandler()])
    short = embedding.model_copy(update={"options": {"truncate_dim": 8}, "normalize_embeddings": True})
    vector = short.get_text_embedding("a")
    assert vector == Encoder(truncate_dim=8).encode("a", normalize_embeddings=True).tolist()
    assert EmbedkitEmbedding.from_dict(short.to_dict()).get_text_embedding("a") == vector
    assert short.callback_manager is embedding.callback_manager
    assert len(short.model_copy(update={"embed_batch_size": 7}).get_text_embedding("a")) == 8
    with pytest.raises(TypeError, match=r"options must be a dict, e.g. {'precision': 'int8'}, not str"):
        short.model_copy(update={"options": "int8"})


def test_a_folder_is_saved_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Encoder(truncate_dim=32).save(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    saved = EmbedkitEmbedding("model").to_json()
    monkeypatch.chdir("/")
    assert len(EmbedkitEmbedding.from_json(saved).get_text_embedding("a")) == 32


def test_settings_cache_and_callbacks_of_llama_index() -> None:
    cache = SimpleKVStore()
    handler = SimpleLLMHandler()
    started: list[CBEventType] = []
    handler.on_event_start = lambda kind, *_, **__: started.append(kind) or ""  # type: ignore[assignment, func-returns-value]
    embedding = EmbedkitEmbedding(embeddings_cache=cache, callback_manager=CallbackManager([handler]))
    first = embedding.get_text_embedding_batch(TEXTS)
    assert embedding.get_text_embedding_batch(TEXTS) == first
    assert embedding.encoder.describe()["texts"] >= 2
    assert set(cache.get_all(collection="embeddings")) == set(TEXTS)
    assert CBEventType.EMBEDDING in started
    assert resolve_embed_model(embedding) is embedding
    before = Settings._embed_model
    try:
        Settings.embed_model = embedding
        assert Settings.embed_model is embedding
    finally:
        Settings._embed_model = before


def test_it_is_a_base_embedding_with_a_name() -> None:
    embedding = EmbedkitEmbedding()
    assert isinstance(embedding, BaseEmbedding)
    assert embedding.model_name == "embedkit-256-int8"
    assert embedding.to_payload()["class_name"] == "EmbedkitEmbedding"


def test_unserializable_settings_are_refused() -> None:
    with pytest.raises(TypeError, match="model must be a name or a folder, not Encoder"):
        EmbedkitEmbedding(Encoder())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cannot be saved as JSON"):
        EmbedkitEmbedding(options={"prompts": {1j}})


def test_a_model_name_is_no_model() -> None:
    """It is where `HuggingFaceEmbedding` takes its model."""
    with pytest.raises(
        TypeError, match=r"model_name='/some/model' is only the name .* give the model as the first"
    ):
        EmbedkitEmbedding(model_name="/some/model")
    assert EmbedkitEmbedding(model_name="embedkit-256-int8").model_name == "embedkit-256-int8"


def test_misplaced_options_and_secrets_are_refused() -> None:
    with pytest.raises(TypeError, match="'truncate_dim'; arguments of Encoder go into options"):
        EmbedkitEmbedding(truncate_dim=8)
    with pytest.raises(TypeError, match="token would be saved by the host library"):
        EmbedkitEmbedding(options={"token": "hf_secret"})
