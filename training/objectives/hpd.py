"""HPD, homomorphic projective distillation (Zhao et al. 2022, arXiv:2203.07687, equation 2 and Algorithm 1).

The student h_s = W_s^T e + b (a small encoder and a projection) learns the teacher's projected vectors
h_t = W_t^T (e_t - mean), see `embedkit.training.teacher`:

    loss = 1/N sum_i ||h_s,i - h_t,i||^2        the sum over the d components, as in equation 2
    loss = 1/(N d) sum_i ||h_s,i - h_t,i||^2    as in the released code (``reduction: mean``)
    loss = 1/N sum_i 1 - cos(h_s,i, h_t,i)      our own addition (``reduction: cosine``)

The paper's W_s starts at random. Our own addition, ``start: least_squares``, starts it from the ridge regression from
the untrained student's pooled vectors e to h_t, the best linear map before any training.

The paper's projection is linear; that of the released models ends with a tanh (``model.projection.activation``).

Our own addition, ``similarity``: the student also learns the teacher's similarities of the texts in a batch, above all
of those in one example (a premise and its hypotheses), about which random sentences teach little.

With ``reduction: cosine`` both losses are also taken of each prefix in ``matryoshka``, which counts half as much as
the next wider one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor
from torch.nn import functional

from ..augment import augment_wordnet, read_paraphrases
from ..data.readers import Table
from ..data.texts import Chain, Selection, distinct, text_keys
from ..linear_map import fit, regress
from ..model import SentenceModel
from ..processes import own_gpu
from ..teacher import STORAGES, TeacherOptions, Teachers, by_example
from .base import Arrays, Objective, check_choice, check_matryoshka, gather, sample_texts

__all__ = ["Augmentation", "Hpd", "HpdOptions", "projective_loss", "similarity_loss"]

_GROUP = ("text", "near", "far")  # the fields of a mined example
_STARTS = ("random", "pca", "least_squares")
_START_SAMPLES = 20_000  # sentences on which the start of the projection is computed


def projective_loss(student: Tensor, teacher: Tensor, reduction: str) -> Tensor:
    """The mean over sentences of (batch, d) vectors: squared distances, components added or averaged, or 1 - cosine."""
    if reduction == "cosine":
        return 1 - functional.cosine_similarity(student, teacher, dim=1).mean()
    squares = (student - teacher).square()
    return squares.sum(1).mean() if reduction == "sum" else squares.mean()


def similarity_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """The mean squared difference of student's and teacher's cosines.

    The mean over all pairs of texts, plus, if examples have several texts, that over the pairs of one example.

    Args:
        student, teacher: (texts of an example, batch, d), of any length.
    """
    texts, batch = student.shape[:2]
    ours, theirs = (functional.normalize(x.flatten(0, 1).float(), dim=-1) for x in (student, teacher))
    error = (ours @ ours.t() - theirs @ theirs.t()).square()
    loss = error.sum() / max(len(error) * (len(error) - 1), 1)  # the diagonal is 0
    if texts > 1:
        own = error.view(texts, batch, texts, batch).diagonal(dim1=1, dim2=3)
        loss = loss + own.sum() / (batch * texts * (texts - 1))
    return loss


@dataclass(frozen=True)
class Augmentation:
    """Augmented copies of the training sentences, with their own teacher vectors.

    Attributes:
        wordnet: share of the replaceable words to replace by WordNet synonyms; 0 for no such copies.
        wordnet_folder: folder of WordNet's tables in the data folder.
        paraphrases: a file of paraphrases (back-translations) in the data folder, or None.
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
        teachers: whose vectors are learned. With several, the vectors are concatenated (our own addition).
        pca_samples: sentences on which the projection is fitted; 40,000 in the released code.
        center: whether the teacher's mean is subtracted; not so in the released code.
        reduction: ``sum`` over the components (the paper), ``mean`` (the released code), or ``cosine``.
        augment: copies of the sentences, or None.
        mine: extend each single text to an example of three with two of its neighbors (`embedkit.training.neighbors`).
        storage: type of the teacher's vectors on disk, ``float16`` or ``float32``.
        start: of the student's projection: ``random``; ``pca``, the principal components of its own vectors; or
            ``least_squares``, the ridge regression from its own vectors to the teacher's.
        similarity: weight of `similarity_loss`.
        projective: weight of the projective loss; 0 with ``similarity`` lets the student choose its directions.
        teacher_dimension: d of h_t, None for the student's; another needs ``projective: 0``.
        matryoshka: dimensions to which the vectors can be truncated: `similarity_loss` is the mean over them and all;
            with ``reduction: cosine``, both losses are weighted sums over them and all. It needs one of the two.
    """

    teachers: list[TeacherOptions]
    pca_samples: int = 100_000
    center: bool = True
    reduction: str = "sum"
    augment: Augmentation | None = None
    mine: bool = False
    storage: str = "float16"
    start: str = "random"
    similarity: float = 0.0
    projective: float = 1.0
    teacher_dimension: int | None = None
    matryoshka: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check the values."""
        if not self.teachers:
            raise ValueError("objective.teachers is empty; name a model: [{path: FOLDER}]")
        if self.pca_samples < 2:
            raise ValueError(f"objective.pca_samples must be 2 or more, not {self.pca_samples}")
        check_choice("reduction", self.reduction, ("sum", "mean", "cosine"))
        if min(self.similarity, self.projective) < 0 or not self.similarity + self.projective:
            raise ValueError(
                f"objective.similarity {self.similarity} and objective.projective {self.projective} must not be "
                "negative, and one must be positive"
            )
        if self.teacher_dimension is not None and self.teacher_dimension < 1:
            raise ValueError(f"objective.teacher_dimension must be positive, not {self.teacher_dimension}")
        if self.projective and self.teacher_dimension is not None:
            raise ValueError("objective.teacher_dimension needs objective.projective to be 0")
        check_matryoshka(self.matryoshka)
        if self.matryoshka and self.reduction != "cosine" and not self.similarity:
            raise ValueError(
                f"objective.matryoshka has no effect on the projective loss with objective.reduction "
                f"{self.reduction}: set objective.reduction to cosine, or objective.similarity, or remove it"
            )
        check_choice("storage", self.storage, STORAGES)
        check_choice("start", self.start, _STARTS)
        if self.start == "least_squares" and self.teacher_dimension is not None:
            raise ValueError("objective.start least_squares learns h_t: remove objective.teacher_dimension")


