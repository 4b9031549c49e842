"""Searching on a GPU: whether the installed Faiss can."""

from __future__ import annotations

from typing import Any

from ..storage.faiss_index import import_faiss

DEVICES = ("cpu", "cuda")


def check_device(device: str) -> None:
    """Raise unless an index can be searched on ``device``.

    Raises:
        ValueError: there is no such device.
        ImportError: "cuda", and Faiss is not built for it.
        RuntimeError: "cuda", and Faiss finds no GPU.
    """
    if device not in DEVICES:
        raise ValueError(f"device must be 'cpu' or 'cuda', not {device!r}")
    if device == "cpu":
        return
    faiss = import_faiss()
    if not hasattr(faiss, "StandardGpuResources"):
        raise ImportError(
            "device='cuda' needs Faiss for the GPU, and the installed one is for the CPU alone: "
            "pip uninstall faiss-cpu, then pip install 'embedkit[gpu]'"
        )
    if faiss.get_num_gpus() < 1:
        raise RuntimeError("device='cuda' was asked for, and Faiss finds no GPU; leave device at 'cpu'")


def gpu_resources() -> Any:
    """What Faiss needs to move an index to a GPU."""
    return import_faiss().StandardGpuResources()
