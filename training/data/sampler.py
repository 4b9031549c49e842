"""The order of batches: shuffled, bucketed by length, from one or several tasks, deterministic.

A sampler is a plain iterable of lists of indices, for the ``batch_sampler`` of a torch DataLoader. Its batches
depend only on the seed, the epoch, the lengths of the data and, where shares must come out equal, the number of
processes: a run resumes exactly by setting the epoch and skipping the batches it has seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from .spread import spread_repeated

__all__ = [
    "Schedule",
    "TaskRows",
    "TaskSampler",
    "annealed_probabilities",
    "balanced_fraction",
    "balanced_weights",
]

Schedule = Literal["sequential", "round_robin", "proportional", "annealed"]
Indices = npt.NDArray[np.int64]

_MEGABATCH = 50  # batches whose texts are sorted together
_SPREAD = 1024  # batches at most over which repeated texts are spread: a text has a bit for each
_ORDER = 1 << 20  # random stream for the order of tasks; the streams of the tasks are their numbers


@dataclass(frozen=True)
class TaskRows:
    """How the examples of a task are drawn.

    Attributes:
        indices: (n,) of its examples.
        weights: (n,), proportional to the probability of each example; None sees each once a pass. With weights, a
            pass draws with replacement, as torch's ``WeightedRandomSampler``.
        draws: examples that a pass with weights draws; None for n.
        texts: (n, fields), numbers of each example's texts: a batch then holds no text twice, in any field.
    """

    indices: Sequence[int] | Indices
    weights: npt.NDArray[np.float64] | None = None
    draws: int | None = None
    texts: npt.NDArray[np.integer[Any]] | None = None


class TaskSampler:
    """Batches of texts of similar length, to save padding, each from a single task.

    A pass over a task is shuffled, cut into megabatches of 50 batches, each sorted by length and cut into batches;
    then the batches are shuffled. With ``batch_tokens``, batches have about as many tokens each, and so fewer texts the
    longer they are.

    With several processes, each global batch is split into equal contiguous shares, one per process, so that the
    batches are those of a single process. Only two things depend on the number of processes: up to ``world_size - 1``
    random indices are dropped in a pass whose last batch is partial, and with ``batch_tokens``, batches are cut at
    multiples of ``world_size`` examples.

    A schedule determines how many batches of each task an epoch has (its quota) and their order:

    * ``sequential``: all batches of the first task, then all of the second, …
    * ``round_robin``: one batch of each task in turn. An epoch ends when the largest task has been seen once;
      smaller ones are repeated.
    * ``proportional``: in random order, tasks in proportion to their number of batches.
    * ``annealed``: in random order, by `annealed_probabilities` of the numbers of batches (Stickland & Murray
      2019): proportional at first, nearly uniform in the last epoch.

    Quotas are rounded expected counts, not random draws: the same mean without the variance. A task continues in
    the next epoch where it stopped, and is reshuffled whenever it starts over, so that all its indices are seen
    equally often, plus or minus one.
    """

    def __init__(
        self,
        lengths: npt.ArrayLike,
        tasks: Mapping[str, Sequence[int] | Indices | TaskRows],
        batch_size: int,
        schedule: Schedule,
        *,
        epochs: int = 1,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        batch_tokens: int | None = None,
    ) -> None:
        """Prepare epoch 0.

        Args:
            lengths: (n,), tokens of each example of all tasks.
            tasks: name -> its examples: a range, the result of `balanced_fraction`, or `TaskRows`.
            batch_size: of the global batch, over all processes; not used with ``batch_tokens``.
            schedule: see the class.
            epochs: over which ``annealed`` anneals; later epochs are like the last.
            seed: of the order.
            drop_last: leave out the partial batch of a task; its indices are random.
            rank: number of this process.
            world_size: number of processes.
            batch_tokens: mean tokens of a global batch, in place of ``batch_size``; None for that.

        Raises:
            ValueError: a number is out of range, `batch_size` is not a multiple of `world_size`, a task has no
                batch or an index out of range, or the schedule is unknown.
        """
        self._plan = _Plan(
            lengths,
            batch_size,
            seed=seed,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
            batch_tokens=batch_tokens,
        )
        if schedule not in get_args(Schedule):
            raise ValueError(f"schedule={schedule!r}: give one of {', '.join(get_args(Schedule))}")
        if not tasks:
            raise ValueError("there is no task; give at least one")
        self.names = tuple(tasks)
        self.schedule: Schedule = schedule
        self.epochs = _positive("epochs", epochs)
        self._tasks = [_rows(rows) for rows in tasks.values()]
        for name, rows in zip(self.names, self._tasks, strict=True):
            self._plan.check(f"the task {name!r}", rows)
        #: Batches of a pass over each task.
        self.batches = {
            name: self._plan.batches(rows) for name, rows in zip(self.names, self._tasks, strict=True)
        }
        self._sizes = np.array(list(self.batches.values()))
        total = int(self._sizes.sum())
        rounds = len(self._sizes) * int(self._sizes.max())
        self.steps_per_epoch = rounds if schedule == "round_robin" else total
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch (from 0) of the next iteration."""
        self.epoch = _not_negative("epoch", epoch)

    def __len__(self) -> int:
        """Batches of an epoch; the same for every epoch."""
        return self.steps_per_epoch

    def quotas(self, epoch: int) -> dict[str, int]:
        """How many batches of each task an epoch has."""
        return dict(zip(self.names, self._quotas(epoch).tolist(), strict=True))

    def __iter__(self) -> Iterator[list[int]]:
        """This process's share of each batch of the epoch."""
        epoch = self.epoch
        quotas = self._quotas(epoch)
        streams = [
            self._stream(task, sum(int(self._quotas(before)[task]) for before in range(epoch)))
            for task in range(len(self._tasks))
        ]
        for task in self._order(quotas, epoch):
            yield self._plan.share(next(streams[task]))

    def _quotas(self, epoch: int) -> Indices:
        if self.schedule == "sequential":
            return self._sizes
        if self.schedule == "round_robin":
            return np.full(len(self._sizes), self._sizes.max())
        if self.schedule == "proportional":
            probabilities = self._sizes / self._sizes.sum()
        else:
            probabilities = annealed_probabilities(self._sizes, min(epoch, self.epochs - 1), self.epochs)
        return _rounded(self.steps_per_epoch * probabilities)

    def _order(self, quotas: Indices, epoch: int) -> Indices:
        """The task of each step."""
        if self.schedule == "round_robin":
            return np.arange(self.steps_per_epoch) % len(quotas)
        order = np.repeat(np.arange(len(quotas)), quotas)
        return order if self.schedule == "sequential" else self._plan.random(_ORDER, epoch).permutation(order)

    def _stream(self, task: int, position: int) -> Iterator[Indices]:
        """The endless batches of a task, starting at a position."""
        number, skipped = divmod(position, int(self._sizes[task]))
        while True:
            yield from self._plan.pass_over(self._tasks[task], task, number)[skipped:]
            number, skipped = number + 1, 0


