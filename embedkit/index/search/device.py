"""Searching on a GPU: whether the installed Faiss supports it."""

from __future__ import annotations

from typing import Any

from ..storage.faiss_index import import_faiss

__all__ = ["DEVICES", "check_device", "gpu_resources"]

DEVICES = ("cpu", "cuda")


def check_device(device: str) -> None:
    """Raise unless an index can be searched on ``device``.

    Raises:
        ValueError: the device is unknown.
        ImportError: "cuda", and the installed Faiss is built without CUDA.
        RuntimeError: "cuda", and Faiss finds no GPU.
    """
    if device not in DEVICES:
        raise ValueError(f"device must be 'cpu' or 'cuda', not {device!r}")
    if device == "cpu":
        return
    faiss = import_faiss()
    if not hasattr(faiss, "StandardGpuResources"):
        raise ImportError(
            "device='cuda' needs Faiss for GPUs, and the installed one is for the CPU only: "
            "pip uninstall faiss-cpu, then pip install 'embedkit[gpu]'"
        )
    if faiss.get_num_gpus() < 1:
        raise RuntimeError("device='cuda', but Faiss finds no GPU; use device='cpu'")


def gpu_resources() -> Any:
    """The Faiss resources that hold an index on a GPU."""
    return import_faiss().StandardGpuResources()
