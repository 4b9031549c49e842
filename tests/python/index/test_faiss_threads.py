"""The threads of Faiss: those that the index was opened with during a search, the caller's after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit.index import Index
from embedkit.index.auto import tune
from embedkit.index.storage.segment import Segment

faiss = pytest.importorskip("faiss")


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(4)
    yield
    faiss.omp_set_num_threads(before)


@pytest.mark.parametrize(
    "search",
    [
        lambda index: index.search(["cat"] * 8, hybrid=False),
        lambda index: index.search_vectors(np.ones((8, 32))),
    ],
    ids=["texts", "vectors"],
)
def test_a_search_leaves_them_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, four_threads: None, search: Callable[[Index], object]
) -> None:
    used = []
    Index.build(tmp_path / "index", ["a cat", "a dog"], FakeEncoder()).close()
    with Index.open(tmp_path / "index", FakeEncoder(), threads=2) as index:
        run = index.generation.search

        def watched(*arguments: Any) -> Any:
            used.append(faiss.omp_get_max_threads())
            return run(*arguments)

        monkeypatch.setattr(index.generation, "search", watched)
        search(index)
    assert used == [2]
    assert faiss.omp_get_max_threads() == 4


def test_near_duplicates_and_tuning_use_those_that_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, four_threads: None
) -> None:
    used = []

    def watched(run: Callable[..., Any]) -> Callable[..., Any]:
        def watch(*arguments: Any) -> Any:
            used.append(faiss.omp_get_max_threads())
            return run(*arguments)

        return watch

    monkeypatch.setattr(Segment, "search", watched(Segment.search))
    texts = [f"text {number}" for number in range(20)]
    with Index.build(
        tmp_path / "index", texts, FakeEncoder(), factory="HNSW8", dedup="near:0.99", threads=2
    ) as index:
        assert used == [2]
        monkeypatch.undo()
        monkeypatch.setattr(tune, "exact_search", watched(tune.exact_search))
        index.tune(0.9)
    assert used == [2, 2]
    assert faiss.omp_get_max_threads() == 4
