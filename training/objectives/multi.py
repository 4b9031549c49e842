"""Several losses on one encoder: each data set of a recipe has its own.

    objective:
      name: multi
      losses:
        nli: {name: sbert}
        questions: {name: simcse, hard_negatives: false}

A batch is of one task, and its loss is that of the task's objective; `training.schedule` orders the tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from ..data.readers import Table
from ..model import SentenceModel
from . import OBJECTIVES, objective_class
from .base import Arrays, Objective, check_choice

__all__ = ["Multi", "MultiOptions"]


@dataclass(frozen=True)
class MultiOptions:
    """Options of `Multi`.

    Attributes:
        losses: task of ``data`` -> its objective: ``name`` and options, as in the section ``objective`` of a recipe.
    """

    losses: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the values."""
        if not self.losses:
            raise ValueError("objective.losses is empty; give each task of data its objective")
        self.built()

    def built(self) -> dict[str, tuple[type[Objective], Any]]:
        """Task -> the class of its objective and checked options."""
        from ..recipe import build

        found: dict[str, tuple[type[Objective], Any]] = {}
        for task, given in self.losses.items():
            section = f"losses.{task}"
            options = dict(given)
            name = str(options.pop("name", None))
            check_choice(f"{section}.name", name, [one for one in sorted(OBJECTIVES) if one != "multi"])
            kind = objective_class(name)
            shared = kind.collate is Objective.collate and kind.load_encoder.__func__ is _LOAD  # type: ignore[attr-defined]
            if not shared:
                raise ValueError(
                    f"objective.{section}: {name} does not train sentence vectors by itself alone"
                )
            found[task] = (kind, build(kind.Options, options, f"objective.{section}"))
        return found


class Multi(Objective):
    """One encoder, an objective for each task."""

    Options: ClassVar[type[Any]] = MultiOptions
    drop_last: ClassVar[bool] = True
    options: MultiOptions
    encoder: SentenceModel

    def __init__(self, encoder: SentenceModel, options: MultiOptions, tables: Mapping[str, Table]) -> None:
        """Create the objectives of the tasks."""
        super().__init__(encoder, options, tables)
        if set(options.losses) != set(tables):
            raise ValueError(
                f"objective.losses are of {', '.join(options.losses)} and data of {', '.join(tables)}; "
                "give each task of data its objective"
            )
        built = options.built()
        self.losses: dict[str, Objective] = {}
        for task, table in tables.items():
            kind, own = built[task]
            loss = kind(encoder, own, {task: table})
            # the encoder is a module of this one; twice, checkpoints would contain it twice
            del loss._modules["encoder"]
            object.__setattr__(loss, "encoder", encoder)
            self.losses[task] = loss
        similarities = {loss.similarity for loss in self.losses.values()}
        self.similarity = similarities.pop() if len(similarities) == 1 else None
        # by number: torch refuses some names of tasks, such as "train"
        self.losses_of_tasks = nn.ModuleList(self.losses.values())

    @classmethod
    def expand(
        cls, options: MultiOptions, tables: Mapping[str, Table], root: Path, cache: Path
    ) -> dict[str, Table]:
        """See `Objective.expand`."""
        built = options.built()
        expanded = dict(tables)
        for task, (kind, own) in built.items():
            if task in tables:
                expanded[task] = kind.expand(own, {task: tables[task]}, root, cache)[task]
        return expanded

    def _of(self, task: str) -> Objective:
        if task not in self.losses:
            raise ValueError(
                f"evaluation.dev.{task}: data has no task of this name, whose objective would score it"
            )
        return self.losses[task]

    def fields_of(self, task: str, table: Table) -> tuple[str, ...]:
        """See `Objective.fields_of`."""
        return self._of(task).fields_of(task, table)

    def check(self, where: str, task: str, table: Table) -> None:
        """See `Objective.check`."""
        self._of(task).check(where, task, table)

    def check_scale(self, tables: Mapping[str, Table], section: str = "objective") -> None:
        """See `Objective.check_scale`."""
        for task, loss in self.losses.items():
            loss.check_scale({task: tables[task]}, f"{section}.losses.{task}")

    def prepare(self, task: str, table: Table, cache: Path) -> Arrays:
        """See `Objective.prepare`."""
        return self._of(task).prepare(task, table, cache)

    def prepared(self) -> None:
        """See `Objective.prepared`."""
        for task in self.tasks:
            self._of(task).prepared()

    def forward(
        self, task: Tensor, input_ids: Tensor, cu_seqlens: Tensor, **targets: Tensor
    ) -> dict[str, Tensor]:
        """See `Objective.forward`."""
        loss = self._of(self.tasks[int(task)])
        loss.progress, loss.mini_batch_size = self.progress, self.mini_batch_size
        return loss(task=task.new_zeros(()), input_ids=input_ids, cu_seqlens=cu_seqlens, **targets)

    def score(self, task: str, outputs: Arrays, arrays: Arrays) -> dict[str, float]:
        """See `Objective.score`."""
        return self._of(task).score(task, outputs, arrays)


_LOAD = Objective.load_encoder.__func__  # type: ignore[attr-defined]
