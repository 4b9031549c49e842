"""Cross-encoders: the teachers of DvBERT (Cheng 2021, arXiv:2104.08675, section 2), also useful by themselves.

Both sentences are one input in the tokenizer's pair template, ``[CLS] Q [SEP] T [SEP]`` for BERT, with a classifier on
the [CLS] vector h (in transformers after the model's own pooler):

    classification  q = softmax(W h),  cross-entropy
    regression      q = sigmoid(w h),  -(t log q + (1 - t) log(1 - q)),  t = y / max_score

The regression loss is minimal if q is the mean of t, as for a squared error, but its gradient q - t does not vanish
where the sigmoid is flat. Both q are in the range of a student's targets, 0 to 1.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from ...model_folder.json_file import present, read_json, write_json
from ...model_folder.safetensors_file import write_errors
from ...model_folder.saving import copy_tokenizer
from .. import packed
from ..backbone import freeze_embeddings, saved_in_int8
from ..data.readers import Table
from ..data.store import TextStore
from ..model import ModelOptions, by_length, inference, load_backbone, pack, quiet, transformer_folder
from .base import (
    Arrays,
    Batch,
    Objective,
    accuracy,
    check_choice,
    check_labels,
    check_positive,
    class_names,
    spearman_percent,
    to_tensors,
)

__all__ = ["CrossEncoder", "CrossEncoderOptions", "PairClassifier"]

_LOG = logging.getLogger("embedkit")


class PairClassifier(nn.Module):
    """Packed pairs of texts to logits: an ``AutoModelForSequenceClassification``.

    Attributes:
        backbone: the transformers model, its classifier included.
        tokenizer_folder: the folder of the tokenizer's files.
        autocast: type of the products in mixed precision, None for fp32; the logits are always fp32.
    """

    def __init__(self, options: ModelOptions, folder: Path, backbone: Any) -> None:
        """Wrap a loaded model; usually called by `load`."""
        super().__init__()
        if options.projection is not None or options.normalize:
            raise ValueError(
                "model.projection and model.normalize shape sentence vectors, but a cross-encoder has none; "
                "remove them"
            )
        if options.prompts or options.default_prompt is not None or not options.keep_prompts:
            raise ValueError(
                "model.prompts, model.default_prompt and model.keep_prompts are of sentence encoders, and the folder "
                "of a cross-encoder has none; remove them"
            )
        self.options = options
        self.tokenizer_folder = folder
        self.backbone = backbone
        if options.freeze_embeddings:
            freeze_embeddings(backbone.base_model)
        self.autocast: torch.dtype | None = None
        # MPNet and RoBERTa have no token types
        self._typed = (
            "token_type_ids" in signature(backbone.forward).parameters
            and getattr(backbone.config, "type_vocab_size", 0) > 1
        )

    @classmethod
    def load(cls, options: ModelOptions, labels: Sequence[str] | None = None) -> PairClassifier:
        """Load a trained cross-encoder, or add a new classifier to a backbone.

        Args:
            options: the ``model`` section of a recipe; ``pooling`` is unused.
            labels: names of the classes, one for a regression; None for those of the trained folder.

        Raises:
            FileNotFoundError: the folder does not exist.
            ValueError: the options do not fit a cross-encoder, or ``labels`` is None and the folder contains none.
        """
        if options.lora is not None:
            raise ValueError("model.lora: a cross-encoder trains all its weights; remove it")
        folder = transformer_folder(options.path)
        config = read_json(folder / "config.json")
        architectures = config.get("architectures")
        named = any(name.endswith("ForSequenceClassification") for name in architectures or ())
        trained = named and not saved_in_int8(folder)  # which leaves the head out
        if labels is None:
            if not trained:
                found = "int8 weights without a head" if named else ", ".join(architectures or ["no model"])
                raise ValueError(
                    f"{folder} holds {found} and no trained cross-encoder; "
                    "train one with the recipe cross-encoder-nli or cross-encoder-stsb"
                )
            extra: dict[str, Any] = {}
        else:
            extra = {
                "id2label": dict(enumerate(labels)),
                "label2id": {name: i for i, name in enumerate(labels)},
            }
        backbone = load_backbone(options, folder, "AutoModelForSequenceClassification", **extra)
        if labels is not None and trained and not options.random:
            _match_classes(backbone, config.get("id2label") or {}, labels, folder)
        return cls(options, folder, backbone)

    @property
    def labels(self) -> list[str]:
        """Names of the classes in the order of the logits."""
        names = self.backbone.config.id2label
        return [str(names[i]) for i in range(len(names))]

    def forward(self, input_ids: Tensor, cu_seqlens: Tensor, token_types: Tensor) -> Tensor:
        """Logits (n, classes), fp32, of packed pairs: ids and token types (tokens,), cut at ``cu_seqlens (n + 1,)``."""
        grid = packed.grid_of(cu_seqlens)
        arguments = {
            "input_ids": packed.pad(input_ids, grid, self.backbone.config.pad_token_id or 0)[0],
            "attention_mask": packed.pad(torch.ones_like(input_ids), grid, 0)[0],
        }
        if self._typed:
            arguments["token_type_ids"] = packed.pad(token_types, grid, 0)[0]
        with torch.autocast(input_ids.device.type, self.autocast, enabled=self.autocast is not None):
            logits: Tensor = self.backbone(**arguments).logits
        return logits.float()

    def predict(
        self, texts1: Sequence[str], texts2: Sequence[str], batch_tokens: int = 4096
    ) -> npt.NDArray[np.float32]:
        """The classifier's predictions for pairs, in order, without dropout.

        Returns:
            (n, classes) probabilities; of a regression (n, 1), 0 to 1.
        """
        logits = torch.from_numpy(self.logits(texts1, texts2, batch_tokens))
        found: npt.NDArray[np.float32] = probabilities(logits).numpy()
        return found

    def logits(
        self, texts1: Sequence[str], texts2: Sequence[str], batch_tokens: int = 4096
    ) -> npt.NDArray[np.float32]:
        """The logits (n, classes) of which `predict` makes probabilities."""
        if len(texts1) != len(texts2):
            raise ValueError(f"{len(texts1)} first texts and {len(texts2)} second texts cannot be paired")
        store = TextStore(
            self.tokenizer_folder,
            [*texts1, *texts2],
            self.options.max_length,
            vectors=self.backbone.config.vocab_size,
        )
        pairs = store.rows.reshape(2, -1).T
        lengths = store.pair_lengths(pairs[:, 0], pairs[:, 1])
        found = np.empty((len(pairs), len(self.labels)), np.float32)
        with inference(self) as device:
            for rows in by_length(lengths, batch_tokens):
                batch = pack_pairs(store, pairs[rows])
                found[rows] = self(**{name: value.to(device) for name, value in batch.items()}).cpu().numpy()
        return found

    def save(self, folder: Path) -> None:
        """Write a folder that ``sentence_transformers.CrossEncoder`` and transformers load.

        ``folder`` must exist; files in it are replaced. Readers truncate pairs to the ``max_length`` of the training.
        """
        with quiet(), write_errors(folder):
            self.backbone.save_pretrained(folder)
        path = folder / "config.json"
        config = read_json(path)
        # that of the folder from which training began may be another
        config.pop("sbert_ce_default_activation_function", None)
        kind = "activation.Sigmoid" if len(self.labels) == 1 else "linear.Identity"
        config["sentence_transformers"] = {"activation_fn": f"torch.nn.modules.{kind}"}
        write_json(path, config)
        copy_tokenizer(self.tokenizer_folder, folder)
        path = folder / "tokenizer_config.json"
        settings = read_json(path) if present(path) else {}
        settings["model_max_length"] = self.options.max_length
        # a tokenizer of the generic class would omit the token types
        types = ["token_type_ids"] if self._typed else []
        settings["model_input_names"] = ["input_ids", *types, "attention_mask"]
        write_json(path, settings)


def _match_classes(backbone: Any, names: Mapping[str, str], labels: Sequence[str], folder: Path) -> None:
    """Give each class the row of the head that was trained for it; a head of other classes becomes a new one.

    One score has no other to be taken for, and classes without names of their own may be any.
    """
    own = [str(names[key]) for key in sorted(names, key=int)]
    unnamed = own == [f"LABEL_{number}" for number in range(len(own))]
    if len(own) != len(labels) or len(own) == 1 or unnamed:
        return
    before, wanted = [name.casefold() for name in own], [name.casefold() for name in labels]
    if len({*before}) < len(own) or len({*wanted}) < len(own):
        before, wanted = own, list(labels)
    base = f"{backbone.base_model_prefix}."
    heads = [
        name
        for name, one in backbone.named_modules()
        if isinstance(one, nn.Linear) and not name.startswith(base)
    ]
    head = backbone.get_submodule(heads[-1])
    if sorted(before) != sorted(wanted):
        _LOG.warning("%s: %s is new, since it was of the classes %s", folder, heads[-1], ", ".join(own))
        head.reset_parameters()
        return
    order = [before.index(name) for name in wanted]
    for parameter in head.parameters():
        parameter.data = parameter.data[order]


def pack_pairs(store: TextStore, pairs: npt.NDArray[np.integer[Any]]) -> Batch:
    """``pairs (n, 2)``, rows of ``store``, by the tokenizer's pair template, packed."""
    rows = [store.pair_ids(int(first), int(second)) for first, second in pairs]
    input_ids, cu_seqlens = pack([ids for ids, _ in rows])
    return {
        "input_ids": input_ids,
        "cu_seqlens": cu_seqlens,
        "token_types": pack([types for _, types in rows])[0],
    }


