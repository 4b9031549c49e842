"""Linear maps that are computed, not trained: principal components, whitening and ridge regression of vectors.

With x the vectors of a sample, their mean and C = U Λ Uᵀ their covariance (Λ falling):

    PCA         y = W^T (x - mean),  W = U[:, :d]
    whitening   y = W^T (x - mean),  W = (U Λ^(-1/2))[:, :d]      Su et al. 2021, arXiv:2103.15316
    regression  y = W^T x + b,  W and b minimal in  sum ||y_i - W^T x_i - b||^2 + α ||W||^2

    partly      y = Λ^(-p/2) Uᵀ x,  0 <= p <= 1, between a rotation and whitening; subtracts no mean
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .data.texts import distinct, text_keys

__all__ = ["LinearMap", "check_dimension", "fit", "regress", "sample_distinct", "whiten_partly"]

_METHODS = ("pca", "whitening")
_RANK = 1e-9  # a smaller share of the largest variance is rounding error, which whitening would amplify
_SEED = 0  # of `sample_distinct`
_RIDGE = 1e-3  # α of `regress`, as a share of the mean squared component of x summed over the sample
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
        """``-weight^T mean``, (dimension of y,): the map is also ``weight^T x + bias``."""
        product = self.mean.astype(np.float64) @ self.weight.astype(np.float64)
        return np.asarray(-product, np.float32)

    def __call__(self, x: npt.NDArray[Any]) -> Vectors:
        """Map the rows of ``x``: (n, dimension of x) to (n, dimension of y)."""
        return np.asarray((x.astype(np.float32) - self.mean) @ self.weight, np.float32)


def fit(vectors: npt.NDArray[Any], dimension: int, method: str = "pca", *, center: bool = True) -> LinearMap:
    """Compute a map from a sample of vectors; deterministic.

    Args:
        vectors: (samples, d), the sample.
        dimension: of the mapped vectors, at most d and fewer than the samples.
        method: ``pca`` or ``whitening``.
        center: whether the map subtracts the mean. The components are those of the centered sample in any case.

    Raises:
        ValueError: the method is unknown, or the sample spans fewer directions.
    """
    if method not in _METHODS:
        raise ValueError(f"unknown method {method!r}; expected one of {', '.join(_METHODS)}")
    samples, width = vectors.shape
    check_dimension(dimension, samples, width)
    from sklearn.decomposition import PCA

    # Whitening is scaled here: scikit-learn has it, but divides by zero where a direction is missing.
    # Where samples are few, the default solver is a random one, which keeps less of the variance. A covariance squares
    # rounding errors: in float32 they would hide that directions are missing.
    solver = "full" if samples < width else "covariance_eigh"
    pca = PCA(n_components=dimension, svd_solver=solver).fit(vectors.astype(np.float64))
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


def check_dimension(dimension: int, samples: int, width: int) -> None:
    """Refuse a ``dimension`` to which `fit` cannot map ``samples`` vectors of ``width`` dimensions."""
    if not 1 <= dimension <= width:
        raise ValueError(f"dimension {dimension} must be from 1 to {width}, that of the vectors")
    if dimension >= samples:
        raise ValueError(f"{samples} sentences are too few for {dimension} principal components; give more")


def whiten_partly(vectors: npt.NDArray[Any], power: float) -> Vectors:
    """The map ``y = weight^T x`` between a rotation (``power`` 0) and whitening (1): weight (d, d); deterministic.

    The larger ``power``, the less a direction of large variance counts in a cosine. Directions that the sample does not
    span, as of zeros, are scaled as the least that it does.

    Args:
        vectors: (samples, d), the sample.
        power: from 0 to 1.
    """
    variances, directions = np.linalg.eigh(np.cov(np.asarray(vectors, np.float64), rowvar=False, bias=True))
    variances, directions = variances[::-1], directions[:, ::-1]
    spanned = variances > _RANK * variances[0]
    scale = np.where(spanned, variances, variances[spanned].min()) ** (-power / 2)
    signs = np.where(directions.sum(0) < 0, -1.0, 1.0)  # eigenvectors have any
    return np.ascontiguousarray(directions * (signs * scale), np.float32)


def regress(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[Vectors, Vectors]:
    """The ridge regression from ``x (n, d)`` to ``y (n, k)``: weight (d, k) and bias (k,); deterministic.

    The penalty is relative to the variance of ``x``, so that the scale of the vectors does not matter.
    """
    from sklearn.linear_model import Ridge

    known = np.asarray(x, np.float64)
    penalty = _RIDGE * len(known) * float(known.var(0).mean())
    fitted = Ridge(alpha=penalty).fit(known, np.asarray(y, np.float64))
    return np.ascontiguousarray(fitted.coef_.T, np.float32), np.asarray(fitted.intercept_, np.float32)


def sample_distinct(texts: Sequence[str], most: int) -> list[str]:
    """The distinct texts in their order, or ``most`` of them, drawn without replacement; deterministic."""
    first, _ = distinct(text_keys(texts))
    if len(first) > most:
        first = first[np.sort(np.random.default_rng(_SEED).choice(len(first), most, replace=False))]
    return [texts[i] for i in first.tolist()]
