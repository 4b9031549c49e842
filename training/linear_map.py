"""Linear maps of sentence vectors, fitted on a sample: principal components, whitening, and kept similarities.

With x the vectors of a sample, their mean and C = U Λ Uᵀ their covariance (Λ falling):

    PCA            y = W^T (x - mean),  W = U[:, :d]
    whitening      y = W^T (x - mean),  W = (U Λ^(-1/2))[:, :d]      Su et al. 2021, arXiv:2103.15316
    similarities   y = W^T x,  W = argmin E (cos(W^T x, W^T x') - cos(x, x'))^2

Principal components keep the squared lengths of all differences alike. What a search or a score asks is the cosine of
texts that have something in common, so the last one, our own, takes half of its pairs from among neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LinearMap", "fit", "fit_similarities"]

_METHODS = ("pca", "whitening")
_RANK = 1e-9  # a direction with less of the largest variance is rounding: whitening would blow it up
_NEIGHBOURS = 15  # of a text, in an example of `fit_similarities`
_STEPS, _BATCH, _RATE = 2000, 32, 1e-3

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LinearMap:
    """``y = weight^T (x - mean)``.

    Attributes:
        weight: (dimension of x, dimension of y) float32.
        mean: (dimension of x,) float32; zeros where nothing is subtracted.
    """

    weight: Vectors
    mean: Vectors

    @property
    def bias(self) -> Vectors:
        """``-weight^T mean``, (dimension of y,): the map is ``weight^T x + bias``, too."""
        product = self.mean.astype(np.float64) @ self.weight.astype(np.float64)
        return np.asarray(-product, np.float32)

    def __call__(self, x: npt.NDArray[Any]) -> Vectors:
        """Map the rows of ``x``: (n, dimension of x) to (n, dimension of y)."""
        return np.asarray((x.astype(np.float32) - self.mean) @ self.weight, np.float32)


def fit(vectors: npt.NDArray[Any], dimension: int, method: str = "pca", *, center: bool = True) -> LinearMap:
    """Compute a map from a sample of vectors; the same for the same sample.

    Args:
        vectors: (samples, d), the sample.
        dimension: of what comes out, at most d and fewer than the samples.
        method: ``pca`` or ``whitening``.
        center: whether the map subtracts the mean. The components are of the centred sample in any case.

    Raises:
        ValueError: the method is not known, or the sample does not hold so many directions.
    """
    if method not in _METHODS:
        raise ValueError(f"method {method!r} is not known; known are {', '.join(_METHODS)}")
    samples, width = vectors.shape
    if not 1 <= dimension <= width:
        raise ValueError(f"dimension {dimension} must be from 1 to {width}, that of the vectors")
    if dimension >= samples:
        raise ValueError(f"{samples} sentences are too few for {dimension} principal components; give more")
    from sklearn.decomposition import PCA

    # Whitening is scaled here: scikit-learn has it, but divides by zero where a direction is missing.
    pca = PCA(n_components=dimension, random_state=0).fit(vectors.astype(np.float32, copy=False))
    weight = pca.components_.T
    if method == "whitening":
        variance = pca.explained_variance_
        directions = int((variance > _RANK * variance[0]).sum())
        if directions < dimension:
            raise ValueError(
                f"the vectors of the sample span {directions} directions, too few for {dimension} whitened "
                f"dimensions; give a dimension of at most {directions}"
            )
        weight = weight / np.sqrt(variance)
    mean = pca.mean_ if center else np.zeros_like(pca.mean_)
    return LinearMap(np.ascontiguousarray(weight, np.float32), mean.astype(np.float32))


def fit_similarities(
    vectors: npt.NDArray[Any], dimension: int, matryoshka: Sequence[int] = (), *, seed: int = 0
) -> LinearMap:
    """Learn the map that keeps the cosines of a sample best; nothing is subtracted.

    From the principal components on, some thousand steps of Adam on examples of a text and its neighbours: the mean
    squared error of all cosines of a batch, plus that of the cosines within its examples
    (`embedkit.training.objectives.hpd.similarity_loss`). The same for the same sample and seed on one machine.

    Args:
        vectors: (samples, d), the sample, more than 16 of them.
        dimension: of what comes out, at most d and fewer than the samples.
        matryoshka: numbers of first components that are to keep them, too; the loss is the mean over them and all.
        seed: of the batches.

    Raises:
        ImportError: Faiss is not installed.
        ValueError: the sample is too small, or a dimension does not fit.
    """
    import torch

    from embedkit.index.faiss_index import import_faiss

    from .objectives.hpd import similarity_loss

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
