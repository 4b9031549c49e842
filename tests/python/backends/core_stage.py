"""An encode stage that runs the core on one sequence at a time: any difference from `Encoder` comes from the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import Encoder, _core
from embedkit.backends.core_engine import CoreEngine
from embedkit.backends.stage import HostBatch, Request, host_empty
from embedkit.backends.stage_engine import StageEngine
from embedkit.model_folder.folder import open_folder


class CoreStage:
    """Batches are cut every ``texts`` sequences; ``ahead`` of them are in flight until they are waited for."""

    def __init__(self, folder: Path, *, ahead: int = 0, texts: int = 7) -> None:
        self.core = CoreEngine(open_folder(folder), "fp32").core
        self.folder = open_folder(folder)
        self.dimension, self.ahead, self.texts = self.core.dimension, ahead, texts
        self.waiting = self.most_waiting = 0
        self.batches: list[int] = []
        self.threads: set[str] = set()
        self.fail: Callable[[int], None] | None = None

    def cut(self, lengths: Any, most_texts: int) -> list[int]:
        assert (np.diff(lengths) <= 0).all()
        return [*range(0, len(lengths), min(self.texts, most_texts or self.texts)), len(lengths)]

    def submit(self, window: Any, order: Any, request: Request) -> HostBatch:
        self.batches.append(len(order))
        self.threads.add(threading.current_thread().name)
        if self.fail is not None:
            self.fail(len(self.batches))
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        results, lengths, stage = [], window.lengths[order], self
        for sequence in order:
            ids = np.empty(window.lengths[sequence], np.int32)
            window.pack(np.array([sequence]), ids, np.empty(2, np.int32), vocab_size=10**6)
            options = _core.EncodeOptions(
                threads=1, prefix_ids=[], suffix_ids=[], max_length=self.folder.positions,
                pool_skip=int(window.pool_skip[sequence]), token_embeddings=request.token_embeddings,
            )  # fmt: skip
            results.append(self.core.encode_ids([ids.tolist()], options)[0][0])

        class Waiting(HostBatch):
            def wait(self) -> float:
                stage.waiting -= 1
                return super().wait()

        result = np.concatenate(results) if request.token_embeddings else np.stack(results)
        return Waiting(result, 0.0, request, lengths.tolist())

    def empty(self, texts: int, request: Request) -> Any:
        return host_empty(texts, request)

    def describe(self) -> dict[str, Any]:
        return {"precision": "fp32"}


def staged(folder: Path, stage: Any, **options: Any) -> Encoder:
    """An `Encoder` that runs ``stage`` instead of the core."""
    encoder = Encoder(folder, **options)
    encoder._loaded = StageEngine(open_folder(folder), lambda: stage)
    return encoder
