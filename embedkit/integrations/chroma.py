"""ChromaDB: an embedding function."""

from __future__ import annotations

import os
from typing import Any, cast

import numpy as np

try:
    from chromadb.api.types import Documents, EmbeddingFunction, Embeddings, Space
    from chromadb.utils.embedding_functions import register_embedding_function
except ImportError as error:
    raise ImportError("EmbedkitEmbeddingFunction needs chromadb: pip install 'embedkit[chroma]'") from error

from ..backends.engine import Engine
from ..encoder import Encoder
from ..forking import fork_lock
from .opening import check_options, open_encoder

__all__ = ["EmbedkitEmbeddingFunction"]

_SPACES: dict[str, Space] = {"cosine": "cosine", "dot": "ip", "euclidean": "l2"}
# What determines the vectors of a collection.
_VECTORS = (
    "fingerprint",
    "normalize_embeddings",
    "truncate_dim",
    "max_length",
    "on_overflow",
    "prompts",
    "default_prompt_name",
)
# Chroma restores the function of a collection for every call, and keeps it no longer.
_restored: list[Engine] = []
_RESTORED = 2
_lock = fork_lock()


@register_embedding_function  # so that a client finds it by its name when it opens a collection again
class EmbedkitEmbeddingFunction(EmbeddingFunction[Documents]):
    """Chroma's `EmbeddingFunction` over an `Encoder`.

    Documents are encoded with the model's prompt "document", queries with "query". A collection stores the model
    and the options, and restores them once this module is imported.

    Args:
        model: as in `Encoder`: a name or a folder, or None for the built-in model.
        normalize_embeddings: scale every vector to length 1.
        options: further arguments of `Encoder`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        normalize_embeddings: bool = False,
        **options: Any,
    ) -> None:
        """Open the model."""
        self._model, self._options = check_options(model, options)
        self._normalize = normalize_embeddings
        self.encoder: Encoder = open_encoder(self._model, options)

    def __call__(self, input: Documents) -> Embeddings:
        """The vectors of documents."""
        vectors = self.encoder.encode_document(list(input), normalize_embeddings=self._normalize)
        return cast(Embeddings, [np.asarray(vector, np.float32) for vector in vectors])

    def embed_query(self, input: Documents) -> Embeddings:
        """The vectors of queries."""
        vectors = self.encoder.encode_query(list(input), normalize_embeddings=self._normalize)
        return cast(Embeddings, [np.asarray(vector, np.float32) for vector in vectors])

    @staticmethod
    def name() -> str:
        """The name that Chroma registers it under."""
        return "embedkit"

    def default_space(self) -> Space:
        """The default space of a collection: that of the model's similarity."""
        return _SPACES.get(self.encoder.similarity_fn_name, "l2")

    def max_tokens(self) -> int:
        """The most tokens of a text."""
        return self.encoder.max_seq_length

    def is_legacy(self) -> bool:
        """Whether a collection could not store it; Chroma finds out by restoring it."""
        return False

    def get_config(self) -> dict[str, Any]:
        """The configuration that Chroma stores with a collection."""
        return {
            "model": self._model,
            "fingerprint": self.encoder.fingerprint,
            "normalize_embeddings": self._normalize,
            "options": dict(self._options),
        }

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> EmbedkitEmbeddingFunction:
        """Restore a function from `get_config`; ValueError if the model has changed.

        The last two models stay open.
        """
        EmbedkitEmbeddingFunction.validate_config(config)
        made = EmbedkitEmbeddingFunction(config["model"], config["normalize_embeddings"], **config["options"])
        if made.encoder.fingerprint != config["fingerprint"]:
            raise ValueError(
                f"the model {made.encoder._name!r} is not the one that computed the vectors of the "
                f"collection: its fingerprint is {made.encoder.fingerprint[:12]}…, not "
                f"{config['fingerprint'][:12]}…; restore that model, or create a new collection"
            )
        with _lock:
            engine = made.encoder._engine
            if engine in _restored:
                _restored.remove(engine)
            _restored.append(engine)
            del _restored[:-_RESTORED]
        return made

    @staticmethod
    def validate_config(config: dict[str, Any]) -> None:
        """Raise ValueError unless ``config`` has the form of `get_config`."""
        types: dict[str, Any] = {
            "model": (str, type(None)),
            "fingerprint": str,
            "normalize_embeddings": bool,
            "options": dict,
        }
        for key, kind in types.items():
            if key not in config or not isinstance(config[key], kind):
                raise ValueError(
                    f"the configuration of the embedding function 'embedkit' has {config.get(key)!r} for {key!r}; "
                    "use one from get_config()"
                )

    def validate_config_update(self, old_config: dict[str, Any], new_config: dict[str, Any]) -> None:
        """Accept a moved model and settings of speed; raise ValueError for what changes the vectors.

        Chroma opens the old model again to compare, so that its folder must still be there.
        """
        defaults = {"on_overflow": "truncate"}
        old, new = ({**config, **config["options"]} for config in (old_config, new_config))
        for key in _VECTORS:
            if (old.get(key) or defaults.get(key)) != (new.get(key) or defaults.get(key)):
                raise ValueError(
                    f"{key} cannot be changed: the vectors of the collection were made with the previous value; "
                    "create a new collection. Chroma has stored the new function already: call modify again with the "
                    "previous one"
                )
