"""A RoFormer that embeds and generates: UniLM's mask on transformers' implementation.

Source: RoFormer-Sim (Su 2021, kexue.fm/archives/8454), after SimBERT and UniLM (Dong et al. 2019, arXiv:1905.03197).
A pair is one sequence,

    [CLS] text [SEP] target [SEP]

in which the prefix ``[CLS] text [SEP]`` (token type 0) attends to itself in both directions, and the target (token
type 1) attends to the prefix and to the target's earlier tokens. So the vector at [CLS] depends on the text alone, and
the same forward pass predicts the target: p(next) = softmax(E · norm(gelu(W h + b)) + c), E the word embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..model_folder.safetensors_file import write_errors
from . import packed
from .model import ModelOptions, SentenceModel, load_backbone, options_of, transformer_folder

__all__ = ["GENERATOR_FILE", "UnilmModel", "load_pooler", "pack_pairs", "unilm_mask"]

GENERATOR_FILE = "generator.safetensors"
"""Beside model.safetensors in a model folder: the tensors of the language model's head."""


class UnilmModel(SentenceModel):
    """A sentence encoder with a language model's head, tied to its word embeddings.

    The embeddings are used directly, not as a second parameter, so that files contain them once.

    Attributes:
        transform: linear layer before the vocabulary, (embedding_size, hidden_size).
        norm: the layer norm after it.
        bias: (vocab_size,).
    """

    def __init__(self, options: ModelOptions, folder: Path, backbone: Any) -> None:
        """Wrap a loaded RoFormer; the head is random.

        Raises:
            ValueError: the backbone is not a RoFormer, or the pooling is not ``cls``.
        """
        super().__init__(options, folder, backbone)
        config = backbone.config
        if config.model_type != "roformer":
            raise ValueError(
                f"{folder} is a {config.model_type}; RoFormer-Sim needs a RoFormer (model_type roformer in config.json)"
            )
        if 2 * options.max_length > config.max_position_embeddings:
            raise ValueError(
                f"a text and its target have up to {2 * options.max_length} tokens, and {folder} has "
                f"{config.max_position_embeddings} positions; set model.max_length to at most "
                f"{config.max_position_embeddings // 2}"
            )
        if options.pooling != "cls":
            raise ValueError(f"RoFormer-Sim embeds by [CLS]: set model.pooling=cls, not {options.pooling}")
        self.transform = nn.Linear(config.hidden_size, config.embedding_size)
        nn.init.normal_(self.transform.weight, std=config.initializer_range)
        nn.init.zeros_(self.transform.bias)
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    @classmethod
    def load(cls, options: ModelOptions) -> UnilmModel:
        """As `SentenceModel.load`; the head comes from generator.safetensors, or is a checkpoint's MLM head.

        A published checkpoint's linear layer on [CLS] (``pooler.dense``) becomes the projection if that has its
        size.
        """
        if options.lora is not None:
            raise ValueError("model.lora: RoFormer-Sim trains all its weights; remove it")
        folder = transformer_folder(options.path)
        if options.random or (folder / GENERATOR_FILE).is_file():
            model = cls(options, folder, load_backbone(options, folder))
            if not options.random:
                model._load_head(folder / GENERATOR_FILE)
        else:
            whole = load_backbone(options, folder, "AutoModelForMaskedLM")
            model = cls(options, folder, getattr(whole, whole.base_model_prefix))
            model._copy_head(whole.cls.predictions)
            load_pooler(model, folder)
        model.continue_from_folder()
        model.add_prompts()
        return model

    @classmethod
    def open(cls, folder: str | Path) -> UnilmModel:
        """Load a folder that `save` wrote, with its pooling and projection.

        Raises:
            FileNotFoundError: the folder or its generator.safetensors does not exist.
        """
        if not (transformer_folder(str(folder)) / GENERATOR_FILE).is_file():
            raise FileNotFoundError(
                f"{folder} holds no {GENERATOR_FILE}, so it cannot generate; train it with the objective roformer_sim"
            )
        return cls.load(options_of(str(folder)))

    def sequences(self, input_ids: Tensor, cu_seqlens: Tensor, prefix: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors of the texts and the loss of their targets.

        Args:
            input_ids: (tokens,), pairs as `pack_pairs` packs them.
            cu_seqlens: (n + 1,).
            prefix: (n,) tokens of ``[CLS] text [SEP]``.

        Returns:
            The texts' vectors (n, dimension), and -log p(target | text) summed over the tokens of each target,
            its [SEP] included, (n,).
        """
        (ids,) = packed.pad(input_ids, packed.grid_of(cu_seqlens), self.backbone.config.pad_token_id or 0)
        n, longest = ids.shape
        columns = torch.arange(longest, device=ids.device)
        lengths = cu_seqlens.diff()
        with torch.autocast(ids.device.type, self.autocast, enabled=self.autocast is not None):
            hidden = self._run(ids, (columns >= prefix[:, None]).long(), unilm_mask(lengths, prefix, longest))
            # the token before a target's token predicts it: the text's [SEP] the first
            predicting = (columns >= prefix[:, None] - 1) & (columns < lengths[:, None] - 1)
            logits = self.logits(hidden[predicting])
        targets = ids.roll(-1, 1)[predicting]
        losses = functional.cross_entropy(logits.float(), targets, reduction="none")
        owners = torch.arange(n, device=ids.device)[:, None].expand_as(predicting)[predicting]
        first = torch.arange(n + 1, device=ids.device)
        return self.pool(hidden[:, 0].float(), first), losses.new_zeros(n).index_add(0, owners, losses)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., vocab_size) of the next token after tokens with the vectors ``hidden`` (..., hidden_size)."""
        transformed = self.norm(functional.gelu(self.transform(hidden)))
        return functional.linear(transformed, self.backbone.embeddings.word_embeddings.weight, self.bias)

    def embedded(self, ids: Tensor, types: Tensor) -> Tensor:
        """The input of the first layer, (n, longest, hidden_size), for ``ids`` and token types, (n, longest)."""
        embedded = self.backbone.embeddings(input_ids=ids, token_type_ids=types)
        if hasattr(self.backbone, "embeddings_project"):
            embedded = self.backbone.embeddings_project(embedded)
        return embedded

    def _run(self, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        """Hidden states of the last layer; calls the encoder directly, which accepts any mask."""
        return self.backbone.encoder(self.embedded(ids, types), attention_mask=mask)[0]

    def save(self, folder: Path) -> None:
        """As `SentenceModel.save`, and the head."""
        from safetensors.torch import save_file

        super().save(folder)
        tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in self._head().items()}
        with write_errors(folder / GENERATOR_FILE):
            save_file(tensors, folder / GENERATOR_FILE)

    def _head(self) -> dict[str, Tensor]:
        """The head's own tensors, under transformers' names."""
        return {
            "cls.predictions.transform.dense.weight": self.transform.weight,
            "cls.predictions.transform.dense.bias": self.transform.bias,
            "cls.predictions.transform.LayerNorm.weight": self.norm.weight,
            "cls.predictions.transform.LayerNorm.bias": self.norm.bias,
            "cls.predictions.bias": self.bias,
        }

    def _load_head(self, path: Path) -> None:
        from safetensors.torch import load_file

        tensors = load_file(path)
        for name, tensor in self._head().items():
            if name not in tensors or tensors[name].shape != tensor.shape:
                raise ValueError(f"{path}: expected the tensor {name} of shape {tuple(tensor.shape)}")
            with torch.no_grad():
                tensor.copy_(tensors[name])

    def _copy_head(self, predictions: Any) -> None:
        with torch.no_grad():
            self.transform.load_state_dict(predictions.transform.dense.state_dict())
            self.norm.load_state_dict(predictions.transform.LayerNorm.state_dict())
            self.bias.copy_(predictions.bias)


def load_pooler(model: SentenceModel, folder: Path) -> None:
    """Load the linear layer on [CLS] of a published RoFormer-Sim, which transformers ignores, into the projection.

    Does nothing if the checkpoint has no such layer of the projection's size.
    """
    tensors = _checkpoint(folder)
    weight = next((x for name, x in tensors.items() if name.endswith("pooler.dense.weight")), None)
    bias = next((x for name, x in tensors.items() if name.endswith("pooler.dense.bias")), None)
    if model.projection is None or weight is None or bias is None:
        return
    if weight.shape == model.projection.weight.shape:
        with torch.no_grad():
            model.projection.weight.copy_(weight)
            model.projection.bias.copy_(bias)


def _checkpoint(folder: Path) -> dict[str, Tensor]:
    """The tensors of a single-file checkpoint; none if it is sharded."""
    from safetensors.torch import load_file

    if (folder / "model.safetensors").is_file():
        return load_file(folder / "model.safetensors")
    if (folder / "pytorch_model.bin").is_file():
        tensors: dict[str, Tensor] = torch.load(folder / "pytorch_model.bin", "cpu", weights_only=True)
        return tensors
    return {}


def unilm_mask(lengths: Tensor, prefix: Tensor, longest: int) -> Tensor:
    """The additive attention mask: 0 where a token (row) attends to another (column), else the lowest number.

    Args:
        lengths: (n,) tokens of each sequence.
        prefix: (n,) tokens of each prefix, which attend to each other in both directions.
        longest: the width of the grid.

    Returns:
        (n, 1, longest, longest), fp32.
    """
    columns = torch.arange(longest, device=lengths.device)
    seen = (columns < prefix[:, None, None]) | (columns <= columns[:, None])
    seen = seen & (columns < lengths[:, None, None])
    hidden = torch.finfo(torch.float32).min
    return torch.zeros(seen.shape, device=seen.device).masked_fill(~seen, hidden)[:, None]


def pack_pairs(
    texts: Sequence[npt.NDArray[np.int32]], targets: Sequence[npt.NDArray[np.int32]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Ids of texts with special tokens, and of targets with their [SEP] but no [CLS], as one packed batch.

    Returns:
        ``input_ids (tokens,)``, ``cu_seqlens (n + 1,)`` and ``prefix (n,)``, all int64.
    """
    lengths = [len(text) + len(target) for text, target in zip(texts, targets, strict=True)]
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    flat = np.concatenate([part for pair in zip(texts, targets, strict=True) for part in pair])
    prefix = np.array([len(text) for text in texts], np.int64)
    return torch.from_numpy(flat.astype(np.int64)), torch.from_numpy(cu_seqlens), torch.from_numpy(prefix)
