"""Faiss indexes on a GPU, if the installed Faiss supports it."""

from __future__ import annotations

import os
import re
import threading
from typing import Any

from ...forking import fork_lock
from .faiss_index import Float32Array, Int64Array, import_faiss

__all__ = ["GPU_MOST", "FaissGpu", "OnGpu", "check_gpu", "faiss_gpu", "gpu_number"]

GPU_MOST = 2048
"""Maximum k and nprobe of Faiss on a GPU, unless it is built with cuVS."""

_BLOCK = 65_536  # vectors
_TEMPORARY = 256 << 20  # bytes; Faiss would reserve up to 1.5 GB for intermediate results


def check_gpu(device: str) -> None:
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


class FaissGpu:
    """Faiss' memory, streams and handles on one GPU, shared by all indexes of the process. Thread-safe."""

    def __init__(self, number: int) -> None:
        """Reserve temporary memory on GPU ``number``."""
        self.number = number
        self.lost = False
        # StandardGpuResources are not thread-safe. Reentrant: garbage collection may free an index at any time.
        self.lock = threading.RLock()  # noqa: TID251 (no forked child uses CUDA)
        self._resources = import_faiss().StandardGpuResources()
        self._resources.setTempMemory(_TEMPORARY)

    def move(self, index: Any, *, half: bool) -> OnGpu:
        """A copy of ``index`` on the GPU; with ``half``, vectors are stored in float16.

        Raises:
            RuntimeError: Faiss cannot search such an index on a GPU.
        """
        faiss = import_faiss()
        options = faiss.GpuClonerOptions()
        options.useFloat16 = half
        index = _decoded(index)
        with self.lock:
            return OnGpu(self, faiss.index_cpu_to_gpu(self._resources, self.number, index, options))

    def check(self) -> None:
        """Refuse to be used in a forked child, where Faiss would abort the process.

        Raises:
            RuntimeError: the process was forked after the GPU was opened.
        """
        if self.lost:
            raise RuntimeError(
                "CUDA does not survive a fork: the parent process searches on a GPU. Start processes with "
                "multiprocessing.get_context('spawn') or 'forkserver'"
            )

    def leave(self) -> None:
        """In a forked child: free nothing, since Faiss aborts a process where a call of CUDA fails."""
        self.lost = True
        self._resources.thisown = False


class OnGpu:
    """A Faiss index on a GPU. Thread-safe."""

    def __init__(self, gpu: FaissGpu, index: Any) -> None:
        """Keep what `FaissGpu.move` has copied."""
        self._gpu, self._index = gpu, index

    def search(self, vectors: Float32Array, k: int, nprobe: int | None) -> tuple[Float32Array, Int64Array]:
        """The best ``k`` (at most `GPU_MOST`) in ``nprobe`` inverted lists (if there are any), at most `GPU_MOST`.

        Raises:
            RuntimeError: the process was forked after the index was opened.
        """
        self._gpu.check()
        given = None
        if nprobe is not None:
            given = _parameters(self._index, min(nprobe, GPU_MOST))
        with self._gpu.lock:
            scores, rows = self._index.search(vectors, k, params=given)
        return scores, rows

    def __del__(self) -> None:
        """Free the memory, not while another thread uses the GPU."""
        if self._gpu.lost:
            self._index.thisown = False
            return
        with self._gpu.lock:
            del self._index


def _decoded(index: Any) -> Any:
    """``index``; one of codes without lists, which Faiss has on the CPU only, with the vectors of its codes."""
    faiss = import_faiss()
    if not isinstance(index, faiss.IndexScalarQuantizer) or index.sq.qtype == faiss.ScalarQuantizer.QT_fp16:
        return index
    flat = faiss.IndexFlat(index.d, index.metric_type)
    for start in range(0, index.ntotal, _BLOCK):
        flat.add(index.reconstruct_n(start, min(_BLOCK, index.ntotal - start)))
    return flat


def _parameters(index: Any, nprobe: int) -> Any:
    """Faiss' object for a search in ``nprobe`` lists of ``index`` or of the index inside it."""
    faiss = import_faiss()
    if isinstance(index, faiss.IndexPreTransform):
        inner = _parameters(faiss.downcast_index(index.index), nprobe)
        return faiss.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, faiss.IndexRefine):
        inner = _parameters(faiss.downcast_index(index.base_index), nprobe)
        return faiss.IndexRefineSearchParameters(k_factor=index.k_factor, base_index_params=inner)
    return faiss.SearchParametersIVF(nprobe=nprobe)


_opened: dict[int, FaissGpu] = {}
_opening = fork_lock()


def _after_fork() -> None:
    for gpu in _opened.values():
        gpu.leave()


os.register_at_fork(after_in_child=_after_fork)


def faiss_gpu(number: int) -> FaissGpu:
    """The process's only `FaissGpu` for GPU ``number``."""
    with _opening:
        if number not in _opened:
            _opened[number] = FaissGpu(number)
        return _opened[number]
