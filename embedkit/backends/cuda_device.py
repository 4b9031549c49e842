"""Everything that touches CUDA streams, events, graphs and pinned memory; tests substitute another device."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from ..forking import fork_lock

__all__ = ["CudaDevice", "Device", "Event", "Staging", "find_devices", "out_of_memory"]

_NATIVE_STREAMS = 32  # of each priority, in torch
_NO_MEMORY = re.compile("out of memory|ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED")


class Event(Protocol):
    """A point in the device's work."""

    def synchronize(self) -> None:
        """Wait until the device has reached it."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from this event to a later one."""


class Staging:
    """Memory on both sides through which the integers of a batch are uploaded.

    Attributes:
        host: (size,) int32; pinned.
        device: (size,) int32.
        copied: event, ``host`` has been read.
        consumed: event, ``device`` has been read.
    """

    def __init__(self, host: Tensor, device: Tensor, copied: Any, consumed: Any) -> None:
        """Keep the parts."""
        self.host, self.device, self.copied, self.consumed = host, device, copied, consumed


class Device(Protocol):
    """A device as `PackedStage` uses it.

    All methods but `scatter`, `lend` and `empty` are for one thread at a time.
    """

    device: torch.device

    def staging(self, size: int) -> Staging:
        """Memory for ``size`` integers."""

    def upload(self, staging: Staging, size: int) -> None:
        """Copy the first ``size`` integers to the device; work started later runs after the copy."""

    def consumed(self, staging: Staging) -> None:
        """Declare that the work started so far is the last to read ``staging.device``."""

    def running(self) -> Any:
        """A context in which torch starts its work on the device in order."""

    def mark(self) -> Event:
        """The end of the work started so far."""

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """A function that replays the work that ``run`` starts; this thread has called ``run`` before.

        Raises:
            RuntimeError: other work in the process ended the capture, or memory ran out (see `out_of_memory`).
        """

    def download(self, values: Tensor, ready: Event) -> tuple[Tensor, Event]:
        """A host tensor and the event after which it holds ``values``, which nothing writes to after ``ready``."""

    def lend(self, values: Tensor) -> None:
        """Keep the memory of the finished ``values`` until the caller's own work has read them."""

    def scatter(self, out: Tensor, rows: Tensor, values: Tensor) -> None:
        """``out[rows] = values`` in the caller's own work; ``values`` were lent to it."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Device memory for the caller's own work."""

    def reset(self) -> None:
        """Wait for the device and free all memory that no tensor holds; captured work is lost."""


class _Streams:
    """Streams for uploading, computing and downloading, and the graphs captured on the second.

    torch hands out 32 native streams per priority in turn (pytorch #173729), so that two objects may share one. A
    stream with graphs must be nobody else's: other work on it would be captured, too, and when a graph is freed, torch
    frees the cuBLAS workspaces of its stream, which the other graphs on it address (pytorch #193402). Therefore the
    streams in use are registered, and the graphs are freed all together.

    Attributes:
        exclusive: no other object computes on the second stream; graphs need this.
        graphs: everything captured, also where the capture failed.
    """

    # An object may be freed by garbage collection while another is made, and in a forked child, too.
    _lock = fork_lock()
    _captured: set[int] = set()  # noqa: RUF012
    _others: Counter[int] = Counter()  # noqa: RUF012

    def __init__(self) -> None:
        """Draw streams of the current device."""
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self._mine: list[int] = []
        with self._lock:
            self.compute, self.exclusive = self._draw()
            if self.exclusive:
                self._captured.add(self.compute.cuda_stream)
            else:
                self._share(self.compute)
            self.upload, self.download = (self._share(self._draw()[0]) for _ in range(2))

    def _draw(self) -> tuple[torch.cuda.Stream, bool]:
        """An unused stream and True, or one without graphs and False."""
        shared = None
        for priority in (0, -1):
            for _ in range(2 * _NATIVE_STREAMS):  # other threads may draw, too
                stream = torch.cuda.Stream(priority=priority)
                if stream.cuda_stream not in self._captured:
                    shared = stream
                    if not self._others[stream.cuda_stream]:
                        return stream, True
        if shared is None:
            raise RuntimeError("every CUDA stream has graphs; close Encoders that are not needed")
        return shared, False

    def _share(self, stream: torch.cuda.Stream) -> torch.cuda.Stream:
        self._others[stream.cuda_stream] += 1
        self._mine.append(stream.cuda_stream)
        return stream

    def __del__(self) -> None:
        """Free the graphs, and only then the streams."""
        self.graphs.clear()
        with self._lock:
            self._others.subtract(self._mine)
            if getattr(self, "exclusive", False):
                self._captured.discard(self.compute.cuda_stream)


