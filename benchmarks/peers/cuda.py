"""embedkit and sentence-transformers on a GPU.

sentence-transformers runs with what its documentation recommends: 16 bits, large batches sorted by length,
FlashAttention without padding if that package is installed, and torch.compile.
"""

import time
from typing import Any

import numpy as np

from peers.base import Peer, Setting


class EmbedKitCuda(Peer):
    """bf16."""

    name = "embedkit bf16"
    precision = "bf16"
    packages = ("embedkit", "torch", "triton")

    def load(self, streams: int = 1) -> None:
        """Load the folder onto the GPU."""
        from embedkit import Encoder

        self._encoder = Encoder(
            str(self.folder), device="cuda", precision=self.precision, threads=self.threads
        )

    def encode(self, texts: list[str], batch: int | None) -> np.ndarray:
        """`Encoder.encode` with its own batches."""
        return self._encoder.encode(texts, normalize_embeddings=True)

    def settings(self) -> list[Setting]:
        """Only one: batches are cut by a token budget."""
        return [Setting(None)]

    def encode_alone(self, texts: list[str], batch: int | None) -> float:
        """Seconds from tokens in memory to vectors in memory; packing and both copies are included."""
        tokenize, encode = self._encoder.query_steps(normalize_embeddings=True)
        tokens = tokenize(texts)
        start = time.perf_counter()
        encode(tokens)
        return time.perf_counter() - start


class EmbedKitCudaFp16(EmbedKitCuda):
    """fp16."""

    name = "embedkit fp16"
    precision = "fp16"


class EmbedKitCudaFp8(EmbedKitCuda):
    """Products of 8-bit floats."""

    name = "embedkit fp8"
    precision = "fp8"


class EmbedKitCudaInt8(EmbedKitCuda):
    """Products of 8-bit integers."""

    name = "embedkit int8"
    precision = "int8"


class SentenceTransformersCuda(Peer):
    """fp16, padded."""

    name = "sentence-transformers fp16"
    precision = "fp16"
    packages = ("sentence-transformers", "torch", "transformers", "tokenizers")
    attention = "sdpa"
    compiled = False

    def load(self, streams: int = 1) -> None:
        """Load the folder onto the GPU."""
        import torch
        from sentence_transformers import SentenceTransformer

        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[self.precision]
        self._model = SentenceTransformer(
            str(self.folder),
            device="cuda",
            local_files_only=True,
            model_kwargs={"dtype": dtype, "attn_implementation": self.attention},
        )
        if self.compiled:
            transformer: Any = self._model[0]
            # sentence-transformers 6 calls `model.forward`; `auto_model` is a read-only view of `model`. Older versions
            # call `auto_model`.
            model = getattr(transformer, "model", None) or transformer.auto_model
            model.forward = torch.compile(model.forward, dynamic=True)

    def encode(self, texts: list[str], batch: int | None) -> np.ndarray:
        """sentence-transformers sorts by length and makes its batches."""
        vectors = self._model.encode(
            texts,
            batch_size=batch or 32,
            normalize_embeddings=True,
            show_progress_bar=False,
            convert_to_tensor=True,
        )
        return vectors.float().cpu().numpy()

    def settings(self) -> list[Setting]:
        """Batch sizes from the default to one that fills a large GPU."""
        return [Setting(batch) for batch in (32, 128, 512, 2048)]

    def encode_alone(self, texts: list[str], batch: int | None) -> float:
        """Seconds of the model alone, on batches that are tokenized, sorted, padded and on the GPU."""
        import torch

        size = batch or 32
        ordered = sorted(texts, key=lambda text: -len(text))
        preprocess = getattr(self._model, "preprocess", None) or self._model.tokenize
        # Without padding, FlashAttention's maximum lengths are plain numbers.
        batches = [
            {
                name: value.to("cuda") if isinstance(value, torch.Tensor) else value
                for name, value in preprocess(ordered[i : i + size]).items()
            }
            for i in range(0, len(ordered), size)
        ]
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.inference_mode():
            for features in batches:
                torch.nn.functional.normalize(self._model(features)["sentence_embedding"], dim=1)
        torch.cuda.synchronize()
        return time.perf_counter() - start


class SentenceTransformersCudaBf16(SentenceTransformersCuda):
    """bf16, padded."""

    name = "sentence-transformers bf16"
    precision = "bf16"


class SentenceTransformersCudaCompiled(SentenceTransformersCuda):
    """fp16, padded, torch.compile."""

    name = "sentence-transformers fp16, torch.compile"
    compiled = True


class SentenceTransformersCudaFlash(SentenceTransformersCuda):
    """fp16, FlashAttention 2, for which sentence-transformers does not pad."""

    name = "sentence-transformers fp16, FlashAttention"
    packages = (*SentenceTransformersCuda.packages, "flash-attn")
    attention = "flash_attention_2"
