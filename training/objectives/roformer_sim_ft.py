"""RoFormer-Sim-FT (Su 2021, kexue.fm/archives/8541): yes/no pairs and three-way NLI, learned together.

With u and v the vectors of the two sentences,

    classification  softmax(W [u, v, |u - v|]), cross-entropy; W has 2 + 3 rows, those of the other task are masked
    cosine-zero     t (cos(u, v) - 1)^2 + (1 - t) cos(u, v)^2
    cosine-minus    t (cos(u, v) - 1)^2 + (1 - t) (cos(u, v) + 1)^2
    cosine-margin   t max(0.9 - cos(u, v), 0) + (1 - t) max(cos(u, v) - 0.1, 0)

The three cosine losses are the controls, which the post found to be worse. For them t is 1 for yes and for
entailment, else 0. Scored pairs count as yes above a threshold. The released code alternates the two kinds of data
within a batch; here batches alternate: ``training.schedule: round_robin`` with equally many tasks of either kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data.readers import Table
from ..model import ModelOptions, SentenceModel, transformer_folder
from ..unilm import load_pooler
from .base import Arrays, Objective, accuracy, check_choice, spearman_percent
from .sbert import features

__all__ = ["LOSSES", "NLI", "RoformerSimFt", "RoformerSimFtOptions", "cosine_loss", "masked_logits"]

LOSSES = ("classification", "cosine-zero", "cosine-minus", "cosine-margin")
NLI = ("contradiction", "entailment", "neutral")
"""The classes of an NLI task, in the order of the head's last three rows."""

_YES_NO = 2
_CONCATENATION = "u,v,|u-v|"
_HIGH, _LOW = 0.9, 0.1  # cosines beyond which the margin loss is 0


@dataclass(frozen=True)
class RoformerSimFtOptions:
    """Options of `RoformerSimFt`.

    Attributes:
        loss: ``classification``, or one of the controls ``cosine-zero``, ``cosine-minus``, ``cosine-margin``.
        threshold: a pair with a higher score counts as yes.
    """

    loss: str = "classification"
    threshold: float = 2.5

    def __post_init__(self) -> None:
        check_choice("loss", self.loss, LOSSES)


class RoformerSimFt(Objective):
    """A siamese encoder with one head for both kinds of labels.

    The columns determine the kind of a task: a ``score`` is thresholded, a ``label`` with three classes is NLI, with
    two it is yes/no.
    """

    Options: ClassVar[type[Any]] = RoformerSimFtOptions
    options: RoformerSimFtOptions

    def __init__(
        self, encoder: SentenceModel, options: RoformerSimFtOptions, tables: Mapping[str, Table]
    ) -> None:
        """Check the classes of the tasks and make the head."""
        super().__init__(encoder, options, tables)
        for name, table in tables.items():
            _is_nli(name, table)
        if options.loss == "classification":
            self.classifier = nn.Linear(3 * encoder.dimension, _YES_NO + len(NLI), bias=False)

    @classmethod
    def load_encoder(
        cls, model: ModelOptions, options: RoformerSimFtOptions, tables: Mapping[str, Table]
    ) -> SentenceModel:
        """Load the model; a published checkpoint's linear layer on [CLS] becomes the projection.

        The Dense module of a trained folder comes first: it is what was made of that layer.
        """
        encoder = SentenceModel.load(model)
        if not model.random and not encoder.projection_started:
            load_pooler(encoder, transformer_folder(model.path))
        return encoder

    def prepare(self, task: str, table: Table, cache: Path) -> Arrays:
        """``label``: 0 no, 1 yes, then the classes of `NLI`; ``gold``: the reference for the cosine."""
        del cache
        if "score" in table.names:
            scores = np.asarray(table["score"], np.float64)
            return {"label": (scores > self.options.threshold).astype(np.int64), "gold": scores}
        labels = np.asarray(table["label"], np.int64)
        if not _is_nli(task, table):
            return {"label": labels, "gold": labels}
        own = np.array([NLI.index(name) for name in table.labels])[labels]
        return {"label": own + _YES_NO, "gold": (own == NLI.index("entailment")).astype(np.int64)}

    def forward(
        self, task: Tensor, input_ids: Tensor, cu_seqlens: Tensor, **targets: Tensor
    ) -> dict[str, Tensor]:
        """See `Objective.forward`."""
        u, v = self.encode(input_ids, cu_seqlens)
        labels = targets["label"]
        cosine = functional.cosine_similarity(u, v)
        if self.options.loss == "classification":
            logits = masked_logits(self.classifier(features(u, v, _CONCATENATION)), labels >= _YES_NO)
            return {"loss": functional.cross_entropy(logits, labels), "logits": logits, "cosine": cosine}
        same = (labels == 1) | (labels == _YES_NO + NLI.index("entailment"))
        return {"loss": cosine_loss(cosine, same, self.options.loss), "cosine": cosine}

    def score(self, task: str, outputs: Arrays, arrays: Arrays) -> dict[str, float]:
        """Spearman x 100 of the cosine with the label or score (NLI: entailment or not), and the head's accuracy."""
        scores = {"spearman": spearman_percent(outputs["cosine"], arrays["gold"])}
        if "logits" in outputs:
            scores["accuracy"] = accuracy(outputs["logits"], arrays["label"])
        return scores


def masked_logits(logits: Tensor, nli: Tensor) -> Tensor:
    """``logits (batch, 5)``, with -inf for classes of the other kind; ``nli (batch,)`` is the kind of each example."""
    of_nli = torch.arange(logits.shape[1], device=logits.device) >= _YES_NO
    return logits.masked_fill(of_nli != nli[:, None], float("-inf"))


def cosine_loss(cosine: Tensor, same: Tensor, kind: str) -> Tensor:
    """One of the controls.

    Args:
        cosine: (batch,).
        same: (batch,) bool, t of the formulas.
        kind: of `LOSSES`.
    """
    if kind == "cosine-zero":
        losses = torch.where(same, (cosine - 1) ** 2, cosine**2)
    elif kind == "cosine-minus":
        losses = torch.where(same, (cosine - 1) ** 2, (cosine + 1) ** 2)
    else:
        losses = torch.where(same, functional.relu(_HIGH - cosine), functional.relu(cosine - _LOW))
    return losses.mean()


def _is_nli(task: str, table: Table) -> bool:
    """Whether a task has the classes of `NLI`; with a score or two classes it is yes/no.

    Raises:
        ValueError: it is neither.
    """
    if "score" in table.names:
        return False
    if "label" in table.names:
        if set(table.labels) == set(NLI):
            return True
        if len(table.labels) == _YES_NO and table.labels not in (("1", "0"), ("yes", "no")):
            return False
    raise ValueError(
        f"the task {task!r} needs a score, or a label with the classes {', '.join(NLI)} or two classes, no and then "
        f"yes, as data.{task}.labels"
    )
