"""Ray: encode the texts of a `ray.data.Dataset` on every machine of a cluster.

``embedkit-index build --engine ray`` is in `ray_index`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

try:
    import ray
except ImportError as error:
    raise ImportError("EncodeBatches needs ray[data]: pip install 'embedkit[cpu,ray]'") from error

from ..encoder import Encoder
from .opening import check_options, encode_rows

__all__ = ["EncodeBatches", "encoder_options"]


class EncodeBatches:
    """Adds a column of vectors to each batch: a class for `ray.data.Dataset.map_batches`.

    >>> dataset.map_batches(
    ...     EncodeBatches,
    ...     fn_constructor_kwargs={"text_column": "text"},
    ...     num_cpus=4,  # or num_gpus=1
    ...     batch_size=4096,
    ...     compute=ray.data.ActorPoolStrategy(min_size=1, max_size=16),
    ... )

    Each actor opens one encoder, on the GPU that Ray assigns to it, or else with as many threads as CPUs. It keeps no
    state between batches, so Ray may repeat a batch on another actor if one is lost, with the same vectors.
    ``batch_size`` may be large: the encoder makes its own batches by tokens, and never pads.

    Args:
        model: as in `Encoder`: a name, or a folder that exists on every machine; None for the built-in model.
        options: further arguments of `Encoder`, e.g. ``{"precision": "int8"}``.
        text_column: column of the texts.
        vector_column: column of the vectors to add, float32 (n, dim).
        kind: ``"document"`` or ``"query"``: which of the model's prompts to use.
        normalize_embeddings: scale every vector to length 1.

    Attributes:
        encoder: the `Encoder`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        text_column: str = "text",
        vector_column: str = "vector",
        kind: Literal["document", "query"] = "document",
        normalize_embeddings: bool = False,
    ) -> None:
        """Open the model; Ray calls this in the actor."""
        if kind not in ("document", "query"):
            raise ValueError(f"kind must be 'document' or 'query', not {kind!r}")
        name, given = check_options(model, options, saved=False)
        self.encoder = Encoder(name, **encoder_options(given))
        self._encode = self.encoder.encode_query if kind == "query" else self.encoder.encode_document
        self._text_column = text_column
        self._vector_column = vector_column
        self._normalize = normalize_embeddings

    def __call__(self, batch: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """``batch`` with its column of vectors.

        Args:
            batch: columns as numpy arrays, Ray's default ``batch_format``.

        Raises:
            TypeError: the batch has another format, or a text is not a string.
            ValueError: there is no column of texts.
        """
        if not isinstance(batch, dict):
            raise TypeError(
                f"EncodeBatches takes batch_format='numpy', Ray's default, not {type(batch).__name__}"
            )
        if self._text_column not in batch:
            columns = ", ".join(map(repr, batch)) or "none"
            raise ValueError(
                f"no column {self._text_column!r} (the columns are: {columns}); name it with text_column="
            )
        texts = batch[self._text_column].tolist()
        # several of Ray's operators make empty batches, too
        vectors = encode_rows(
            self._encode, texts, normalize_embeddings=self._normalize, show_progress_bar=False
        )
        return {**batch, self._vector_column: vectors}


def encoder_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `Encoder` for the resources that Ray has assigned to this task or actor.

    ``options`` take precedence. By default an encoder uses all processors of its machine, since Ray only counts them.
    """
    if not ray.is_initialized() or (context := ray.get_runtime_context()).get_task_id() is None:
        return dict(options)  # the driver, or no cluster at all
    found: dict[str, Any] = {"threads": max(1, int(context.get_assigned_resources().get("CPU", 0)))}
    if context.get_accelerator_ids().get("GPU"):
        found["device"] = "cuda"  # Ray hides the others from the process
    return {**found, **options}
