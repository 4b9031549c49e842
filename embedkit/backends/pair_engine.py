"""The engine of cross-encoders: the compiled core on pairs of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..arguments import check_precision
from ..inputs import check_unicode
from ..model_folder.cross_encoder_folder import open_cross_encoder
from ..model_folder.pair_template import read_pair_template
from ..model_folder.weights import core_classifier
from .core_engine import load_core
from .engine import tokenizer_of

__all__ = ["PairEngine"]


class PairEngine:
    """A cross-encoder on the core. Immutable, so threads and copies share it.

    Attributes:
        folder: the transformer.
        labels: names of the classes, in the order of the logits.
        activation: the folder's own, ``"identity"`` or ``"sigmoid"``.
        precision: the precision it computes in, ``"fp32"``, ``"bf16"`` or ``"int8"``.
        positions: maximum tokens of a pair.
        special_tokens: tokens added around and between the two texts.
        folder_length: the folder's own maximum length.
        prompt: the folder's default prompt, put before the first text of each pair.
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
        self.template = read_pair_template(folder.transformer, self.tokenizer)
        self.core = load_core(folder, core_classifier(folder, len(self.labels)), self.precision)
        self.positions = folder.positions
        self.special_tokens = self.template.special_tokens
        self.folder_length = folder.default_length(self.special_tokens, self.tokenizer.model_max_length)
        self.prompt = opened.prompt
        self._token_types = opened.token_types

    def options(self, max_length: int, threads: int, batch_size: int) -> _core.EncodeOptions:
        """The core's options for a call."""
        template = self.template
        return _core.EncodeOptions(
            threads=threads,
            batch_size=batch_size,
            max_length=max_length,
            prefix_ids=list(template.before),
            suffix_ids=list(template.behind),
            truncation_side=self.tokenizer.truncation_side,
            pair=_core.PairTemplate(
                between_ids=list(template.between),
                typed=self._token_types,
                prefix_types=list(template.before_types),
                between_types=list(template.between_types),
                suffix_types=list(template.behind_types),
                first_type=template.text_types[0],
                second_type=template.text_types[1],
            ),
        )

    def run(
        self, first: list[str], second: list[str], start: int, end: int, options: _core.EncodeOptions
    ) -> tuple[npt.NDArray[np.float32], _core.Stats]:
        """Logits (end - start, labels) of the pairs from ``start`` to ``end``, and what the core counted."""
        a, b = first[start:end], second[start:end]
        prompted = [self.prompt + text for text in a] if self.prompt else a
        tokenizer = self.tokenizer
        try:
            if tokenizer.core is not None:
                return self.core.encode_pairs(prompted, b, tokenizer.core, options)
            ids = tokenizer.encode_batch(prompted), tokenizer.encode_batch(b)
            return self.core.encode_id_pairs(*ids, options)
        except (TypeError, ValueError):
            for index, pair in enumerate(zip(a, b, strict=True), start):
                for place, text in enumerate(pair):
                    check_unicode(f"pairs[{index}][{place}]", text)
            raise

    def describe(self) -> dict[str, Any]:
        """The instruction set, and the instruction of it that multiplies."""
        return {"isa": self.core.isa, "products": self.core.products}