class CudaDevice:
    """A CUDA device with three streams: upload, compute, download.

    Only the second is ever captured. Pinned memory must not be used on it: when such memory is freed, torch records
    an event on the stream, which may be under capture at that time.
    """

    # torch captures one graph at a time in a process, and synchronizing the device ends a capture on it.
    _capturing = threading.Lock()  # noqa: TID251
    # Graphs whose capture could not be ended: torch's allocators may still ask them for their stream.
    _abandoned: list[torch.cuda.CUDAGraph] = []  # noqa: RUF012

    def __init__(self, name: str) -> None:
        """Create the streams; ``name`` is e.g. "cuda:0"."""
        self.device = torch.device(name)
        with torch.cuda.device(self.device):
            self._streams = _Streams()
            self._pool = torch.cuda.graph_pool_handle()
        self._copy, self._compute = self._streams.upload, self._streams.compute
        self._deliver = self._streams.download

    @property
    def has_fast_halves(self) -> bool:
        """Whether it has fast 16-bit matrix products: from compute capability 8.0 on."""
        return torch.cuda.get_device_capability(self.device) >= (8, 0)

    def staging(self, size: int) -> Staging:
        """As `Device.staging`."""
        # Tensors made in the caller's inference mode could not be written outside of it.
        with torch.cuda.device(self.device), torch.cuda.stream(self._copy), torch.inference_mode(False):
            host = torch.empty(size, dtype=torch.int32, device="cpu", pin_memory=True)
            device = torch.empty(size, dtype=torch.int32, device=self.device)
            # Memory freed on one stream might be reused while the other still reads it.
            device.record_stream(self._compute)
            return Staging(host, device, torch.cuda.Event(), torch.cuda.Event())

    def upload(self, staging: Staging, size: int) -> None:
        """As `Device.upload`."""
        with torch.cuda.device(self.device), torch.cuda.stream(self._copy):
            self._copy.wait_event(staging.consumed)
            staging.device[:size].copy_(staging.host[:size], non_blocking=True)
            staging.copied.record(self._copy)
            self._compute.wait_event(staging.copied)

    def consumed(self, staging: Staging) -> None:
        """As `Device.consumed`."""
        staging.consumed.record(self._compute)

    @contextmanager
    def running(self) -> Iterator[None]:
        """As `Device.running`."""
        # The caller's autocast must not change the precision.
        autocast = torch.autocast(self.device.type, enabled=False)
        with (
            torch.cuda.device(self.device),
            torch.cuda.stream(self._compute),
            torch.inference_mode(),
            autocast,
        ):
            yield

    def mark(self) -> Event:
        """As `Device.mark`."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._compute)
        return event

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """As `Device.capture`; all graphs share one memory pool, since one runs at a time.

        Unlike `torch.cuda.graph`, this neither synchronizes the device nor empties torch's caches, unless memory runs
        out: a capture cannot use what they hold.
        """
        if not self._streams.exclusive:
            raise RuntimeError("other Encoders use all CUDA streams")
        with self._capturing, torch.cuda.device(self.device), torch.cuda.stream(self._compute):
            graph = self._capture(run, retry=True)
            if graph is None:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                graph = self._capture(run)
        assert graph is not None
        return partial(_replay, graph, self._streams)

    def _capture(self, run: Callable[[], None], *, retry: bool = False) -> torch.cuda.CUDAGraph | None:
        """A graph of ``run``, or with ``retry`` None if memory ran out.

        Whatever goes wrong, also an interrupt, the graph is kept: see `_Streams`.
        """
        graph = torch.cuda.CUDAGraph()
        self._streams.graphs.append(graph)
        try:
            # Other threads may allocate pinned memory meanwhile: only calls of this thread must be capturable.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            run()
            graph.capture_end()
        except BaseException as error:
            # Of the errors of a failed capture the first one names the cause.
            with suppress(RuntimeError):
                graph.capture_end()
            self._abandon(graph)
            if retry and out_of_memory(error):
                return None
            raise
        return graph

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """Clean up after torch when the end of a capture fails.

        Its allocator keeps serving the capture and does not take back memory that two streams have used. Up to torch
        2.13 no public call ends this state: `CUDAGraph.reset` does so only after a successful end.
        """
        try:
            graph.pool()
        except RuntimeError:
            self._abandoned.append(graph)
            # RuntimeError: the capture had not started. AttributeError: another torch, without these private calls.
            with suppress(RuntimeError, AttributeError, TypeError):
                torch._C._cuda_endAllocateToPool(self.device.index, self._pool)
                torch._C._cuda_releasePool(self.device.index, self._pool)

    def download(self, values: Tensor, ready: Any) -> tuple[Tensor, Event]:
        """As `Device.download`."""
        host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
        with torch.cuda.device(self.device), torch.cuda.stream(self._deliver):
            self._deliver.wait_event(ready)
            host.copy_(values, non_blocking=True)
            values.record_stream(self._deliver)
            copied = torch.cuda.Event()
            copied.record(self._deliver)
        return host, copied

    def lend(self, values: Tensor) -> None:
        """As `Device.lend`."""
        values.record_stream(torch.cuda.current_stream(self.device))

    def scatter(self, out: Tensor, rows: Tensor, values: Tensor) -> None:
        """As `Device.scatter`."""
        with torch.cuda.device(self.device):
            out.index_copy_(0, rows.to(out.device), values.to(out.device))

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """As `Device.empty`."""
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def reset(self) -> None:
        """As `Device.reset`."""
        with self._capturing, torch.cuda.device(self.device):
            torch.cuda.synchronize()
            self._streams.graphs.clear()
            self._pool = torch.cuda.graph_pool_handle()
            torch.cuda.empty_cache()


def _replay(graph: torch.cuda.CUDAGraph, streams: _Streams) -> None:
    """Replay a graph; the reference to ``streams`` keeps them from being drawn by another device meanwhile."""
    del streams
    graph.replay()


def out_of_memory(error: BaseException | None) -> bool:
    """Whether device or pinned memory ran out, in torch's allocator, the driver or cuBLAS.

    cuBLAS reports CUBLAS_STATUS_NOT_INITIALIZED if there is no memory for its handle.
    """
    return isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(str(error)))


def find_devices(names: Sequence[str]) -> tuple[str, ...]:
    """The names with their numbers, e.g. "cuda" as "cuda:0".

    Raises:
        ValueError: a device does not exist.
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
