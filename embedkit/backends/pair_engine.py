"""The engine of cross-encoders: the compiled core on pairs of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..arguments import check_precision
from ..inputs import check_unicode
from ..model_folder.chat_template import ChatTemplate
from ..model_folder.cross_encoder_folder import CrossEncoderFolder, open_cross_encoder
from ..model_folder.pair_template import read_pair_template
from ..model_folder.tokenizer import Tokenizer
from ..model_folder.weights import core_classifier, core_logit_score
from .core_engine import load_core
from .engine import tokenizer_of

__all__ = ["PairEngine"]


class _Joined:
    """How the tokenizer joins the two texts of a pair. Immutable.

    Attributes:
        special_tokens: tokens added around and between the two texts.
    """

    def __init__(self, opened: CrossEncoderFolder, tokenizer: Tokenizer) -> None:
        self._template = template = read_pair_template(opened.model.transformer, tokenizer)
        self._tokenizer = tokenizer
        self._typed = opened.token_types
        self._prompt = opened.prompt
        self.special_tokens = template.special_tokens

    def options(self) -> dict[str, Any]:
        """The fields of ``_core.EncodeOptions`` that say what is added."""
        template = self._template
        return {
            "prefix_ids": list(template.before),
            "suffix_ids": list(template.behind),
            "pair": _core.PairTemplate(
                between_ids=list(template.between),
                typed=self._typed,
                prefix_types=list(template.before_types),
                between_types=list(template.between_types),
                suffix_types=list(template.behind_types),
                first_type=template.text_types[0],
                second_type=template.text_types[1],
            ),
        }

    def run(
        self, core: _core.Encoder, first: list[str], second: list[str], options: _core.EncodeOptions
    ) -> tuple[npt.NDArray[np.float32], _core.Stats]:
        """Logits of the pairs, and what the core counted."""
        prompted = [self._prompt + text for text in first] if self._prompt else first
        tokenizer = self._tokenizer
        if tokenizer.core is not None:
            return core.encode_pairs(prompted, second, tokenizer.core, options)
        return core.encode_id_pairs(tokenizer.encode_batch(prompted), tokenizer.encode_batch(second), options)


class _Rendered:
    """How a chat template makes one text of a pair. Immutable.

    The end of the template, which all pairs share, survives truncation: a decoder answers behind it.

    Attributes:
        special_tokens: tokens of that end.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._template, self._tokenizer = template, tokenizer
        short, long = tokenizer.encode_batch([template("0", "0"), template("1 2 3 4", "1 2 3 4")])
        common = 0
        while common < min(len(short), len(long)) and short[-1 - common] == long[-1 - common]:
            common += 1
        if common == min(len(short), len(long)):  # the tokenizer does not tell the texts apart
            common = 0
        self._end = short[len(short) - common :]
        self.special_tokens = common

    def options(self) -> dict[str, Any]:
        """The fields of ``_core.EncodeOptions`` that say what is added."""
        return {"prefix_ids": [], "suffix_ids": self._end}

    def run(
        self, core: _core.Encoder, first: list[str], second: list[str], options: _core.EncodeOptions
    ) -> tuple[npt.NDArray[np.float32], _core.Stats]:
        """Logits of the pairs, and what the core counted."""
        texts = [self._template(*pair) for pair in zip(first, second, strict=True)]
        ids = self._tokenizer.encode_batch(texts)
        common, end = self.special_tokens, self._end
        # Rare: the document's last characters and the first of the end are one token. It must not be taken apart.
        merged = [row[len(row) - common :] != end and len(row) <= options.max_length for row in ids]
        parts: list[npt.NDArray[np.float32]] = []
        order: list[int] = []
        totals: _core.Stats = {"tokens": 0, "truncated": 0, "unknown": 0}
        for suffix, whole in ((end, False), ([], True)):
            places = [i for i, one in enumerate(merged) if one is whole]
            content = [ids[i][: len(ids[i]) - len(suffix)] for i in places]
            logits, stats = core.encode_ids(content, options.replace(suffix_ids=suffix))
            parts.append(logits)
            order += places
            totals["tokens"] += stats["tokens"]
            totals["truncated"] += stats["truncated"]
            totals["unknown"] += stats["unknown"]
        return np.concatenate(parts)[np.argsort(order)], totals


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
        self._text = (
            _Joined(opened, self.tokenizer)
            if opened.template is None
            else _Rendered(opened.template, self.tokenizer)
        )
        self.core = load_core(folder, self._head(opened), self.precision)
        self.positions = folder.positions
        self.special_tokens = self._text.special_tokens
        self.folder_length = folder.default_length(self.special_tokens, self.tokenizer.model_max_length)

    def _head(self, opened: CrossEncoderFolder) -> list[dict[str, Any]]:
        """The classifier, or the difference of the logits that score a pair."""
        score = opened.score
        if score is None:
            return core_classifier(self.folder, len(self.labels))
        true = self._id(score.true)
        false = None if score.false is None else self._id(score.false)
        return core_logit_score(self.folder, true, false, tied=opened.tied)

    def _id(self, token: int | str) -> int:
        """The id of a token."""
        if isinstance(token, int):
            return token
        ids = self.tokenizer.encode_batch([token])[0]
        if len(ids) != 1:
            raise ValueError(
                f"{self.folder.path}: a language model scores a pair by its logits of yes and no, and the "
                f"tokenizer has no token {token!r}. Add modules.json with a LogitScore that names the tokens, as "
                "sentence-transformers saves it"
            )
        return ids[0]

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
            return self._text.run(self.core, a, b, options)
        except (TypeError, ValueError):
            for index, pair in enumerate(zip(a, b, strict=True), start):
                for place, text in enumerate(pair):
                    check_unicode(f"pairs[{index}][{place}]", text)
            raise

    def describe(self) -> dict[str, Any]:
        """The instruction set, and the instruction of it that multiplies."""
        return {"isa": self.core.isa, "products": self.core.products}
