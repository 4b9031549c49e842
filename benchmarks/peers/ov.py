"""OpenVINO, fp32, bf16 and int8, from the plain ONNX graph, which its compiler fuses.

int8 models are made by NNCF, which calibrates the range of each activation on texts that are not measured.
"""

from pathlib import Path
from typing import ClassVar

import numpy as np

from peers import onnx_export
from peers.base import CALIBRATION, Batched, Tokenizer, padded


class OpenVino(Batched):
    """fp32."""

    name = "openvino fp32"
    precision = "fp32"
    packages = ("openvino", "onnx", "torch", "transformers", "tokenizers")
    #: What products that are not quantized compute in.
    options: ClassVar[dict[str, str]] = {"INFERENCE_PRECISION_HINT": "f32"}

    @property
    def _file(self) -> Path:
        return self.cache / "plain.onnx"

    def convert(self) -> None:
        """Export the graph."""
        plain = self.cache / "plain.onnx"
        if not plain.exists():
            onnx_export.export(self.folder, plain)

    def _load(self, streams: int) -> None:
        import openvino as ov

        compiled = ov.Core().compile_model(
            str(self._file),
            "CPU",
            {
                "INFERENCE_NUM_THREADS": self.threads,
                "NUM_STREAMS": streams,
                "PERFORMANCE_HINT": "LATENCY" if streams == 1 else "THROUGHPUT",
                **self.options,
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


class OpenVinoBf16(OpenVino):
    """Products in bfloat16, OpenVINO's default on processors that have instructions for it."""

    name = "openvino bf16"
    precision = "bf16"
    options: ClassVar = {"INFERENCE_PRECISION_HINT": "bf16"}


class OpenVinoInt8(OpenVino):
    """int8 weights per channel and int8 activations with calibrated ranges, by NNCF."""

    name = "openvino int8 (nncf)"
    precision = "int8"
    packages = (*OpenVino.packages[:1], "nncf", *OpenVino.packages[1:])
    options: ClassVar = {}  # what is not quantized in the precision that OpenVINO chooses for the processor

    @property
    def _file(self) -> Path:
        return self.cache / "nncf-int8.xml"

    def convert(self) -> None:
        """Export the graph, calibrate, quantize."""
        super().convert()
        if self._file.exists():
            return
        texts = self.cache / CALIBRATION
        if not texts.exists():
            raise FileNotFoundError("no texts to calibrate with: give more than are measured (--limit)")
        import nncf
        import openvino as ov

        # One text an input: padding would shift the ranges.
        ids = Tokenizer(self.folder)(texts.read_text(encoding="utf-8").split("\n"))
        inputs = [dict(zip(("input_ids", "attention_mask"), padded([row]), strict=True)) for row in ids]
        with onnx_export.quiet():
            quantized = nncf.quantize(
                ov.Core().read_model(str(self.cache / "plain.onnx")),
                nncf.Dataset(inputs),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(inputs),
            )
            ov.save_model(quantized, str(self._file), compress_to_fp16=False)
