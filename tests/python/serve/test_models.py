"""Pools of models within a bound on their memory, without models; lengths of texts."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from running_server import RunningServer  # noqa: F401  (skips where the server's packages are missing)
from tiny_cross_encoders import write_cross_encoder

from embedkit import Encoder
from embedkit.model_folder.tokenizer import Tokenizer
from embedkit.serve.app import create_app
from embedkit.serve.errors import ApiError
from embedkit.serve.metrics import Metrics, ModelMetrics
from embedkit.serve.models import EmbeddingModel, Memory, Pool, Served, weights_bytes
from embedkit.serve.opening import Options, _reranker, open_state
from embedkit.serve.requests import check_lengths, check_pair_lengths
from embedkit.serve.settings import Limits, Settings
from embedkit.serve.state import State
from embedkit.serve.token_ids import TokenDecoder


class Fake:
    """Takes ``bytes`` while it is open."""

    open_bytes = 0

    def __init__(self, size: int) -> None:
        self.bytes = size
        Fake.open_bytes += size

    def close(self) -> None:
        Fake.open_bytes -= self.bytes


@pytest.fixture
def pools() -> tuple[Pool[Any], Pool[Any]]:
    """Two kinds of models that share 100 bytes."""
    Fake.open_bytes = 0
    memory = Memory(100)
    made: list[Pool[Any]] = []
    for names in ({"a": 40, "b": 50}, {"c": 30, "d": 60}):
        served: list[Served[Any]] = [
            Served(name, lambda size=size: Fake(size)) for name, size in names.items()
        ]
        made.append(Pool(served, memory))
    return made[0], made[1]


def loaded(*pools: Pool[Any]) -> str:
    return "".join(model.name for pool in pools for model in pool.distinct if model.loaded is not None)


def test_what_fits_is_loaded_and_the_rest_in_place_of_the_least_recently_used(
    pools: tuple[Pool[Any], Pool[Any]],
) -> None:
    first, second = pools
    first.load_what_fits()
    second.load_what_fits()
    assert loaded(*pools) == "ab"
    assert Fake.open_bytes == 90

    async def use(pool: Pool[Any], name: str) -> str:
        async with pool.use(name) as (known, model):
            assert known == name
            assert Fake.open_bytes <= 100
            assert model.bytes
        return loaded(*pools)

    async def all_uses() -> list[str]:
        return [
            await use(pool, name) for pool, name in ((first, "b"), (second, "c"), (second, "d"), (first, "a"))
        ]

    assert asyncio.run(all_uses()) == ["ab", "bc", "cd", "ad"]


def test_the_model_that_was_used_last_stays(pools: tuple[Pool[Any], Pool[Any]]) -> None:
    first, second = pools
    first.load_what_fits()

    async def uses() -> str:
        for pool, name in ((first, "b"), (first, "a"), (second, "c")):
            async with pool.use(name):
                pass
        return loaded(*pools)

    assert asyncio.run(uses()) == "ac"


def test_models_in_use_stay_and_others_wait(pools: tuple[Pool[Any], Pool[Any]]) -> None:
    first, second = pools
    first.load_what_fits()

    async def busy() -> None:
        async with first.use("a"), first.use("b"):
            with pytest.raises(ApiError) as refused:
                async with second.use("d"):
                    pass
            assert refused.value.status == 503
            assert "retry-after" in refused.value.headers
        async with second.use("d"):
            assert loaded(*pools) == "d"  # which leaves room for neither

    asyncio.run(busy())


def test_a_model_whose_folder_is_gone_closes_no_other(tmp_path: Path, reranker: Path) -> None:
    Encoder().save(tmp_path / "kept")
    shutil.copytree(tmp_path / "kept", tmp_path / "gone")
    shutil.copytree(reranker, tmp_path / "rank")
    size = weights_bytes(tmp_path / "kept", "int8")
    state = open_state(
        Options(
            [str(tmp_path / "kept"), str(tmp_path / "gone")],
            rerankers=[str(tmp_path / "rank")],
            threads=1,
            max_memory=size,
        )
    )
    for name in ("gone", "rank"):
        shutil.rmtree(tmp_path / name)

    async def ask(pool: Pool[Any], name: str) -> None:
        async with pool.use(name):
            pass

    for pool, name in ((state.embedders, "gone"), (state.rerankers, "rank")):
        with pytest.raises(ApiError, match=f"{name} cannot be loaded"):
            asyncio.run(ask(pool, name))
        assert state.embedders.find("kept").loaded is not None
    state.close()


def test_many_requests_for_one_model_load_it_once(pools: tuple[Pool[Any], Pool[Any]]) -> None:
    first, _ = pools

    async def one() -> int:
        async with first.use("a") as (_, model):
            return id(model)

    async def many() -> set[int]:
        return set(await asyncio.gather(*(one() for _ in range(20))))

    assert len(asyncio.run(many())) == 1
    assert Fake.open_bytes == 40


def test_a_model_that_stays_takes_the_room_of_others(pools: tuple[Pool[Any], Pool[Any]]) -> None:
    first, second = pools
    first.load_what_fits()
    own: Served[Any] = Served("index", lambda: Fake(30), Fake(30), size=30)
    first._memory.keep(own)
    assert loaded(*pools) == "a"
    assert Fake.open_bytes == 70

    async def use(name: str) -> str:
        async with second.use(name):
            return loaded(*pools)

    assert asyncio.run(use("d")) == "d"
    assert own.loaded is not None
    with pytest.raises(ValueError, match="other takes 90 bytes and stays loaded; --max-memory allows 100"):
        first._memory.keep(Served("other", lambda: Fake(90), Fake(90), size=90))


def test_a_model_larger_than_the_memory_is_refused() -> None:
    pool: Pool[Any] = Pool([Served("large", lambda: Fake(200))], Memory(100))
    with pytest.raises(ValueError, match="--max-memory allows 100"):
        pool.load_what_fits()


@pytest.mark.parametrize("fails", [False, True])
def test_a_load_beyond_the_timeout_answers_504_and_goes_on(fails: bool) -> None:
    ready = threading.Event()
    loads = []

    def load() -> Fake:
        loads.append(1)
        ready.wait(10)
        if fails:
            raise ValueError("its folder is broken")
        return Fake(30)

    pool: Pool[Any] = Pool([Served("slow", load)], Memory(100), timeout=0.05)
    logged: list[Any] = []

    async def one() -> int:
        async with pool.use("slow") as (_, model):
            return int(model.bytes)

    async def requests() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        late = await asyncio.gather(*(one() for _ in range(3)), return_exceptions=True)
        assert [error.status for error in late if isinstance(error, ApiError)] == [504] * 3
        assert pool.models["slow"].users == 0
        ready.set()
        pool._timeout = 60
        while pool.models["slow"].loading is not None:
            await asyncio.sleep(0.01)
        gc.collect()
        assert len(loads) == 1
        if fails:
            with pytest.raises(ApiError) as refused:
                await one()
            assert refused.value.status == 500
        else:
            assert await one() == 30
        assert len(loads) == 1 + fails  # one that failed is tried again

    asyncio.run(requests())
    gc.collect()
    assert logged == []


def test_rerankers_run_on_the_cpu_whatever_the_precision_of_a_gpu(tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "model", "bert", 1)
    model = _reranker(str(folder), Options(precision="fp16", threads=1), ModelMetrics(Metrics(), "tiny"))
    assert model.encoder.describe()["precision"] == "fp32"
    model.batcher.close()


def test_token_ids_without_their_package_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers")
    folder = write_cross_encoder(tmp_path / "model", "roberta", 1)
    decoder = TokenDecoder(Encoder(folder, threads=1))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ApiError, match="need the package tokenizers") as refused:
        decoder.texts([[5, 6]], "input")
    assert refused.value.status == 400


def with_special_tokens(folder: Path, template: str) -> Encoder:
    """A tiny model whose tokenizer adds these special tokens, and decodes what it encodes."""
    tokenizers = pytest.importorskip("tokenizers")
    file = str(write_cross_encoder(folder, "roberta", 1) / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(file)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=template, special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.save(file)
    config = folder / "tokenizer_config.json"  # a class that adds no special tokens of its own
    settings = json.loads(config.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    config.write_text(json.dumps(settings), encoding="utf-8")
    return Encoder(folder, threads=1)


@pytest.mark.parametrize("template", ["<s> $A </s>", "<s> $A", "$A </s>", "$A"])
def test_token_ids_come_with_and_without_special_tokens(tmp_path: Path, template: str) -> None:
    encoder = with_special_tokens(tmp_path / "model", template)
    (ids,) = encoder.tokenize(["the weather"])["input_ids"]
    bare = [number for number in ids if number not in (0, 2)]
    assert len(ids) == len(bare) + template.count("s>")
    assert TokenDecoder(encoder).texts([ids, bare], "input") == ["the weather"] * 2


def test_the_vocabulary_of_token_ids_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = with_special_tokens(tmp_path / "model", "<s> $A </s>")
    decoder = TokenDecoder(encoder)
    ids = encoder.tokenize(["the weather"])["input_ids"]
    assert decoder.texts(ids, "input") == ["the weather"]
    monkeypatch.setattr(decoder, "_other", SimpleNamespace(decode=decoder._other.decode))
    assert decoder.texts(ids, "input") == ["the weather"]
    for outside in (-1, 10**12):
        with pytest.raises(ApiError, match="outside this model's vocabulary"):
            decoder.texts([[outside]], "input")


def test_texts_are_measured_on_the_route_of_their_task(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    st = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.models")
    lengths = {"query": 8, "document": 40}
    routes = {
        task: list(st.SentenceTransformer(str(make_model(max_seq_length=length)), device="cpu"))
        for task, length in lengths.items()
    }
    router = modules.Router(routes, default_route="document")
    st.SentenceTransformer(modules=[router], device="cpu").save(str(tmp_path / "model"))
    (file,) = tmp_path.glob("model/query_0*/tokenizer.json")
    content = json.loads(file.read_text(encoding="utf-8"))
    vocab = content["model"]["vocab"]
    vocab["the"], vocab["people"] = vocab["people"], vocab["the"]
    file.write_text(json.dumps(content), encoding="utf-8")
    model = EmbeddingModel(Encoder(tmp_path / "model", threads=1), Limits(), ModelMetrics(Metrics(), "m"))
    text = "people " * 20

    async def measure(task: str) -> list[int]:
        form = model.form(None, None, None, task)
        tokens = await model.count([text], form)
        await check_lengths(model, [text], form, tokens, param="input", truncate=False, settings=Settings())
        return tokens

    assert asyncio.run(measure("document")) == [22]
    with pytest.raises(ApiError, match="longer than the 8 tokens"):
        asyncio.run(measure("query"))
    assert asyncio.run(model.count([text], model.form(None, None, None, "query"))) == [8]
    ids = model.encoder.tokenize(["people"])["input_ids"]  # as the default route's tokenizer has them
    assert model.decoder.texts(ids, "input", "document") == ["people"]
    with pytest.raises(ApiError, match="is not what this model's tokenizer makes of a text"):
        model.decoder.texts(ids, "input", "query")
    model.close()


@pytest.mark.parametrize(
    ("name", "stored", "expected"),
    [
        ("layer.weight", np.float32, {"auto": 400, "bf16": 200, "int8": 100}),
        ("layer.weight", np.float16, {"auto": 400, "bf16": 200, "int8": 100}),
        ("embeddings", np.float16, {"auto": 200, "bf16": 200, "int8": 100}),  # a static model keeps them
        ("embeddings", np.int8, {"auto": 100, "bf16": 100, "int8": 100}),
    ],
)
def test_the_memory_of_weights_is_that_of_the_type_they_are_computed_in(
    tmp_path: Path, name: str, stored: Any, expected: dict[str, int]
) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    numpy.save_file({name: np.zeros((10, 10), stored)}, tmp_path / "model.safetensors")
    assert {precision: weights_bytes(tmp_path, precision) for precision in expected} == expected
    (tmp_path / "model.safetensors").write_bytes(b"damaged " * 50)
    assert weights_bytes(tmp_path, "bf16") == 200


def test_the_default_prompt_precedes_texts_without_another(tmp_path: Path) -> None:
    Encoder(prompts={"query": "question: "}, default_prompt_name="query").save(tmp_path / "model")
    model = EmbeddingModel(Encoder(tmp_path / "model", threads=1), Limits(), ModelMetrics(Metrics(), "m"))
    found = model.embed_here(["a text"], model.form(None, None, None))
    np.testing.assert_array_equal(found, model.encoder.encode(["question: a text"], prompt=""))
    model.close()


def test_counting_ends_with_the_time_of_a_request_and_when_its_client_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = EmbeddingModel(Encoder(threads=1), Limits(), ModelMetrics(Metrics(), "m"))
    counted: list[int] = []

    def slow(texts: list[str], _: str | None) -> list[int]:
        counted.append(len(texts))
        time.sleep(0.1)
        return [1] * len(texts)

    monkeypatch.setattr(model, "_count", slow)
    nothing: Pool[Any] = Pool([], Memory(None))
    served: Pool[Any] = Pool([Served("m", lambda: model, model)], Memory(None))

    async def ask(timeout: float, stays: float) -> int:
        state = State(Settings(Limits(timeout=timeout)), served, nothing, None, Metrics())
        body = {"type": "http.request", "body": json.dumps({"inputs": ["word " * 30] * 5000}).encode()}
        received, sent = [body], []

        async def receive() -> Any:
            if received:
                return received.pop()
            await asyncio.sleep(stays)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/embed", "query_string": b"", "headers": []}
        await create_app(state)(scope, receive, send)
        assert len(set(counted)) == 1 and 0 < len(counted) < 10
        begun = len(counted)
        await asyncio.sleep(0.2)
        assert len(counted) == begun
        counted.clear()
        return int(sent[0]["status"])

    assert asyncio.run(ask(0.25, 60)) == 504
    assert asyncio.run(ask(60, 0.15)) == 499
    model.close()


def test_the_query_of_pairs_is_tokenized_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_cross_encoder(tmp_path / "model", "bert", 1)
    model = _reranker(str(folder), Options(threads=1), ModelMetrics(Metrics(), "tiny"))
    seen: list[str] = []
    encode = Tokenizer.encode_batch
    monkeypatch.setattr(
        Tokenizer, "encode_batch", lambda self, texts: seen.extend(texts) or encode(self, texts)
    )

    async def check(texts: list[str]) -> None:
        await check_pair_lengths(
            model, "the query", texts, param="texts", truncate=False, settings=Settings()
        )

    asyncio.run(check(["a"] * 600))
    assert (len(seen), seen.count("the query")) == (601, 1)
    with pytest.raises(ApiError, match=r"^texts\[599\] and the query are longer than the 40 tokens"):
        asyncio.run(check(["a"] * 599 + ["the " * 40]))
    model.close()


def test_too_long_counts_every_token_of_a_text(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    folder = write_cross_encoder(tmp_path / "model", "roberta", 1)  # whose tokenizer counts white space
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = EmbeddingModel(Encoder(folder, threads=1), Limits(), ModelMetrics(Metrics(), "tiny"))
    choose = random.Random(0)
    texts = ["a\n\n\n" * 30, "a\t\t\t" * 9 + "aa", " " * 39, "the " * 2000]
    texts += [
        "".join(choose.choices(("the", "b", " ", "\n", "  "), k=choose.randint(30, 45))) for _ in range(300)
    ]
    lengths = [len(reference.encode(text).ids) for text in texts]
    assert {39, 40, 41} < set(lengths)
    assert [model.too_long(text) for text in texts] == [length > 40 for length in lengths]
    model.close()
