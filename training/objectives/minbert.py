"""The multitask system of the CS224N default project (minBERT): one encoder, a head for each of three tasks.

With u and v the vectors of the sentences, y the label and T the highest score (5):

    sentiment   softmax(W u), cross-entropy over the classes of SST-5; one sentence
    paraphrase  σ(w f(u, v) + b), binary cross-entropy, or softmax(W f(u, v)) over no and yes, cross-entropy; f is the
                dot product u.v, or (u, v, u*v) or (u, v, |u-v|), in which u*v is the elementwise product
    sts         a score s, T cos(u, v), or a (u.v) + b in the baseline, and one of
                  mse            (s - y)^2
                  l1             |s - y|
                  hinge          max(|s - y| - margin, 0), the hinge of support vector regression
                  cross_entropy  -Σ_j t_j log q_j,  q = softmax(W f(u, v)) over the scores j = 0..T, where t
                                 splits y between its two neighbors, t_⌊y⌋ = ⌊y⌋ + 1 - y and t_⌊y⌋₊₁ = y - ⌊y⌋, and
                                 s = Σ_j j q_j (Tai, Socher & Manning 2015, arXiv:1503.00075, section 4.2)

The meaning of "hinge" and "cross-entropy" in a report of the project is our reading. With ``dropout_of: features``,
dropout is applied to the input of linear layers, not before a cosine or a dot product, which would no longer be
those of the vectors; with ``dropout_of: vectors`` to u and v, before any product, as in the report's baseline. That
baseline is a softmax for all three tasks: ``paraphrase_loss: softmax``, ``sts_loss: cross_entropy`` and
``sts_features: u.v``. The order of tasks is ``training.schedule``: ``sequential`` in the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data.readers import Table
from ..model import SentenceModel
from .base import Arrays, Objective, check_choice, check_classes, check_scores
from .sbert import CONCATENATIONS, feature_size, features

__all__ = ["STS_LOSSES", "TASKS", "MinBert", "MinBertOptions", "score_classes", "sts_loss"]

TASKS = ("sentiment", "paraphrase", "sts")
STS_LOSSES = ("mse", "l1", "hinge", "cross_entropy")


@dataclass(frozen=True)
class MinBertOptions:
    """Options of `MinBert`.

    Attributes:
        paraphrase: the input of the paraphrase head: ``u.v``, ``u,v,u*v``, ``u,v,|u-v|`` or another of SBERT's.
        paraphrase_loss: ``binary``, or ``softmax`` over the two classes.
        sts_loss: ``mse``, ``l1``, ``hinge`` or ``cross_entropy``.
        sts_features: the input of the STS head for ``cross_entropy``, as for the paraphrase head.
        sts_similarity: ``cosine``, or ``u.v`` for the baseline's dot product with a linear layer; unused for
            ``cross_entropy``.
        hinge_margin: distance of a score without loss, for ``hinge``.
        max_score: the highest STS score, a whole number.
        dropout: before a linear head.
        dropout_of: ``features``, the head's input, or ``vectors``, before products of them.
    """

    paraphrase: str = "u,v,|u-v|"
    paraphrase_loss: str = "binary"
    sts_loss: str = "mse"
    sts_similarity: str = "cosine"
    sts_features: str = "u,v,|u-v|"
    hinge_margin: float = 0.5
    max_score: int = 5
    dropout: float = 0.5
    dropout_of: str = "features"

    def __post_init__(self) -> None:
        """Check the values."""
        for name, known in (
            ("paraphrase", CONCATENATIONS),
            ("paraphrase_loss", ("binary", "softmax")),
            ("sts_features", CONCATENATIONS),
            ("dropout_of", ("features", "vectors")),
            ("sts_loss", STS_LOSSES),
            ("sts_similarity", ("cosine", "u.v")),
        ):
            check_choice(name, getattr(self, name), known)
        if self.hinge_margin < 0:
            raise ValueError(f"objective.hinge_margin must not be negative: {self.hinge_margin}")
        if self.max_score < 1:
            raise ValueError(f"objective.max_score must be at least 1, not {self.max_score}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"objective.dropout must be from 0 to below 1, not {self.dropout}")


def sts_loss(score: Tensor, label: Tensor, loss: str, margin: float) -> Tensor:
    """Losses (n,) ``mse``, ``l1`` and ``hinge`` of scores (n,)."""
    distance = (score - label).abs()
    if loss == "mse":
        return distance.square()
    return distance if loss == "l1" else functional.relu(distance - margin)


def score_classes(label: Tensor, max_score: int) -> Tensor:
    """Scores (n,) in 0..max_score as distributions (n, max_score + 1) over their two whole neighbors."""
    whole = torch.arange(max_score + 1, device=label.device)
    return functional.relu(1 - (label[:, None] - whole).abs())


class MinBert(Objective):
    """Sentiment, paraphrase and STS on one encoder; the recipe's tasks bear these names, and any may be left out."""

    Options: ClassVar[type[Any]] = MinBertOptions
    options: MinBertOptions
    encoder: SentenceModel

    def __init__(self, encoder: SentenceModel, options: MinBertOptions, tables: Mapping[str, Table]) -> None:
        """The sentiment head is made for the classes of its task."""
        super().__init__(encoder, options, tables)
        for task in tables:
            if task not in TASKS:
                raise ValueError(f"data.{task} is not a task of minbert; its tasks are {', '.join(TASKS)}")
        width = encoder.dimension
        self.dropout = nn.Dropout(options.dropout)
        self._classes = {task: table.labels for task, table in tables.items() if task != "sts"}
        if "sentiment" in tables:
            if len(self._classes["sentiment"]) < 2:
                raise ValueError("sentiment needs the names of its classes: data.sentiment.labels")
            self.sentiment = nn.Linear(width, len(self._classes["sentiment"]))
        if "paraphrase" in tables:
            if len(self._classes["paraphrase"]) != 2:
                raise ValueError("paraphrase has two classes, no and then yes: data.paraphrase.labels")
            outputs = 2 if options.paraphrase_loss == "softmax" else 1
            self.paraphrase = nn.Linear(feature_size(width, options.paraphrase), outputs)
        if "sts" in tables:
            if options.sts_loss == "cross_entropy":
                self.sts = nn.Linear(feature_size(width, options.sts_features), options.max_score + 1)
            elif options.sts_similarity == "u.v":
                self.sts = nn.Linear(1, 1)

    def fields_of(self, task: str, table: Table) -> tuple[str, ...]:
        """One text for sentiment, two for the other tasks."""
        return ("text1",) if task == "sentiment" else self.fields

    def check(self, where: str, task: str, table: Table) -> None:
        """See `Objective.check`."""
        if task not in self.tasks:
            raise ValueError(
                f"{where} has no head: data has no task of this name, only {', '.join(self.tasks)}"
            )
        if task == "sts":
            check_scores(where, table, self.options.max_score)
        else:
            check_classes(where, table, self._classes[task])

    def forward(
        self, task: Tensor, input_ids: Tensor, cu_seqlens: Tensor, **targets: Tensor
    ) -> dict[str, Tensor]:
        """See `Objective.forward`."""
        name, label = self.tasks[int(task)], targets["label"]
        vectors = self.encode(input_ids, cu_seqlens, 1 if name == "sentiment" else 2)
        if self.options.dropout_of == "vectors":
            vectors = self.dropout(vectors)
        if name == "sentiment":
            logits = self.sentiment(self._dropped(vectors[0]))
            return {"loss": functional.cross_entropy(logits, label), "logits": logits}
        u, v = vectors
        if name == "paraphrase":
            if self.options.paraphrase_loss == "softmax":
                logits = self.paraphrase(self._features(u, v, self.options.paraphrase))
                return {
                    "loss": functional.cross_entropy(logits, label),
                    "logit": logits[:, 1] - logits[:, 0],
                }
            logit = self.paraphrase(self._features(u, v, self.options.paraphrase))[:, 0]
            loss = functional.binary_cross_entropy_with_logits(logit, label.to(logit.dtype))
            return {"loss": loss, "logit": logit}
        return self._sts(u, v, label.to(u.dtype))

    def _features(self, u: Tensor, v: Tensor, concatenation: str) -> Tensor:
        seen = features(u, v, concatenation)
        return self._dropped(seen) if seen.shape[1] > 1 else seen

    def _dropped(self, features: Tensor) -> Tensor:
        """Dropout of a linear layer's input, unless the vectors have had it."""
        dropped: Tensor = features if self.options.dropout_of == "vectors" else self.dropout(features)
        return dropped

    def _sts(self, u: Tensor, v: Tensor, label: Tensor) -> dict[str, Tensor]:
        options = self.options
        if options.sts_loss == "cross_entropy":
            logits = self.sts(self._features(u, v, options.sts_features))
            loss = functional.cross_entropy(logits, score_classes(label, options.max_score))
            score = (logits.softmax(-1) * torch.arange(logits.shape[1], device=u.device)).sum(-1)
            return {"loss": loss, "score": score}
        if options.sts_similarity == "u.v":
            score = self.sts(features(u, v, "u.v"))[:, 0]
        else:
            score = options.max_score * functional.cosine_similarity(u, v)
        return {"loss": sts_loss(score, label, options.sts_loss, options.hinge_margin).mean(), "score": score}

    def score(self, task: str, outputs: Arrays, arrays: Arrays) -> dict[str, float]:
        """Accuracies, and Pearson's correlation; 0 if all scores are equal."""
        label = arrays["label"]
        if task == "sts":
            constant = np.ptp(outputs["score"]) == 0 or np.ptp(label) == 0
            return {"pearson": 0.0 if constant else 100 * float(np.corrcoef(outputs["score"], label)[0, 1])}
        found = outputs["logits"].argmax(1) if task == "sentiment" else outputs["logit"] > 0
        return {"accuracy": 100 * float((found == label).mean())}

    def summary(self, scores: Mapping[str, float]) -> dict[str, float]:
        """The mean of all tasks' scores, the metric of the project."""
        return {"mean": float(np.mean(list(scores.values())))} if scores else {}
