"""Searching on a GPU: whether the installed Faiss supports it."""

from __future__ import annotations

import re

from ..storage.faiss_index import import_faiss

__all__ = ["check_device", "gpu_number"]


def check_device(device: str) -> None:
    """Raise unless an index can be searched on ``device``.

    Raises:
        ValueError: the device is unknown or does not exist.
        ImportError: "cuda", and the installed Faiss is built without CUDA.
        RuntimeError: "cuda", and Faiss finds no GPU.
    """
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f"device must be 'cpu', 'cuda' or one such as 'cuda:1', not {device!r}")
    if device == "cpu":
        return
    faiss = import_faiss()
    if not hasattr(faiss, "StandardGpuResources"):
        raise ImportError(
            "device='cuda' needs Faiss for GPUs, and the installed one is for the CPU only: "
            "pip uninstall faiss-cpu, then pip install 'embedkit[gpu]'"
        )
    count = faiss.get_num_gpus()
    if count < 1:
        raise RuntimeError(f"device={device!r}, but Faiss finds no GPU; use device='cpu'")
    if gpu_number(device) >= count:
        raise ValueError(f"device={device!r}: Faiss finds {count} GPUs, 'cuda:0' to 'cuda:{count - 1}'")


def gpu_number(device: str) -> int:
    """The number of a GPU: 1 for "cuda:1", 0 for "cuda"."""
    return int(device.partition(":")[2] or 0)
