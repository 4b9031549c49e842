"""embedkit itself."""

import numpy as np

from peers.base import Peer, Setting


class EmbedKit(Peer):
    """fp32."""

    name = "embedkit fp32"
    precision = "fp32"
    packages = ("embedkit",)

    def load(self, streams: int = 1) -> None:
        """Loads the folder, or the built-in model if there is none."""
        from embedkit import Encoder

        options = {"device": "cpu", "precision": self.precision, "threads": self.threads}
        self._encoder = Encoder(**options) if self.model is None else Encoder(str(self.model), **options)

    def encode(self, texts: list[str], batch: int | None) -> np.ndarray:
        """`Encoder.encode` with its own batches."""
        return self._encoder.encode(texts, normalize_embeddings=True)

    def settings(self) -> list[Setting]:
        """Nothing to search: batches are cut by a token budget."""
        return [Setting(None)]


class EmbedKitInt8(EmbedKit):
    """int8."""

    name = "embedkit int8"
    precision = "int8"
