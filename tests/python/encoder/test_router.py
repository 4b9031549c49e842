"""Models with a Router (queries and documents take different ways) against sentence-transformers."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedkit import Encoder, Index
from embedkit.backends.core_engine import CoreEngine
from embedkit.backends.opening import OpenOptions, open_engine
from embedkit.model_folder.folder import ModelFolder, open_folder
from embedkit.model_folder.router import Routing

TEXTS = ["the weather is lovely today", "people", "", "stay out now " * 20]


def asymmetric(folder: Path, make_model: Callable[..., Path], **parameters: Any) -> Path:
    """mdbr-leaf's layout: a query route with a Dense layer, a document route without, then a shared Normalize."""
    st = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.models")
    small = st.SentenceTransformer(str(make_model(dense=((24, "Identity", True),))), device="cpu")
    large = st.SentenceTransformer(str(make_model(pooling="cls", dense=((24, "Tanh", True),))), device="cpu")
    options = {"default_route": "document", **parameters}
    router = modules.Router({"query": list(small), "document": list(large)}, **options)
    model = st.SentenceTransformer(modules=[router, modules.Normalize()], device="cpu")
    model.prompts = {"query": "query: ", "document": ""}
    model.save(str(folder))
    return folder


def test_router_against_sentence_transformers(make_model: Callable[..., Path], tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    folder = asymmetric(tmp_path / "model", make_model)
    reference = st.SentenceTransformer(str(folder), device="cpu")
    encoder = Encoder(folder)
    for name in ("encode", "encode_query", "encode_document"):
        expected = getattr(reference, name)(TEXTS)
        np.testing.assert_allclose(getattr(encoder, name)(TEXTS), expected, atol=2e-6)
    queries = encoder.encode(TEXTS, task="query")
    np.testing.assert_allclose(queries, reference.encode(TEXTS, task="query"), atol=2e-6)
    assert np.abs(queries - encoder.encode(TEXTS)).max() > 0.01
    assert np.array_equal(next(iter(encoder.encode_iter(TEXTS, task="query"))), queries)
    tokenize, encode = encoder.query_steps()
    assert np.array_equal(encode(tokenize(TEXTS))[0], encoder.encode_query(TEXTS))
    assert encoder.describe()["routes"] == ["document", "query"]
    with pytest.raises(ValueError, match="no route for task='other'; this model has 'query', 'document'"):
        encoder.encode(TEXTS, task="other")
    copy = pickle.loads(pickle.dumps(encoder))
    assert np.array_equal(copy.encode_query(TEXTS), encoder.encode_query(TEXTS))


def test_warm_up_reads_the_weights_of_every_route(
    make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder(asymmetric(tmp_path / "model", make_model))
    run, warm = CoreEngine.encode, []

    def encode(self: CoreEngine, *arguments: Any) -> Any:
        warm.append(self.folder.transformer.name)
        return run(self, *arguments)

    monkeypatch.setattr(CoreEngine, "encode", encode)
    encoder.warm_up()
    assert sorted(warm) == ["document_0_Transformer", "query_0_Transformer"]
    assert encoder.describe()["texts"] == 0


def test_saved_router(make_model: Callable[..., Path], tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    encoder = Encoder(asymmetric(tmp_path / "model", make_model))
    encoder.save(tmp_path / "saved")
    saved = Encoder(tmp_path / "saved")
    assert saved.verify() == encoder.fingerprint
    reference = st.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    for name in ("encode_query", "encode_document"):
        assert np.array_equal(getattr(saved, name)(TEXTS), getattr(encoder, name)(TEXTS))
        np.testing.assert_allclose(getattr(reference, name)(TEXTS), getattr(encoder, name)(TEXTS), atol=2e-6)
    for older in (tmp_path / "model").rglob("sentence_bert_config.json"):  # another name that is read
        older.with_name("sentence_roberta_config.json").write_text('{"max_seq_length": 6}')
        older.unlink()
    encoder = Encoder(tmp_path / "model")
    encoder.save(tmp_path / "renamed")
    saved = Encoder(tmp_path / "renamed")
    for name in ("encode_query", "encode_document"):
        assert np.array_equal(getattr(saved, name)(TEXTS), getattr(encoder, name)(TEXTS))
    assert saved.verify() == encoder.fingerprint
    Encoder(tmp_path / "renamed", max_length=7).save(tmp_path / "shorter")
    shorter = Encoder(tmp_path / "shorter")
    assert shorter.verify() == shorter.fingerprint != encoder.fingerprint
    (query,) = (tmp_path / "renamed").glob("query_0*/sentence_roberta_config.json")
    query.write_text('{"max_seq_length": 5}')
    assert Encoder(tmp_path / "renamed")._engine.fingerprint() != encoder.fingerprint
    encoder = Encoder(tmp_path / "saved")
    encoder.save(tmp_path / "int8", "int8")
    small = Encoder(tmp_path / "int8")
    assert small.verify() == encoder.fingerprint
    assert np.array_equal(
        small.encode_query(TEXTS), Encoder(encoder.describe()["path"], precision="int8").encode_query(TEXTS)
    )
    weights = next((tmp_path / "saved").glob("query_0*/model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\x3f")
    with pytest.raises(ValueError, match="weights have changed"):
        Encoder(tmp_path / "saved").verify()


def test_a_saved_router_keeps_the_length_of_the_encoder(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    st = pytest.importorskip("sentence_transformers")
    folder = asymmetric(tmp_path / "model", make_model)
    encoder = Encoder(folder, max_length=6)
    encoder.save(tmp_path / "saved")
    saved = Encoder(tmp_path / "saved")
    saved.verify()
    reference = st.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    whole = Encoder(folder)
    for name in ("encode_query", "encode_document"):
        vectors = getattr(encoder, name)(TEXTS)
        assert np.abs(vectors - getattr(whole, name)(TEXTS)).max() > 0.01
        assert np.array_equal(getattr(saved, name)(TEXTS), vectors)
        np.testing.assert_allclose(getattr(reference, name)(TEXTS), vectors, atol=2e-6)


def test_a_length_that_is_also_that_of_the_default_route(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    folder = asymmetric(tmp_path / "model", make_model)
    for name, length in (("document", 6), ("query", 30)):
        (settings,) = folder.glob(f"{name}_0*/sentence_bert_config.json")
        settings.write_text(json.dumps({"max_seq_length": length}))
    own, given, later = Encoder(folder), Encoder(folder, max_length=6), Encoder(folder)
    later.max_seq_length = 6
    vectors = given.encode_query(TEXTS[3:])
    assert np.abs(vectors - own.encode_query(TEXTS[3:])).max() > 0.01
    assert given.describe()["tokens"] == 6
    given.save(tmp_path / "saved")
    for encoder in (later, copy.copy(given), pickle.loads(pickle.dumps(given)), Encoder(tmp_path / "saved")):
        assert np.array_equal(encoder.encode_query(TEXTS[3:]), vectors)
    assert Encoder(tmp_path / "saved").verify() != own.fingerprint


def test_an_index_keeps_a_length_that_is_also_that_of_the_default_route(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    pytest.importorskip("faiss")
    from embedkit.index import Document, ModelMismatchError

    folder = asymmetric(tmp_path / "model", make_model)
    (settings,) = folder.glob("document_0*/sentence_bert_config.json")
    settings.write_text('{"max_seq_length": 6}')
    Index.build(tmp_path / "index", TEXTS[:2], Encoder(folder, max_length=6)).close()
    with Index.open(tmp_path / "index") as index:
        assert index.info()["max_length"] == 6
        index.add([Document(TEXTS[3], "long")])
    with Index.open(tmp_path / "index", Encoder(folder)) as index:
        index.add([Document("another", "short")])  # that of documents is the same
    with (
        Index.open(tmp_path / "index", Encoder(folder, max_length=5)) as index,
        pytest.raises(ModelMismatchError, match="built with max_length=6, but the encoder's is 5"),
    ):
        index.add([Document("a third", "third")])


def test_a_dropout_of_a_route_does_nothing(make_model: Callable[..., Path], tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.models")
    dropout = modules.Dropout(0.5)
    routes = {
        "query": [*st.SentenceTransformer(str(make_model()), device="cpu"), dropout],
        "document": list(st.SentenceTransformer(str(make_model(pooling="cls")), device="cpu")),
    }
    router = modules.Router(routes, default_route="document")
    reference = st.SentenceTransformer(modules=[router, dropout, modules.Normalize()], device="cpu")
    reference.save(str(tmp_path / "model"))
    encoder = Encoder(tmp_path / "model")
    np.testing.assert_allclose(encoder.encode_query(TEXTS), reference.encode_query(TEXTS), atol=2e-6)
    encoder.save(tmp_path / "saved")
    assert Encoder(tmp_path / "saved").verify() == encoder.fingerprint
    again = st.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(again.encode_query(TEXTS), reference.encode_query(TEXTS), atol=2e-6)


def test_router_with_a_static_query_route(make_model: Callable[..., Path], tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.models")
    tokenizers = pytest.importorskip("tokenizers")
    source = make_model(dense=((24, "Tanh", True),))
    tokenizer = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
    rows = np.random.default_rng(3).standard_normal((tokenizer.get_vocab_size(), 24)).astype(np.float32)
    documents = st.SentenceTransformer(str(source), device="cpu")
    router = modules.Router.for_query_document(
        query_modules=[modules.StaticEmbedding(tokenizer, embedding_weights=rows)],
        document_modules=list(documents),
    )
    st.SentenceTransformer(modules=[router], device="cpu").save(str(tmp_path / "model"))
    reference = st.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    encoder = Encoder(tmp_path / "model")
    for name in ("encode", "encode_query", "encode_document"):
        np.testing.assert_allclose(getattr(encoder, name)(TEXTS), getattr(reference, name)(TEXTS), atol=4e-6)
    # On a GPU its table stays on the CPU.
    folder = open_folder(tmp_path / "model")
    gpu: list[ModelFolder] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "embedkit.backends.cuda_engine.CudaEngine",
            lambda route, devices, precision: gpu.append(route) or CoreEngine(route, "fp32"),
        )
        engine = open_engine(tmp_path / "model", OpenOptions(1, ("cuda:0",), "bf16"))
    assert [route.static for route in gpu] == [None] and len(folder.routes) == 2
    assert isinstance(engine.of("query"), CoreEngine)


def test_an_index_refuses_texts_by_the_length_of_the_document_route(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    folder = asymmetric(tmp_path / "model", make_model, default_route="query")
    for path, length in (("query_0_Transformer", 8), ("document_0_Transformer", 20)):
        config = folder / path / "sentence_bert_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"max_seq_length": length}))
    encoder = Encoder(folder, on_overflow="error")
    del encoder.prompts["document"]
    encoder.prompts["passage"] = "the now "
    texts = ["people " * words for words in range(1, 40)]
    refused: list[str] = []
    with Index.build(
        tmp_path / "index", texts, encoder, on_error=lambda error: refused.append(str(error))
    ) as index:
        assert len(index) == 16  # two tokens of the prompt and two special ones
    assert len(refused) == 23
    assert refused[0].startswith("document 16: the text has 21 tokens, more than the 20 that the model reads")


def test_passages_are_counted_by_the_document_route(make_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = asymmetric(tmp_path / "model", make_model, default_route="query")
    for path, length in (("query_0_Transformer", 30), ("document_0_Transformer", 20)):
        config = folder / path / "sentence_bert_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"max_seq_length": length}))
    encoder = Encoder(folder)
    with pytest.raises(ValueError, match="do not fit into the model's maximum of 20"):
        Index.build(tmp_path / "index", ["people " * 60], encoder, passages=28)
    with Index.build(tmp_path / "index", ["people " * 60], encoder, passages=18) as index:
        assert index.info()["truncated"] == 0
        assert len(index) == 4


def test_an_index_asks_by_the_query_route(make_model: Callable[..., Path], tmp_path: Path) -> None:
    encoder = Encoder(asymmetric(tmp_path / "model", make_model))
    documents = ["people", "the weather is lovely today", "stay out now"]
    with Index.build(tmp_path / "index", documents, encoder) as index:
        for queries in (["lovely weather"], ["lovely weather", "people"]):
            expected = encoder.encode_query(queries) @ encoder.encode_document(documents).T
            for hits, scores in zip(index.search(queries, k=3, hybrid=False), expected, strict=True):
                assert [hit.score for hit in hits] == pytest.approx(sorted(scores, reverse=True), abs=1e-6)


def test_router_routes(make_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = asymmetric(tmp_path / "model", make_model)
    path = folder / "router_config.json"
    content = json.loads(path.read_text())

    def changed(**parameters: Any) -> Path:
        path.write_text(json.dumps({**content, "parameters": {**content["parameters"], **parameters}}))
        return folder

    encoder = Encoder(folder)
    mapped = Encoder(changed(route_mappings={"('question', None)": "query", "(None, 'text')": "document"}))
    assert np.array_equal(mapped.encode(TEXTS, task="question"), encoder.encode(TEXTS, task="query"))
    assert np.array_equal(mapped.encode(TEXTS, task="other"), encoder.encode(TEXTS))
    assert encoder._engine.stored_precision == "fp32"
    route = Routing(path, {"a": [], "text": []}, None, {}).route
    assert (route("a"), route("text"), route("other"), route(None)) == ("a", "text", "text", "text")
    strict = Encoder(changed(default_route=None, allow_empty_key=False))
    with pytest.raises(ValueError, match="no default route: give task="):
        strict.encode(TEXTS)
    assert np.array_equal(strict.encode_document(TEXTS), encoder.encode_document(TEXTS))
    for parameters, message in (
        ({"default_route": "nowhere"}, "default_route 'nowhere' is none of the routes"),
        ({"route_mappings": {"query": "query"}}, "no pair of task and modality"),
        ({"route_mappings": {"(None, None)": "x"}}, "names the route 'x'"),
        ({"default_route": ["query"]}, "none of the routes"),
        ({"route_mappings": {"([], 'text')": "query"}}, "no pair of task and modality"),
        ({"route_mappings": {"(None, None)": ["query"]}}, "names the route"),
    ):
        with pytest.raises(ValueError, match=message):
            Encoder(changed(**parameters))


def test_damaged_routers(make_model: Callable[..., Path], tmp_path: Path) -> None:
    source = asymmetric(tmp_path / "model", make_model)
    content = json.loads((source / "router_config.json").read_text())
    first = content["structure"]["query"][0]
    for number, (changes, message) in enumerate(
        (
            ({"structure": {"query": []}}, "the modules are Normalize"),
            ({"structure": {"query": "x"}}, "must be a list of modules"),
            ({"types": {**content["types"], first: "os.path"}}, "unknown module 'os.path'"),
            (
                {
                    "types": {**content["types"], "../x": content["types"][first]},
                    "structure": {"query": ["../x"]},
                },
                "leaves the model folder",
            ),
            ({"structure": {}}, "expected objects"),
        )
    ):
        folder = Path(shutil.copytree(source, tmp_path / str(number)))
        (folder / "router_config.json").write_text(json.dumps({**content, **changes}))
        with pytest.raises(ValueError, match=message):
            Encoder(folder)
    (source / "router_config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"router_config\.json is missing"):
        Encoder(source)


@pytest.mark.parametrize("listed", [False, True])
def test_token_ids_are_of_the_default_route(
    make_model: Callable[..., Path], tmp_path: Path, listed: bool
) -> None:
    pytest.importorskip("prometheus_client")
    from embedkit.serve.token_ids import TokenDecoder

    folder = asymmetric(tmp_path / "model", make_model)
    (query,) = folder.glob("query_0*/tokenizer.json")
    other = json.loads(query.read_text())
    vocab = other["model"]["vocab"]
    words = sorted(vocab, key=vocab.__getitem__)
    other["model"]["vocab"] = {
        word: vocab[word] if word in words[:5] else len(vocab) + 4 - vocab[word] for word in vocab
    }
    query.write_text(json.dumps(other))
    if listed:
        (document,) = folder.glob("document_0*/tokenizer.json")
        document.with_name("vocab.txt").write_text("\n".join(words))
        document.unlink()
    encoder = Encoder(folder)
    rows = encoder.tokenize(["the weather"])["input_ids"]
    assert TokenDecoder(encoder).texts(rows, "input") == ["the weather"]


def test_the_server_takes_the_routes(make_model: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    pytest.importorskip("pydantic")
    from embedkit.serve.metrics import Metrics, ModelMetrics
    from embedkit.serve.models import EmbeddingModel
    from embedkit.serve.search import BatchedEncoder
    from embedkit.serve.settings import Limits

    encoder = Encoder(asymmetric(tmp_path / "model", make_model))
    model = EmbeddingModel(encoder, Limits(), ModelMetrics(Metrics(), "m"))
    try:
        found = BatchedEncoder(model).encode_query(TEXTS, normalize_embeddings=False)
        assert np.array_equal(found, encoder.encode_query(TEXTS))
        for task, encode in (("query", encoder.encode_query), ("document", encoder.encode_document)):
            form = model.form(task, None, None, task)
            assert np.array_equal(model.embed_here(TEXTS, form), encode(TEXTS))
    finally:
        model.close()
