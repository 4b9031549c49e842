"""AnglE (Li & Li 2024, "AoE: Angle-optimized Embeddings", arXiv:2309.12871, section 3.4).

CoSENT's loss (`cosent`) with another similarity, whose gradient does not vanish where the cosine is near 1 or -1. A
vector's halves are the real and imaginary parts of d / 2 complex numbers; with z and w those of two vectors of
length 1:

    s = |sum_k (Re + Im)(z_k conj(w_k))|

Only the paper's angle term, as in sentence-transformers; its cosine and in-batch terms are objectives of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional

from .base import gather
from .cosent import ranking_loss
from .vector_loss import ScoredPairs

__all__ = ["Angle", "angle_similarity"]


def angle_similarity(u: Tensor, v: Tensor) -> Tensor:
    """The similarity above of ``u`` and ``v`` (n, d); a zero is appended if d is odd."""
    halves = []
    for x in (u, v):
        unit = functional.normalize(x, dim=-1)
        halves.append(functional.pad(unit, (0, unit.shape[-1] % 2)).chunk(2, dim=-1))
    (a, b), (c, d) = halves
    return ((a * c + b * d) + (b * c - a * d)).sum(-1).abs()


class Angle(ScoredPairs):
    """The angle differences of a batch learn the order of the scores."""

    def loss(self, vectors: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        """See `VectorLoss.loss`."""
        similarity = angle_similarity(vectors[0], vectors[1])
        return ranking_loss(gather(similarity), gather(targets["label"]), self.options.scale)
