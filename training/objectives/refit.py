"""A trained encoder's projection, fitted anew: our own addition to HPD.

    h = W^T e / |W^T e|,  W = argmin E (cos(W^T e, W^T e') - cos(e, e'))^2,  e the pooled vectors

Principal components keep the squared lengths of all differences alike. What a search or a score asks is the cosine of
texts that have something in common, so half of the pairs here are neighbours.

The projection that training leaves was learned beside an encoder that moved, on the few hundred batches that moved it;
that for an encoder that stands still takes seconds. A recipe sets ``training.epochs: 0``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from ... import Encoder
from ..data.readers import Table
from ..linear_map import LinearMap, fit
from ..model import ModelOptions, SentenceModel
from .base import Objective, check_matryoshka, sample_texts
from .hpd import similarity_loss

__all__ = ["Refit", "RefitOptions", "fit_similarities"]

_NEIGHBOURS = 15  # of a text, in an example of `fit_similarities`
_STEPS, _BATCH, _RATE = 2000, 32, 1e-3


@dataclass(frozen=True)
class RefitOptions:
    """Options of `Refit`.

    Attributes:
        samples: most sentences on which the projection is fitted.
        matryoshka: dimensions to which the vectors can be truncated.
    """

    samples: int = 40_000
    matryoshka: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check the values."""
        if self.samples <= _NEIGHBOURS + 1:
            raise ValueError(f"objective.samples must be above {_NEIGHBOURS + 1}, not {self.samples}")


class Refit(Objective):
    """A model whose projection keeps the cosines of its pooled vectors; nothing else is learned."""

    Options: ClassVar[type[Any]] = RefitOptions
    fields = ("text",)

    @classmethod
    def load_encoder(cls, model: ModelOptions, options: RefitOptions, tables: Mapping[str, Table]) -> Any:
        """The model with a new projection.

        Raises:
            ValueError: the model has no linear projection, or there are too few sentences.
        """
        if model.projection is None or model.projection.activation != "identity":
            raise ValueError("objective refit fits a projection; set model.projection, without an activation")
        check_matryoshka(options.matryoshka, model.projection.dimension)
        encoder = SentenceModel.load(model)
        texts = sample_texts(
            (text for table in tables.values() for text in table.texts("text")), options.samples
        )
        with tempfile.TemporaryDirectory(prefix="embedkit-") as folder:
            encoder.bare().save(Path(folder))
            with Encoder(folder, precision="fp32", threads=torch.get_num_threads()) as core:
                pooled = core.encode(texts)
        fitted = fit_similarities(pooled, model.projection.dimension, options.matryoshka)
        encoder.project_by(fitted)
        return encoder


def fit_similarities(
    vectors: npt.NDArray[Any], dimension: int, matryoshka: Sequence[int] = (), *, seed: int = 0
) -> LinearMap:
    """Learn the map that keeps the cosines of a sample best; nothing is subtracted.

    From the principal components on, some thousand steps of Adam on examples of a text and its neighbours: the mean
    squared error of all cosines of a batch, plus that of the cosines within its examples
    (`similarity_loss`). The same for the same sample and seed on one machine.

    Args:
        vectors: (samples, d), the sample, more than 16 of them.
        dimension: of what comes out, at most d and fewer than the samples.
        matryoshka: numbers of first components that are to keep them, too; the loss is the mean over them and all.
        seed: of the batches.

    Raises:
        ImportError: Faiss is not installed.
        ValueError: the sample is too small, or a dimension does not fit.
    """
    from ...index.storage.faiss_index import import_faiss

    count, width = vectors.shape
    if count <= _NEIGHBOURS + 1:
        raise ValueError(f"{count} sentences are too few; give more than {_NEIGHBOURS + 1}")
    dimensions = [dimension, *matryoshka]
    if any(not 1 <= first <= dimension for first in matryoshka):
        raise ValueError(f"matryoshka {list(matryoshka)} must be from 1 to {dimension}, the dimension")
    unit = np.asarray(vectors, np.float32)
    unit = unit / np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    start = fit(unit, dimension, center=False)
    index = import_faiss().IndexFlatIP(width)
    index.add(unit)
    _, near = index.search(unit, _NEIGHBOURS + 1)  # the first of a text's neighbours is itself, or its double
    samples, neighbours = torch.from_numpy(unit), torch.from_numpy(near)
    weight = torch.from_numpy(start.weight.copy()).requires_grad_()
    optimizer = torch.optim.Adam([weight], lr=_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)
    random = torch.Generator().manual_seed(seed)
    for _ in range(_STEPS):
        example = neighbours[torch.randint(count, (_BATCH,), generator=random)].t()  # (texts, batch)
        teacher = samples[example]
        student = teacher @ weight
        losses = [similarity_loss(student[..., :first], teacher) for first in dimensions]
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
        schedule.step()
    return LinearMap(weight.detach().numpy(), np.zeros(width, np.float32))
