"""The exported encoder as a torch module: from token ids to the final embedding."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from torch import nn

from ..model_folder.architectures import auto_class
from ..model_folder.folder import ModelFolder
from ..model_folder.modules import Dense
from ..model_folder.weights import core_head, stored_tensors

__all__ = ["INPUTS", "OUTPUTS", "SentenceGraph"]

INPUTS = ("input_ids", "attention_mask", "pooling_mask")
"""Inputs of the graph, each (texts, tokens); the last one only for folders that exclude prompts from pooling."""

OUTPUTS = ("sentence_embedding", "last_hidden_state")
"""(texts, dimension) and (texts, tokens, hidden_size), both float32; the second name is the one Optimum uses."""

_ACTIVATIONS = {
    "identity": nn.Identity,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
}


class SentenceGraph(nn.Module):
    """Transformer (of transformers), pooling and head of a model folder.

    embedkit reads the weights: it opens safetensors only, and checks each tensor.
    """

    def __init__(self, folder: ModelFolder) -> None:
        """Build the model in fp32; ``folder`` holds fp32 weights."""
        super().__init__()
        self.transformer = _transformer(folder)
        self.modes = folder.pooling.modes
        self.head = _head(folder)
        accepted = inspect.signature(self.transformer.forward).parameters
        self.takes_types = "token_type_ids" in accepted
        # transformers makes the masks of Gemma's two-way attention by vmap, which the export does not trace
        both = getattr(self.transformer.config, "use_bidirectional_attention", False)
        self.window: int | None = int(folder.config["window"]) if both else None

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        pooling_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sentence and token embeddings of right-padded texts; see `INPUTS` and `OUTPUTS`.

        Args:
            input_ids: (texts, tokens) int64.
            attention_mask: (texts, tokens) int64; 1 for a token, 0 for padding.
            pooling_mask: (texts, tokens) int64; 0 also for tokens excluded from pooling.
        """
        types = {"token_type_ids": torch.zeros_like(input_ids)} if self.takes_types else {}
        mask = attention_mask if self.window is None else _two_way_masks(attention_mask, self.window)
        hidden = self.transformer(input_ids=input_ids, attention_mask=mask, **types)[0]
        kept = attention_mask if pooling_mask is None else pooling_mask
        pooled = [_pool(mode, hidden, attention_mask, kept) for mode in self.modes]
        return self.head(torch.cat(pooled, dim=-1) if len(pooled) > 1 else pooled[0]), hidden


def _two_way_masks(attention_mask: torch.Tensor, window: int) -> dict[str, torch.Tensor]:
    """What eager attention adds to the scores of each kind of layer: (texts, 1, tokens, tokens)."""
    tokens = attention_mask.shape[1]
    place = torch.arange(tokens, device=attention_mask.device)
    seen = attention_mask[:, None, None, :].bool().expand(-1, 1, tokens, -1)
    near = (place[:, None] - place).abs() <= window
    kinds = {"full_attention": seen, "sliding_attention": seen & near}
    return {kind: torch.where(kept, 0.0, torch.finfo(torch.float32).min) for kind, kept in kinds.items()}


def _pool(mode: str, hidden: torch.Tensor, attention_mask: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Pooled embeddings (texts, hidden_size). A text without pooled tokens gets zeros, as in the core."""
    weights = kept.unsqueeze(-1).to(hidden.dtype)
    some = weights.amax(dim=1)
    if mode == "max":
        return torch.where(some > 0, hidden.masked_fill(weights == 0, -torch.inf).amax(dim=1), 0.0)
    if mode in ("cls", "lasttoken"):
        first, last = kept.argmax(dim=1), (attention_mask.sum(dim=1) - 1).clamp(min=0)
        place = first if mode == "cls" else last
        index = place.view(-1, 1, 1).expand(-1, 1, hidden.shape[-1])
        return hidden.gather(1, index).squeeze(1) * some
    if mode == "weightedmean":
        weights = weights * torch.cumsum(torch.ones_like(weights), dim=1)
    total = weights.sum(dim=1).clamp(min=1)
    return (hidden * weights).sum(dim=1) / (total.sqrt() if mode == "mean_sqrt_len" else total)


class _Normalize(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(x, dim=-1)


def _head(folder: ModelFolder) -> nn.Sequential:
    layers: list[nn.Module] = []
    for module, tensors in zip(folder.head, core_head(folder), strict=True):
        if not isinstance(module, Dense):
            layers.append(_Normalize())
            continue
        linear = nn.Linear(module.in_features, module.out_features, bias=module.bias)
        _assign(linear, {key: tensors[key] for key in ("weight", "bias") if tensors[key] is not None})
        layers += [linear, _ACTIVATIONS[module.activation]()]
    return nn.Sequential(*layers)


def _transformer(folder: ModelFolder) -> nn.Module:
    """The folder's model in transformers. ONNX Runtime fuses the pattern of eager attention."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder.transformer, local_files_only=True)
    create: Any = getattr(transformers, auto_class(config.model_type)).from_config  # not typed
    model: nn.Module = create(config, attn_implementation="eager").float().eval()
    _assign(model, _named_as_in(model, folder))
    return model


def _named_as_in(model: nn.Module, folder: ModelFolder) -> dict[str, Any]:
    """The folder's tensors by their names in transformers, whose classes may have parts of one each."""
    known = dict(model.named_parameters())
    found: dict[str, Any] = {}
    for name, array in stored_tensors(folder):
        choices = [(name,), *folder.architecture.other_names(name)]
        names = next((parts for parts in choices if all(part in known for part in parts)), None)
        if names is None:
            raise ValueError(
                f"{folder.path}: {folder.architecture.family} cannot be exported to ONNX: {type(model).__name__} of "
                f"transformers has no {name!r}"
            )
        found.update(zip(names, np.split(array, len(names)), strict=True))
    return found


def _assign(module: nn.Module, tensors: dict[str, Any]) -> None:
    """Copy arrays into the parameters of the same names; other parameters keep their values.

    These are the pooler of BERT, which no sentence encoder uses, and tables of sines.
    """
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, array in tensors.items():
            parameters[name].copy_(torch.from_numpy(array))
