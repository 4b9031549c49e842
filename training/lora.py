"""LoRA (Hu et al. 2021, arXiv:2106.09685, section 4.1), through the package peft.

A weight W (out, in) of the backbone stays as it is, and a product of two small matrices learns beside it:

    y = W x + (alpha / rank) B A x,    A (rank, in) random, B (out, rank) starts at 0
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LoraOptions", "add_lora", "merged"]


@dataclass(frozen=True)
class LoraOptions:
    """The options ``model.lora`` of a recipe.

    Attributes:
        rank: of the additions.
        alpha: see above; 0 for twice the rank.
        dropout: of the additions' input.
        targets: name endings of the layers that get one; empty for all linear layers of the backbone.
    """

    rank: int = 8
    alpha: int = 0
    dropout: float = 0.0
    targets: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check the values."""
        if self.rank < 1:
            raise ValueError(f"model.lora.rank must be positive, not {self.rank}")
        if self.alpha < 0:
            raise ValueError(f"model.lora.alpha must not be negative, but is {self.alpha}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.lora.dropout must be from 0 to below 1, not {self.dropout}")


def add_lora(backbone: Any, options: LoraOptions) -> Any:
    """The backbone with trainable additions, its own weights frozen.

    Raises:
        ImportError: peft is not installed.
        ValueError: the backbone has none of the target layers.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ImportError("model.lora needs the package peft: pip install 'embedkit[lora]'") from None
    config = LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha or 2 * options.rank,
        lora_dropout=options.dropout,
        target_modules=list(options.targets) or "all-linear",
    )
    return get_peft_model(backbone, config)


def merged(backbone: Any) -> Any:
    """A copy of the backbone with the additions in its weights; the backbone itself if it has none."""
    if not hasattr(backbone, "merge_and_unload"):
        return backbone
    return copy.deepcopy(backbone).merge_and_unload()
