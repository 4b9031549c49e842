"""GIST (Solatorio 2024, arXiv:2402.16829, section 3): in-batch negatives without those that a guide finds too near.

With a, p, n the anchors, positives and hard negatives of a batch, s the student's cosine, g the guide's, and t the
temperature, the candidates of example i are all p_j, and of the others

    a_j, n_j  with g(a_i, .) <= g(a_i, p_i) - margin,      p_j  with g(p_i, p_j) <= g(a_i, p_i) - margin

and the positives p_j (j != i) as negatives of a_i only if g(a_i, p_j) <= g(a_i, p_i) - margin:

    loss_i = -log( e^(s(a_i, p_i) / t) / sum e^(s / t) )    over the candidates
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ..data.readers import Table
from ..data.texts import Chain
from ..model import SentenceModel
from ..teacher import TeacherOptions, VectorStore, open_encoder
from .base import Arrays, check_positive, first_row, gather
from .vector_loss import VectorLoss, VectorOptions, check_negatives, negative_fields

__all__ = ["Gist", "GistOptions", "guided_loss"]


def guided_loss(vectors: Tensor, guide: Tensor, temperature: float, margin: float) -> Tensor:
    """The loss above, averaged over this process' anchors; candidates are those of all processes.

    Args:
        vectors, guide: (fields, batch, dimension), of any length: anchor, positive and hard negatives.
        temperature: t.
        margin: see above.
    """
    student, known = (functional.normalize(x, dim=-1) for x in (vectors, guide))
    (anchor, positive), (anchor_guide, positive_guide) = student[:2], known[:2]
    own = torch.arange(vectors.shape[1], device=vectors.device)
    limit = (anchor_guide * positive_guide).sum(-1, keepdim=True) - margin
    everyone, everyone_guide = ([gather(x) for x in side] for side in (student, known))

    def block(own_side: Tensor, own_guide: Tensor, field: int) -> tuple[Tensor, Tensor]:
        return own_side @ everyone[field].t(), own_guide @ everyone_guide[field].t()

    blocks = [
        block(anchor, anchor_guide, 1),
        block(anchor, anchor_guide, 0),
        block(positive, positive_guide, 1),
        *(block(anchor, anchor_guide, field) for field in range(2, len(everyone))),
    ]
    label = own + first_row(len(own))
    scores = []
    for number, (similarity, guided) in enumerate(blocks):
        near = guided > limit
        if number == 0:
            near[own, label] = False  # the positive itself
        elif number <= 2:
            near[own, label] = True  # a text is no negative of itself
        scores.append(similarity.masked_fill(near, -math.inf))
    return functional.cross_entropy(torch.cat(scores, 1) / temperature, label)


@dataclass(frozen=True)
class GistOptions(VectorOptions):
    """Options of `Gist`.

    Attributes:
        guide: the model whose similarities choose the negatives.
        temperature: t.
        margin: how much less similar than the positive a negative must be to the guide.
        hard_negatives: whether an example has hard negatives.
        negatives: how many: the field ``negative``, or ``negative_1``, ``negative_2``, ... of several.
    """

    guide: TeacherOptions | None = None
    temperature: float = 0.01
    margin: float = 0.0
    hard_negatives: bool = False
    negatives: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if self.guide is None:
            raise ValueError("objective.guide is missing; name a model: {path: FOLDER}")
        check_positive("temperature", self.temperature)
        check_negatives(self.negatives, self.hard_negatives)


class Gist(VectorLoss):
    """In-batch negatives chosen by a guide."""

    Options: ClassVar[type[Any]] = GistOptions
    drop_last: ClassVar[bool] = True
    options: GistOptions

    def __init__(self, encoder: SentenceModel, options: GistOptions, tables: Mapping[str, Table]) -> None:
        """See `Objective`."""
        super().__init__(encoder, options, tables)
        self.fields = ("anchor", "positive")
        if options.hard_negatives:
            self.fields += negative_fields(options.negatives)

    def prepare(self, task: str, table: Table, cache: Path) -> Arrays:
        """The guide's vectors (examples, fields, dimension), in a file of the cache; of dev data none."""
        if not self.is_training(table):
            return {}
        guide = self.options.guide
        assert guide is not None
        with open_encoder(guide.path, precision=guide.precision, max_length=guide.max_length) as encoder:
            store = VectorStore.of(encoder, cache, "float32", guide.reading)
            columns = [table.texts(field) for field in self.fields_of(task, table)]
            store.add(Chain(columns), encoder)
            return {"guide": store.mapped(columns)}

    def loss(self, vectors: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        """See `VectorLoss.loss`."""
        guide = targets["guide"].transpose(0, 1)
        return guided_loss(vectors, guide, self.options.temperature, self.options.margin)
