"""Dropout on a CPU, where PyTorch draws one random number after another: a third of the step of a small encoder.

Its random numbers are 16 bits each and come from numpy's SFC64, seeded by PyTorch's generator: they follow
``torch.manual_seed``, and what restores PyTorch's state (checkpoints, GradCache) repeats them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Dropout", "dropout", "replace_dropout"]

_LEVELS = 1 << 16


def dropout(x: Tensor, p: float) -> Tensor:
    """``x`` with each element 0 with probability ``p`` (in steps of 1/65,536), the others divided by ``1 - p``."""
    dropped = round(p * _LEVELS)
    if not dropped:
        return x
    if x.device.type != "cpu" or dropped >= _LEVELS:
        return nn.functional.dropout(x, p)
    generator = np.random.Generator(np.random.SFC64(int(torch.randint(1 << 62, ()))))
    words = generator.integers(1 << 64, size=-(-x.numel() // 4), dtype=np.uint64)
    kept = torch.from_numpy(words.view(np.int16)[: x.numel()]) >= dropped - _LEVELS // 2
    return x * kept.view(x.shape).to(x.dtype).mul_(_LEVELS / (_LEVELS - dropped))


class Dropout(nn.Dropout):
    """`dropout` as a module."""

    def forward(self, input: Tensor) -> Tensor:
        """``input``, unchanged unless in training."""
        return dropout(input, self.p) if self.training else input


def replace_dropout(model: nn.Module) -> None:
    """Make every `torch.nn.Dropout` in ``model`` a `Dropout`."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = Dropout
