"""What the files that launch kernels share: checks of tensors, and how many warps a row needs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

__all__ = ["FLOATS", "INTEGERS", "check_tensors", "device_of", "warps"]

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int32, torch.int64)


def device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current GPU, which may be another one than the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def warps(width: int) -> int:
    """Warps of a program that holds rows of ``width`` values in registers."""
    return 4 if width <= 2048 else 8 if width <= 4096 else 16


def check_tensors(
    *, others: Mapping[str, Tensor | None] | None = None, instead: str, **floats: Tensor | None
) -> None:
    """Raise a ValueError unless the tensors can be given to a kernel.

    Args:
        others: name -> tensor of any type, None where it was left out.
        instead: what runs on a CPU, for the message.
        floats: as ``others``, of a floating type that the kernels take. The first is never None, and the
            others must be where it is.
    """
    for name, tensor in floats.items():
        if tensor is not None and tensor.dtype not in FLOATS:
            raise ValueError(f"{name} must be float32, float16 or bfloat16, not {tensor.dtype}")
    first_name, first = next(iter(floats.items()))
    if first is None:
        raise ValueError(f"{first_name} is missing")
    if not first.is_cuda and not triton.knobs.runtime.interpret:
        raise ValueError(
            f"{first_name} is on {first.device}; the kernel runs on a GPU. On a CPU use {instead}."
        )
    for name, other in (*floats.items(), *(others or {}).items()):
        if other is not None and other.device != first.device:
            raise ValueError(f"{name} is on {other.device}, {first_name} on {first.device}. Move it there.")
