"""Automatic parameters: measurements are compared with numpy, choices with the table."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("faiss")

from embedkit.index.auto import Point, Truth, apply, choose, fastest_parameters, smallest
from embedkit.index.auto.choice import candidates
from embedkit.index.auto.measure import frontier, measure
from embedkit.index.auto.plot import plot
from embedkit.index.auto.result import table_of
from embedkit.index.storage.faiss_index import create_index
from embedkit.index.storage.search_parameters import SearchParameters


def clustered(rows: int, dimension: int = 16, clusters: int = 40, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    centres = random.standard_normal((clusters, dimension))
    vectors = centres[random.integers(0, clusters, rows)] + 0.7 * random.standard_normal((rows, dimension))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32)


def exact(vectors: np.ndarray, queries: np.ndarray, k: int = 10) -> np.ndarray:
    return np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :k]


def true(vectors: np.ndarray, queries: np.ndarray) -> Truth:
    return Truth(queries, exact(vectors, queries), vectors.__getitem__)


def test_recall_is_the_mean_share_of_the_true_neighbors() -> None:
    random = np.random.default_rng(0)
    vectors, queries = clustered(30), clustered(31, seed=1)
    found = np.array([random.permutation(30)[:10] for _ in range(31)])
    found[3, 4:] = -1
    nearest = exact(vectors, queries).tolist()
    shares = [len(set(a) & set(b)) / 10 for a, b in zip(nearest, found.tolist(), strict=True)]
    mean, lower = true(vectors, queries).recalls(found)
    assert mean == pytest.approx(np.mean(shares))
    assert lower == pytest.approx(min(np.mean(shares[::2]), np.mean(shares[1::2])))


def test_of_rows_that_are_equally_near_any_is_found() -> None:
    once, queries = clustered(30), clustered(31, seed=1)
    truth = true(np.repeat(once, 4, axis=0), queries)
    nearest = exact(once, queries, 3)
    last = np.flip(4 * nearest[:, :, None] + np.arange(4), axis=2).reshape(
        31, -1
    )  # of equal rows, exact has the first
    assert truth.recalls(last[:, :10]) == (1.0, 1.0)
    assert truth.recalls(last[:, 2:]) == pytest.approx((0.8, 0.8))  # two nearer ones are missing


@pytest.mark.parametrize("needed", [1, 2, 3, 17, 63, 64])
def test_smallest_finds_the_smallest_value(needed: int) -> None:
    asked: list[int] = []

    def measured(value: int) -> Point:
        asked.append(value)
        return Point(SearchParameters(nprobe=value), 0.99, 0.99 if value >= needed else 0.5, float(value))

    point, points = smallest(measured, 0.95, 64)
    assert point is not None
    assert needed <= point.parameters.nprobe <= max(needed, needed * 33 // 32)
    assert len(set(asked)) == len(asked) <= 13
    assert [one.parameters.nprobe for one in points] == sorted(asked)


def test_smallest_stops_at_the_largest_or_a_too_slow_value() -> None:
    def measured(value: int) -> Point:
        return Point(SearchParameters(nprobe=value), 0.5, 0.5, float(value))

    assert smallest(measured, 0.95, 10)[0] is None
    point, points = smallest(measured, 0.95, 1000, too_slow=8)
    assert point is None
    assert points[-1].parameters.nprobe == 8


def test_settings_of_an_inverted_file_reach_the_recall_that_numpy_measures() -> None:
    everything = clustered(6200)
    vectors, queries = everything[:6000], everything[6000:]
    truth = true(vectors, queries)
    index = create_index("IVF64,Flat", 16)
    index.train(vectors)
    index.add(vectors)
    point, _ = fastest_parameters(index, truth, 0.9)
    assert point is not None
    assert point.sure_recall >= 0.9
    apply(index, point.parameters)
    found = index.search(queries, 10)[1]
    share = (
        np.mean(
            [
                len(set(a) & set(b))
                for a, b in zip(found.tolist(), exact(vectors, queries).tolist(), strict=True)
            ]
        )
        / 10
    )
    assert point.recall == pytest.approx(share)
    less = measure(index, SearchParameters(nprobe=point.parameters.nprobe - 1), truth)
    assert less.sure_recall < 0.9


def test_a_small_collection_is_exact_or_hnsw_and_nothing_is_trained() -> None:
    vectors = clustered(1500)
    choice = choose(vectors)
    assert {one.factory for one in choice.table} == {"Flat", "HNSW32"}
    assert choice.reached
    assert choice.chosen.recall >= 0.95
    assert (choice.rows, choice.sample_rows, choice.queries) == (1500, 1500, 150)
    assert sum(one.note == "chosen" for one in choice.table) == 1


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_a_handful_of_vectors_is_enough(rows: int) -> None:
    assert choose(clustered(rows)).reached


def test_the_fastest_that_reaches_the_target_is_chosen_from_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("embedkit.index.storage.faiss_index.AUTO_IVF_ROWS", 2000)
    vectors = clustered(4000)
    told: list[str] = []
    choice = choose(vectors, target_recall=0.9, progress=told.append)
    assert told == candidates(4000, 16) == [one.factory for one in choice.table]
    assert all(one.recall is not None for one in choice.table)
    good = [one for one in choice.table if one.note in ("", "chosen")]
    assert all(one.recall >= 0.9 for one in good)
    assert choice.chosen.ms == min(one.ms for one in good)
    restored = json.loads(json.dumps(choice.to_dict()))
    assert restored["chosen"]["factory"] == choice.chosen.factory
    assert len(restored["table"]) == len(choice.table)
    assert "(chosen)" in "\n".join(table_of(choice.to_dict()))
    for one in choice.table:  # each can be built for all vectors with the setting it was measured with
        index = create_index(one.factory, 16)
        index.train(vectors)
        index.add(vectors)
        apply(index, one.parameters)
        found = index.search(vectors[:300], 10)[1]
        assert true(vectors, vectors[:300]).recalls(found)[0] > one.recall - 0.1, one.factory


def test_extrapolated_figures_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedkit.index.storage.faiss_index.AUTO_IVF_ROWS", 2000)
    monkeypatch.setattr("embedkit.index.auto.choice.SAMPLE_ROWS", 4000)
    monkeypatch.setattr("embedkit.index.auto.choice.QUERIES", 200)
    choice = choose(clustered(8400), target_recall=0.9)
    flat, inverted = choice.table[:2]
    assert (choice.sample_rows, choice.queries) == (4000, 200)
    assert flat.ms == pytest.approx(flat.sample_ms * 2.1)
    assert inverted.sample_ms <= inverted.ms <= inverted.sample_ms * 2.1
    assert inverted.parameters.nprobe <= 256
    assert inverted.bytes == pytest.approx(8400 * (16 * 4 + 8), rel=0.1)
    assert "~" in "\n".join(table_of(choice.to_dict()))


def test_memory_bounds_the_choice() -> None:
    vectors = clustered(3000)
    choice = choose(vectors, max_memory=3000 * 16 * 4 + 1000)
    assert choice.chosen.factory == "Flat"
    assert choice.table[1].note == "over the memory allowed"
    with pytest.raises(
        ValueError, match=r"no index of 3,000 vectors of 16 dimensions fits 1,000 bytes: allow"
    ):
        choose(vectors, max_memory=1000)


def test_a_target_that_nothing_within_memory_reaches_takes_the_best_and_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("embedkit.index.storage.faiss_index.AUTO_IVF_ROWS", 2000)
    with caplog.at_level(logging.WARNING, "embedkit"):
        choice = choose(clustered(4000), target_recall=1.0, max_memory=6000 * 34)
    assert not choice.reached
    assert "SQ8" in choice.chosen.factory
    assert "no index reaches recall@10 1" in caplog.text


def test_after_the_time_limit_only_flat_and_plain_ivf_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedkit.index.storage.faiss_index.AUTO_IVF_ROWS", 2000)
    choice = choose(clustered(4000), seconds=0)
    assert [one.recall is not None for one in choice.table] == [True, True] + [False] * (
        len(choice.table) - 2
    )
    assert {one.note for one in choice.table[2:]} == {"not tried: out of time"}


def test_the_plot_shows_the_frontier(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    points = [
        Point(SearchParameters(nprobe=n), r, r, t)
        for n, r, t in [(1, 0.5, 0.1), (2, 0.4, 0.2), (3, 0.9, 0.3)]
    ]
    assert [point.parameters.nprobe for point in frontier(points)] == [1, 3]
    plot(tmp_path / "a.png", {"one": points}, target=0.8, title="title", chosen=points[2])
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
