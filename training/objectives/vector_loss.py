"""Shared by objectives whose loss depends on the vectors of a batch alone: Matryoshka, and their dev scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ..data.readers import Table
from ..model import SentenceModel
from .base import Arrays, Objective, check_matryoshka, check_positive, check_scores, spearman_percent

__all__ = [
    "ScoredPairs",
    "ScoredPairsOptions",
    "VectorLoss",
    "VectorOptions",
    "check_negatives",
    "negative_fields",
]


def check_negatives(count: int, hard_negatives: bool = True) -> None:
    """Check the options ``negatives`` and ``hard_negatives`` of an objective.

    Raises:
        ValueError: the number is not positive, or it is given while there are no hard negatives.
    """
    if count < 1:
        raise ValueError(f"objective.negatives must be positive, not {count}")
    if count > 1 and not hard_negatives:
        raise ValueError(
            f"objective.negatives is {count}, but objective.hard_negatives is false: set it to true, or remove "
            "objective.negatives"
        )


def negative_fields(count: int) -> tuple[str, ...]:
    """The fields of an example's hard negatives: ``negative``, or ``negative_1``, ``negative_2``, ... of several."""
    return ("negative",) if count == 1 else tuple(f"negative_{i}" for i in range(1, count + 1))


@dataclass(frozen=True)
class VectorOptions:
    """Options of every `VectorLoss`.

    Attributes:
        matryoshka: dimensions to which the vectors can be truncated: the loss is the mean over them and all (Kusupati
            et al. 2022, arXiv:2205.13147, equation 1 with equal weights).
    """

    matryoshka: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check the values."""
        check_matryoshka(self.matryoshka)


class VectorLoss(Objective):
    """A subclass implements `loss`."""

    Options: ClassVar[type[Any]] = VectorOptions
    encoder: SentenceModel

    def __init__(self, encoder: SentenceModel, options: Any, tables: Mapping[str, Table]) -> None:
        """See `Objective`."""
        super().__init__(encoder, options, tables)
        check_matryoshka(options.matryoshka, encoder.dimension)

    @abstractmethod
    def loss(self, vectors: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        """The loss of vectors (fields, batch, dimension), a scalar; ``targets`` are the arrays of `prepare`."""

    def forward(
        self, task: Tensor, input_ids: Tensor, cu_seqlens: Tensor, **targets: Tensor
    ) -> dict[str, Tensor]:
        """See `Objective.forward`; in inference mode without the loss, whose targets dev data may lack."""
        vectors = self.encode(input_ids, cu_seqlens)
        if torch.is_inference_mode_enabled():
            return {"similarity": self.compare(vectors)}
        widths = (*self.options.matryoshka, vectors.shape[-1])
        loss = torch.stack([self.loss(vectors[..., :width], targets) for width in widths]).mean()
        return {"loss": loss, "similarity": self.compare(vectors)}

    def compare(self, vectors: Tensor) -> Tensor:
        """The similarities (batch, fields - 1) of the first text with the others, by which dev data are scored."""
        return functional.cosine_similarity(vectors[0], vectors[1:], dim=-1).t()

    def score(self, task: str, outputs: Arrays, arrays: Arrays) -> dict[str, float]:
        """The share of examples whose positive is nearer than all hard negatives; empty without hard negatives."""
        if len(self.fields) < 3:
            return {}
        similarity = outputs["similarity"]
        return {"accuracy": 100 * float((similarity[:, 0] > similarity[:, 1:].max(1)).mean())}


@dataclass(frozen=True)
class ScoredPairsOptions(VectorOptions):
    """Options of `ScoredPairs`.

    Attributes:
        scale: of the similarities.
    """

    scale: float = 20.0

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        check_positive("scale", self.scale)


class ScoredPairs(VectorLoss):
    """Pairs of texts with a score of any range in the field ``label``."""

    Options: ClassVar[type[Any]] = ScoredPairsOptions
    options: ScoredPairsOptions

    def check(self, where: str, task: str, table: Table) -> None:
        """See `Objective.check`."""
        check_scores(where, table, None)

    def score(self, task: str, outputs: Arrays, arrays: Arrays) -> dict[str, float]:
        """Spearman's correlation of the cosine with the score."""
        return {"spearman": spearman_percent(outputs["similarity"][:, 0], arrays["label"])}
