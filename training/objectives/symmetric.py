"""Symmetric in-batch negatives (as in CLIP, Radford et al. 2021, arXiv:2103.00020, section 2.3).

With L(a, p, n) the loss of `simcse` for anchors a, positives p and hard negatives n:

    loss = (L(a, p, n) + L(p, a)) / 2

so that each positive must find its anchor among all anchors, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from .simcse import SimCse, contrastive_loss

__all__ = ["Symmetric"]


class Symmetric(SimCse):
    """In-batch negatives in both directions, and optional hard negatives of the anchors."""

    def loss(self, vectors: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        """See `VectorLoss.loss`."""
        backward = contrastive_loss(vectors[1], vectors[0], None, self.options.temperature)
        return (super().loss(vectors, targets) + backward) / 2
