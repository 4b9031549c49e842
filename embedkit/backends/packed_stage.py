"""The encode stage of a GPU: packed batches, run as CUDA graphs."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import _core
from ..forking import cached_property
from ..inputs import outside_level
from ..kernels.attention_tiles import BLOCK, HEADER, max_attention_tiles
from ..kernels.packing import PackedBatch
from ..model_folder.folder import ModelFolder
from ..output import output_width
from .buckets import SMALL, Buckets
from .cuda_device import Device, Staging, out_of_memory
from .packed_batch import Check, DeviceBatch, Joined
from .packed_model import finish_on_device
from .stage import Batch, Indices, Request, host_empty

__all__ = ["BUDGET", "PackedStage"]

BUDGET = 16384
"""Maximum tokens in a batch."""
_CUBLAS_WORKSPACE = 32 << 20
"""Bytes per submitting thread: torch's default for compute capability 9.0; less on older GPUs."""
_SPARE = 0.25
"""Maximum share of tokens left idle by a batch that uses the graph of a larger size."""
_log = logging.getLogger("embedkit")
_COLUMNS = int(HEADER + BLOCK)
_DTYPES = {
    "float32": torch.float32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "binary": torch.int8,
    "ubinary": torch.uint8,
}


class BatchModel(Protocol):
    """A model that runs packed batches, such as `packed_model.PackedModel`."""

    @property
    def dimension(self) -> int: ...
    @property
    def hidden(self) -> Callable[[PackedBatch], Tensor]: ...
    def vectors(self, batch: PackedBatch, *, skips: bool) -> Tensor: ...


@dataclass(frozen=True)
class _Layout:
    """The layout of a batch's integers in one array: token ids, positions, bounds and tiles."""

    tokens: int
    sequences: int
    skips: bool
    descending: bool = True  # no sequence is longer than the one before it

    @cached_property
    def stride(self) -> int:
        return _aligned(self.tokens)

    @cached_property
    def bounds(self) -> int:
        return (2 if self.skips else 1) * self.sequences + 1

    @cached_property
    def tiles(self) -> int:
        return int(max_attention_tiles(self.tokens, descending=self.descending))

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


def _layer_values(config: dict[str, Any], hidden: int) -> int:
    """The values of one token that a layer holds at most: projection, context, stream and its copies, inner."""
    heads = int(config["num_attention_heads"])
    size = int(config.get("head_size", 0)) or hidden // heads
    shared = int(config.get("num_key_value_heads", 0)) or heads
    inner = int(config["intermediate_size"]) * (
        3 if config.get("gate") else 1
    )  # both halves, and their product
    return 2 * (heads + shared) * size + (4 if config.get("norm_place") else 3) * hidden + inner


