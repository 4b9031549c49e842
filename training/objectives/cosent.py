"""CoSENT (Su 2022, https://kexue.fm/archives/8847; Huang et al. 2024, doi:10.1109/TASLP.2024.3402087).

With pairs i of texts with similarity s_i and score y_i, and a scale λ:

    loss = log(1 + sum_{y_i < y_j} e^(λ (s_i - s_j)))

over all pairs of pairs of a batch: only the order of the scores counts. Here s is the cosine. With several processes,
the sum runs over the batches of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from .base import gather
from .vector_loss import ScoredPairs

__all__ = ["CoSent", "ranking_loss"]


def ranking_loss(similarity: Tensor, score: Tensor, scale: float) -> Tensor:
    """The loss above of similarities (n,) and scores (n,)."""
    differences = scale * (similarity[:, None] - similarity[None, :])
    ordered = differences[score[:, None] < score[None, :]]
    return torch.logsumexp(torch.cat([ordered.new_zeros(1), ordered]), 0)


class CoSent(ScoredPairs):
    """The cosines of a batch learn the order of the scores."""

    def loss(self, vectors: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        """See `VectorLoss.loss`."""
        cosine = functional.cosine_similarity(vectors[0], vectors[1], dim=-1)
        return ranking_loss(gather(cosine), gather(targets["label"]), self.options.scale)
