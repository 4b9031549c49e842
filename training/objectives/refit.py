"""A trained encoder's projection, fitted anew: our own addition to HPD.

    h = W^T e / |W^T e|,  W by `embedkit.training.linear_map.fit_similarities` on the pooled vectors e

The projection that training leaves was learned beside an encoder that moved, on the few hundred batches that moved it;
that for an encoder that stands still takes seconds. A recipe sets ``training.epochs: 0``.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from embedkit import Encoder

from ..data.readers import Table
from ..linear_map import fit_similarities
from ..model import ModelOptions, SentenceModel
from .base import Objective, check_matryoshka

__all__ = ["Refit", "RefitOptions"]

_SEED = 0  # of the sample


@dataclass(frozen=True)
class RefitOptions:
    """Options of `Refit`.

    Attributes:
        samples: most sentences on which the projection is fitted.
        matryoshka: dimensions to which the vectors can be truncated.
    """

    samples: int = 40_000
    matryoshka: list[int] = field(default_factory=list)


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
        encoder: Any = SentenceModel.load(model)
        texts = list(dict.fromkeys(text for table in tables.values() for text in table.texts("text")))
        if len(texts) > options.samples:
            texts = random.Random(_SEED).sample(texts, options.samples)
        bare = replace(model, projection=None, normalize=False)
        with tempfile.TemporaryDirectory(prefix="embedkit-") as folder:
            SentenceModel(bare, encoder.tokenizer_folder, encoder.backbone).save(Path(folder))
            with Encoder(folder, precision="fp32", threads=torch.get_num_threads()) as core:
                pooled = core.encode(texts)
        fitted = fit_similarities(pooled, model.projection.dimension, options.matryoshka)
        with torch.no_grad():
            encoder.projection.weight.copy_(torch.from_numpy(fitted.weight.T))
            encoder.projection.bias.zero_()
        return encoder
