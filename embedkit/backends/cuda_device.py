"""All that touches CUDA's streams, events, graphs and pinned memory; tests put another device in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["CudaDevice", "Device", "Event", "Staging", "find_devices"]


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
    """What `PackedStage` needs of a device. All but `scatter` and `empty` are for one thread at a time."""

    device: torch.device
    out_of_memory: type[Exception]

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
        """What replays the work that ``run`` begins."""

    def download(self, values: Tensor) -> Tensor:
        """A tensor of the host that has the ``values`` once an event marked after this call is reached."""

    def scatter(self, out: Tensor, rows: Tensor, values: Tensor) -> None:
        """``out[rows] = values``, for the caller's own work on ``out``; ``values`` were waited for."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory of the device for the caller's own work."""

    def reset(self) -> None:
        """Wait for the device and give back all memory that no tensor holds; captured work is gone."""


class CudaDevice:
    """A CUDA device with two streams: one copies in, the other computes and copies out."""

    out_of_memory: type[Exception] = torch.OutOfMemoryError

    def __init__(self, name: str) -> None:
        """Make the streams; ``name`` is "cuda:0" or the like."""
        self.device = torch.device(name)
        with torch.cuda.device(self.device):
            self._copy, self._compute = torch.cuda.Stream(), torch.cuda.Stream()
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
        """As `Device.capture` says; all graphs take their memory from one pool, since one runs at a time."""
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate pinned memory meanwhile: only this one's calls must be fit for a graph.
        try:
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._compute, capture_error_mode="thread_local"
            ):
                run()
        except RuntimeError as error:
            # Ending a capture that ran out of memory may fail, too, and would hide why.
            if isinstance(error.__context__, self.out_of_memory):
                raise error.__context__ from None
            raise
        replay: Callable[[], None] = graph.replay
        return replay

    def download(self, values: Tensor) -> Tensor:
        """As `Device.download` says."""
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        return host.copy_(values, non_blocking=True)

    def scatter(self, out: Tensor, rows: Tensor, values: Tensor) -> None:
        """As `Device.scatter` says."""
        with torch.cuda.device(self.device):
            values.record_stream(torch.cuda.current_stream())
            out.index_copy_(0, rows.to(out.device), values.to(out.device))

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """As `Device.empty` says."""
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def reset(self) -> None:
        """As `Device.reset` says."""
        torch.cuda.synchronize(self.device)
        with torch.cuda.device(self.device):
            self._pool = torch.cuda.graph_pool_handle()
            torch.cuda.empty_cache()


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
