"""All that touches CUDA's streams, events, graphs and pinned memory; tests put another device in its place."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["CudaDevice", "Device", "Event", "Staging", "find_devices", "out_of_memory"]


class Event(Protocol):
    """A point in the device's work."""

    def synchronize(self) -> None:
        """Wait until the device has reached it."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from this event to a later one."""


class Staging:
    """Memory on both sides through which the integers of a batch reach the device.

    Attributes:
        host: (size,) int32; pinned.
        device: (size,) int32.
        copied: when ``host`` has been read.
        consumed: when ``device`` has been.
    """

    def __init__(self, host: Tensor, device: Tensor, copied: Any, consumed: Any) -> None:
        """Keep the parts."""
        self.host, self.device, self.copied, self.consumed = host, device, copied, consumed


class Device(Protocol):
    """What `PackedStage` needs of a device.

    All but `scatter`, `lend` and `empty` are for one thread at a time.
    """

    device: torch.device

    def staging(self, size: int) -> Staging:
        """Memory for ``size`` integers."""

    def upload(self, staging: Staging, size: int) -> None:
        """Copy the first ``size`` integers to the device; work begun later comes after it."""

    def consumed(self, staging: Staging) -> None:
        """Say that the work begun so far is the last to read ``staging.device``."""

    def running(self) -> Any:
        """A context in which torch begins its work on the device in order."""

    def mark(self) -> Event:
        """The end of the work begun so far."""

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """What replays the work that ``run`` begins; this thread has called ``run`` before.

        Raises:
            RuntimeError: other work in the process ended the capture, or `out_of_memory` is true of it.
        """

    def download(self, values: Tensor, ready: Event) -> tuple[Tensor, Event]:
        """A tensor of the host, and when it has the ``values``, which nothing writes to after ``ready``."""

    def lend(self, values: Tensor) -> None:
        """Keep the memory of ``values``, which were waited for, until the caller's own work has read them."""

    def scatter(self, out: Tensor, rows: Tensor, values: Tensor) -> None:
        """``out[rows] = values``, for the caller's own work on ``out``; ``values`` were lent to it."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory of the device for the caller's own work."""

    def reset(self) -> None:
        """Wait for the device and give back all memory that no tensor holds; captured work is gone."""


