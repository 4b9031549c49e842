"""OpenVINO, fp32, from the plain ONNX graph, which its compiler fuses.

There is no int8 peer: int8 models for OpenVINO are made by NNCF, another package.
"""

import numpy as np

from peers import onnx_export
from peers.base import Batched, padded


class OpenVino(Batched):
    """fp32."""

    name = "openvino fp32"
    precision = "fp32"
    packages = ("openvino", "onnx", "torch", "transformers", "tokenizers")

    def convert(self) -> None:
        """Export the graph."""
        plain = self.cache / "plain.onnx"
        if not plain.exists():
            onnx_export.export(self.folder, plain)

    def _load(self, streams: int) -> None:
        import openvino as ov

        compiled = ov.Core().compile_model(
            str(self.cache / "plain.onnx"),
            "CPU",
            {
                "INFERENCE_NUM_THREADS": self.threads,
                "NUM_STREAMS": streams,
                "PERFORMANCE_HINT": "LATENCY" if streams == 1 else "THROUGHPUT",
                # Otherwise OpenVINO may compute in bf16.
                "INFERENCE_PRECISION_HINT": "f32",
            },
        )
        self._requests = [compiled.create_infer_request() for _ in range(streams)]

    def _run(self, ids: list[list[int]]) -> np.ndarray:
        tokens, mask = padded(ids)
        request = (
            self._requests.pop()
        )  # list.pop and append are atomic, and there are as many requests as threads
        try:
            return np.array(request.infer({"input_ids": tokens, "attention_mask": mask})[0])
        finally:
            self._requests.append(request)
