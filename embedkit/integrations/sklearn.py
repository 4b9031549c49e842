"""scikit-learn: a transformer that embeds texts, for pipelines and grid search."""

from __future__ import annotations

import os
from collections.abc import Iterator
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
from ..inputs import check_collection
from .opening import encode_rows, encoder_of

__all__ = ["EmbedkitTransformer"]


class EmbedkitTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Embeds texts as a step of a `Pipeline`.

    `fit` learns nothing: it opens the model. What `set_params` changes counts from the next `fit` on. Clones of a
    transformer over an `Encoder` (as in grid search) share its weights.

    Args:
        model: as in `Encoder`, or an `Encoder`.
        precision, threads, max_length: as in `Encoder`; leave them out if ``model`` is one.
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
        """Store the parameters; `fit` checks them."""
        self.model = model
        self.precision = precision
        self.threads = threads
        self.max_length = max_length
        self.prompt_name = prompt_name
        self.prompt = prompt
        self.truncate_dim = truncate_dim
        self.normalize_embeddings = normalize_embeddings

    def fit(self, X: Any, y: Any = None) -> EmbedkitTransformer:
        """Open the model and check the parameters; ``X`` must hold texts, ``y`` is ignored."""
        _texts(X)
        options = {"precision": self.precision, "threads": self.threads, "max_length": self.max_length}
        given = {name: value for name, value in options.items() if value not in ("auto", None)}
        encoder, encoding = encoder_of(self.model, given), self._options()
        width = encoder.encode([""], **encoding).shape[1]
        # Only once the parameters are proven: a failed fit leaves the one before as it was.
        self.encoder_, self._encoding, self.n_features_out_ = encoder, encoding, width
        return self

    def transform(self, X: Any) -> npt.NDArray[np.float32]:
        """The vectors (n, dim) of n texts.

        Args:
            X: a list, a Series, an array of texts, or one column of a DataFrame.

        Raises:
            NotFittedError: `fit` was not called.
            TypeError: ``X`` is an iterator, which can be read once only, or has no order.
            ValueError: ``X`` does not hold texts.
        """
        check_is_fitted(self)
        vectors: npt.NDArray[np.float32] = encode_rows(self.encoder_.encode, _texts(X), **self._encoding)
        return vectors

    def _options(self) -> dict[str, Any]:
        """Those of `Encoder.encode`."""
        return {
            "prompt_name": self.prompt_name,
            "prompt": self.prompt,
            "truncate_dim": self.truncate_dim,
            "normalize_embeddings": self.normalize_embeddings,
            "show_progress_bar": False,
        }

    @property
    def _n_features_out(self) -> int:
        """The number of names that `get_feature_names_out` returns."""
        return int(self.n_features_out_)

    def __sklearn_tags__(self) -> Tags:
        """Declare that the input is text."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags


def _texts(X: Any) -> list[str]:
    """The texts of ``X``: a sequence, or a table with one column."""
    if isinstance(X, str | bytes):
        raise ValueError("X is one text; give a list of texts")
    shape = getattr(X, "shape", None)
    if shape is not None and len(shape) != 1:
        if len(shape) != 2 or shape[1] != 1:
            raise ValueError(f"X has the shape {shape}; give one column of texts")
        X = np.asarray(X)[:, 0]
    if isinstance(X, Iterator):
        raise TypeError("X is an iterator, which fit would use up before transform; pass list(X)")
    check_collection(X, "a list of texts as X")
    texts = list(X)
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"X[{row}] is {type(text).__name__}, not str: {text!r:.80}")
    return texts
