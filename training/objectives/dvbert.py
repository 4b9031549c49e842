"""DvBERT (Cheng 2021, "Dual-View Distilled BERT for Sentence Embedding", arXiv:2104.08675, section 2).

A siamese student learns from K frozen cross-encoders, which read both sentences at once (`cross_encoder`). With u and
v the student's vectors, y the label (one-hot), q_k the output of teacher k, and the progress λ, linear from 0 to 1 over
the training:

    p = softmax(W [u, v, |u - v|])
    teacher annealing   sum_k KL(λ y + (1 - λ) q_k || p)
    fixed weights       α sum_k KL(q_k || p) + (1 - α) CE(y, p)          (figure 3)

On scored pairs (STS-B, the second stage) the cosine replaces the classifier, with y and q_k scaled to 0..1. The paper
gives no formula for it; as we read it, the squared error replaces the divergence:

    teacher annealing   sum_k (cos(u, v) - (λ y + (1 - λ) q_k))^2
    fixed weights       α sum_k (cos(u, v) - q_k)^2 + (1 - α) (cos(u, v) - y)^2

These are sums over teachers, as in the paper, so that K teachers have K times the weight. Without teachers, this is
SBERT: CE(y, p), and (cos(u, v) - y)^2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..data.readers import Table
from .base import Arrays, check_choice, check_positive
from .cross_encoder import probabilities
from .sbert import CONCATENATIONS, Sbert, features
from .teachers import teacher_outputs

__all__ = ["DvBert", "DvBertOptions", "distillation_loss", "divergence", "squared_error"]


@dataclass(frozen=True)
class DvBertOptions:
    """Options of `DvBert`.

    Attributes:
        teachers: folders of trained cross-encoders (recipes ``cross-encoder-nli``, ``cross-encoder-stsb``).
        alpha: fixed weight of the teachers, 0 to 1; None for teacher annealing.
        loss: ``classification``, or ``regression`` for scored pairs.
        concatenation: classification: the input of the classifier.
        max_score: regression: the score that means cosine 1; 0 means cosine 0.
        teacher_max_length: maximum tokens of a pair as the teachers read it; None for each one's own.
    """

    teachers: list[str] = field(default_factory=list)
    alpha: float | None = None
    loss: str = "classification"
    concatenation: str = "u,v,|u-v|"
    max_score: float = 5.0
    teacher_max_length: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        check_choice("loss", self.loss, ("classification", "regression"))
        check_choice("concatenation", self.concatenation, CONCATENATIONS)
        check_positive("max_score", self.max_score)
        if self.alpha is not None:
            if not 0 <= self.alpha <= 1:
                raise ValueError(f"objective.alpha must be from 0 to 1, not {self.alpha}")
            if not self.teachers:
                raise ValueError("objective.alpha weighs teachers, but objective.teachers is empty")


def divergence(target: Tensor, logits: Tensor) -> Tensor:
    """KL(target || softmax(logits)) over the last dimension, with 0 log 0 = 0."""
    return (torch.xlogy(target, target) - target * logits.log_softmax(-1)).sum(-1)


def squared_error(target: Tensor, cosine: Tensor) -> Tensor:
    """``(cosine - target)^2``, the last dimension (of size 1) summed away."""
    return (cosine - target).square().sum(-1)


def distillation_loss(
    output: Tensor,
    target: Tensor,
    teachers: Tensor,
    *,
    progress: float,
    alpha: float | None,
    regression: bool,
) -> Tensor:
    """The losses (n,) of examples.

    Args:
        output: (n, classes) logits, or (n, 1) cosines.
        target: (n, classes) one-hot labels, or (n, 1) scores in 0..1.
        teachers: (n, K, classes) or (n, K, 1), the outputs of the K teachers.
        progress: λ; unused with ``alpha``.
        alpha: fixed weight of the teachers, or None for teacher annealing.
        regression: squared errors instead of divergences.
    """
    distance = squared_error if regression else divergence
    if not teachers.shape[1]:
        return distance(target, output)
    if alpha is not None:
        # KL(y || p) is CE(y, p): y is one-hot and has no entropy
        distilled = distance(teachers, output[:, None]).sum(1)
        return alpha * distilled + (1 - alpha) * distance(target, output)
    mixed = progress * target[:, None] + (1 - progress) * teachers
    return distance(mixed, output[:, None]).sum(1)


class DvBert(Sbert):
    """A siamese encoder that learns from cross-encoders."""

    Options: ClassVar[type[Any]] = DvBertOptions
    options: DvBertOptions

    def prepare(self, task: str, table: Table, cache: Path) -> Arrays:
        """The labels and, for training data, the teachers' outputs: ``teachers (n, K, classes)``."""
        arrays = super().prepare(task, table, cache)
        if self.options.teachers and self.is_training(table):
            length = self.options.teacher_max_length
            logits = [teacher_outputs(path, table, length, cache) for path in self.options.teachers]
            arrays["teachers"] = probabilities(torch.from_numpy(np.stack(logits, 1))).numpy()
        return arrays

    def forward(
        self, task: Tensor, input_ids: Tensor, cu_seqlens: Tensor, **targets: Tensor
    ) -> dict[str, Tensor]:
        """See `Objective.forward`; dev data have no teachers in their loss."""
        u, v = self.encode(input_ids, cu_seqlens)
        label = targets["label"]
        if self.options.loss == "classification":
            output = self.classifier(features(u, v, self.options.concatenation))
            target, told = functional.one_hot(label, len(self._classes)).to(output.dtype), {"logits": output}
        else:
            cosine = functional.cosine_similarity(u, v)
            output, target = cosine[:, None], label[:, None].to(cosine.dtype) / self.options.max_score
            told = {"cosine": cosine}
        loss = distillation_loss(
            output,
            target,
            targets.get("teachers", output.new_empty(len(output), 0, output.shape[1])),
            progress=self.progress,
            alpha=self.options.alpha,
            regression=self.options.loss == "regression",
        )
        return {"loss": loss.mean(), **told}
