"""A stand-in for torch.cuda with its traps: few native streams, graphs that need their stream's cuBLAS workspace."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch

from embedkit.backends import cuda_device
from embedkit.backends.cuda_device import CudaDevice


class Stream:
    """One of 32 native streams per priority, in turn."""

    def __init__(self, cuda: FakeCuda, priority: int = 0) -> None:
        cuda.drawn += 1
        self.cuda_stream = 1 + cuda.drawn % 32 - 100 * priority

    def wait_event(self, event: Any) -> None:
        pass


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        del enable_timing

    def record(self, stream: Stream) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Any) -> float:
        return 1.0


class Graph:
    """Runs again what was captured; its workspace must still be there."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.stream: int | None = None
        self.ended = False

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        assert capture_error_mode == "thread_local" and pool is not None
        self.stream = self.cuda.current
        assert (threading.get_ident(), self.stream) in self.cuda.handles, (
            "cuBLAS is opened during the capture"
        )
        self.cuda.fail("begin")
        assert self.cuda.capturing is None
        self.cuda.capturing = self

    def capture_end(self) -> None:
        if self.cuda.capturing is not self:
            raise RuntimeError("no capture is underway")
        self.cuda.capturing = None
        self.cuda.fail("end")
        self.ended = True
        self.run, self.workspace = self.cuda.run, self.cuda.workspaces[self.stream]

    def pool(self) -> Any:
        if not self.ended:
            raise RuntimeError("the capture has not ended")
        return (0, 1)

    def replay(self) -> None:
        assert self.workspace == self.cuda.workspaces.get(self.stream), "the workspace was freed"
        self.cuda.replays += 1
        self.run()

    def __del__(self) -> None:
        if self.ended:
            self.cuda.workspaces.pop(self.stream, None)
            self.cuda.handles = {
                (thread, stream) for thread, stream in self.cuda.handles if stream != self.stream
            }


class FakeCuda:
    """The parts of torch.cuda that `CudaDevice` uses, on the CPU."""

    def __init__(self) -> None:
        self.drawn = self.replays = self.emptied = self.synchronized = self._made = 0
        self.current: int | None = None
        self.capturing: Graph | None = None
        self.workspaces: dict[int | None, int] = {}
        self.handles: set[tuple[int, int | None]] = set()
        self.fail: Callable[[str], None] = lambda step: None
        self.run: Callable[[], None] = lambda: None
        self.Stream = partial(Stream, self)
        self.CUDAGraph = partial(Graph, self)
        self.Event = Event

    def multiply(self) -> None:
        """A matrix product: opens cuBLAS in this thread, with a workspace for the current stream."""
        self.handles.add((threading.get_ident(), self.current))
        if self.current not in self.workspaces:
            self._made += 1
            self.workspaces[self.current] = self._made

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        yield

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream.cuda_stream
        try:
            yield
        finally:
            self.current = before

    def current_stream(self, device: Any) -> Stream:
        return Stream(self)

    def graph_pool_handle(self) -> tuple[int, int]:
        return (0, 1)

    def synchronize(self) -> None:
        self.synchronized += 1

    def empty_cache(self) -> None:
        self.emptied += 1


class FakeTorch:
    """torch, with a `FakeCuda` and without pinned memory."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        del pin_memory
        return torch.empty(*args, **options)


class CapturedDevice(CudaDevice):
    """A `CudaDevice` on a `FakeCuda`, which has to be told what a graph captures."""

    def _capture(self, run: Callable[[], None], *, retry: bool = False) -> Any:
        cuda_device.torch.cuda.run = run  # type: ignore[attr-defined]
        return super()._capture(run, retry=retry)


def install(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Let `CudaDevice` use a new stand-in."""
    cuda = FakeCuda()
    monkeypatch.setattr(cuda_device, "torch", FakeTorch(cuda))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    monkeypatch.setattr(cuda_device._Streams, "_captured", set())
    monkeypatch.setattr(cuda_device._Streams, "_others", type(cuda_device._Streams._others)())
    monkeypatch.setattr(CudaDevice, "_abandoned", [])
    return cuda
