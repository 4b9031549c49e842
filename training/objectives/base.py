"""The base class of objectives: a model with heads, the content of a batch, the loss and the scores."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..data.readers import Table
from ..data.store import TextStore
from ..data.texts import distinct, text_keys
from ..evaluate.pairs import spearman
from ..model import ModelOptions, SentenceModel, pack

__all__ = [
    "Arrays",
    "Batch",
    "Objective",
    "accuracy",
    "check_choice",
    "check_classes",
    "check_labels",
    "check_matryoshka",
    "check_scores",
    "class_names",
    "first_row",
    "gather",
    "sample_texts",
    "spearman_percent",
    "to_tensors",
]

Arrays = dict[str, npt.NDArray[Any]]
Batch = dict[str, Tensor]


class Objective(nn.Module, ABC):
    """A sentence encoder, the heads that train it, and the loss.

    A subclass sets `Options` (a frozen dataclass: the keys of a recipe's ``objective`` section) and `fields`, and
    implements `forward`; the other methods have useful defaults.

    Attributes:
        fields: the text columns of an example, in the order of a batch; override `fields_of` if tasks differ.
        minimized: the names that `score` gives to scores of which the lowest is best, as of perplexities.
        drop_last: whether to drop a partial last batch (contrastive losses depend on the batch size).
        encoder: the model to train and write: a `SentenceModel`, or another module with ``backbone``,
            ``tokenizer_folder``, ``autocast`` and ``save``.
        options: an instance of `Options`.
        similarity: by which the model's vectors are compared, as its folder then says; None: as those of its backbone.
        pipeline_tag, usage: for the model card: the Hub's name of the task, and an example in which ``{path}`` is
            the folder.
        tasks: the names of the recipe's tasks; a batch's ``task`` is an index into them.
        progress: of the training, 0 to 1; set by the trainer before each step.
        mini_batch_size: texts encoded at once, see `encode`; None for all.
    """

    Options: ClassVar[type[Any]]
    fields: tuple[str, ...] = ("text1", "text2")
    minimized: ClassVar[tuple[str, ...]] = ()
    drop_last: ClassVar[bool] = False
    similarity: str | None = None
    encoder: Any
    pipeline_tag: ClassVar[str] = "sentence-similarity"
    usage: ClassVar[str] = (
        'from embedkit import Encoder\n\nvectors = Encoder("{path}").encode(["a sentence", "another one"])'
    )

    def __init__(self, encoder: Any, options: Any, tables: Mapping[str, Table]) -> None:
        """``tables`` are the training data by task; heads may depend on their classes."""
        super().__init__()
        self.encoder = encoder
        self.options = options
        self.tasks = list(tables)
        self._training_tables = list(tables.values())
        self.progress = 0.0
        self.mini_batch_size: int | None = None

    @classmethod
    def load_encoder(cls, model: ModelOptions, options: Any, tables: Mapping[str, Table]) -> Any:
        """Load the model to train; ``options`` and ``tables`` as in the constructor."""
        del options, tables
        return SentenceModel.load(model)

    def fields_of(self, task: str, table: Table) -> tuple[str, ...]:
        """The text columns of a task's table, of training or dev data."""
        del task, table
        return self.fields

    def check(self, where: str, task: str, table: Table) -> None:
        """Refuse training or dev data whose labels the objective cannot learn or score.

        Args:
            where: the recipe key of the data.
            task: name of the task.
            table: the data.

        Raises:
            ValueError: names the key and the remedy.
        """

    def check_scale(self, tables: Mapping[str, Table], section: str = "objective") -> None:
        """The function `check_scale`, on the training data and the options that score them."""
        check_scale(self.options, tables, section)

    @classmethod
    def expand(cls, options: Any, tables: Mapping[str, Table], root: Path, cache: Path) -> dict[str, Table]:
        """Add to the training data before anything is tokenized (augmentation).

        Args:
            options: an instance of `Options`.
            tables: the training data by task, as read.
            root: folder to which paths are relative.
            cache: as in `prepare`.
        """
        del options, root, cache
        return dict(tables)

    def is_training(self, table: Table) -> bool:
        """Whether a table is of the training data; a dev set may have the name of its task."""
        return any(table is own for own in self._training_tables)

    def prepare(self, task: str, table: Table, cache: Path) -> Arrays:
        """The content of a batch of ``task`` besides its texts: arrays with one row per example.

        Args:
            task: name of the task.
            table: its data.
            cache: a folder for costly results (of teachers), which outlives the run.
        """
        del task, cache
        return {"label": table["label"]} if "label" in table.names else {}

    def prepared(self) -> None:
        """Called when all data are prepared: free what is no longer needed (teachers)."""

    def collate(self, store: TextStore, texts: npt.NDArray[np.int64], arrays: Arrays) -> Batch:
        """A batch from ``texts (batch, fields)``, rows of ``store``, and the examples' rows of the arrays.

        Texts are packed field after field: the first texts of all examples, then the second ones.
        """
        input_ids, cu_seqlens = pack([store.ids(row) for row in texts.T.ravel()])
        return {"input_ids": input_ids, "cu_seqlens": cu_seqlens, **to_tensors(arrays)}

    @abstractmethod
    def forward(
        self, task: Tensor, input_ids: Tensor, cu_seqlens: Tensor, **targets: Tensor
    ) -> dict[str, Tensor]:
        """The ``loss`` (a mean over the batch), and the inputs of `score`, (batch, ...) each.

        In inference mode dev sets are scored, and the loss may be missing.
        """

    def score(self, task: str, outputs: Arrays, arrays: Arrays) -> dict[str, float]:
        """Dev scores (x 100) of a task from the outputs and arrays of all its examples."""
        del task, outputs, arrays
        return {}

    def summary(self, scores: Mapping[str, float]) -> dict[str, float]:
        """Dev scores over all tasks, from the logged ones of each task (``nli_accuracy``)."""
        del scores
        return {}

    def encode(self, input_ids: Tensor, cu_seqlens: Tensor, count: int | None = None) -> Tensor:
        """Vectors (fields, batch, dimension) of a packed batch.

        With `mini_batch_size`, the texts are encoded in chunks whose activations are recomputed in the backward
        pass, so that the memory is that of one chunk while the loss sees all vectors: GradCache (Gao et al. 2021,
        "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup"), implemented as activation
        checkpointing with the vectors as the only boundary. Dropout draws the same masks again.
        """
        count = len(self.fields) if count is None else count
        size, texts = self.mini_batch_size, len(cu_seqlens) - 1
        if size is None or size * count >= texts or not torch.is_grad_enabled():
            vectors: Tensor = self.encoder(input_ids, cu_seqlens)
        else:
            from torch.utils.checkpoint import checkpoint

            parts = []
            for start in range(0, texts, size * count):
                cut = cu_seqlens[start : start + size * count + 1]
                parts.append(
                    checkpoint(self.encoder, input_ids[cut[0] : cut[-1]], cut - cut[0], use_reentrant=False)
                )
            vectors = torch.cat(parts)
        return vectors.view(count, texts // count, -1)

    def save(self, folder: Path) -> None:
        """Write the model folder."""
        self.encoder.save(folder)


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
    """Raise ValueError if the value of the option ``objective.NAME`` is not one of ``known``."""
    if value not in known:
        raise ValueError(f"unknown objective.{name} {value!r}; expected one of {'; '.join(known)}")


def check_positive(name: str, value: float) -> None:
    """Raise ValueError if the value of the option ``objective.NAME`` is not above 0."""
    if not value > 0:
        raise ValueError(f"objective.{name} must be positive, not {value}")


def accuracy(logits: npt.NDArray[Any], label: npt.NDArray[Any]) -> float:
    """Share (x 100) of ``logits (n, classes)`` whose highest is that of ``label (n,)``."""
    return 100 * float((logits.argmax(1) == label).mean())


def check_matryoshka(dimensions: Sequence[int], width: int | None = None) -> None:
    """Check the option ``objective.matryoshka``: dimensions to which vectors of ``width``, if known, can be truncated.

    Raises:
        ValueError: one is not positive, or not below ``width``.
    """
    if min(dimensions, default=1) < 1:
        raise ValueError(f"objective.matryoshka must contain positive dimensions, not {dimensions}")
    if width is not None and max(dimensions, default=0) >= width:
        raise ValueError(
            f"objective.matryoshka {dimensions}: the dimensions must be less than the {width} of the vectors"
        )


def sample_texts(texts: Sequence[str], most: int) -> list[str]:
    """The distinct texts, or ``most`` of them, drawn without replacement; deterministic."""
    first = distinct(text_keys(texts))[0].tolist()
    return [texts[i] for i in (random.Random(0).sample(first, most) if len(first) > most else first)]


def gather(x: Tensor) -> Tensor:
    """``x (batch, ...)`` of all processes, (processes * batch, ...), with gradients; ``x`` itself for one process.

    In inference mode it is also ``x`` itself: each process scores the dev sets alone. `first_row` is the offset of
    the process's own rows.

    If a loss is a mean over the process's own rows against the gathered ones, or over all gathered ones, its gradient
    averaged over the processes is that of the same loss in one process.
    """
    if _alone():
        return x
    gathered: Tensor = _Gather.apply(x)
    return gathered


class _Gather(torch.autograd.Function):
    """Replaces torch.distributed.nn's all_gather, whose gradients under gloo are wrong for other memory layouts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.rows = len(x)
        own = x.contiguous()
        parts = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(parts, own)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Sum the gradients of all processes, since each process's loss depends on these rows."""
        whole = gradient.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(whole)
        first = first_row(ctx.rows)
        return whole[first : first + ctx.rows]


def first_row(count: int) -> int:
    """The row in `gather` at which this process's ``count`` rows start."""
    return 0 if _alone() else torch.distributed.get_rank() * count


def _alone() -> bool:
    started = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not started or torch.is_inference_mode_enabled()


def spearman_percent(a: Sequence[float] | npt.NDArray[Any], b: Sequence[float] | npt.NDArray[Any]) -> float:
    """Spearman's rank correlation x 100 of a model's values ``a`` with ``b``; 0 if all of ``a`` are equal.

    Raises:
        ValueError: a value is not finite, or all of ``b`` are equal.
    """
    predicted = np.asarray(a)
    return 0.0 if len(predicted) and (predicted == predicted[0]).all() else 100 * spearman(predicted, b)


def class_names(tables: Mapping[str, Table]) -> tuple[str, ...]:
    """The classes of a classification, the same for all tasks.

    Raises:
        ValueError: a task has no classes, or the tasks differ.
    """
    first, *others = tables.items()
    for task, table in tables.items():
        if len(table.labels) < 2 or "label" not in table.names:
            raise ValueError(
                f"objective.loss classification needs the field label and the names of its classes: "
                f"data.{task}.labels"
            )
    for task, table in others:
        if table.labels != first[1].labels:
            raise ValueError(
                f"data.{task}.labels are {', '.join(table.labels)} and those of data.{first[0]} "
                f"{', '.join(first[1].labels)}; one classifier needs the same classes in one order"
            )
    return first[1].labels


def check_classes(where: str, table: Table, classes: Sequence[str]) -> None:
    """Refuse a table whose classes are not those of the classifier in its order; the last ones may be missing.

    Raises:
        ValueError: names the key and the remedy.
    """
    if "label" not in table.names or not table.labels or table.labels != tuple(classes[: len(table.labels)]):
        raise ValueError(
            f"{where} has the classes {', '.join(table.labels) or '(none)'}, and the classifier "
            f"{', '.join(classes)}; name the column in {where}.columns.label, and these classes in this order in "
            f"{where}.labels"
        )


def check_scores(where: str, table: Table, max_score: float | None) -> None:
    """Refuse a table without scores in the field ``label``, or with scores below 0 or above ``max_score``.

    ``max_score`` is None if only the order of the scores counts.

    Raises:
        ValueError: names the key and the remedy.
    """
    if "label" not in table.names or table.labels:
        raise ValueError(
            f"{where} needs scores: name their column in {where}.columns.label, and give no {where}.labels"
        )
    if max_score is None:
        return
    low, top = float(table["label"].min()), float(table["label"].max())
    if low < 0:
        raise ValueError(
            f"{where} has the score {low:g}, but the scores that mean 0 to 1 are those from 0 to objective.max_score; "
            "add a number to all scores of the file, so that they start at 0"
        )
    if top > max_score:
        raise ValueError(f"{where} has the score {top:g}, but objective.max_score is {max_score:g}")


def check_scale(options: Any, tables: Mapping[str, Table], section: str = "objective") -> None:
    """Refuse training data whose scores are from 0 to 1 where the objective's go further: all would count as low.

    ``section``: of the recipe, which has the options.

    Raises:
        ValueError: names the option and the remedy.
    """
    for option, name, remedy in (("max_score", "label", "=1"), ("threshold", "score", " below that")):
        bound = getattr(options, option, None)
        if bound is None or bound <= 1:
            continue
        scored = [task for task, table in tables.items() if name in table.names and not table.labels]
        top = max((float(tables[task][name].max()) for task in scored), default=0.0)
        if 0 < top <= 1:
            raise ValueError(
                f"no score of data.{', data.'.join(scored)} is above {top:g}, but {section}.{option} is {bound:g}: "
                f"set {section}.{option}{remedy}"
            )


def check_labels(where: str, table: Table, loss: str, classes: Sequence[str], max_score: float) -> None:
    """`check_classes` for the loss ``classification``, `check_scores` for ``regression``."""
    if loss == "classification":
        check_classes(where, table, classes)
    elif loss == "regression":
        check_scores(where, table, max_score)


def to_tensors(arrays: Arrays) -> Batch:
    """The arrays of a batch as tensors: floats as fp32, integers as int64."""
    return {
        name: torch.from_numpy(
            np.array(rows, np.float32 if np.issubdtype(rows.dtype, np.floating) else np.int64)
        )
        for name, rows in arrays.items()
    }