def annealed_probabilities(sizes: npt.ArrayLike, epoch: int, epochs: int) -> npt.NDArray[np.float64]:
    """Annealed sampling: p_i ∝ N_i^α with α = 1 − 0.8 (e − 1) / (E − 1).

    Source: Stickland & Murray 2019, BERT and PALs, section 3.3, where epochs count from 1.

    Args:
        sizes: (tasks,), N_i.
        epoch: e − 1, from 0.
        epochs: E; with one epoch α is 1.
    """
    alpha = 1 - 0.8 * epoch / max(1, epochs - 1)
    weights = np.asarray(sizes, np.float64) ** alpha
    probabilities: npt.NDArray[np.float64] = weights / weights.sum()
    return probabilities


def balanced_fraction(labels: npt.ArrayLike, fraction: float, *, seed: int = 0) -> Indices:
    """Draw a fraction of a task with equally many examples of each label; deterministic for a seed.

    Args:
        labels: (n,), the class of each example.
        fraction: of all n examples, in (0, 1].
        seed: of the draw.

    Returns:
        Indices, ascending: ``round(fraction * n / classes)`` of each label.

    Raises:
        ValueError: the fraction is out of range, or a label has too few examples for it.
    """
    values = np.asarray(labels)
    if not 0 < fraction <= 1:
        raise ValueError(f"the fraction {fraction} is not in (0, 1]")
    classes, counts = np.unique(values, return_counts=True)
    each = round(fraction * len(values) / max(1, len(classes)))
    if not each:
        raise ValueError(
            f"a fraction of {fraction} of {len(values)} examples is none of each label; give more"
        )
    if counts.min() < each:
        most = int(counts.min()) * len(classes) / len(values)
        raise ValueError(
            f"a balanced fraction of {fraction} needs {each} examples of each label, and the label "
            f"{classes[counts.argmin()]} has {counts.min()}; give a fraction of at most {most:.4g}"
        )
    random = np.random.default_rng(seed)
    drawn = [random.choice(np.flatnonzero(values == label), each, replace=False) for label in classes]
    return np.sort(np.concatenate(drawn)).astype(np.int64)


