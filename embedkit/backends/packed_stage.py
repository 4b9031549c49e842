"""The encode stage of a GPU: packed batches, run as CUDA graphs."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import _core
from ..folder import ModelFolder
from ..inputs import outside_level
from ..kernels.attention_tiles import BLOCK, HEADER, attention_tiles, max_attention_tiles
from ..kernels.forward import PackedBatch
from .buckets import SMALL, Buckets
from .cuda_device import Device, Event, Staging
from .packed_model import finish_on_device
from .stage import Batch, Indices, Request, host_empty

__all__ = ["BUDGET", "PackedStage"]

BUDGET = 16384
"""Tokens of a batch."""
_COLUMNS = int(HEADER + BLOCK)
_DTYPES = {
    "float32": torch.float32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "binary": torch.int8,
    "ubinary": torch.uint8,
}


class Model(Protocol):
    """What runs a packed batch; `packed_model.PackedModel`."""

    @property
    def dimension(self) -> int: ...
    @property
    def hidden(self) -> Callable[[PackedBatch], Tensor]: ...
    def vectors(self, batch: PackedBatch, *, skips: bool) -> Tensor: ...


@dataclass(frozen=True)
class _Layout:
    """Where the integers of a batch stand in one array: token ids, positions, bounds and tiles."""

    tokens: int
    sequences: int
    skips: bool

    @cached_property
    def stride(self) -> int:
        return _aligned(self.tokens)

    @cached_property
    def bounds(self) -> int:
        return (2 if self.skips else 1) * self.sequences + 1

    @cached_property
    def tiles(self) -> int:
        return int(max_attention_tiles(self.tokens))

    @cached_property
    def first_tile(self) -> int:
        return _aligned(2 * self.stride + self.bounds)

    @cached_property
    def size(self) -> int:
        return self.first_tile + self.tiles * _COLUMNS

    def parts(self, array: Any) -> tuple[Any, Any, Any, Any]:
        """Ids, positions, bounds and tiles (tiles, columns) of an array or tensor of at least `size`."""
        stride = self.stride
        return (
            array[: self.tokens],
            array[stride : stride + self.tokens],
            array[2 * stride : 2 * stride + self.bounds],
            array[self.first_tile : self.size].reshape(self.tiles, _COLUMNS),
        )


def _aligned(count: int) -> int:
    """Integers up to the next multiple of 64 bytes: the kernels are compiled for aligned memory."""
    return -(-count // 16) * 16


class PackedStage:
    """Encodes packed batches on one device; a `stage.Stage`.

    A batch is packed into pinned memory, copied in on one stream, and encoded and copied out on another, so
    that the copies and the host's work on neighbouring batches overlap with it. It is filled up to the size of
    the nearest CUDA graph (see `buckets`), which is captured when its size is met for the second time. When
    the device's memory does not suffice, the token budget is halved for good and the batch cut again.

    Memory on the device, for a budget of T tokens, hidden size H, inner size I, dimension D, values of s
    bytes and S = T / 4 sequences:

        weights + T (7 H + I) s + 4 S D + 3 · 4 (2 T + 2 S + 68 (3 T / 64 + 2)) bytes

    and memory of the driver for each graph, of which there are some 65 at most for each of two kinds of batch
    (with and without a prompt that is left out of the pooling). All graphs share the T (7 H + I) s bytes.
    """

    ahead = 2

    def __init__(
        self, folder: ModelFolder, model: Model, device: Device, *, precision: str, budget: int = BUDGET
    ) -> None:
        """Take a loaded model; ``precision`` is for `describe`."""
        self.dimension = model.dimension
        self._model, self._device, self._precision = model, device, precision
        config: dict[str, Any] = folder.config
        self._hidden_size = folder.hidden_size
        self._inner_size = int(config["intermediate_size"])
        self._vocab_size = int(config["vocab_size"])
        self._padding = int(config.get("padding_idx", -1))
        self._positions = folder.positions
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._warned = False
        self._ranges: tuple[Any, Tensor | None] = (None, None)
        self._prepare(max(budget, _aligned(folder.positions)))

    def _prepare(self, budget: int) -> None:
        """Memory and graphs for batches of ``budget`` tokens."""
        self._buckets = Buckets(budget)
        sequences = Buckets.sequences(self._buckets.budget)
        largest = _Layout(self._buckets.budget, sequences, skips=True).size
        with self._device.running():
            device = self._device.device
            self._static = torch.zeros(largest, dtype=torch.int32, device=device)
            self._vectors = torch.empty(sequences, self.dimension, device=device)
        self._slots: list[Staging] = []
        self._met: set[_Layout] = set()
        self._graphs: dict[_Layout, Callable[[], None]] = {}

    @property
    def memory_bytes(self) -> int:
        """What the formula gives for the present budget, without the weights and the graphs themselves."""
        budget, size = self._buckets.budget, 4 if self._precision == "fp32" else 2
        sequences = Buckets.sequences(budget)
        activations = budget * (7 * self._hidden_size + self._inner_size) * size
        return activations + 4 * sequences * self.dimension + 12 * _Layout(budget, sequences, skips=True).size

    def cut(self, lengths: npt.NDArray[np.int32], most_texts: int) -> list[int]:
        """As `Stage.cut` says."""
        return self._buckets.cut(lengths, most_texts)

    def submit(self, window: _core.TokenWindow, order: Indices, request: Request) -> Batch:
        """As `Stage.submit` says.

        Raises:
            MemoryError: the device has no room for the smallest batch.
            RuntimeError: the process was forked from the one that opened the device.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "CUDA does not survive a fork: this Encoder was opened on a GPU by the parent process. Start "
                "processes with multiprocessing.get_context('spawn') or 'forkserver', or open the Encoder "
                "in the child"
            )
        with self._lock:
            return self._submit(window, order, request)

    def _submit(self, window: _core.TokenWindow, order: Indices, request: Request) -> Batch:
        lengths = window.lengths[order]
        buckets = self._buckets
        if lengths.sum() <= buckets.budget and len(order) <= buckets.sequences(buckets.budget):
            try:
                return self._run(window, order, lengths, request)
            except self._device.out_of_memory as error:
                # The frames of its traceback hold the memory that it was about.
                failure = error.with_traceback(None)
            self._shrink(failure)
        parts = self._buckets.cut(lengths, 0)
        # The budget was halved after this batch was cut.
        return _Joined(
            [(self._submit(window, order[begin:end], request), begin, end) for begin, end in pairwise(parts)]
        )

    def _shrink(self, error: Exception) -> None:
        budget = self._buckets.budget
        self._slots.clear()
        self._graphs.clear()
        self._device.reset()
        if budget // 2 < _aligned(self._positions):
            raise MemoryError(
                f"{self._device.device}: no memory for a batch of {budget} tokens; end what else uses the "
                "device, or open the Encoder with precision='fp16'"
            ) from error
        self._prepare(budget // 2)
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._device.device} is out of memory: batches have {self._buckets.budget} tokens from "
                f"now on, not {budget}, and fewer where that is too many; describe()['token_budget'] tells",
                stacklevel=outside_level(),
            )

    def _run(
        self, window: _core.TokenWindow, order: Indices, lengths: npt.NDArray[np.int32], request: Request
    ) -> Batch:
        """Begin one batch that is within the budget."""
        tokens, texts, device = int(lengths.sum()), len(order), self._device
        skipped = np.minimum(window.pool_skip[order], lengths)
        size = None if request.token_embeddings else self._buckets.choose(tokens, texts)
        layout = _Layout(
            tokens if size is None else size,
            texts if size is None else Buckets.sequences(size),
            skips=bool(skipped.any()),
        )
        staging = self._staging()
        self._fill(layout, staging.host.numpy(), window, order, skipped)
        device.upload(staging, layout.size)
        with device.running():
            begin = device.mark()
            if size is None:
                batch = self._batch(layout, staging.device)
                if request.token_embeddings:
                    result = self._model.hidden(batch).float()
                else:
                    result = self._model.vectors(batch, skips=layout.skips)
                device.consumed(staging)
            else:
                if size > SMALL and layout in self._met:
                    self._reserve(layout.skips)
                self._static[: layout.size].copy_(staging.device[: layout.size])
                device.consumed(staging)
                self._replay(layout)
                result = self._vectors[:texts]
            if not request.token_embeddings:
                result = finish_on_device(result, request, self._ranges_of(request))
            result = result.clone() if request.on_device else device.download(result)
            end = device.mark()
        return _Batch(device, result, (begin, end), request, lengths)

    def _staging(self) -> Staging:
        """One of two that take turns, when its last upload is done."""
        if len(self._slots) < 2:
            self._slots.append(self._device.staging(len(self._static)))
            return self._slots[-1]
        self._slots.reverse()
        self._slots[0].copied.synchronize()
        return self._slots[0]

    def _fill(
        self,
        layout: _Layout,
        array: npt.NDArray[np.int32],
        window: _core.TokenWindow,
        order: Indices,
        skipped: npt.NDArray[np.int32],
    ) -> None:
        """Write the integers of a batch, of whose sequences ``skipped`` tokens are not pooled."""
        ids, positions, bounds, tiles = layout.parts(array)
        lengths = window.lengths[order]
        ends = np.empty(layout.sequences + 1, dtype=np.int32) if layout.skips else bounds
        window.pack(order, ids, ends, positions, padding_idx=self._padding, vocab_size=self._vocab_size)
        if layout.skips:
            bounds[0] = 0
            bounds[1::2] = ends[:-1]
            bounds[1 : 2 * len(order) : 2] += skipped
            bounds[2::2] = ends[1:]
        tiles[:] = attention_tiles(lengths, tokens=layout.tokens, tiles=layout.tiles)

    def _ranges_of(self, request: Request) -> Tensor | None:
        """The request's ranges on the device; a copy for each batch would have to wait for the one before."""
        if request.ranges is not self._ranges[0]:
            tensor = None if request.ranges is None else torch.tensor(request.ranges)
            self._ranges = request.ranges, None if tensor is None else tensor.to(self._device.device)
        return self._ranges[1]

    def _batch(self, layout: _Layout, array: Tensor) -> PackedBatch:
        ids, positions, bounds, tiles = layout.parts(array)
        return PackedBatch(ids, positions, bounds, tiles, self._positions)

    def _reserve(self, skips: bool) -> None:
        """Capture the largest graph before any other large one: they then find room in its memory."""
        budget = self._buckets.budget
        layout = _Layout(budget, Buckets.sequences(budget), skips)
        if layout not in self._graphs:
            self._static.zero_()  # the bounds and tiles of another layout would not be in range
            while layout not in self._graphs:
                self._replay(layout)

    def _replay(self, layout: _Layout) -> None:
        """Vectors of the batch in the static memory, by a graph where this shape has been met before."""
        if layout not in self._graphs:
            batch = self._batch(layout, self._static)

            def run() -> None:
                self._vectors[: layout.sequences].copy_(self._model.vectors(batch, skips=layout.skips))

            if layout not in self._met:  # this compiles kernels, which a capture cannot
                self._met.add(layout)
                run()
                return
            self._graphs[layout] = self._device.capture(run)
        self._graphs[layout]()

    def empty(self, texts: int, request: Request) -> Any:
        """As `Stage.empty` says; with ``on_device`` a tensor there."""
        if request.on_device and not request.token_embeddings:
            columns = (request.width + 7) // 8 if "binary" in request.dtype else request.width
            return self._device.empty([texts, columns], _DTYPES[request.dtype])
        return host_empty(texts, request)

    def place(self, out: Any, first: int, vectors: npt.NDArray[Any]) -> None:
        """As `Stage.place` says."""
        if isinstance(out, Tensor):
            out[first : first + len(vectors)] = torch.from_numpy(vectors).to(out.device)
        else:
            out[first : first + len(vectors)] = vectors

    def describe(self) -> dict[str, Any]:
        """Precision, budget, graphs and memory."""
        return {
            "precision": self._precision,
            "token_budget": self._buckets.budget,
            "cuda_graphs": len(self._graphs),
            "batch_memory_bytes": self.memory_bytes,
        }


