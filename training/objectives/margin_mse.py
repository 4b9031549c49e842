"""MarginMSE (Hofstätter et al. 2021, arXiv:2010.02666, section 3.2, equation 6).

A student learns by how much a cross-encoder's score of the positive exceeds that of the negative. With a, p, n the
student's vectors and t the teacher's logits:

    loss = mean over triplets of ((a.p - a.n) - (t(a, p) - t(a, n)))^2
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional

from .triplet_distillation import TripletDistillation, dot_scores

__all__ = ["MarginMse", "margin_loss"]


def margin_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """The loss above of scores (batch, 1 + k) of the positives and k negatives, averaged over the negatives too."""
    return functional.mse_loss(student[:, :1] - student[:, 1:], teacher[:, :1] - teacher[:, 1:])


class MarginMse(TripletDistillation):
    """Margins of a cross-encoder."""

    def loss(self, vectors: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        """See `VectorLoss.loss`."""
        return margin_loss(dot_scores(vectors), targets["scores"])
