"""ONNX Runtime, fp32 and int8, on a graph fused by its own transformer optimizer."""

from pathlib import Path

import common
import numpy as np

from peers import onnx_export
from peers.base import Batched, padded


class OnnxRuntime(Batched):
    """fp32."""

    name = "onnxruntime fp32"
    precision = "fp32"
    packages = ("onnxruntime", "onnx", "torch", "transformers", "tokenizers")

    def convert(self) -> None:
        """Export, fuse, quantize."""
        plain, fused = (self.cache / f"{name}.onnx" for name in ("plain", "fused"))
        if not plain.exists():
            onnx_export.export(self.folder, plain)
        if not fused.exists():
            onnx_export.fuse(self.folder, plain, fused)
        if not self.graph.exists():
            onnx_export.quantize(fused, self.graph, reduce_range=common.bytes_saturate())

    @property
    def graph(self) -> Path:
        """The converted graph."""
        int8 = "int8-7bit.onnx" if common.bytes_saturate() else "int8.onnx"
        return self.cache / (int8 if self.precision == "int8" else "fused.onnx")

    def _load(self, streams: int) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        # Several streams share one session: each calling thread runs its own batch.
        options.intra_op_num_threads = max(1, self.threads // streams)
        # The thread pool spins while it waits. This does not disturb others, since this process is stopped while they
        # are measured (see worker.py).
        options.add_session_config_entry("session.intra_op.allow_spinning", "1")
        # Work is cut into shrinking blocks, so that threads end together.
        options.add_session_config_entry("session.dynamic_block_base", "4")
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
        self._session = ort.InferenceSession(str(self.graph), options, providers=["CPUExecutionProvider"])

    def _run(self, ids: list[list[int]]) -> np.ndarray:
        tokens, mask = padded(ids)
        return self._session.run(None, {"input_ids": tokens, "attention_mask": mask})[0]


class OnnxRuntimeInt8(OnnxRuntime):
    """Dynamic int8, weights per channel."""

    name = "onnxruntime int8"
    precision = "int8"