class _Batch:
    """A batch that the device works on."""

    def __init__(
        self,
        device: Device,
        result: Tensor,
        events: tuple[Event, Event],
        request: Request,
        lengths: npt.NDArray[np.int32],
    ) -> None:
        self._device, self._result, self._request = device, result, request
        self._begin, self._end = events
        self._lengths = lengths

    def wait(self) -> float:
        self._end.synchronize()
        return self._begin.elapsed_time(self._end) / 1000

    def deliver(self, out: Any, rows: Indices) -> None:
        if self._request.token_embeddings:
            values: Any = self._result if self._request.on_device else self._result.numpy()
            end = 0
            for row, length in zip(rows, self._lengths.tolist(), strict=True):
                end += length
                part = values[end - length : end]
                out[row] = part.clone() if self._request.on_device else part.copy()
        elif self._request.on_device:
            self._device.scatter(out, torch.from_numpy(rows), self._result)
        else:
            # As out[rows] = ..., on several threads and without the GIL.
            torch.from_numpy(out).index_copy_(0, torch.from_numpy(rows), self._result)


class _Joined:
    """The parts of a batch that was cut again."""

    def __init__(self, parts: Sequence[tuple[Batch, int, int]]) -> None:
        self._parts = parts

    def wait(self) -> float:
        return sum(part.wait() for part, _, _ in self._parts)

    def deliver(self, out: Any, rows: Indices) -> None:
        for part, begin, end in self._parts:
            part.deliver(out, rows[begin:end])
