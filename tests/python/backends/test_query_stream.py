"""Streams of queries on the core and on encode stages: tokenize ‖ encode ‖ search, with the bits of `encode_query`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("faiss")

from core_stage import CoreStage, staged

import embedkit.encoder
from embedkit import Encoder
from embedkit.index import Index, SearchStats

Make = Callable[..., Path]
pytestmark = pytest.mark.filterwarnings("ignore:.*longer than max_length")


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedkit.encoder, "_WINDOW", 40)


@pytest.mark.parametrize("ahead", [0, 2])
def test_the_two_steps_of_a_stage(make_model: Make, texts: list[str], ahead: int) -> None:
    encoder = staged(make_model(), CoreStage(make_model(), ahead=ahead), prompts={"query": "the day "})
    tokenize, encode = encoder.query_steps(normalize_embeddings=True)
    windows = tokenize(texts)
    assert [window.texts for window in windows] == [40] * 7 + [20]
    vectors, within = encode(windows)
    np.testing.assert_array_equal(vectors, encoder.encode_query(texts, normalize_embeddings=True))
    assert within == 0
    assert encode(tokenize([]))[0].shape == (0, 32)
    with pytest.raises(ValueError, match=r"texts\[41\] holds a lone surrogate"):
        tokenize([*texts[:41], "\ud800"])


def hits(found: Any) -> list[list[tuple[str, float]]]:
    return [[(hit.id, hit.score) for hit in query] for block in found for query in block]


@pytest.mark.parametrize("where", ["core", "stage"])
def test_a_stream_returns_the_hits_of_a_search_and_times_each_stage(
    make_model: Make, texts: list[str], tmp_path: Path, where: str
) -> None:
    folder = make_model()
    encoder = Encoder(folder) if where == "core" else staged(folder, CoreStage(folder))
    documents = [text for text in texts if text.strip()]
    with Index.build(tmp_path / "index", documents, encoder) as index:
        blocks = [documents[at : at + 70] for at in range(0, 280, 70)]
        expected = hits(index.search(block, 3) for block in blocks)
        stats = SearchStats()
        assert hits(index.search_stream([*blocks, []], 3, stats=stats)) == expected
    assert stats.queries == 280
    assert list(stats.busy) == ["read", "tokenize", "encode", "search", "fetch"]
    assert all(stats.busy[stage] > 0 for stage in ("tokenize", "encode", "search"))
    assert "tokenize " in str(stats)


def test_the_next_block_is_tokenized_while_one_is_encoded(
    make_model: Make, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_model()
    stage = CoreStage(folder)
    encoder = staged(folder, stage)
    documents = [text for text in texts if text.strip()][:120]
    with Index.build(tmp_path / "index", documents, encoder) as index:
        second, waited = threading.Event(), []
        tokenize, tokenized = encoder._engine.tokenize, []

        def spy(blocks: Any, plan: Any) -> list[Any]:
            tokenized.append(tokenize(blocks, plan))
            if len(tokenized) == 2:
                second.set()
            return tokenized[-1]

        monkeypatch.setattr(encoder._engine, "tokenize", spy)
        stage.fail = lambda batch: waited.append(second.wait(60))
        list(index.search_stream([documents[:40], documents[40:80]], 3))
    assert waited and all(waited)  # the first block was not encoded before the second was tokenized


def test_hits_do_not_wait_for_the_next_block(make_model: Make, texts: list[str], tmp_path: Path) -> None:
    """Queries may come one at a time, from a terminal."""
    folder = make_model()
    documents = [text for text in texts if text.strip()][:50]
    with Index.build(tmp_path / "index", documents, staged(folder, CoreStage(folder, ahead=2))) as index:
        answered = threading.Event()

        def typed() -> Any:
            yield documents[:1]
            assert answered.wait(60)
            yield documents[1:2]

        found = index.search_stream(typed(), 1)
        assert next(found)[0][0].text == documents[0]
        answered.set()
        assert next(found)[0][0].text == documents[1]
