"""Batches of `PackedStage` in flight: waiting for them, and delivering their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import _core
from .cuda_device import Device, Event
from .stage import Batch, Indices, NotFinite, Request

__all__ = ["Check", "DeviceBatch", "Joined"]


@cache
def _copiers() -> int:
    """Threads that copy a result into the caller's array, while others tokenize."""
    return min(4, _core.default_threads())


class Check:
    """Which sequences of a batch have overflowed, and how they are encoded again."""

    def __init__(
        self, sums: Tensor, ready: Event, order: Indices, repair: Callable[[Indices, Request], Batch] | None
    ) -> None:
        """Of a batch with the sequences ``order``; ``sums`` are valid after ``ready``."""
        self._sums, self._order, self._repair = sums, order, repair
        self.ready = ready

    def broken(self, request: Request, lengths: npt.NDArray[np.int32]) -> Indices:
        """The places in the batch of the sequences whose results are not finite."""
        broken = ~np.isfinite(self._sums.numpy())
        if not request.token_embeddings:
            return np.flatnonzero(broken)
        # these are sums of tokens; reduceat takes no sequences without any
        starts, filled = np.cumsum(lengths) - lengths, np.flatnonzero(lengths)
        return filled[np.logical_or.reduceat(broken, starts[filled])]

    def again(self, places: Indices, request: Request) -> Batch:
        """These sequences in the wider type.

        Raises:
            NotFinite: this batch has been encoded in that type.
        """
        if self._repair is None:
            raise NotFinite(int(self._order[places[0]]))
        batch = self._repair(self._order[places], request)
        batch.wait()
        return batch


class DeviceBatch:
    """A batch in flight on the device."""

    def __init__(
        self,
        device: Device,
        result: Tensor,
        events: tuple[Event, Event, Event],
        request: Request,
        lengths: npt.NDArray[np.int32],
        *,
        check: Check | None,
        target: torch.device,
    ) -> None:
        """Of the sequences of ``lengths``; ``events``: its begin, its end, and when ``result`` may be read.

        Token embeddings that stay on a device are delivered on ``target``.
        """
        self._device, self._result, self._request = device, result, request
        self._begin, self._end, self._ready = events
        self._lengths, self._check, self._target = lengths, check, target

    def wait(self) -> float:
        """As `Batch.wait`."""
        self._ready.synchronize()
        if self._check is not None:
            self._check.ready.synchronize()
        return self._begin.elapsed_time(self._end) / 1000

    def deliver(self, out: Any, rows: Indices) -> None:
        """As `Batch.deliver`."""
        self._deliver(out, rows)
        if self._check is not None:
            places = self._check.broken(self._request, self._lengths)
            if len(places):
                self._check.again(places, self._request).deliver(out, rows[places])

    def _deliver(self, out: Any, rows: Indices) -> None:
        if self._request.on_device:
            self._device.lend(self._result)
        if self._request.token_embeddings:
            values: Any = self._result if self._request.on_device else self._result.numpy()
            end = 0
            for row, length in zip(rows, self._lengths.tolist(), strict=True):
                end += length
                part = values[end - length : end]
                out[row] = part.to(self._target, copy=True) if self._request.on_device else part.copy()
        elif self._request.on_device:
            self._device.scatter(out, torch.from_numpy(rows), self._result)
        else:
            # Not with torch: the threads of its index_copy_ keep spinning and slow down tokenization.
            _core.scatter_rows(out, rows, self._result.numpy(), _copiers())


class Joined:
    """The parts of a batch that was cut again."""

    def __init__(self, parts: Sequence[tuple[Batch, int, int]]) -> None:
        """Keep the parts: each with the places of its first sequence and of the end."""
        self._parts = parts

    def wait(self) -> float:
        """As `Batch.wait`."""
        return sum(part.wait() for part, _, _ in self._parts)

    def deliver(self, out: Any, rows: Indices) -> None:
        """As `Batch.deliver`."""
        for part, begin, end in self._parts:
            part.deliver(out, rows[begin:end])
