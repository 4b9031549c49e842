"""What an index needs of an encoder, and whether it is the right one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from .errors import ModelMismatchError
from .storage.manifest import EncoderEntry, Manifest


class TextEncoder(Protocol):
    """What an index needs of an encoder; `embedkit.Encoder` has it."""

    @property
    def fingerprint(self) -> str:
        """Identifies the model."""

    @property
    def prompts(self) -> Mapping[str, str]:
        """Prompts by name; "document" goes before each text to be found."""

    def get_embedding_dimension(self) -> int:
        """The number of columns of a vector."""

    def describe(self) -> dict[str, Any]:
        """At least ``model`` and ``precision``."""

    def encode_document(self, sentences: list[str], *, normalize_embeddings: bool) -> Any:
        """Encode texts to be found: float32 (n, dimension)."""

    def encode_query(self, sentences: list[str], *, normalize_embeddings: bool) -> Any:
        """Encode texts to search with: float32 (n, dimension)."""


def describe_encoder(encoder: TextEncoder) -> EncoderEntry:
    """What a manifest says about ``encoder``."""
    description = encoder.describe()
    model = str(description["model"])
    return EncoderEntry(
        # a folder must be found again from another working directory
        model=str(Path(model).resolve()) if Path(model).is_dir() else model,
        fingerprint=encoder.fingerprint,
        precision=str(description["precision"]),
        document_prompt=encoder.prompts.get("document", ""),
    )


def load_encoder(
    manifest: Manifest, model: str | os.PathLike[str] | None, threads: int | None, device: str
) -> TextEncoder:
    """The encoder that the index names, or the one at ``model``, with the numerics of the index."""
    from .. import Encoder
    from ..arguments import PRECISIONS
    from ..model_folder.folder import BUILTIN

    entry = manifest.encoder
    if model is None and entry.model != BUILTIN.name:
        model = entry.model
    # Built on a GPU, the documents are nearer to the model's own precision than to any other of a CPU.
    precision = entry.precision if device != "cpu" or entry.precision in PRECISIONS else "auto"
    encoder = Encoder(model, device=device, precision=precision, threads=threads)
    if encoder.get_embedding_dimension() > manifest.dimension:
        encoder.truncate_dim = manifest.dimension
    return encoder


def query_steps(
    encoder: TextEncoder, *, normalize: bool
) -> tuple[Callable[[list[str]], Any], Callable[[Any], tuple[Any, float]]]:
    """`embedkit.Encoder.query_steps`; of another encoder the first step does nothing."""
    from ..encoder import Encoder

    if type(encoder) is Encoder:  # a subclass may have an `encode_query` of its own
        return encoder.query_steps(normalize_embeddings=normalize)
    return lambda texts: texts, lambda texts: (
        encoder.encode_query(texts, normalize_embeddings=normalize),
        0.0,
    )


def check_encoder(root: Path, manifest: Manifest, encoder: TextEncoder, *, force: bool = False) -> None:
    """Refuse an encoder whose vectors cannot be compared with those of the index.

    With ``force`` another model is only warned of; another dimension stays an error.
    """
    entry = manifest.encoder
    if encoder.fingerprint != entry.fingerprint:
        problem = (
            f"{root} was built with {entry.model} (fingerprint {entry.fingerprint}), and the encoder is "
            f"{encoder.describe()['model']} (fingerprint {encoder.fingerprint})"
        )
        if not force:
            raise ModelMismatchError(f"{problem}; open it with the first, or build it again")
        warnings.warn(f"{problem}: the hits may mean nothing", stacklevel=4)
    dimension = encoder.get_embedding_dimension()
    if dimension != manifest.dimension:
        raise ModelMismatchError(
            f"{root} holds vectors of {manifest.dimension} dimensions, and the encoder makes {dimension} "
            "(truncate_dim?); open it with an encoder of the same dimension, or build it again"
        )
