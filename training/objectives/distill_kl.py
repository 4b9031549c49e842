"""KL distillation of rankings (Lin et al. 2020, arXiv:2010.11386, section 3.1).

With s the student's dot products of the anchor with the positive and the negative, t a cross-encoder's logits for the
same two pairs, and a temperature τ:

    loss = τ^2 KL(softmax(t / τ) || softmax(s / τ)),  averaged over the triplets
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional

from .base import check_positive
from .triplet_distillation import TripletDistillation, TripletDistillationOptions, dot_scores

__all__ = ["DistillKl", "DistillKlOptions", "divergence"]


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """The loss above of scores (batch, candidates)."""
    log_p = (student / temperature).log_softmax(1)
    q = (teacher / temperature).softmax(1)
    return functional.kl_div(log_p, q, reduction="batchmean") * temperature**2


@dataclass(frozen=True)
class DistillKlOptions(TripletDistillationOptions):
    """Options of `DistillKl`.

    Attributes:
        temperature: τ.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        check_positive("temperature", self.temperature)


class DistillKl(TripletDistillation):
    """The distribution of a cross-encoder over the positive and the negative."""

    Options: ClassVar[type[Any]] = DistillKlOptions
    options: DistillKlOptions

    def loss(self, vectors: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        """See `VectorLoss.loss`."""
        return divergence(dot_scores(vectors), targets["scores"], self.options.temperature)