def _aligned(count: int) -> int:
    """Integers up to the next multiple of 64 bytes: the kernels are compiled for aligned memory."""
    return -(-count // 16) * 16


class PackedStage:
    """Encodes packed batches on one device; a `stage.Stage`.

    The core packs a batch into pinned memory, in one call without the GIL. The batch is uploaded on one stream,
    encoded on a second and downloaded on a third, so that copies and host work on neighboring batches overlap with
    it. Packing uses one thread: it takes about 0.05 ms, encoding takes milliseconds.

    A batch is padded to the size of the next CUDA graph (see `buckets`), which is captured when the size occurs for
    the second time. If a capture fails, e.g. because other work in the process synchronizes the device meanwhile,
    that size runs without a graph from then on. If memory runs out, the token budget is halved permanently and the
    batch is cut again; a text longer than the budget raises it to its length.

    With ``wider``, the sum of each result is downloaded with it: a sequence whose sum is not finite has overflowed, and
    is encoded again with the wider model, without a graph. The kernels keep it from affecting its neighbors.

    Device memory, for a budget of T tokens, hidden size H, inner size I, dimension D, values of s bytes, S = T / 4
    sequences, W submitting threads and V values of a token in a layer (7 H + I of BERT; `_layer_values`):

        weights + 2 T V s + 4 · 4 S D + 3 · 4 N + 32 MiB · W,  N = 2 T + 2 S + 68 (3 T / 64 + 2)

    plus driver memory for each graph, of which there are at most about 65 for each of two kinds of batch (with and
    without a prompt excluded from pooling). All graphs share T V s bytes; batches without a graph take as much
    from torch's general pool. The results of three batches are in flight besides the graphs' own (token embeddings
    take 4 T H bytes each instead), and the integers of two. The cuBLAS workspaces of a thread take at most 32 MiB.
    Pinned host memory is 2 · 4 N bytes, plus three results, each rounded up to a power of two.
    """

    ahead = 2

    def __init__(
        self,
        folder: ModelFolder,
        model: BatchModel,
        device: Device,
        *,
        precision: str,
        budget: int | None = None,
        wider: Callable[[], BatchModel] | None = None,
        check: Callable[[], None] | None = None,
        target: torch.device | None = None,
    ) -> None:
        """Run a loaded model.

        Args:
            folder: its folder.
            model: the model.
            device: where it is.
            precision: its name for `describe`.
            budget: maximum tokens in a batch; None for `BUDGET`.
            wider: loads the model in a type with a larger range, for sequences that overflow.
            check: called before each batch; raises if a setting of the process would change the results.
            target: where token embeddings that are left on a device go; None for this one.
        """
        self.dimension = model.dimension
        self._model, self._device, self._precision = model, device, precision
        config: dict[str, Any] = folder.config
        self._values = _layer_values(config, folder.hidden_size)
        self._vocab_size = int(config["vocab_size"])
        self._padding = int(config.get("padding_idx", -1))
        self._positions = folder.positions
        self._normalizes = folder.normalizes
        self._lock = threading.Lock()  # noqa: TID251 (no forked child uses CUDA)
        self._process = os.getpid()
        self._warned = False
        self._target = target or device.device
        self._load_wider = wider
        self._check = check
        self._wider: BatchModel | None = None
        self._overflowed = 0
        self._prompted = not folder.pooling.include_prompt
        self._ranges: tuple[Any, Tensor | None] = (None, None)
        self._first_budget = budget or BUDGET
        self._prepare(self._first_budget)

    def _prepare(self, budget: int) -> None:
        """Reset for batches of at most ``budget`` tokens; the first batch allocates the memory."""
        self._buckets = Buckets(budget)
        self._static = self._vectors = self._sums = torch.empty(0)
        self._slots: list[Staging] = []
        self._met: set[_Layout] = set()
        self._graphs: dict[_Layout, Callable[[], None]] = {}
        self._eager: set[_Layout] = set()

    def _allocate(self) -> None:
        largest, device = replace(self._largest(skips=True), descending=False), self._device.device
        with self._device.running():
            self._vectors = torch.empty(largest.sequences, self.dimension, dtype=torch.float32, device=device)
            self._sums = torch.empty(largest.sequences, dtype=torch.float32, device=device)
            self._static = torch.zeros(largest.size, dtype=torch.int32, device=device)

    def _largest(self, *, skips: bool) -> _Layout:
        return _Layout(self._buckets.budget, Buckets.sequences(self._buckets.budget), skips)

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """The formula above for the current budget: bytes on the device, and pinned.

        Without the weights and the graphs themselves, and for one thread.
        """
        largest = replace(self._largest(skips=True), descending=False)
        size = 4 if self._precision == "fp32" else 2
        activations = largest.tokens * self._values * size
        result = 4 * largest.sequences * self.dimension
        device = 2 * activations + 4 * result + 3 * 4 * largest.size + _CUBLAS_WORKSPACE
        return device, 2 * 4 * largest.size + 3 * (1 << (result - 1).bit_length())

    def cut(self, lengths: npt.NDArray[np.int32], most_texts: int) -> list[int]:
        """As `Stage.cut`."""
        return self._buckets.cut(lengths, most_texts)

    def submit(self, window: _core.TokenWindow, order: Indices, request: Request) -> Batch:
        """As `Stage.submit`.

        Raises:
            MemoryError: there is no memory for the smallest batch.
            RuntimeError: the process was forked after the device was opened.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "CUDA does not survive a fork: this Encoder was opened on a GPU by the parent process. Start "
                "processes with multiprocessing.get_context('spawn') or 'forkserver', or open the Encoder "
                "in the child"
            )
        if self._check is not None:
            self._check()
        with self._lock:
            return self._submit(window, order, request)

    def submit_wider(self, window: _core.TokenWindow, order: Indices, request: Request) -> Batch:
        """As `submit`, with the wider model.

        Raises:
            MemoryError: there is no memory for the model.
        """
        with self._lock:
            if self._wider is None:
                assert self._load_wider is not None
                try:
                    self._wider = self._load_wider()
                except RuntimeError as error:
                    if not out_of_memory(error):
                        raise
                    raise MemoryError(
                        f"{self._device.device}: a text overflows {self._precision}, and there is no memory for the "
                        "model in a wider type; open the Encoder with precision='bf16'"
                    ) from error
                warnings.warn(
                    f"{len(order)} of the texts overflow {self._precision} and are encoded in bf16, as later ones "
                    "will be; they are counted in describe()['overflowed']. precision='bf16' encodes all texts alike",
                    stacklevel=outside_level(),
                )
            self._overflowed += len(order)
            return self._submit(window, order, request, self._wider)

    def _submit(
        self, window: _core.TokenWindow, order: Indices, request: Request, wider: BatchModel | None = None
    ) -> Batch:
        lengths = window.lengths[order]
        longest = _aligned(int(lengths.max(initial=1)))
        if longest > self._buckets.budget:
            self._prepare(longest)
            self._device.reset()
        buckets = self._buckets
        if lengths.sum() <= buckets.budget and len(order) <= buckets.sequences(buckets.budget):
            try:
                return self._run(window, order, lengths, request, wider)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                # The frames of its traceback hold the memory in question.
                failure = error.with_traceback(None)
                failure.__context__ = None
            self._shrink(failure, longest)
        parts = self._buckets.cut(lengths, 0)
        # The budget was halved after this batch was cut.
        return Joined(
            [
                (self._submit(window, order[begin:end], request, wider), begin, end)
                for begin, end in pairwise(parts)
            ]
        )

    def _shrink(self, error: Exception, longest: int) -> None:
        """Halve the budget; if a text of ``longest`` tokens would not fit it, start over and raise MemoryError."""
        budget = self._buckets.budget
        smallest = budget // 2 < longest
        self._prepare(self._first_budget if smallest else budget // 2)
        self._device.reset()
        if smallest:
            half = ", or open the Encoder with precision='fp16'" if self._precision == "fp32" else ""
            raise MemoryError(
                f"{self._device.device}: no memory for a batch of {budget} tokens; stop other users of the device, "
                f"lower max_length{half}"
            ) from error
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._device.device} is out of memory: batches have {self._buckets.budget} tokens from "
                f"now on, not {budget}, or fewer if needed; see describe()['token_budget']",
                stacklevel=outside_level(),
            )

    def _run(
        self,
        window: _core.TokenWindow,
        order: Indices,
        lengths: npt.NDArray[np.int32],
        request: Request,
        wider: BatchModel | None,
    ) -> Batch:
        """Start one batch that is within the budget."""
        tokens, texts, device = int(lengths.sum()), len(order), self._device
        model = wider or self._model
        graphs, checks = not request.token_embeddings and wider is None, self._load_wider is not None
        descending = not (np.diff(lengths) > 0).any()
        size = self._buckets.choose(tokens, texts) if graphs and descending else None
        skips = bool(window.pool_skip[order].any())
        if size is not None:
            size = self._captured(size, tokens, texts, skips)
        layout = _Layout(
            tokens if size is None else size,
            texts if size is None else Buckets.sequences(size),
            skips,
            descending,
        )
        if not len(self._static):
            self._allocate()
        staging = self._staging()
        ids, positions, bounds, tiles = layout.parts(staging.host.numpy())
        window.pack(
            order,
            ids,
            bounds,
            positions,
            tiles,
            skips=layout.skips,
            padding_idx=self._padding,
            vocab_size=self._vocab_size,
        )
        device.upload(staging, layout.size)
        with device.running():
            begin = device.mark()
            try:
                if size is None:
                    batch = self._batch(layout, staging.device)
                    if request.token_embeddings:
                        result = model.hidden(batch).float()
                    else:
                        result = model.vectors(batch, skips=layout.skips)
                else:
                    if size > SMALL and layout in self._met:
                        self._reserve(layout.skips)
                    self._static[: layout.size].copy_(staging.device[: layout.size])
            finally:  # what was started before an interrupt reads it, too
                device.consumed(staging)
            if size is None:
                sums = result.sum(dim=1) if checks else None
            else:
                self._replay(layout)
                result = self._vectors[:texts]
                sums = self._sums[:texts].clone() if checks else None  # the next batch writes there
            if not request.token_embeddings:
                if self._normalizes and request.width == self.dimension:
                    request = replace(request, normalize=False)  # they have length 1 already
                result = finish_on_device(result, request, self._ranges_of(request))
            if result.data_ptr() == self._vectors.data_ptr():  # the next batch is written there
                result = result.clone(memory_format=torch.contiguous_format)
            result = result.contiguous()
            end = ready = device.mark()
            if not request.on_device:
                result, ready = device.download(result, end)
            check = None
            if sums is not None:
                # The remedy of the wider model itself is an error.
                repair = None if wider is not None else partial(self.submit_wider, window)
                check = Check(*device.download(sums, end), order, repair)
        events = begin, end, ready
        return DeviceBatch(device, result, events, request, lengths, check=check, target=self._target)

    def warm_up(self) -> None:
        """Capture the graphs of the usual sizes, so that calls do not: see `Buckets.usual`.

        Raises:
            MemoryError: there is no memory for the smallest batch.
        """
        with self._lock:
            while True:
                try:
                    self._capture_usual()
                    return
                except RuntimeError as error:
                    if not out_of_memory(error):
                        raise
                    failure = error.with_traceback(None)
                    failure.__context__ = None
                self._shrink(failure, _aligned(1))

    def _capture_usual(self) -> None:
        if not len(self._static):
            self._allocate()
        with self._device.running():
            for skips in (False, True) if self._prompted else (False,):
                self._reserve(skips)
                for size in self._buckets.usual(_SPARE):
                    layout = _Layout(size, Buckets.sequences(size), skips)
                    self._met.add(layout)
                    if layout not in self._graphs and layout not in self._eager:
                        self._static.zero_()  # a batch without texts
                        self._replay(layout)
            self._device.mark().synchronize()

    def _captured(self, size: int, tokens: int, texts: int, skips: bool) -> int:
        """``size``, or for its first batch a size that has a graph and at most `_SPARE` idle tokens.

        The last batch of a call has another size than the others, and may never occur again.
        """
        own = _Layout(size, Buckets.sequences(size), skips)
        if own in self._met:
            return size
        for larger in self._buckets.sizes:
            fits = size < larger <= tokens / (1 - _SPARE) and texts <= Buckets.sequences(larger)
            if fits and _Layout(larger, Buckets.sequences(larger), skips) in self._graphs:
                self._met.add(own)
                return larger
        return size

    def _staging(self) -> Staging:
        """One of two that alternate, after its last upload is done."""
        if len(self._slots) < 2:
            self._slots.append(self._device.staging(len(self._static)))
            return self._slots[-1]
        self._slots.append(self._slots.pop(0))
        self._slots[-1].copied.synchronize()
        return self._slots[-1]

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
        """Capture the largest graph before any other large one, so that they reuse its memory."""
        layout = self._largest(skips=skips)
        if layout not in self._graphs and layout not in self._eager:
            self._static.zero_()  # the bounds and tiles of another layout would not be in range
            while layout not in self._graphs and layout not in self._eager:
                self._replay(layout)

    def _replay(self, layout: _Layout) -> None:
        """Encode the batch in static memory, with a graph from the third batch of this layout on."""
        if layout in self._graphs:
            self._graphs[layout]()
            return
        batch = self._batch(layout, self._static)

        def run() -> None:
            vectors = self._model.vectors(batch, skips=layout.skips)
            self._vectors[: layout.sequences].copy_(vectors)
            if self._load_wider is not None:
                torch.sum(vectors, 1, out=self._sums[: layout.sequences])

        # Does what a capture cannot, such as compiling kernels and opening cuBLAS in this thread.
        run()
        if layout in self._met and layout not in self._eager:
            try:
                self._graphs[layout] = self._device.capture(run)
            except RuntimeError as error:
                if out_of_memory(error):
                    raise
                self._eager.add(layout)
                _log.info("no CUDA graph for batches of %d tokens: %s", layout.tokens, error)
        self._met.add(layout)

    def empty(self, texts: int, request: Request) -> Any:
        """As `Stage.empty`; with ``on_device`` a tensor on the device."""
        if request.on_device and not request.token_embeddings:
            columns = output_width(request.dtype, request.width)
            return self._device.empty([texts, columns], _DTYPES[request.dtype])
        return host_empty(texts, request)

    def describe(self) -> dict[str, Any]:
        """Precision, budget, graphs and memory."""
        on_device, pinned = self.memory_bytes
        return {
            "precision": self._precision,
            "token_budget": self._buckets.budget,
            "cuda_graphs": len(self._graphs),
            "overflowed": self._overflowed,
            "batch_memory_bytes": on_device,
            "pinned_memory_bytes": pinned,
        }
