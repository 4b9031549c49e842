"""Whitening (Su et al. 2021, arXiv:2103.15316) and PCA of a trained model's vectors: fitted, not trained.

    whitening   h = W^T (e - mean),  W = U sqrt(L^-1), U and L eigenvectors and eigenvalues of the covariance
    pca         h = U^T (e - mean)

The control of every method that learns small vectors. The map becomes the last module of the model folder, a Dense
layer without an activation whose bias is -W^T mean, so that `embedkit.Encoder` and sentence-transformers load it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from .. import Encoder
from ..arguments import check_fp32
from ..model_folder.folder import open_folder
from ..model_folder.saving import DenseWeights, append_dense, check_new_folder, check_one_route, new_folder
from .backbone import root_folder
from .linear_map import LinearMap, check_dimension, fit, sample_distinct

__all__ = ["MapStep", "append_map", "fit_map"]


@dataclass(frozen=True)
class MapStep:
    """A linear map after a model: the ``postprocess`` section of a recipe.

    Attributes:
        dimension: of the new vectors.
        method: ``whitening`` or ``pca``.
        samples: maximum number of sentences on which the map is fitted.
    """

    dimension: int
    method: Literal["whitening", "pca"] = "whitening"
    samples: int = 100_000

    def __post_init__(self) -> None:
        """Check the values."""
        if self.samples < 2:
            raise ValueError(f"postprocess.samples must be 2 or more, not {self.samples}")


def fit_map(
    model: str, texts: Sequence[str], output: Path, step: MapStep, prompt: str | None = None
) -> LinearMap:
    """Fit a map on the vectors of texts and write the model with it.

    Args:
        model: folder or Hub name of an fp32 model.
        texts: sentences of the model's domain; duplicates count once.
        output: the new folder; must not exist or be empty. It appears complete or not at all.
        step: the map.
        prompt: put before each text; None for the model's default.

    Raises:
        FileExistsError: ``output`` is not empty.
        FileNotFoundError, ValueError: the model is missing, or an argument does not fit it.
    """
    folder = open_folder(root_folder(model))
    check_one_route(folder)
    check_fp32(folder, "fit the map on")
    with Encoder(model) as encoder:
        check_new_folder(output)
        encoder.truncate_dim = None  # the map is of all dimensions, and sets their number
        sample = sample_distinct(texts, step.samples)
        check_dimension(step.dimension, len(sample), encoder.get_embedding_dimension())
        vectors = encoder.encode(sample, prompt=prompt)
        fitted = fit(vectors, step.dimension, step.method)
        append_map(encoder, fitted, output)
    return fitted


def append_map(encoder: Encoder, linear_map: LinearMap, output: Path) -> None:
    """Write the encoder's model with ``linear_map`` as its last module.

    Raises:
        FileExistsError: ``output`` is not empty.
        ValueError: the map's input is not the encoder's vectors, the encoder's weights are int8, or it has a Router.
    """
    with new_folder(output) as work:
        encoder.save(work, precision="fp32")
        append_dense(work, DenseWeights(np.ascontiguousarray(linear_map.weight.T), linear_map.bias))
