"""HPD, homomorphic projective distillation (Zhao et al. 2022, arXiv:2203.07687, equation 2 and Algorithm 1).

The student h_s = W_s^T e + b (a small encoder and a projection) learns the teacher's projected vectors
h_t = W_t^T (e_t - mean), of which `embedkit.training.teacher` tells:

    loss = 1/N sum_i ||h_s,i - h_t,i||^2        the sum over the d components, as in equation 2
    loss = 1/(N d) sum_i ||h_s,i - h_t,i||^2    as in the released code (``reduction: mean``)

The paper's projection is linear, that of the released models ends with a tanh:
``model.projection.activation``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ..augment import augment_wordnet, read_paraphrases
from ..data.readers import Table
from ..model import SentenceModel
from ..teacher import STORAGES, TeacherOptions, Teachers
from .base import Arrays, Objective

__all__ = ["Augmentation", "Hpd", "HpdOptions", "projective_loss"]


def projective_loss(student: Tensor, teacher: Tensor, reduction: str) -> Tensor:
    """The mean over sentences of squared distances of (batch, d) vectors: components added or averaged."""
    squares = (student - teacher).square()
    return squares.sum(1).mean() if reduction == "sum" else squares.mean()


@dataclass(frozen=True)
class Augmentation:
    """Copies of the training sentences, which get teacher vectors of their own.

    Attributes:
        wordnet: share of the replaceable words of which a copy has WordNet synonyms; 0 for no such copies.
        wordnet_folder: where WordNet's tables are, below the data folder.
        paraphrases: a file of paraphrases (back-translations), below the data folder, or None.
        seed: of the choice of words.
    """

    wordnet: float = 0.0
    wordnet_folder: str = "wordnet"
    paraphrases: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        if not 0 <= self.wordnet <= 1:
            raise ValueError(f"objective.augment.wordnet must be from 0 to 1, not {self.wordnet}")


@dataclass(frozen=True)
class HpdOptions:
    """Options of `Hpd`.

    Attributes:
        teachers: whose vectors are learned. Several: their vectors one after another, our own addition.
        pca_samples: sentences on which the projection is fitted; 40,000 in the released code.
        center: whether the teacher's mean is subtracted; not so in the released code.
        reduction: ``sum`` over the components (the paper) or ``mean`` (the released code).
        augment: copies of the sentences, or None.
        storage: type of the teacher's vectors on disk, ``float16`` or ``float32``.
    """

    teachers: list[TeacherOptions]
    pca_samples: int = 100_000
    center: bool = True
    reduction: str = "sum"
    augment: Augmentation | None = None
    storage: str = "float16"

    def __post_init__(self) -> None:
        """Check the values."""
        if not self.teachers:
            raise ValueError("objective.teachers is empty; name a model: [{path: FOLDER}]")
        if self.pca_samples < 2:
            raise ValueError(f"objective.pca_samples must be 2 or more, not {self.pca_samples}")
        if self.reduction not in ("sum", "mean"):
            raise ValueError(f"objective.reduction {self.reduction!r} is not known; known are sum, mean")
        if self.storage not in STORAGES:
            raise ValueError(
                f"objective.storage {self.storage!r} is not known; known are {', '.join(STORAGES)}"
            )


class Hpd(Objective):
    """A small encoder with a projection learns a large one's vectors."""

    Options: ClassVar[type[Any]] = HpdOptions
    fields = ("text",)
    options: HpdOptions

    def __init__(self, encoder: SentenceModel, options: HpdOptions, tables: Mapping[str, Table]) -> None:
        """``tables`` are what the teacher's projection is fitted on."""
        super().__init__(encoder, options, tables)
        if encoder.options.normalize:
            raise ValueError(
                "hpd learns vectors of any length: set model.normalize to false (cosines do not change)"
            )
        self._training_texts = [text for table in tables.values() for text in table.texts("text")]
        self._teachers: Teachers | None = None

    @classmethod
    def expand(cls, options: HpdOptions, tables: Mapping[str, Table], root: Path) -> dict[str, Table]:
        """Add the augmented copies to each task."""
        if options.augment is None:
            return dict(tables)
        return {
            task: Table({"text": _with_copies(table.texts("text"), options.augment, root)})
            for task, table in tables.items()
        }

    def prepare(self, task: str, table: Table, cache: Path) -> Arrays:
        """The teacher's projected vectors of the task's texts."""
        del task
        if self._teachers is None:
            self._teachers = Teachers(self.options.teachers, cache, self.options.storage)
            self._teachers.fit(
                self._training_texts,
                self.encoder.dimension,
                samples=self.options.pca_samples,
                center=self.options.center,
            )
            self._training_texts = []
        return {"teacher": self._teachers.targets(table.texts("text"))}

    def prepared(self) -> None:
        """The teachers' memory is given back."""
        if self._teachers is not None:
            self._teachers.close()

    def forward(
        self, task: Tensor, input_ids: Tensor, cu_seqlens: Tensor, **targets: Tensor
    ) -> dict[str, Tensor]:
        """See `Objective.forward`."""
        vectors = self.encode(input_ids, cu_seqlens)[0]
        return {
            "loss": projective_loss(vectors, targets["teacher"], self.options.reduction),
            "vectors": vectors,
        }

    def score(self, task: str, outputs: Arrays, arrays: Arrays) -> dict[str, float]:
        """How much of the teacher's variance the student explains (R^2), in per cent."""
        teacher = np.asarray(arrays["teacher"], np.float64)
        left = np.square(outputs["vectors"] - teacher).sum()
        return {"r2": 100 * float(1 - left / np.square(teacher - teacher.mean(0)).sum())}


def _with_copies(texts: list[str], options: Augmentation, root: Path) -> list[str]:
    """The texts, then their copies; a copy that is a training sentence already is left out."""
    known = set(texts)
    copies: list[str] = []
    if options.wordnet:
        substituted = augment_wordnet(
            texts, root / options.wordnet_folder, seed=options.seed, rate=options.wordnet
        )
        copies += [copy for copy in substituted if copy is not None]
    if options.paraphrases is not None:
        copies += [
            paraphrase
            for text, paraphrases in read_paraphrases(root / options.paraphrases)
            if text in known
            for paraphrase in paraphrases
        ]
    return texts + [copy for copy in dict.fromkeys(copies) if copy not in known]