def probabilities(logits: Tensor) -> Tensor:
    """Softmax of ``logits (n, classes)``; the sigmoid of a regression's (n, 1)."""
    return logits.sigmoid() if logits.shape[-1] == 1 else logits.softmax(-1)


@dataclass(frozen=True)
class CrossEncoderOptions:
    """Options of `CrossEncoder`.

    Attributes:
        loss: ``classification`` or ``regression``.
        max_score: regression: the score that means 1; 0 means 0.
    """

    loss: str = "classification"
    max_score: float = 5.0

    def __post_init__(self) -> None:
        """Check the values."""
        check_choice("loss", self.loss, ("classification", "regression"))
        check_positive("max_score", self.max_score)


class CrossEncoder(Objective):
    """Classification or regression of pairs that are one input."""

    Options: ClassVar[type[Any]] = CrossEncoderOptions
    options: CrossEncoderOptions
    encoder: PairClassifier
    pipeline_tag: ClassVar[str] = "text-classification"
    usage: ClassVar[str] = (
        "from sentence_transformers import CrossEncoder\n\n"
        'scores = CrossEncoder("{path}").predict([("a sentence", "another one")])'
    )

    @classmethod
    def load_encoder(
        cls, model: ModelOptions, options: CrossEncoderOptions, tables: Mapping[str, Table]
    ) -> PairClassifier:
        """A backbone with a new classifier for the classes of the tasks."""
        if options.loss == "regression":
            return PairClassifier.load(model, ["score"])
        return PairClassifier.load(model, class_names(tables))

    def check(self, where: str, task: str, table: Table) -> None:
        """See `Objective.check`."""
        check_labels(where, table, self.options.loss, self.encoder.labels, self.options.max_score)

    def collate(self, store: TextStore, texts: npt.NDArray[np.int64], arrays: Arrays) -> Batch:
        """Pairs by the tokenizer's template, packed; see `Objective.collate`."""
        return {**pack_pairs(store, texts), **to_tensors(arrays)}

    def forward(
        self, task: Tensor, input_ids: Tensor, cu_seqlens: Tensor, **targets: Tensor
    ) -> dict[str, Tensor]:
        """See `Objective.forward`."""
        logits = self.encoder(input_ids, cu_seqlens, targets["token_types"])
        if self.options.loss == "classification":
            return {"loss": functional.cross_entropy(logits, targets["label"]), "logits": logits}
        target = targets["label"].float() / self.options.max_score
        score = logits[:, 0]
        return {"loss": functional.binary_cross_entropy_with_logits(score, target), "score": score}

    def score(self, task: str, outputs: Arrays, arrays: Arrays) -> dict[str, float]:
        """Accuracy, or Spearman's rank correlation."""
        if self.options.loss == "classification":
            return {"accuracy": accuracy(outputs["logits"], arrays["label"])}
        return {"spearman": spearman_percent(outputs["score"], arrays["label"])}
