"""MTEB: an encoder for its tasks.

>>> import mteb
>>> from embedkit.integrations.mteb import MTEBEncoder
>>> mteb.evaluate(MTEBEncoder("sentence-transformers/all-mpnet-base-v2"), mteb.get_tasks(["STSBenchmark"]))
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

try:
    from mteb.models import ModelMeta
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ScoringFunction
except ImportError as error:
    raise ImportError("MTEBEncoder needs mteb 2.8.2 or newer: pip install 'embedkit[mteb]'") from error

from ..encoder import Encoder
from ..index.encoder import own_max_length, own_overflow
from .opening import encode_rows, encoder_of

if TYPE_CHECKING:
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.types import PromptType

__all__ = ["MTEBEncoder"]

# The scores that MTEB computes itself; for any other it asks the encoder.
_SCORING = {"cosine": ScoringFunction.COSINE, "dot": ScoringFunction.DOT_PRODUCT}


class MTEBEncoder(AbsEncoder):
    """MTEB's encoder protocol over an `Encoder`.

    MTEB caches results by the model's name and revision, which is its fingerprint and precision here, and a hash of
    the options that change vectors: another model in the same folder, the same one in int8, or with other prompts or
    dimensions does not get the cached results of the first.

    Args:
        model: as in `Encoder`, or an `Encoder`.
        revision: of the model on the Hub.
        device: as in `Encoder`.
        prompts: prompts by name, which take precedence over the model's: ``"STSBenchmark-query"`` (task and
            prompt type), ``"STSBenchmark"``, ``"Retrieval-query"`` (task type and prompt type), ``"Retrieval"``,
            ``"query"``. The first of these that exists is used.
        options: further arguments of `Encoder`.

    Attributes:
        model: the `Encoder`.
        model_prompts: ``prompts`` and those of the model.
        mteb_model_meta: what MTEB records about the model.

    Raises:
        KeyError: a name of ``prompts`` is neither a task, a type of task, nor a prompt type.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Encoder | None = None,
        revision: str | None = None,
        *,
        device: str | None = None,
        prompts: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Open the model."""
        given = {"revision": revision, "device": device, **options}
        self.model = encoder_of(model, {name: value for name, value in given.items() if value is not None})
        chosen = self.validate_task_to_prompt_name(dict(prompts or {})) or {}
        self.model_prompts = {**self.model.prompts, **chosen}
        self.mteb_model_meta = _meta(self.model, self.model_prompts)

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> npt.NDArray[Any]:
        """The vectors (n, dim) of the texts of all batches, in their order.

        Args:
            inputs: batches, each with its texts under ``"text"``.
            task_metadata: the task; selects the prompt.
            hf_split, hf_subset: the part of the task's data; ignored.
            prompt_type: query, document or None.
            kwargs: MTEB's ``encode_kwargs``, further arguments of `Encoder.encode`; ``batch_size`` is ignored, the core
                chooses its own.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        name = self.get_prompt_name(task_metadata, prompt_type)
        options = {"show_progress_bar": False, **kwargs}
        options.pop("batch_size", None)  # MTEB's default, which is for other libraries
        vectors: npt.NDArray[Any] = encode_rows(
            self.model.encode,
            texts,
            prompt=None if name is None else self.model_prompts[name],
            task=None if prompt_type is None else prompt_type.value,
            **options,
        )
        return vectors


def _meta(encoder: Encoder, prompts: Mapping[str, str]) -> ModelMeta:
    described = encoder.describe()
    revision = f"{encoder.fingerprint[:16]}-{described['precision']}"
    folder = encoder._engine.folder
    options = {
        "truncate_dim": (encoder.truncate_dim, folder.truncate_dim),
        "max_length": (own_max_length(encoder), None),
        "on_overflow": (own_overflow(encoder), None),
        "default_prompt_name": (encoder.default_prompt_name, folder.default_prompt_name),
        "similarity_fn_name": (encoder.similarity_fn_name, folder.similarity_fn_name or "cosine"),
        "prompts": (dict(prompts), dict(folder.prompts)),
    }
    if changed := {name: value for name, (value, own) in options.items() if value != own}:
        content = json.dumps(changed, sort_keys=True, default=str)
        revision += f"-{hashlib.sha256(content.encode()).hexdigest()[:8]}"
    name = str(described["model"])
    if os.path.exists(name) or "/" not in name:  # MTEB requires organization/model
        name = f"embedkit/{os.path.basename(os.path.normpath(name))}"
    return ModelMeta.create_empty(
        overwrites={
            "name": name,
            "revision": revision,
            "embed_dim": described["dimension"],
            "max_tokens": described["max_length"],
            "similarity_fn_name": _SCORING.get(described["similarity"]),
            "open_weights": True,
        }
    )
