"""Samplers: properties that must hold for every size."""

from __future__ import annotations

import time
from collections import Counter
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from embedkit.training.data import sampler as module
from embedkit.training.data.sampler import (
    TaskRows,
    TaskSampler,
    annealed_probabilities,
    balanced_fraction,
    balanced_weights,
)
from embedkit.training.data.spread import spread_repeated

LENGTHS = np.random.default_rng(0).integers(1, 60, 503)
TASKS = {"a": range(300), "b": range(300, 480), "c": [480, 482, 490, 502]}


def one_task(lengths: Any, batch_size: int, **options: Any) -> TaskSampler:
    return TaskSampler(lengths, {"all": range(len(lengths))}, batch_size, "sequential", **options)


def tasks(schedule: Any, **options: Any) -> TaskSampler:
    return TaskSampler(LENGTHS, TASKS, 8, schedule, **options)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 100, 503])
@pytest.mark.parametrize("megabatch", [1, 3, 50])
def test_every_index_once_an_epoch(count: int, megabatch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MEGABATCH", megabatch)
    sampler = one_task(LENGTHS[:count], 8)
    seen = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert sorted(chain.from_iterable(batches)) == list(range(count))
        assert len(batches) == len(sampler) == -(-count // 8)
        seen.append(batches)
    assert count < 100 or seen[0] != seen[1]
    sampler.set_epoch(0)
    assert list(sampler) == seen[0]


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("budget", [1, 40, 256, 100_000])
@pytest.mark.parametrize("megabatch", [1, 3, 50])
def test_batches_of_as_many_tokens(
    budget: int, world: int, megabatch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MEGABATCH", megabatch)
    ranks = [
        one_task(LENGTHS[:500], 1, batch_tokens=budget, world_size=world, rank=rank) for rank in range(world)
    ]
    seen = []
    for epoch in range(2):
        for sampler in ranks:
            sampler.set_epoch(epoch)
        shares = [list(sampler) for sampler in ranks]
        assert sorted(chain.from_iterable(chain.from_iterable(shares))) == list(range(500))
        assert all(len({len(share) for share in step}) == 1 for step in zip(*shares, strict=True))
        whole = [list(chain(*step)) for step in zip(*shares, strict=True)]
        assert min(map(len, whole)) >= world
        assert len(whole) == len(ranks[0]) == min(500 // world, -(-int(LENGTHS[:500].sum()) // budget))
        if budget == 256 and megabatch == 50:
            tokens = [int(LENGTHS[batch].sum()) for batch in whole]
            assert max(tokens) - min(tokens) <= 2 * 60 * world
            widest = max(whole, key=len)
            assert len(widest) > 2 * min(map(len, whole))
        seen.append(whole)
    assert budget > 256 or seen[0] != seen[1]


@pytest.mark.parametrize("world", [1, 2])
def test_nearly_as_many_batches_as_texts(world: int) -> None:
    for rank in range(world):
        sampler = one_task(
            np.full(203 * world, 1000), 1, batch_tokens=1005 * world, world_size=world, rank=rank
        )
        assert min(len(batch) for batch in sampler) >= 1


def test_batches_of_tokens_may_repeat_texts() -> None:
    rows = TaskRows(range(8), texts=np.zeros((8, 1), np.int64))
    with pytest.raises(ValueError, match="may hold a text twice"):
        TaskSampler(np.ones(8), {"all": rows}, 8, "sequential", batch_tokens=4)


def test_drop_last_leaves_out_random_indices() -> None:
    missing: Counter[int] = Counter()
    sampler = one_task(LENGTHS, 8, drop_last=True)
    for epoch in range(30):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert {len(batch) for batch in batches} == {8}
        assert len(batches) == len(sampler) == 503 // 8
        missing.update(set(range(503)) - set(chain.from_iterable(batches)))
    assert abs(np.mean([LENGTHS[i] for i in missing.elements()]) - LENGTHS.mean()) < 6


def test_batches_hold_little_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    def padding(sampler: TaskSampler) -> float:
        padded = sum(len(batch) * LENGTHS[batch].max() for batch in sampler)
        return 1 - LENGTHS.sum() / padded

    assert padding(one_task(LENGTHS, 8)) < 0.08
    monkeypatch.setattr(module, "_MEGABATCH", 1)
    assert padding(one_task(LENGTHS, 8)) > 0.3


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("schedule", [None, "sequential", "round_robin", "proportional", "annealed"])
def test_two_processes_share_the_same_global_batches(schedule: str | None, drop_last: bool) -> None:
    lengths, parts = LENGTHS[:502], {"a": range(300), "b": range(300, 502)}

    def make(**options: Any) -> Any:
        if schedule is None:
            return one_task(lengths, 8, drop_last=drop_last, **options)
        return TaskSampler(lengths, parts, 8, schedule, drop_last=drop_last, **options)  # type: ignore[arg-type]

    halves = [list(make(rank=rank, world_size=2)) for rank in range(2)]
    assert [first + second for first, second in zip(*halves, strict=True)] == list(make())
    assert all(len(first) == len(second) for first, second in zip(*halves, strict=True))


def test_an_odd_rest_is_cut_for_two_processes() -> None:
    halves = [list(one_task(LENGTHS, 8, rank=rank, world_size=2)) for rank in range(2)]
    assert all(len(first) == len(second) for first, second in zip(*halves, strict=True))
    assert sum(map(len, chain(*halves))) == 502


@pytest.mark.parametrize("schedule", ["sequential", "round_robin", "proportional", "annealed"])
def test_batches_are_of_one_task_and_resume_exactly(schedule: Any) -> None:
    sampler = tasks(schedule, epochs=3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        names = [{name for name, part in TASKS.items() if i in part} for i in (batch[0] for batch in batches)]
        for batch, name in zip(batches, names, strict=True):
            assert len(name) == 1
            assert set(batch) <= set(TASKS[min(name)])
        assert Counter(min(name) for name in names) == Counter(sampler.quotas(epoch))
        fresh = tasks(schedule, epochs=3)
        fresh.set_epoch(epoch)
        assert list(islice(fresh, 5, None)) == batches[5:]


@pytest.mark.parametrize("schedule", ["sequential", "proportional"])
def test_every_index_of_every_task_once(schedule: Any) -> None:
    sampler = tasks(schedule)
    sampler.set_epoch(2)
    assert sorted(chain.from_iterable(sampler)) == sorted(chain.from_iterable(TASKS.values()))


def test_order_of_schedules() -> None:
    def name(batch: list[int]) -> str:
        return next(name for name, part in TASKS.items() if batch[0] in part)

    assert [name(batch) for batch in tasks("sequential")] == ["a"] * 38 + ["b"] * 23 + ["c"]
    robin = [name(batch) for batch in tasks("round_robin")]
    assert robin == ["a", "b", "c"] * 38


def test_a_task_continues_where_it_stopped() -> None:
    """Indices of a task are seen equally often over the epochs, give or take one."""
    sampler = tasks("annealed", epochs=4)
    seen: Counter[int] = Counter()
    for epoch in range(4):
        sampler.set_epoch(epoch)
        seen.update(chain.from_iterable(sampler))
    for part in TASKS.values():
        counts = [seen[i] for i in part]
        assert max(counts) - min(counts) <= 1


def test_annealed_formula() -> None:
    sizes = [1000, 10, 100]
    for epoch in range(5):
        weights = [n ** (1 - 0.8 * epoch / 4) for n in sizes]
        expected = [weight / sum(weights) for weight in weights]
        np.testing.assert_allclose(annealed_probabilities(sizes, epoch, 5), expected)
    np.testing.assert_allclose(annealed_probabilities(sizes, 0, 1), np.array(sizes) / sum(sizes))
    sampler = tasks("annealed", epochs=5)
    expected = 62 * annealed_probabilities([38, 23, 1], 4, 5)
    for epoch in (4, 9):
        assert np.abs(np.array(list(sampler.quotas(epoch).values())) - expected).max() < 1


def test_balanced_fraction() -> None:
    labels = np.array([0] * 700 + [1] * 300)
    drawn = balanced_fraction(labels, 0.25, seed=5)
    assert Counter(labels[drawn].tolist()) == {0: 125, 1: 125}
    assert len(set(drawn.tolist())) == 250
    assert drawn.tolist() == balanced_fraction(labels, 0.25, seed=5).tolist()
    assert drawn.tolist() != balanced_fraction(labels, 0.25, seed=6).tolist()
    with pytest.raises(ValueError, match=r"the label 1 has 300; give a fraction of at most 0.6"):
        balanced_fraction(labels, 0.7)
    for fraction in (0, 1.1, 1e-6):
        with pytest.raises(ValueError, match="fraction"):
            balanced_fraction(labels, fraction)


def test_weighted_draws_are_those_of_torch() -> None:
    """The same frequencies as WeightedRandomSampler's, whose numbers differ: it has a generator of its own."""
    torch = pytest.importorskip("torch")
    labels = np.array([0] * 450 + [1] * 53)
    weights = balanced_weights(labels)
    np.testing.assert_allclose([weights[labels == label].sum() for label in (0, 1)], 1)
    rows = TaskRows(range(503), weights, draws=128)
    sampler = TaskSampler(LENGTHS, {"all": rows}, 8, "sequential", seed=3)
    assert len(sampler) == 16
    counts, theirs = np.zeros(503), np.zeros(503)
    reference = torch.utils.data.WeightedRandomSampler(torch.tensor(weights), 128)
    for epoch in range(400):
        sampler.set_epoch(epoch)
        drawn = list(chain.from_iterable(sampler))
        assert len(drawn) == 128
        counts += np.bincount(drawn, minlength=503)
        theirs += np.bincount(list(reference), minlength=503)
    assert counts.max() > 400  # with replacement
    for found in (counts, theirs):
        assert abs(found[labels == 1].sum() / found.sum() - 0.5) < 0.01
    sampler.set_epoch(7)
    again = TaskSampler(LENGTHS, {"all": rows}, 8, "sequential", seed=3)
    again.set_epoch(7)
    assert list(sampler) == list(again)


def test_no_text_twice_in_a_batch() -> None:
    random = np.random.default_rng(0)
    texts = np.stack(
        [np.arange(503), 503 + random.integers(0, 80, 503)], axis=1
    )  # 80 positives, each several times
    plain = TaskSampler(LENGTHS, {"all": TaskRows(range(503))}, 8, "sequential")
    unique = TaskSampler(LENGTHS, {"all": TaskRows(range(503), texts=texts)}, 8, "sequential")

    def repeated(sampler: TaskSampler) -> int:
        return sum(len(batch) - len(set(texts[batch, 1].tolist())) for batch in sampler)

    assert repeated(plain) > 50
    assert repeated(unique) == 0
    assert sorted(chain.from_iterable(unique)) == list(range(503))
    assert [len(batch) for batch in unique].count(8) == 62
    # of texts that are in more examples than there are batches, only the rest is repeated
    crowded = np.stack([np.arange(16), np.array([99] * 5 + list(range(100, 111)))], axis=1)
    batches = list(TaskSampler(np.ones(16), {"all": TaskRows(range(16), texts=crowded)}, 8, "sequential"))
    assert sorted(chain.from_iterable(batches)) == list(range(16))
    assert sorted(sum(crowded[batch, 1] == 99) for batch in batches) in ([1, 4], [2, 3])


@pytest.mark.parametrize(("batches", "size", "each"), [(51, 16, 5), (63, 16, 60), (1100, 2, 30)])
def test_no_text_twice_in_any_of_many_batches(batches: int, size: int, each: int) -> None:
    """Also if the examples of a text are in a few batches after many, or in nearly all batches."""
    count = batches * size
    texts = np.stack([np.arange(count) + count, np.arange(count) // each], axis=1)
    lengths = np.random.default_rng(0).integers(1, 60, count)
    sampler = TaskSampler(lengths, {"all": TaskRows(range(count), texts=texts)}, size, "sequential")
    for epoch in range(5):
        sampler.set_epoch(epoch)
        found = list(sampler)
        assert sorted(chain.from_iterable(found)) == list(range(count))
        assert sum(len(batch) - len(set(texts[batch, 1].tolist())) for batch in found) == 0


def test_texts_in_more_examples_than_batches_cost_no_search() -> None:
    """20 positives in 6,400 examples; the search took 10 seconds. Each batch still holds all that it can."""
    random = np.random.default_rng(0)
    texts = np.stack([np.arange(6400) + 1000, random.integers(0, 20, 6400)], axis=1)
    sampler = TaskSampler(np.full(6400, 10), {"all": TaskRows(range(6400), texts=texts)}, 128, "sequential")
    begin = time.process_time()
    batches = list(sampler)
    assert time.process_time() - begin < 4
    assert sorted(chain.from_iterable(batches)) == list(range(6400))
    assert [len(set(texts[batch, 1].tolist())) for batch in batches] == [20] * 50


def test_an_example_that_is_drawn_twice_stands_in_two_batches() -> None:
    texts = np.arange(6)[:, None]
    block = np.array([0, 0, 1, 2, 3, 4, 4, 5])
    found = spread_repeated(block, texts, 4)
    assert sorted(found.tolist()) == sorted(block.tolist())
    assert len(set(found[:4].tolist())) == len(set(found[4:].tolist())) == 4


def test_weights_that_cannot_be_drawn_from() -> None:
    for weights in (np.zeros(503), np.ones(3), np.full(503, -1.0)):
        with pytest.raises(ValueError, match=r"weights for 503 examples; give each one from 0"):
            TaskSampler(LENGTHS, {"x": TaskRows(range(503), weights)}, 8, "sequential")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 9, "world_size": 2}, "give 10"),
        ({"rank": 2, "world_size": 2}, "ranks end at 1"),
        ({"batch_size": 504, "drop_last": True}, "no whole batch of 504"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_bad_numbers(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        one_task(LENGTHS, **{"batch_size": 8, **options})


def test_bad_tasks() -> None:
    with pytest.raises(ValueError, match="give one of sequential"):
        tasks("random")
    with pytest.raises(ValueError, match="task 'x' has an index outside"):
        TaskSampler(LENGTHS, {"x": [503]}, 8, "sequential")
    with pytest.raises(ValueError, match="task 'x' has 0 examples"):
        TaskSampler(LENGTHS, {"x": []}, 8, "sequential")
