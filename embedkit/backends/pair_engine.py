"""The engine of cross-encoders: the compiled core on pairs of texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..arguments import check_precision
from ..inputs import check_unicode
from ..model_folder.cross_encoder_folder import CrossEncoderFolder, open_cross_encoder
from ..model_folder.weights import core_classifier, core_logit_score
from .core_engine import load_core
from .engine import tokenizer_of
from .pair_text import pair_text

__all__ = ["PairEngine"]


class PairEngine:
    """A cross-encoder on the core. Immutable, so threads and copies share it.

    Attributes:
        folder: the transformer.
        labels: names of the classes, in the order of the logits.
        activation: the folder's own, ``"identity"`` or ``"sigmoid"``.
        precision: the precision it computes in, ``"fp32"``, ``"bf16"`` or ``"int8"``.
        positions: maximum tokens of a pair.
        special_tokens: tokens added to the two texts, which no truncation takes.
        folder_length: the folder's own maximum length.
        remedy: what helps against truncation.
    """

    def __init__(self, path: Path, precision: str) -> None:
        """Load tokenizer, pair template and weights.

        Raises:
            FileNotFoundError: the folder or one of its files is missing.
            ValueError: a file is broken, or the folder does not hold a cross-encoder.
        """
        opened = open_cross_encoder(path)
        self.folder = folder = opened.model
        self.labels = opened.labels
        self.activation = opened.activation
        self.precision = check_precision(precision, folder)
        self.tokenizer = tokenizer_of(folder)
        self._text = pair_text(opened, self.tokenizer)
        self.remedy = self._text.remedy
        self.core = load_core(folder, self._head(opened), self.precision)
        self.positions = folder.positions
        self.special_tokens = self._text.special_tokens
        self.folder_length = folder.default_length(self.special_tokens, self.tokenizer.model_max_length)

    def _head(self, opened: CrossEncoderFolder) -> list[dict[str, Any]]:
        """The classifier, or the difference of the logits that score a pair."""
        score = opened.score
        if score is None:
            return core_classifier(self.folder, len(self.labels))
        return core_logit_score(self.folder, score.true, score.false, tied=opened.tied)

    def options(self, max_length: int, threads: int, batch_size: int) -> _core.EncodeOptions:
        """The core's options for a call."""
        return _core.EncodeOptions(
            threads=threads,
            batch_size=batch_size,
            max_length=max_length,
            truncation_side=self.tokenizer.truncation_side,
            **self._text.options(),
        )

    def run(
        self, first: list[str], second: list[str], start: int, end: int, options: _core.EncodeOptions
    ) -> tuple[npt.NDArray[np.float32], _core.Stats]:
        """Logits (end - start, labels) of the pairs from ``start`` to ``end``, and what the core counted."""
        a, b = first[start:end], second[start:end]
        try:
            return self._text.run(self.core, a, b, start, options)
        except (TypeError, ValueError):
            for index, pair in enumerate(zip(a, b, strict=True), start):
                for place, text in enumerate(pair):
                    check_unicode(f"pairs[{index}][{place}]", text)
            raise

    def too_long(self, first: str, max_length: int) -> Callable[[list[str]], list[bool]]:
        """As `PairText.too_long`; special tokens are included."""
        return self._text.too_long(first, max_length)

    def describe(self) -> dict[str, Any]:
        """The instruction set, and the instruction of it that multiplies."""
        return {"isa": self.core.isa, "products": self.core.products}
