"""embedkit itself."""

from typing import ClassVar

import numpy as np

from peers.base import Peer, Setting


class EmbedKit(Peer):
    """fp32."""

    name = "embedkit fp32"
    precision = "fp32"
    packages = ("embedkit",)
    isa_environment: ClassVar = {"avx2": {"EMBEDKIT_ISA": "avx2"}, "avx2_vnni": {"EMBEDKIT_ISA": "avx2_vnni"}}

    def load(self, streams: int = 1) -> None:
        """Load the folder, or the built-in model."""
        from embedkit import Encoder

        options = {"device": "cpu", "precision": self.precision, "threads": self.threads}
        self._encoder = Encoder(**options) if self.model is None else Encoder(str(self.model), **options)

    def encode(self, texts: list[str], batch: int | None) -> np.ndarray:
        """`Encoder.encode` with its own batches."""
        return self._encoder.encode(texts, normalize_embeddings=True)

    def settings(self) -> list[Setting]:
        """Only one: batches are cut by a token budget."""
        return [Setting(None)]


class EmbedKitBf16(EmbedKit):
    """bfloat16 products."""

    name = "embedkit bf16"
    precision = "bf16"


class EmbedKitInt8(EmbedKit):
    """int8."""

    name = "embedkit int8"
    precision = "int8"


class EmbedKitOnnx(EmbedKit):
    """fp32 on ONNX Runtime, with embedkit's own export."""

    name = "embedkit onnx"
    packages = ("embedkit", "onnxruntime", "onnx", "torch", "transformers")
    isa_environment: ClassVar = {}

    def convert(self) -> None:
        """Exports the folder."""
        from embedkit.export.onnx import export_onnx

        if not (self.cache / "own-onnx").exists():
            export_onnx(self.folder, self.cache / "own-onnx")

    def load(self, streams: int = 1) -> None:
        """Opens the export."""
        from embedkit import Encoder

        self._encoder = Encoder(self.cache / "own-onnx", backend="onnx", threads=self.threads)
