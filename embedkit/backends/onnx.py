"""The encode stage on ONNX Runtime: exports of Optimum and sentence-transformers, and embedkit's own.

embedkit's own graphs output the final embeddings. For other graphs the token embeddings are used, and pooling, Dense
and Normalize run in numpy as described by the folder's ``modules.json``; a graph that outputs sentence embeddings only
is used as it is.

Graphs take padded batches, so texts of similar length are batched together, and texts of equal length for a graph
without an attention mask, which would take padding for text. Memory is bounded by the token budget B:
B × 8 bytes for each input, B × hidden_size × 4 for the token embeddings, and ONNX Runtime's own memory for the layers,
which is proportional to B.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..model_folder.folder import ModelFolder
from ..model_folder.weights import core_head
from .numpy_head import NumpyHead
from .onnx_files import GraphFile
from .onnx_session import CPU, Provider, Session
from .stage import HostBatch, Indices, Request, host_empty

__all__ = ["OnnxStage"]

_BUDGET_CPU = 1_024
"""Tokens in a batch per thread, padding included; 4,096 is 1.2 times slower, as activations do not fit the cache."""
_BUDGET_DEVICE = 65_536
_LEAST_FILL = 0.875
"""A text shorter than this share of the longest in its batch starts a new batch, once the batch is a quarter full."""


class OnnxStage:
    """One graph on ONNX Runtime. `submit` computes at once, and may be called from several threads."""

    ahead = 0

    def __init__(
        self,
        folder: ModelFolder,
        graph: GraphFile,
        *,
        described: bool,
        providers: Sequence[Provider],
        threads: int,
        pad_id: int | None,
    ) -> None:
        """Open the graph.

        Args:
            folder: the model.
            graph: one of its graphs.
            described: whether the folder describes the modules after the transformer.
            providers: from `check_providers`.
            threads: number of threads of each operation.
            pad_id: the padding id; None for 0.

        Raises:
            ValueError: the graph cannot run, or does not fit the folder.
        """
        self._graph = graph
        self._threads = threads
        self._pad_id = pad_id or 0
        self._vocab_size = int(folder.config["vocab_size"])
        self._hidden_size = folder.hidden_size
        self._first_position = folder.first_position
        self.dimension = folder.dimension
        session = Session(graph.path, providers, threads)
        self._session = session
        self._process = os.getpid()
        self._equal = "attention_mask" not in session.inputs  # whether a batch has texts of one length only
        self._final = session.sentence and (graph.own or not (session.tokens and described))
        self._head = None if self._final else NumpyHead(folder.pooling.modes, core_head(folder))
        if session.tokens:
            self._check_width(session.width(tokens=True), self._hidden_size, "config.json")
        if self._final:
            width = session.width(tokens=False)
            if described:
                self._check_width(width, self.dimension, "modules.json")
            else:  # Optimum's export of a sentence-transformers model: pooling and head are only in the graph
                self.dimension = width or self.dimension
            if not folder.pooling.include_prompt and "pooling_mask" not in session.inputs:
                raise ValueError(
                    f"{graph.path}: the folder excludes prompts from pooling, which this graph does not support; "
                    "export the model again, or use a graph with the output last_hidden_state"
                )
        cpu = session.providers[0] == CPU
        self._budget = min(_BUDGET_CPU * threads, _BUDGET_DEVICE) if cpu else _BUDGET_DEVICE

    def _check_width(self, width: int | None, expected: int, source: str) -> None:
        if width not in (None, expected):
            raise ValueError(
                f"{self._graph.path}: the graph's vectors have {width} dimensions, {source} makes it "
                f"{expected}; the files belong to different models, fetch them again"
            )

    def cut(self, lengths: npt.NDArray[np.int32], most_texts: int) -> Sequence[int]:
        """As `Stage.cut`: where the budget is used up, padding would grow too much, or must not be."""
        cuts = [0]
        for index, length in enumerate(lengths.tolist()):
            begin = cuts[-1]
            texts = index - begin
            if not texts:
                longest = length
                continue
            full = (texts + 1) * longest > self._budget or texts == most_texts
            padded = length < _LEAST_FILL * longest and texts * longest > self._budget // 4
            if full or padded or (self._equal and length != longest):
                cuts.append(index)
                longest = length
        return [*cuts, len(lengths)] if len(lengths) else cuts

    def submit(self, window: _core.TokenWindow, order: Indices, request: Request) -> HostBatch:
        """As `Stage.submit`.

        Raises:
            RuntimeError: the process was forked after the graph was opened.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "ONNX Runtime's threads do not survive a fork: this Encoder was opened by the parent process. Start "
                "processes with multiprocessing.get_context('spawn') or 'forkserver', or open the Encoder in the child"
            )
        begin = time.perf_counter()
        lengths = window.lengths[order]
        skip = window.pool_skip[order]
        ids = np.empty(int(lengths.sum()), dtype=np.int32)
        window.pack(order, ids, np.empty(len(order) + 1, dtype=np.int32), vocab_size=self._vocab_size)
        position = np.arange(max(1, lengths.max()))  # a text may have no tokens
        mask = position < lengths[:, None]
        padded = np.full(mask.shape, self._pad_id, dtype=np.int32)
        padded[mask] = ids
        feed = {
            "input_ids": padded,
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(padded),
            "pooling_mask": mask & (position >= skip[:, None]),
            "position_ids": np.broadcast_to(position + self._first_position, mask.shape),
        }
        if request.token_embeddings:
            self._refuse_without_tokens()
            with self._session.run(feed, self._hidden_size, tokens=True) as hidden:
                result = hidden[mask]
        elif self._head is None:
            with self._session.run(feed, self.dimension, tokens=False) as vectors:
                result = vectors.copy()
        else:
            with self._session.run(feed, self._hidden_size, tokens=True) as hidden:
                result = self._head(hidden, lengths, skip)
        return HostBatch(result, time.perf_counter() - begin, request, lengths.tolist())

    def _refuse_without_tokens(self) -> None:
        if not self._session.tokens:
            raise ValueError(
                f"{self._graph.path}: the graph does not output token embeddings; use a graph with the output "
                "last_hidden_state, or the compiled core"
            )

    def warm_up(self) -> None:
        """As `Stage.warm_up`: running a text is enough."""

    def empty(self, texts: int, request: Request) -> Any:
        """As `Stage.empty`, in host memory."""
        return host_empty(texts, request)

    def describe(self) -> dict[str, Any]:
        """Graph, precision and providers."""
        return {
            "backend": "onnx",
            "precision": self._graph.precision,
            "onnx_file": str(self._graph.path),
            "providers": list(self._session.providers),
            "batch_tokens": self._budget,
        }
