"""The model that a served index is searched with: a served one whose vectors are the same, else one of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running_server import RunningServer  # noqa: F401  (skips where the server's packages are missing)

from embedkit import Encoder, Index
from embedkit.index import ModelMismatchError
from embedkit.serve.bodies import SearchRequest
from embedkit.serve.errors import ApiError
from embedkit.serve.models import EmbeddingModel
from embedkit.serve.opening import Options, open_state
from embedkit.serve.search import BatchedEncoder
from embedkit.serve.state import State


def searched(state: State, query: str) -> list[tuple[str, float]]:
    assert state.search is not None
    (hits,) = asyncio.run(state.search.search(SearchRequest(query=query, hybrid=False), 3))
    return [(hit.id, hit.score) for hit in hits]


@pytest.mark.parametrize(
    "options",
    [{"prompts": {"query": "it: "}}, {"prompts": {"document": "it: "}}, {"truncate_dim": 24}],
    ids=str,
)
def test_a_served_model_of_other_vectors_is_not_the_indexs(tmp_path: Path, options: dict[str, Any]) -> None:
    with Index.build(tmp_path / "index", ["one", "two", "cats"], Encoder(threads=1, **options)) as index:
        expected = [(hit.id, hit.score) for hit in index.search("two", hybrid=False)[0]]
    state = open_state(Options(models=("",), index=str(tmp_path / "index"), threads=1))
    assert [name for name, _, _ in state.queues()] == ["embedkit-256-int8", "index"]
    found = searched(state, "two")
    assert [one[0] for one in found] == [one[0] for one in expected]
    assert [one[1] for one in found] == pytest.approx([one[1] for one in expected], abs=1e-6)
    state.close()


@pytest.mark.parametrize(("seed", "precision"), [(1, "fp32"), (0, "int8")], ids=["weights", "precision"])
def test_a_served_model_of_other_weights_is_not_the_indexs(
    tmp_path: Path, make_model: Callable[..., Path], seed: int, precision: str
) -> None:
    encoder = Encoder(make_model(seed=seed), precision=precision, threads=1)
    Index.build(tmp_path / "index", ["one", "two"], encoder).close()
    state = open_state(Options(models=(f"tiny={make_model()}",), index=str(tmp_path / "index"), threads=1))
    assert [name for name, _, _ in state.queues()] == ["tiny", "index"]
    state.close()


@pytest.mark.filterwarnings("ignore:the first of the texts")
def test_a_model_that_reads_documents_in_windows_cuts_the_texts_of_requests(tmp_path: Path) -> None:
    texts = ["one two three " * 400 + "cats and dogs " * 400, "one two three", "cats and dogs"]
    encoder = Encoder(threads=1, on_overflow="window")
    Index.build(tmp_path / "index", texts, encoder).close()
    state = open_state(Options(index=str(tmp_path / "index"), threads=1))
    assert [name for name, _, _ in state.queues()] == ["embedkit-256-int8"]  # loaded once
    (served,) = state.embedders.distinct
    model = served.loaded
    assert model is not None

    async def embedded() -> tuple[list[int], Any]:
        form = model.form(None, None, None)
        tokens = await model.count(texts[:1], form)
        return tokens, await model.embed(texts[:1], form, tokens)

    tokens, rows = asyncio.run(embedded())
    assert tokens == [512]
    cut, whole = Encoder(threads=1), encoder.encode_document(texts)
    np.testing.assert_array_equal(rows, cut.encode(texts[:1]))
    scores = (whole @ cut.encode_query(texts[0])).tolist()
    found = searched(state, texts[0])
    assert dict(found) == pytest.approx(dict(zip("012", scores, strict=True)), abs=1e-3)  # stored in 16 bits
    assert state.search is not None
    ((like, *_),) = asyncio.run(state.search.search(SearchRequest(like="0"), 1))
    assert like.score == pytest.approx(max(whole[0] @ whole[1], whole[0] @ whole[2]), abs=1e-3)
    assert dict(state.truncated()) == {"embedkit-256-int8": 2}
    state.close()
    with pytest.raises(ValueError, match="closed"):
        model.documents.encode("a")


def test_no_model_has_the_name_of_the_indexs_own(tmp_path: Path) -> None:
    Index.build(tmp_path / "index", ["one"], Encoder(threads=1)).close()
    Encoder(truncate_dim=24).save(tmp_path / "small")
    options = Options(models=(f"index={tmp_path / 'small'}",), index=str(tmp_path / "index"), threads=1)
    with pytest.raises(ValueError, match=r"'index' is the index's own model .* with --model NAME=MODEL"):
        open_state(options)


def test_the_model_of_an_index_is_not_closed_for_another(tmp_path: Path) -> None:
    for name, size in (("a", 256), ("b", 24)):
        Encoder(truncate_dim=size).save(tmp_path / name)
    Index.build(tmp_path / "index", ["one", "two"], Encoder(tmp_path / "a", threads=1)).close()
    weights = sum(path.stat().st_size for path in (tmp_path / "a").rglob("*.safetensors"))
    models = tuple(str(tmp_path / name) for name in "ab")
    memory = int(1.5 * weights)
    state = open_state(Options(models=models, index=str(tmp_path / "index"), threads=1, max_memory=memory))

    async def use() -> None:
        async with state.embedders.use("b"):
            pass

    with pytest.raises(ApiError, match="in use fill the memory"):
        asyncio.run(use())
    assert searched(state, "one")[0][0] == "0"
    state.close()


def test_an_index_that_is_encoded_again_while_the_server_starts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "index"
    Index.build(path, ["one", "two"], Encoder(threads=1)).close()

    def after_the_model(model: EmbeddingModel) -> BatchedEncoder:
        encoder = Encoder(threads=1, prompts={"query": "it: "})
        Index.build(path, ["one", "two"], encoder, overwrite=True).close()
        return BatchedEncoder(model)

    monkeypatch.setattr("embedkit.serve.search.BatchedEncoder", after_the_model)
    with pytest.raises(ModelMismatchError, match="encoded again meanwhile; start the server again"):
        open_state(Options(index=str(path), threads=1))