class Hpd(Objective):
    """A small encoder with a projection learns the vectors of a large one.

    An example is a ``text``; if a task has no such column, all of its columns are related texts.
    """

    Options: ClassVar[type[Any]] = HpdOptions
    fields = ("text",)
    options: HpdOptions

    def __init__(self, encoder: SentenceModel, options: HpdOptions, tables: Mapping[str, Table]) -> None:
        """The teacher's projection is fitted on ``tables``."""
        super().__init__(encoder, options, tables)
        if encoder.options.normalize and options.projective and options.reduction != "cosine":
            raise ValueError(
                "hpd learns vectors of any length: set model.normalize to false (cosines do not change)"
            )
        check_matryoshka(options.matryoshka, encoder.dimension)
        projection = encoder.options.projection
        if options.start != "random" and (projection is None or projection.activation != "identity"):
            raise ValueError(f"objective.start {options.start} needs a linear model.projection")
        self._training_texts: Sequence[str] = Chain(
            table.texts(name) for table in tables.values() for name in _fields_of(table)
        )
        self._teachers: Teachers | None = None

    def fields_of(self, task: str, table: Table) -> tuple[str, ...]:
        """See `Objective.fields_of`."""
        return _fields_of(table)

    def check(self, where: str, task: str, table: Table) -> None:
        """See `Objective.check`."""
        if not _fields_of(table):
            raise ValueError(f"{where} has no column of texts; name one: {where}.columns.text")

    @classmethod
    def expand(
        cls, options: HpdOptions, tables: Mapping[str, Table], root: Path, cache: Path
    ) -> dict[str, Table]:
        """Add augmented copies to tasks of single texts, then neighbors to each text."""
        expanded = dict(tables)
        single = [task for task, table in tables.items() if _fields_of(table) == ("text",)]
        if (options.augment is not None or options.mine) and not single:
            raise ValueError(
                "objective.augment and objective.mine are for single texts, but no task has a column text; remove "
                "them, or name the column in data.TASK.columns"
            )
        if options.augment is not None:
            for task in single:
                expanded[task] = Table(
                    {"text": _with_copies(tables[task].texts("text"), options.augment, root)}
                )
        if options.mine and single:
            teachers = Teachers(options.teachers, cache, options.storage)
            for task in single:
                column = expanded[task].texts("text")
                texts = Selection(column, distinct(text_keys(column))[0])
                rows = teachers.related(texts)
                expanded[task] = Table({name: Selection(texts, rows[:, k]) for k, name in enumerate(_GROUP)})
            teachers.close()
        return expanded

    def prepare(self, task: str, table: Table, cache: Path) -> Arrays:
        """The teacher's projected vectors of the task's texts: (examples, d), or (examples, texts, d) of several."""
        if self._teachers is None:
            self._teachers = Teachers(self.options.teachers, cache, self.options.storage)
            self._teachers.fit(
                self._training_texts,
                self.options.teacher_dimension or self.encoder.dimension,
                samples=self.options.pca_samples,
                center=self.options.center,
            )
            if self.options.start != "random":
                self._start_projection(self._teachers)
            self._training_texts = []
        columns = [table.texts(field) for field in _fields_of(table)]
        targets = self._teachers.targets(Chain(columns))
        return {"teacher": targets if len(columns) == 1 else by_example(targets, len(columns))}

    def _start_projection(self, teachers: Teachers) -> None:
        model = self.encoder
        if (device := own_gpu()) is not None:
            model.to(device)  # where it trains later
        texts = sample_texts(self._training_texts, _START_SAMPLES)
        pooled = model.bare().encode(texts)
        if self.options.start == "pca":
            components = fit(pooled, model.dimension, center=False)
            model.project_by(components.weight, components.bias)
        else:
            model.project_by(*regress(pooled, teachers.targets(texts)))

    def prepared(self) -> None:
        """Free the teachers' memory."""
        if self._teachers is not None:
            self._teachers.close()

    def forward(
        self, task: Tensor, input_ids: Tensor, cu_seqlens: Tensor, **targets: Tensor
    ) -> dict[str, Tensor]:
        """See `Objective.forward`."""
        teacher = targets["teacher"]
        by_field = teacher.unsqueeze(0) if teacher.dim() == 2 else teacher.transpose(0, 1)
        vectors = self.encode(input_ids, cu_seqlens, len(by_field))
        widths = sorted({*self.options.matryoshka, vectors.shape[-1]}, reverse=True)
        cosine = self.options.reduction == "cosine"
        weights = [0.5**i if cosine else 1 / len(widths) for i in range(len(widths))]
        loss = vectors.new_zeros(())
        if self.options.projective:
            ours, theirs = vectors.flatten(0, 1), by_field.flatten(0, 1)
            for width, weight in zip(widths, weights, strict=True) if cosine else [(widths[0], 1.0)]:
                one = projective_loss(ours[:, :width], theirs[:, :width], self.options.reduction)
                loss = loss + self.options.projective * weight * one
        if self.options.similarity:
            # over all processes: each computes the whole loss; the mean of their gradients is that of one process
            student, known = (gather(x.transpose(0, 1)).transpose(0, 1) for x in (vectors, by_field))
            for width, weight in zip(widths, weights, strict=True):
                one = similarity_loss(student[..., :width], known)
                loss = loss + self.options.similarity * weight * one
        return {"loss": loss, "vectors": vectors.transpose(0, 1).reshape(*teacher.shape[:-1], -1)}

    def score(self, task: str, outputs: Arrays, arrays: Arrays) -> dict[str, float]:
        """The share of the teacher's variance that the student explains (R^2), or the mean cosine; in percent.

        Empty without a projective loss.
        """
        if not self.options.projective:
            return {}
        teacher = np.asarray(arrays["teacher"], np.float64)
        if self.options.reduction == "cosine":
            ours = np.asarray(outputs["vectors"], np.float64)
            lengths = np.linalg.norm(ours, axis=-1) * np.linalg.norm(teacher, axis=-1)
            return {"cosine": 100 * float((np.sum(ours * teacher, axis=-1) / lengths).mean())}
        left = np.square(outputs["vectors"] - teacher).sum()
        total = np.square(teacher - teacher.mean(0)).sum()
        return {"r2": 100 * float(1 - left / total)} if total else {}

    def summary(self, scores: Mapping[str, float]) -> dict[str, float]:
        """The mean of all dev sets' R^2; none of cosines, which `reduction` ``cosine`` scores instead."""
        if self.options.reduction == "cosine":
            return {}
        return {"r2": float(np.mean(list(scores.values())))} if scores else {}


def _fields_of(table: Table) -> tuple[str, ...]:
    if "text" in table.names and table.names != _GROUP:
        return ("text",)
    return table.text_names


def _with_copies(texts: Sequence[str], options: Augmentation, root: Path) -> list[str]:
    """The texts, then their copies, without copies that are training sentences already."""
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
    return [*texts, *(copy for copy in dict.fromkeys(copies) if copy not in known)]
