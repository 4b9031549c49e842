"""scikit-learn: a transformer from texts to vectors, for pipelines and grid search."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils import Tags
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise ImportError(
        "EmbedkitTransformer needs scikit-learn 1.6 or newer: pip install 'embedkit[sklearn]'"
    ) from error

from ..encoder import Encoder

__all__ = ["EmbedkitTransformer"]


class EmbedkitTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Texts to vectors, as a step of a `Pipeline`.

    `fit` learns nothing: it opens the model. Copies (`clone`, grid search) of one that was given an `Encoder`
    share its weights.

    Args:
        model: as in `Encoder`, or an `Encoder`.
        precision, threads, max_length: as in `Encoder`; they must be left alone if an `Encoder` is given.
        prompt_name, prompt, truncate_dim, normalize_embeddings: as in `Encoder.encode`.

    Attributes:
        encoder_: the `Encoder`.
        n_features_out_: dimensions of a vector.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Encoder | None = None,
        *,
        precision: str = "auto",
        threads: int | None = None,
        max_length: int | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
        normalize_embeddings: bool = False,
    ) -> None:
        """Keep the parameters; `fit` looks at them."""
        self.model = model
        self.precision = precision
        self.threads = threads
        self.max_length = max_length
        self.prompt_name = prompt_name
        self.prompt = prompt
        self.truncate_dim = truncate_dim
        self.normalize_embeddings = normalize_embeddings

    def fit(self, X: Any, y: Any = None) -> EmbedkitTransformer:
        """Open the model and check the parameters with it; ``X`` is checked to be texts, ``y`` ignored."""
        _texts(X)
        options = {"precision": self.precision, "threads": self.threads, "max_length": self.max_length}
        if isinstance(self.model, Encoder):
            given = [name for name, value in options.items() if value not in ("auto", None)]
            if given:
                raise ValueError(
                    f"{given[0]} is a matter of the Encoder that was given as model; set it there"
                )
            self.encoder_ = self.model
        else:
            self.encoder_ = Encoder(self.model, **options)  # type: ignore[arg-type]
        self.n_features_out_ = self._encode([""]).shape[1]
        return self

    def transform(self, X: Any) -> npt.NDArray[np.float32]:
        """The vectors (n, dim) of n texts.

        Args:
            X: a list, a Series, an array of texts, or one column of a DataFrame.

        Raises:
            NotFittedError: `fit` was not called.
            ValueError: ``X`` is no collection of texts.
        """
        check_is_fitted(self)
        return self._encode(_texts(X))

    def _encode(self, texts: list[str]) -> npt.NDArray[np.float32]:
        vectors: npt.NDArray[np.float32] = self.encoder_.encode(
            texts,
            self.prompt_name,
            self.prompt,
            truncate_dim=self.truncate_dim,
            normalize_embeddings=self.normalize_embeddings,
            show_progress_bar=False,
        )
        return vectors if texts else np.empty((0, self.n_features_out_), np.float32)

    @property
    def _n_features_out(self) -> int:
        """What `get_feature_names_out` counts to."""
        return int(self.n_features_out_)

    def __sklearn_tags__(self) -> Tags:
        """Say that the input is text."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags


def _texts(X: Any) -> list[str]:
    """The texts of ``X``; one column of a table is taken as its texts."""
    if isinstance(X, str | bytes):
        raise ValueError("X is one text; give a list of texts")
    shape = getattr(X, "shape", None)
    if shape is not None and len(shape) != 1:
        if len(shape) != 2 or shape[1] != 1:
            raise ValueError(f"X has the shape {shape}; give one column of texts")
        X = np.asarray(X)[:, 0]
    texts = list(X)
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"X[{row}] is {type(text).__name__}, not str: {text!r:.80}")
    return texts
