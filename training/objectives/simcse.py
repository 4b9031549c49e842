"""Supervised SimCSE (Gao et al. 2021, arXiv:2104.08821, equation 5; HPD, arXiv:2203.07687, equation 1).

With cosine similarity sim, temperature t, a batch of N anchors h, positives h+ and hard negatives h-:

    loss_i = -log( e^(sim(h_i, h+_i) / t) / sum_j (e^(sim(h_i, h+_j) / t) + e^(sim(h_i, h-_j) / t)) )

over j = 1..N; without hard negatives the second term is omitted. With several processes, j runs over the batches of
all processes. HPD's baseline "Projection-d" is this objective with a linear layer after the pooling
(``model.projection``).

With ``matryoshka``, the loss is the mean over all components and over leading components alone, so that vectors can be
truncated (Kusupati et al. 2022, arXiv:2205.13147, equation 1 with equal weights).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ..data.readers import Table
from ..model import SentenceModel
from .base import check_positive, first_row, gather
from .vector_loss import VectorLoss, VectorOptions, check_negatives, negative_fields

__all__ = ["SimCse", "SimCseOptions", "contrastive_loss"]


def contrastive_loss(
    anchors: Tensor, positives: Tensor, negatives: Tensor | None, temperature: float
) -> Tensor:
    """The loss above, averaged over this process's anchors.

    Args:
        anchors, positives: (batch, dimension) of this process, of any length.
        negatives: (k * batch, dimension), the first hard negatives of all examples, then the second ones, ...
        temperature: t.
    """
    candidates = gather(functional.normalize(positives, dim=-1))
    if negatives is not None:
        candidates = torch.cat([candidates, gather(functional.normalize(negatives, dim=-1))])
    similarity = functional.normalize(anchors, dim=-1) @ candidates.t() / temperature
    own = torch.arange(len(anchors), device=anchors.device) + first_row(len(anchors))
    return functional.cross_entropy(similarity, own)


@dataclass(frozen=True)
class SimCseOptions(VectorOptions):
    """Options of `SimCse`.

    Attributes:
        temperature: t.
        hard_negatives: whether an example has hard negatives.
        negatives: how many: the field ``negative``, or ``negative_1``, ``negative_2``, ... of several.
    """

    temperature: float = 0.05
    hard_negatives: bool = True
    negatives: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        check_positive("temperature", self.temperature)
        check_negatives(self.negatives, self.hard_negatives)


class SimCse(VectorLoss):
    """In-batch negatives and optional hard negatives."""

    Options: ClassVar[type[Any]] = SimCseOptions
    drop_last: ClassVar[bool] = True
    options: SimCseOptions

    def __init__(self, encoder: SentenceModel, options: SimCseOptions, tables: Mapping[str, Table]) -> None:
        """See `Objective`."""
        super().__init__(encoder, options, tables)
        self.fields = ("anchor", "positive")
        if options.hard_negatives:
            self.fields += negative_fields(options.negatives)

    def loss(self, vectors: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        """See `VectorLoss.loss`."""
        negatives = vectors[2:].flatten(0, 1) if len(vectors) > 2 else None
        return contrastive_loss(vectors[0], vectors[1], negatives, self.options.temperature)
