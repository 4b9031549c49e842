"""This process among those that train together, as torchrun and accelerate describe it in the environment."""

from __future__ import annotations

import os

__all__ = ["own_gpu", "process_rank", "world_size"]


def world_size() -> int:
    """How many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def own_gpu() -> str | None:
    """The CUDA device of this process; None on a machine without one."""
    import torch

    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else None


def process_rank() -> int:
    """The number of this process; 0 writes the files."""
    return int(os.environ.get("RANK", "0"))
