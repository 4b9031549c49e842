"""sentence-transformers on torch: the package that `embedkit.Encoder` replaces, and the reference for vectors."""

from typing import ClassVar

import numpy as np

from peers.base import BATCHES, Peer, Setting


class SentenceTransformers(Peer):
    """fp32."""

    name = "sentence-transformers fp32"
    precision = "fp32"
    packages = ("sentence-transformers", "torch", "transformers", "tokenizers")
    isa_environment: ClassVar = {
        "avx2": {
            "ATEN_CPU_CAPABILITY": "avx2",
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        }
    }

    def load(self, streams: int = 1) -> None:
        """Load the folder; torch's pool gets all threads."""
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(self.threads)
        self._model = SentenceTransformer(
            str(self.folder),
            device="cpu",
            local_files_only=True,
            model_kwargs={"dtype": {"fp32": torch.float32, "bf16": torch.bfloat16}[self.precision]},
        )

    def encode(self, texts: list[str], batch: int | None) -> np.ndarray:
        """sentence-transformers sorts by length and pads."""
        vectors = self._model.encode(
            texts,
            batch_size=batch or 32,
            normalize_embeddings=True,
            show_progress_bar=False,
            convert_to_numpy=False,
            convert_to_tensor=True,
        )
        return vectors.float().numpy()

    def settings(self) -> list[Setting]:
        """One stream: `encode` runs a batch at a time."""
        return [Setting(b) for b in BATCHES]


class SentenceTransformersBf16(SentenceTransformers):
    """Weights and activations in bfloat16."""

    name = "sentence-transformers bf16"
    precision = "bf16"
