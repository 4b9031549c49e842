"""Shared by the distillation of rankings from a cross-encoder: its scores of the anchor with positive and negatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ..data.readers import Table
from ..model import SentenceModel
from .base import Arrays
from .teachers import teacher_outputs
from .vector_loss import VectorLoss, VectorOptions, check_negatives, negative_fields

__all__ = ["TripletDistillation", "TripletDistillationOptions", "dot_scores"]


def dot_scores(vectors: Tensor) -> Tensor:
    """The dot products (batch, 1 + k) of the anchor with positive and negatives: vectors (2 + k, batch, dimension)."""
    return (vectors[0] * vectors[1:]).sum(-1).t()


@dataclass(frozen=True)
class TripletDistillationOptions(VectorOptions):
    """Options of `TripletDistillation`.

    Attributes:
        teacher: folder or Hub name of a cross-encoder with one score.
        teacher_max_length: maximum number of tokens of its pairs.
        negatives: k: the field ``negative``, or ``negative_1``, ``negative_2``, ... of several.
    """

    teacher: str = ""
    teacher_max_length: int = 256
    negatives: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if not self.teacher:
            raise ValueError("objective.teacher is missing; name a cross-encoder")
        check_negatives(self.negatives)


class TripletDistillation(VectorLoss):
    """Examples with a teacher's scores (batch, 1 + k), logits, as the target ``scores``."""

    Options: ClassVar[type[Any]] = TripletDistillationOptions
    options: TripletDistillationOptions
    similarity = "dot"

    def __init__(
        self, encoder: SentenceModel, options: TripletDistillationOptions, tables: Mapping[str, Table]
    ) -> None:
        """See `Objective`."""
        super().__init__(encoder, options, tables)
        self.fields = ("anchor", "positive", *negative_fields(options.negatives))

    def compare(self, vectors: Tensor) -> Tensor:
        """See `VectorLoss.compare`."""
        return dot_scores(vectors)

    def prepare(self, task: str, table: Table, cache: Path) -> Arrays:
        """The teacher's logits. Of dev data, whose scores need none, nothing."""
        if not self.is_training(table):
            return {}
        scores = []
        for field in self.fields[1:]:
            pairs = Table({"text1": table.texts("anchor"), "text2": table.texts(field)})
            scores.append(
                teacher_outputs(self.options.teacher, pairs, self.options.teacher_max_length, cache)
            )
        return {"scores": np.concatenate(scores, axis=1)}
