"""Shared by the files that launch kernels: checks of tensors, and the number of warps."""

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
    """Make the tensor's GPU current: Triton launches on the current one."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def warps(width: int) -> int:
    """The number of warps of a program that holds rows of ``width`` values in registers."""
    return 4 if width <= 2048 else 8 if width <= 4096 else 16


def check_tensors(
    *, others: Mapping[str, Tensor | None] | None = None, instead: str, **floats: Tensor | None
) -> None:
    """Raise a ValueError unless the tensors can be passed to a kernel.

    Args:
        others: name -> tensor of any type, or None.
        instead: the alternative on a CPU, for the message.
        floats: name -> tensor of a supported floating type, or None. The first must be a tensor; all others must be
            on its device.
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
