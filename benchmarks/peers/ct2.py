"""CTranslate2, fp32 and int8. It removes padding internally; pooling is done here, in numpy."""

from typing import ClassVar

import numpy as np

from peers.base import Batched, pooling
from peers.onnx_export import quiet


class CTranslate2(Batched):
    """fp32."""

    name = "ctranslate2 fp32"
    precision = "fp32"
    packages = ("ctranslate2", "torch", "transformers", "tokenizers")
    isa_environment: ClassVar = {
        "avx2": {"CT2_FORCE_CPU_ISA": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    }

    def convert(self) -> None:
        """Run CTranslate2's converter; it quantizes to int8 when the model is loaded."""
        target = self.cache / "ctranslate2"
        if not (target / "model.bin").exists():
            from ctranslate2.converters import TransformersConverter

            with quiet():
                TransformersConverter(str(self.folder)).convert(str(target), force=True)

    def _load(self, streams: int) -> None:
        import ctranslate2

        self._cls = pooling(self.folder, "mean", "cls") == "cls"
        self._encoder = ctranslate2.Encoder(
            str(self.cache / "ctranslate2"),
            device="cpu",
            compute_type="int8_float32" if self.precision == "int8" else "float32",
            inter_threads=streams,
            intra_threads=max(1, self.threads // streams),
        )

    def _run(self, ids: list[list[int]]) -> np.ndarray:
        hidden = np.array(self._encoder.forward_batch(ids).last_hidden_state)
        if self._cls:
            pooled = hidden[:, 0]
        else:
            lengths = np.array([len(row) for row in ids])[:, None]
            weights = (np.arange(hidden.shape[1]) < lengths) / lengths.astype(np.float32)
            pooled = np.matmul(weights.astype(np.float32)[:, None], hidden)[:, 0]
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)


class CTranslate2Int8(CTranslate2):
    """int8 weights per channel and int8 activations per token, the rest in fp32."""

    name = "ctranslate2 int8"
    precision = "int8"
