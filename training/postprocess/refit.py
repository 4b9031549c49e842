"""The projection of a trained encoder, refitted to keep cosines: our own addition to HPD.

    h = W^T e / |W^T e|,  W = argmin E (cos(W^T e, W^T e') - cos(e, e'))^2,  e the pooled vectors

Principal components preserve the squared lengths of all differences equally. Search and similarity scores depend on
the cosines of related texts, so half of the pairs here are neighbors.

A projection that was trained together with its encoder fits an encoder that was still changing. Fitting it to the
finished encoder takes seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ... import Encoder
from ..linear_map import LinearMap, fit
from ..model import ModelOptions, SentenceModel
from ..objectives.base import check_matryoshka, sample_texts
from ..objectives.hpd import similarity_loss

__all__ = ["Refit", "fit_similarities"]

_NEIGHBORS = 15  # of a text, in an example of `fit_similarities`
_STEPS, _BATCH, _RATE = 2000, 32, 1e-3


@dataclass(frozen=True)
class Refit:
    """A projection that keeps the cosines of the pooled vectors; the backbone stays as it is.

    Attributes:
        samples: maximum number of sentences on which the projection is fitted.
        matryoshka: dimensions to which the vectors can be truncated.
    """

    samples: int = 40_000
    matryoshka: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check the values."""
        if self.samples <= _NEIGHBORS + 1:
            raise ValueError(f"postprocess.samples must be above {_NEIGHBORS + 1}, not {self.samples}")

    def apply(self, model: ModelOptions, texts: Sequence[str]) -> SentenceModel:
        """Give the model a new projection; see `Step.apply`."""
        if model.projection is None or model.projection.activation != "identity":
            raise ValueError(
                "postprocess refit fits a linear projection; set model.projection without an activation"
            )
        check_matryoshka(self.matryoshka, model.projection.dimension, section="postprocess")
        encoder = SentenceModel.load(model)
        with tempfile.TemporaryDirectory(prefix="embedkit-") as folder:
            encoder.bare().save(Path(folder))
            with Encoder(folder, precision="fp32", threads=torch.get_num_threads()) as core:
                pooled = core.encode(sample_texts(texts, self.samples))
        fitted = fit_similarities(pooled, model.projection.dimension, self.matryoshka)
        encoder.project_by(fitted.weight, fitted.bias)
        return encoder


def fit_similarities(
    vectors: npt.NDArray[Any], dimension: int, matryoshka: Sequence[int] = (), *, seed: int = 0
) -> LinearMap:
    """Learn the map that best preserves the cosines of a sample; no mean is subtracted.

    Starts from the principal components and runs a few thousand steps of Adam on examples of a text and its
    neighbors: the mean squared error of all cosines of a batch, plus that of the cosines within its examples
    (`similarity_loss`). Deterministic for a sample and a seed on one machine.

    Args:
        vectors: (samples, d), the sample, more than 16 rows.
        dimension: of the mapped vectors, at most d and fewer than the samples.
        matryoshka: numbers of leading components that must also preserve the cosines; the loss is the mean over them
            and all components.
        seed: of the batches.

    Raises:
        ImportError: Faiss is not installed.
        ValueError: the sample is too small, or a dimension does not fit.
    """
    from ...index.storage.faiss_index import import_faiss

    count, width = vectors.shape
    if count <= _NEIGHBORS + 1:
        raise ValueError(f"{count} sentences are too few; give more than {_NEIGHBORS + 1}")
    dimensions = [dimension, *matryoshka]
    if any(not 1 <= first <= dimension for first in matryoshka):
        raise ValueError(f"matryoshka {list(matryoshka)} must be from 1 to {dimension}, the dimension")
    unit = np.asarray(vectors, np.float32)
    unit = unit / np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    start = fit(unit, dimension, center=False)
    index = import_faiss().IndexFlatIP(width)
    index.add(unit)
    _, near = index.search(unit, _NEIGHBORS + 1)  # the first neighbor of a text is itself or a duplicate
    samples, neighbors = torch.from_numpy(unit), torch.from_numpy(near)
    weight = torch.from_numpy(start.weight.copy()).requires_grad_()
    optimizer = torch.optim.Adam([weight], lr=_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)
    random = torch.Generator().manual_seed(seed)
    for _ in range(_STEPS):
        example = neighbors[torch.randint(count, (_BATCH,), generator=random)].t()  # (texts, batch)
        teacher = samples[example]
        student = teacher @ weight
        losses = [similarity_loss(student[..., :first], teacher) for first in dimensions]
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
        schedule.step()
    return LinearMap(weight.detach().numpy(), np.zeros(width, np.float32))
