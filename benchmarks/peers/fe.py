"""fastembed, fp32 and int8, on the graphs of `ort.OnnxRuntime`: its own tokenization, batches and session options."""

import json
import shutil
from pathlib import Path

import numpy as np

from peers.base import BATCHES, Setting, max_length
from peers.ort import OnnxRuntime


class FastEmbed(OnnxRuntime):
    """fp32."""

    name = "fastembed fp32"
    precision = "fp32"
    packages = ("fastembed", "onnxruntime", "onnx", "torch", "transformers", "tokenizers")

    @property
    def laid_out(self) -> Path:
        """The folder that fastembed reads."""
        return self.cache / f"fastembed-{self.graph.stem}"

    def convert(self) -> None:
        """Lay out the folder."""
        super().convert()
        self.laid_out.mkdir(exist_ok=True)
        for name in ("config.json", "tokenizer.json"):
            shutil.copy(self.folder / name, self.laid_out / name)
        # fastembed cuts texts at the smaller of the two, the others at the model's own length.
        options = json.loads((self.folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        options["model_max_length"] = options["max_length"] = max_length(self.folder)
        (self.laid_out / "tokenizer_config.json").write_text(json.dumps(options), encoding="utf-8")
        if not (self.laid_out / "model.onnx").exists():
            shutil.copy(self.graph, self.laid_out / "model.onnx")

    def load(self, streams: int = 1) -> None:
        """Load the folder; the graph pools and normalizes."""
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType

        name = f"benchmark/{self.laid_out.name}"
        if name not in [model["model"] for model in TextEmbedding.list_supported_models()]:
            TextEmbedding.add_custom_model(
                model=name,
                pooling=PoolingType.DISABLED,
                normalization=False,
                sources=ModelSource(hf=name),
                dim=0,
                model_file="model.onnx",
            )
        self._model = TextEmbedding(
            name,
            cache_dir=str(self.cache),  # made even if it stays empty
            threads=self.threads,
            specific_model_path=str(self.laid_out),
        )

    def encode(self, texts: list[str], batch: int | None) -> np.ndarray:
        """In order of length, which fastembed leaves to its users."""
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        vectors = list(self._model.embed([texts[i] for i in order], batch_size=batch or 256))
        out = np.empty((len(texts), len(vectors[0])), dtype=np.float32)
        out[order] = vectors
        return out

    def settings(self) -> list[Setting]:
        """One stream: `embed` runs a batch at a time, or starts processes for each call."""
        return [Setting(b) for b in (*BATCHES, 256)]


class FastEmbedInt8(FastEmbed):
    """Dynamic int8, weights per channel."""

    name = "fastembed int8"
    precision = "int8"
