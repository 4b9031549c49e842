"""The smallest objective with in-batch negatives, so that the tests of the trainer depend on no other objective."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from embedkit.training.objectives import OBJECTIVES
from embedkit.training.objectives.base import Arrays, Objective, first_row, gather
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class InBatchOptions:
    """Options of `InBatch`."""

    scale: float = 20.0


class InBatch(Objective):
    """-log softmax(scale · cos(u_i, v_j)) at j = i, over the v of all processes."""

    Options: ClassVar[type[Any]] = InBatchOptions

    def forward(
        self, task: Tensor, input_ids: Tensor, cu_seqlens: Tensor, **targets: Tensor
    ) -> dict[str, Tensor]:
        u, v = functional.normalize(self.encode(input_ids, cu_seqlens), dim=-1)
        candidates = gather(v)
        own = torch.arange(len(u)) + first_row(len(u))
        loss = functional.cross_entropy(u @ candidates.t() * self.options.scale, own)
        return {"loss": loss, "cosine": (u * v).sum(-1)}

    def score(self, task: str, outputs: Arrays, arrays: Arrays) -> dict[str, float]:
        return {"cosine": float(outputs["cosine"].mean())}


sys.modules["embedkit.training.objectives.in_batch"] = sys.modules[__name__]
OBJECTIVES["in_batch"] = "in_batch:InBatch"
