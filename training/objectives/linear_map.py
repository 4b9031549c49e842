"""Whitening (Su et al. 2021, arXiv:2103.15316) and PCA behind a trained model: fitted on vectors, not trained.

    whitening   h = W^T (e - mean),  W = U sqrt(L^-1), U and L eigenvectors and eigenvalues of the covariance
    pca         h = U^T (e - mean)

The control of every method that learns small vectors. `embedkit.training.linear_map` has the arithmetic,
`embedkit.training.whitening` writes the folder; a recipe sets ``training.epochs: 0``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from ... import Encoder
from ..data.readers import Table
from ..model import ModelOptions
from ..whitening import project_model
from .base import Objective

__all__ = ["LinearMapOptions", "LinearMapped"]


@dataclass(frozen=True)
class LinearMapOptions:
    """Options of `LinearMapped`.

    Attributes:
        dimension: of the vectors that come out.
        method: ``whitening`` or ``pca``.
        samples: most sentences on which the map is fitted.
    """

    dimension: int
    method: Literal["whitening", "pca"] = "whitening"
    samples: int = 100_000

    def __post_init__(self) -> None:
        """Check the values."""
        if self.samples < 2:
            raise ValueError(f"objective.samples must be 2 or more, not {self.samples}")


class _Mapped(nn.Module):
    """A model folder with a map behind it, in the shape in which the trainer knows encoders."""

    autocast: torch.dtype | None = None

    def __init__(self, model: str, texts: list[str], options: LinearMapOptions) -> None:
        super().__init__()
        self._scratch = tempfile.TemporaryDirectory(prefix="embedkit-")
        self._folder = Path(self._scratch.name) / "model"
        project_model(
            model, texts, options.dimension, self._folder, method=options.method, samples=options.samples
        )
        self._encoder = Encoder(self._folder, threads=torch.get_num_threads())
        self.tokenizer_folder = self._folder

    def encode(self, sentences: Sequence[str]) -> Any:
        return self._encoder.encode(list(sentences))

    def save(self, folder: Path) -> None:
        copytree(self._folder, folder, dirs_exist_ok=True)


class LinearMapped(Objective):
    """A model whose vectors are whitened or reduced; nothing is trained."""

    Options: ClassVar[type[Any]] = LinearMapOptions
    fields = ("text",)

    @classmethod
    def load_encoder(cls, model: ModelOptions, options: LinearMapOptions, tables: Mapping[str, Table]) -> Any:
        """The folder ``model.path`` with the map; the other options of a model do not apply.

        Raises:
            ValueError: another option of the model is set.
        """
        if model != ModelOptions(path=model.path):
            raise ValueError(
                "objective linear_map takes a model folder as it is; of the model set only the path"
            )
        return _Mapped(
            model.path, [text for table in tables.values() for text in table.texts("text")], options
        )
