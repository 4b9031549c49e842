"""Replaces CUDA on a machine without a GPU: a device that does everything immediately, and a plain model for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from core_stage import staged
from torch import Tensor

from embedkit import Encoder
from embedkit.backends.cuda_device import Staging
from embedkit.backends.packed_stage import PackedStage
from embedkit.model_folder.folder import open_folder


class Event:
    """Reached at once."""

    def __init__(self) -> None:
        self.waited = 0

    def synchronize(self) -> None:
        self.waited += 1

    def elapsed_time(self, end: Any) -> float:
        return 1.0


class Copied(Event):
    """Copies as late as allowed, so that a later batch's write to ``values`` shows."""

    def __init__(self, host: Tensor, values: Tensor) -> None:
        super().__init__()
        self.host, self.values = host, values

    def synchronize(self) -> None:
        super().synchronize()
        with torch.inference_mode():
            self.host.copy_(self.values)


class EagerDevice:
    """A `cuda_device.Device` without streams. It overwrites memory that may no longer be read."""

    def __init__(self, name: str = "cpu") -> None:
        self.device = torch.device(name)
        self.stagings: list[Staging] = []
        self.captured = self.replayed = self.uploads = self.resets = self.lent = 0
        self.fail_capture: Callable[[], None] | None = None
        self.has_fast_halves = True
        self._inside = threading.local()

    def staging(self, size: int) -> Staging:
        memory = [torch.full((size,), -(10**9), dtype=torch.int32) for _ in range(2)]
        self.stagings.append(Staging(*memory, Event(), Event()))
        return self.stagings[-1]

    def upload(self, staging: Staging, size: int) -> None:
        self.uploads += 1
        staging.device[:size] = staging.host[:size]
        staging.host.fill_(-(10**9))

    def consumed(self, staging: Staging) -> None:
        staging.device.fill_(-(10**9))

    @contextmanager
    def running(self) -> Iterator[None]:
        with torch.inference_mode():
            yield

    def mark(self) -> Event:
        return Event()

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        if self.fail_capture is not None:
            self.fail_capture()
        self.captured += 1

        def replay() -> None:
            self.replayed += 1
            run()

        return replay

    def download(self, values: Tensor, ready: Any) -> tuple[Tensor, Event]:
        assert values.is_contiguous()
        host = torch.empty_like(values)
        return host, Copied(host, values)

    def lend(self, values: Tensor) -> None:
        self.lent += 1

    def scatter(self, out: Tensor, rows: Tensor, values: Tensor) -> None:
        out.index_copy_(0, rows, values)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype)

    def reset(self) -> None:
        self.resets += 1


class PlainModel:
    """A BERT of transformers, mean pooling, on one sequence at a time; it finds the sequences by the tiles."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        self.bert = transformers.AutoModel.from_pretrained(str(folder)).eval().to(dtype)
        self.dimension = self.bert.config.hidden_size
        self.fail: Callable[[int], None] | None = None
        self.batches: list[tuple[int, int]] = []  # tokens that belong to a sequence, and all

    def hidden(self, batch: Any) -> Tensor:
        tokens = len(batch.input_ids)
        starts = torch.full((tokens,), -1)
        for first, end, _, keys_end, *rest in batch.tile_map.tolist():
            if keys_end:
                starts[first:end] = torch.tensor(rest[: end - first])
        result = torch.zeros(tokens, self.dimension, dtype=next(self.bert.parameters()).dtype)
        for start in starts.unique().tolist():
            rows = torch.nonzero(starts == start)[:, 0]
            if start >= 0:
                ids, positions = batch.input_ids[rows][None].long(), batch.positions[rows][None].long()
                result[rows] = self.bert(input_ids=ids, position_ids=positions).last_hidden_state[0]
        self.batches.append((int((starts >= 0).sum()), tokens))
        if self.fail is not None:
            self.fail(tokens)
        return result

    def vectors(self, batch: Any, *, skips: bool) -> Tensor:
        hidden = self.hidden(batch).float()
        bounds = batch.cu_seqlens.tolist()
        pairs = zip(bounds[1::2], bounds[2::2]) if skips else zip(bounds, bounds[1:])  # noqa: B905, RUF007
        rows = [
            hidden[begin:end].mean(0) if begin < end else torch.zeros(self.dimension) for begin, end in pairs
        ]
        return torch.stack(rows)


def packed(
    folder: Path,
    *,
    budget: int | None = 600,
    model: Any = None,
    wider: Any = None,
    check: Any = None,
    **options: Any,
) -> tuple[Encoder, Any, Any]:
    """An `Encoder` on the simulated device and model, and these two."""
    device, model = EagerDevice(), model or PlainModel(folder)
    more = {"budget": budget, "wider": wider, "check": check}
    stage = PackedStage(open_folder(folder), model, device, precision="fp32", **more)  # type: ignore[arg-type]
    encoder = staged(folder, stage, **options)
    encoder._loaded.tensors = True  # type: ignore[union-attr]
    return encoder, device, model


def cosine(a: Any, b: Any) -> float:
    """The lowest cosine of the rows."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float((np.einsum("nd,nd->n", a, b) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())
