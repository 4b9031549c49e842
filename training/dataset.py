"""The tokenized examples of a recipe, and their batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..forking import cached_property
from .data.readers import Table
from .data.sampler import TaskSampler
from .data.store import TextStore
from .data.texts import Chain, distinct, text_keys
from .objectives.base import Arrays, Batch, Objective

__all__ = ["Examples", "Repeated"]


class Examples:
    """The examples of all tasks, numbered one task after another.

    Attributes:
        tasks: task name -> the range of its examples.
        lengths: (examples,) tokens of all texts of an example, for the sampler.
    """

    def __init__(
        self,
        objective: Objective,
        tables: Mapping[str, Table],
        folder: Path,
        max_length: int,
        cache: Path,
        *,
        prompts: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """Tokenize the texts and let the objective prepare the other content of batches.

        ``prompts``: task -> field -> text that the model reads before the field's texts; teachers do not.

        Raises:
            ValueError: a prompt is of a field that its task does not have.
        """
        self._objective = objective
        columns: list[Sequence[str]] = []
        prefixes: list[str] = []
        self.tasks: dict[str, range] = {}
        self._shapes: list[tuple[int, int]] = []  # of each task: fields, examples
        start = 0
        for task, table in tables.items():
            self.tasks[task] = range(start, start + len(table))
            start += len(table)
            fields = objective.fields_of(task, table)
            own = (prompts or {}).get(task, {})
            if unknown := sorted(set(own) - set(fields)):
                raise ValueError(f"{task}: prompts names {unknown[0]!r}; the fields are {', '.join(fields)}")
            self._shapes.append((len(fields), len(table)))
            for field in fields:
                columns.append(table.texts(field))
                prefixes.append(own.get(field, ""))
        encoder = objective.encoder
        self._store = TextStore(
            folder,
            Chain(columns, prefixes),
            max_length,
            cache,
            vectors=encoder.backbone.config.vocab_size,
            lowercase_first=getattr(encoder, "lowercase_first", False),
        )
        self._bare = Chain(columns) if any(prefixes) else None  # the texts without prompts, if others
        self._texts = self._by_task(self._store.rows)  # of each task (examples, fields): rows of the store
        self.lengths: npt.NDArray[np.int64] = np.concatenate(
            [self._store.lengths[rows].sum(1) for rows in self._texts]
        )
        self._arrays: list[Arrays] = [objective.prepare(task, table, cache) for task, table in tables.items()]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> int:
        return index  # the DataLoader's collate_fn builds a batch from its numbers

    @property
    def truncated(self) -> int:
        """The number of texts that were truncated."""
        return self._store.truncated

    def arrays(self, task: str) -> Arrays:
        """The arrays that the objective prepared for a task."""
        return self._arrays[list(self.tasks).index(task)]

    def text_numbers(self, task: str) -> npt.NDArray[np.int64]:
        """The numbers of each example's texts, (examples, fields); equal texts have equal numbers in any field."""
        number = list(self.tasks).index(task)
        return self._texts[number] if self._bare is None else self._bare_numbers[number]

    @cached_property
    def _bare_numbers(self) -> list[npt.NDArray[np.int64]]:
        assert self._bare is not None
        return self._by_task(distinct(text_keys(self._bare))[1])

    def _by_task(self, values: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """The values of all texts, field after field of a task, as (examples, fields) of each task."""
        ends = np.cumsum([count * rows for count, rows in self._shapes])
        parts = np.split(values, ends[:-1])
        return [part.reshape(shape).T for part, shape in zip(parts, self._shapes, strict=True)]

    def batch(self, indices: Sequence[int]) -> Batch:
        """The batch of some examples of one task."""
        import torch

        number = next(i for i, span in enumerate(self.tasks.values()) if indices[0] in span)
        span = list(self.tasks.values())[number]
        own = np.asarray(indices, np.int64) - span.start
        arrays = {name: array[own] for name, array in self._arrays[number].items()}
        batch = self._objective.collate(self._store, self._texts[number][own], arrays)
        return {"task": torch.tensor(number), **batch}


class Repeated:
    """Several epochs of a sampler as one, so that a resumed run only skips batches."""

    def __init__(self, sampler: TaskSampler, epochs: int) -> None:
        """``epochs`` times the batches of ``sampler``."""
        self._sampler = sampler
        self._epochs = epochs

    def __len__(self) -> int:
        return self._epochs * len(self._sampler)

    def __iter__(self) -> Iterator[list[int]]:
        for epoch in range(self._epochs):
            self._sampler.set_epoch(epoch)
            yield from self._sampler
