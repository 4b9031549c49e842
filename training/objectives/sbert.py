"""SBERT (Reimers & Gurevych 2019, arXiv:1908.10084, section 3): siamese sentence encoders.

With u and v the vectors of the two sentences:

    classification  p = softmax(W [u, v, |u - v|]),  cross-entropy        (and the other concatenations of table 6)
    regression      (cos(u, v) - y)^2, y the score scaled to 0..1
    triplet         max(||a - p|| - ||a - n|| + margin, 0)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data.readers import Table
from ..model import SentenceModel
from .base import (
    Arrays,
    Objective,
    accuracy,
    check_choice,
    check_labels,
    check_positive,
    class_names,
    spearman_percent,
)

__all__ = ["CONCATENATIONS", "Sbert", "SbertOptions", "features"]

CONCATENATIONS = (
    "u,v",
    "|u-v|",
    "u*v",
    "|u-v|,u*v",
    "u,v,u*v",
    "u,v,|u-v|",
    "u,v,|u-v|,u*v",
    "u.v",
)


def features(u: Tensor, v: Tensor, concatenation: str) -> Tensor:
    """The classifier's input for a pair: (batch, parts * dimension), or (batch, 1) for the dot product ``u.v``."""
    parts = []
    for name in concatenation.split(","):
        if name in ("u", "v"):
            parts.append(u if name == "u" else v)
        elif name == "|u-v|":
            parts.append((u - v).abs())
        else:
            product = u * v
            parts.append(product.sum(-1, keepdim=True) if name == "u.v" else product)
    return torch.cat(parts, -1)


def feature_size(dimension: int, concatenation: str) -> int:
    """Width of `features`."""
    return sum(1 if name == "u.v" else dimension for name in concatenation.split(","))


@dataclass(frozen=True)
class SbertOptions:
    """Options of `Sbert`.

    Attributes:
        loss: ``classification``, ``regression`` or ``triplet``.
        concatenation: the input of the classifier.
        max_score: regression: the score that means cosine 1; 0 means cosine 0.
        margin: of the triplet loss.
    """

    loss: str = "classification"
    concatenation: str = "u,v,|u-v|"
    max_score: float = 5.0
    margin: float = 1.0

    def __post_init__(self) -> None:
        check_choice("loss", self.loss, ("classification", "regression", "triplet"))
        check_choice("concatenation", self.concatenation, CONCATENATIONS)
        check_positive("max_score", self.max_score)


class Sbert(Objective):
    """Classification, regression or triplets on a siamese encoder."""

    Options: ClassVar[type[Any]] = SbertOptions
    encoder: SentenceModel

    def __init__(self, encoder: SentenceModel, options: Any, tables: Mapping[str, Table]) -> None:
        """Create the classifier for the classes of the tasks; ``options`` are an instance of `Options`."""
        super().__init__(encoder, options, tables)
        if options.loss == "triplet":
            self.fields = ("anchor", "positive", "negative")
        self._classes: tuple[str, ...] = ()
        if options.loss == "classification":
            self._classes = class_names(tables)
            self.classifier = nn.Linear(
                feature_size(encoder.dimension, options.concatenation), len(self._classes), bias=False
            )

    def check(self, where: str, task: str, table: Table) -> None:
        """See `Objective.check`."""
        check_labels(where, table, self.options.loss, self._classes, self.options.max_score)

    def check_scale(self, tables: Mapping[str, Table], section: str = "objective") -> None:
        """See `Objective.check_scale`; the other losses read no score."""
        if self.options.loss == "regression":
            super().check_scale(tables, section)

    def forward(
        self, task: Tensor, input_ids: Tensor, cu_seqlens: Tensor, **targets: Tensor
    ) -> dict[str, Tensor]:
        """See `Objective.forward`."""
        vectors = self.encode(input_ids, cu_seqlens)
        u, v = vectors[0], vectors[1]
        if self.options.loss == "classification":
            logits = self.classifier(features(u, v, self.options.concatenation))
            return {"loss": functional.cross_entropy(logits, targets["label"]), "logits": logits}
        cosine = functional.cosine_similarity(u, v)
        if self.options.loss == "regression":
            loss = functional.mse_loss(cosine, targets["label"].float() / self.options.max_score)
            return {"loss": loss, "cosine": cosine}
        distance = functional.pairwise_distance(u, v) - functional.pairwise_distance(u, vectors[2])
        return {"loss": functional.relu(distance + self.options.margin).mean(), "distance": distance}

    def score(self, task: str, outputs: Arrays, arrays: Arrays) -> dict[str, float]:
        """Accuracy, Spearman, or the share of correctly ordered triplets."""
        if self.options.loss == "classification":
            return {"accuracy": accuracy(outputs["logits"], arrays["label"])}
        if self.options.loss == "regression":
            return {"spearman": spearman_percent(outputs["cosine"], arrays["label"])}
        return {"accuracy": 100 * float((outputs["distance"] < 0).mean())}