class CudaDevice:
    """A CUDA device with three streams: one copies in, one computes, one copies out.

    Only the second is ever captured. Memory that was used on it must not be pinned: torch marks the end of its use
    on the stream when it is freed, which may be while the stream is captured.
    """

    # torch captures one graph at a time in a process, and a wait for a whole device ends a capture on it.
    _capturing = threading.Lock()
    # Graphs whose capture was ended: torch's allocators may still ask them which stream they are of.
    _abandoned: list[torch.cuda.CUDAGraph] = []  # noqa: RUF012

    def __init__(self, name: str) -> None:
        """Make the streams; ``name`` is "cuda:0" or the like."""
        self.device = torch.device(name)
        with torch.cuda.device(self.device):
            self._copy, self._compute, self._deliver = (torch.cuda.Stream() for _ in range(3))
            self._pool = torch.cuda.graph_pool_handle()

    @property
    def has_fast_halves(self) -> bool:
        """Whether 16-bit products are what it is made for: since compute capability 8.0."""
        return torch.cuda.get_device_capability(self.device) >= (8, 0)

    def staging(self, size: int) -> Staging:
        """As `Device.staging` says."""
        with torch.cuda.device(self.device), torch.cuda.stream(self._copy):
            host = torch.empty(size, dtype=torch.int32, pin_memory=True)
            device = torch.empty(size, dtype=torch.int32, device=self.device)
            # Freed on one stream, memory might be given out while the other still uses it.
            device.record_stream(self._compute)
            return Staging(host, device, torch.cuda.Event(), torch.cuda.Event())

    def upload(self, staging: Staging, size: int) -> None:
        """As `Device.upload` says."""
        with torch.cuda.device(self.device), torch.cuda.stream(self._copy):
            self._copy.wait_event(staging.consumed)
            staging.device[:size].copy_(staging.host[:size], non_blocking=True)
            staging.copied.record(self._copy)
            self._compute.wait_event(staging.copied)

    def consumed(self, staging: Staging) -> None:
        """As `Device.consumed` says."""
        staging.consumed.record(self._compute)

    @contextmanager
    def running(self) -> Iterator[None]:
        """As `Device.running` says."""
        with torch.cuda.device(self.device), torch.cuda.stream(self._compute), torch.inference_mode():
            yield

    def mark(self) -> Event:
        """As `Device.mark` says."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._compute)
        return event

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """As `Device.capture` says; all graphs take their memory from one pool, since one runs at a time.

        Graphs are dropped all together, by `reset`, or not at all: with one of them torch frees the workspaces
        of cuBLAS on its stream, which the others use.
        """
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate pinned memory meanwhile: only this one's calls must be fit for a graph.
        try:
            with (
                self._capturing,
                torch.cuda.graph(
                    graph, pool=self._pool, stream=self._compute, capture_error_mode="thread_local"
                ),
            ):
                run()
        except RuntimeError as error:
            self._abandon(graph)
            # Ending a capture that ran out of memory may fail, too, and would hide why.
            cause = error.__context__
            if cause is not None and out_of_memory(cause) and not out_of_memory(error):
                raise cause from None
            raise
        replay: Callable[[], None] = graph.replay
        return replay

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """Undo what torch leaves half done where the end of a capture fails.

        Its allocator goes on to serve the capture, and takes back no memory that two streams have used. Up to torch
        2.13 no public call ends that: `CUDAGraph.reset` does so only after an end that worked.
        """
        try:
            graph.pool()
        except RuntimeError:
            self._abandoned.append(graph)
            with suppress(RuntimeError):  # where the capture had not even begun
                torch._C._cuda_endAllocateToPool(self.device.index, self._pool)
                torch._C._cuda_releasePool(self.device.index, self._pool)

    def download(self, values: Tensor, ready: Any) -> tuple[Tensor, Event]:
        """As `Device.download` says."""
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        with torch.cuda.device(self.device), torch.cuda.stream(self._deliver):
            self._deliver.wait_event(ready)
            host.copy_(values, non_blocking=True)
            values.record_stream(self._deliver)
            copied = torch.cuda.Event()
            copied.record(self._deliver)
        return host, copied

    def lend(self, values: Tensor) -> None:
        """As `Device.lend` says."""
        values.record_stream(torch.cuda.current_stream(self.device))

    def scatter(self, out: Tensor, rows: Tensor, values: Tensor) -> None:
        """As `Device.scatter` says."""
        with torch.cuda.device(self.device):
            out.index_copy_(0, rows.to(out.device), values.to(out.device))

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """As `Device.empty` says."""
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def reset(self) -> None:
        """As `Device.reset` says."""
        with self._capturing, torch.cuda.device(self.device):
            torch.cuda.synchronize()
            self._pool = torch.cuda.graph_pool_handle()
            torch.cuda.empty_cache()


def out_of_memory(error: BaseException | None) -> bool:
    """Whether memory did not suffice, the device's or pinned: of torch's allocator, the driver's, or cuBLAS'."""
    return isinstance(error, RuntimeError) and bool(re.search(r"out of memory|ALLOC_FAILED", str(error)))


def find_devices(names: Sequence[str]) -> tuple[str, ...]:
    """The names with their numbers, e.g. "cuda" as "cuda:0".

    Raises:
        ValueError: there is no such device.
    """
    if not torch.cuda.is_available():
        built = "this PyTorch is built without CUDA" if torch.version.cuda is None else "PyTorch finds none"
        raise ValueError(
            f"device={names[0]!r}: no CUDA device, {built}; on a machine with an NVIDIA GPU and its driver "
            "pip install 'embedkit[gpu]', or use device='cpu'"
        )
    count = torch.cuda.device_count()
    found = []
    for name in names:
        number = int(name.partition(":")[2] or torch.cuda.current_device())
        if number >= count:
            raise ValueError(f"device={name!r}: this machine has {count}, 'cuda:0' to 'cuda:{count - 1}'")
        found.append(f"cuda:{number}")
    if len(set(found)) < len(found):
        raise ValueError(f"device={list(names)!r} names a device twice")
    return tuple(found)