def balanced_weights(labels: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """A weight for each example, (n,): one over the number of examples with its label, for `TaskRows`."""
    _, inverse, counts = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    weights: npt.NDArray[np.float64] = 1 / counts[inverse]
    return weights


class _Plan:
    """How the indices of a task become batches."""

    def __init__(
        self,
        lengths: npt.ArrayLike,
        batch_size: int,
        *,
        seed: int,
        drop_last: bool,
        rank: int,
        world_size: int,
        batch_tokens: int | None = None,
    ) -> None:
        self._batch_tokens = None if batch_tokens is None else _positive("batch_tokens", batch_tokens)
        self.lengths = np.asarray(lengths)
        if self.lengths.ndim != 1:
            raise ValueError(f"lengths is of shape {self.lengths.shape}; give one number for each example")
        self.batch_size = _positive("batch_size", batch_size)
        self._seed = _not_negative("seed", seed)
        self._drop_last = drop_last
        self._world_size = _positive("world_size", world_size)
        self._rank = _not_negative("rank", rank)
        if rank >= world_size:
            raise ValueError(f"rank={rank}: with world_size={world_size} ranks end at {world_size - 1}")
        if batch_tokens is None and batch_size % world_size:
            raise ValueError(
                f"batch_size={batch_size} is the global batch size and not a multiple of the {world_size} processes; "
                f"give {-(-batch_size // world_size) * world_size}"
            )

    def check(self, name: str, rows: _Rows) -> None:
        if len(rows.indices) and not 0 <= rows.indices.min() <= rows.indices.max() < len(self.lengths):
            raise ValueError(f"{name} has an index outside of the {len(self.lengths)} examples")
        if rows.texts is not None and self._batch_tokens is not None:
            raise ValueError(
                f"{name}: batches of batch_tokens may hold a text twice; give batch_size instead"
            )
        if not self.batches(rows):
            raise ValueError(
                f"{name} has {rows.draws} examples and no whole batch of {self.batch_size}; "
                "give more data, or a smaller batch_size"
            )

    def random(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, *stream])

    def batches(self, rows: _Rows) -> int:
        used = self._used(rows)
        if self._batch_tokens is None:
            return -(-used // self.batch_size)
        tokens = used * float(self.lengths[rows.indices].mean()) if used else 0.0
        return min(used // self._world_size, math.ceil(tokens / self._batch_tokens))

    def share(self, batch: Indices) -> list[int]:
        size = len(batch) // self._world_size
        share: list[int] = batch[self._rank * size : (self._rank + 1) * size].tolist()
        return share

    def pass_over(self, rows: _Rows, task: int, number: int) -> list[Indices]:
        """All batches of one pass over a task."""
        random = self.random(task, number)
        # Dropped indices are cut off here, before sorting: otherwise they would be the longest texts.
        if rows.weights is None:
            drawn = random.permutation(len(rows.indices))[: self._used(rows)]
        else:
            drawn = random.choice(len(rows.indices), self._used(rows), p=rows.weights)
        if self._batch_tokens is not None:
            batches = self._by_tokens(rows.indices[drawn], self.batches(rows))
            return [batches[i] for i in random.permutation(len(batches))]
        span = _MEGABATCH * self.batch_size
        for start in range(0, len(drawn), span):
            block = drawn[start : start + span]
            drawn[start : start + span] = block[np.argsort(-self.lengths[rows.indices[block]], kind="stable")]
        if rows.texts is not None:
            self._spread(drawn, rows.texts)
        ordered = rows.indices[drawn]
        batches = [ordered[at : at + self.batch_size] for at in range(0, len(ordered), self.batch_size)]
        return [batches[i] for i in random.permutation(len(batches))]

    def _spread(self, drawn: Indices, texts: npt.NDArray[np.integer[Any]]) -> None:
        """Spread repeated texts over batches, in place: over all of them, or over equal parts of a long pass."""
        count = -(-len(drawn) // self.batch_size)
        parts = -(-count // _SPREAD)
        cuts = [part * count // parts * self.batch_size for part in range(parts)] + [len(drawn)]
        for start, end in pairwise(cuts):
            drawn[start:end] = spread_repeated(drawn[start:end], texts, self.batch_size)

    def _by_tokens(self, drawn: Indices, count: int) -> list[Indices]:
        """``count`` batches, those of a megabatch with about as many tokens each, at least a text a process."""
        batches: list[Indices] = []
        units, world = len(drawn) // self._world_size, self._world_size
        parts = -(-count // _MEGABATCH)
        for part in range(parts):
            first, last = part * count // parts, (part + 1) * count // parts
            own = last - first
            block = drawn[first * units // count * world : last * units // count * world]
            block = block[np.argsort(-self.lengths[block], kind="stable")]
            tokens = self.lengths[block].reshape(-1, world).sum(1).cumsum()
            cuts = np.searchsorted(tokens, tokens[-1] * np.arange(1, own) / own) + 1
            number = np.arange(1, own)
            # each batch has a unit at least: from the left, then from the right
            cuts = np.maximum.accumulate(cuts - number) + number
            cuts = np.minimum(cuts, len(tokens) - own + number)
            batches += np.split(block, cuts * world)
        return batches

    def _used(self, rows: _Rows) -> int:
        """How many indices a pass yields."""
        if self._batch_tokens is not None:
            return rows.draws // self._world_size * self._world_size
        unit = self.batch_size if self._drop_last else self._world_size
        return rows.draws // unit * unit


@dataclass(frozen=True)
class _Rows:
    """`TaskRows`, checked: probabilities in place of weights."""

    indices: Indices
    weights: npt.NDArray[np.float64] | None
    draws: int
    texts: npt.NDArray[np.integer[Any]] | None


def _rows(given: Sequence[int] | Indices | TaskRows) -> _Rows:
    if not isinstance(given, TaskRows):
        given = TaskRows(given)
    indices = np.asarray(given.indices, np.int64)
    weights = given.weights
    if weights is not None:
        if len(weights) != len(indices) or not weights.sum() > 0 or weights.min() < 0:
            raise ValueError(
                f"{len(weights)} weights for {len(indices)} examples; give each one from 0, not all of them 0"
            )
        weights = weights / weights.sum()
    draws = len(indices) if given.draws is None or weights is None else given.draws
    return _Rows(indices, weights, draws, given.texts)


def _rounded(expected: npt.NDArray[np.float64]) -> Indices:
    """Integers of the same sum, by largest remainder; the first of equal remainders wins."""
    counts = np.floor(expected + 1e-9).astype(np.int64)
    missing = round(float(expected.sum())) - int(counts.sum())
    counts[np.argsort(-(expected - counts), kind="stable")[:missing]] += 1
    return counts


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name}={value}: give 1 or more")
    return value


def _not_negative(name: str, value: int) -> int:
    if value < 0:
        raise ValueError(f"{name}={value}: give 0 or more")
    return value
