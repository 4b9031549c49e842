"""How the two texts of a pair become the tokens of one sequence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import _core
from ..model_folder.chat_template import ChatTemplate
from ..model_folder.cross_encoder_folder import CrossEncoderFolder
from ..model_folder.pair_template import fit_pair, read_pair_template
from ..model_folder.tokenizer import Tokenizer

__all__ = ["PairText", "pair_text"]

Scored: TypeAlias = "tuple[npt.NDArray[np.float32], _core.Stats]"


class PairText(Protocol):
    """Makes sequences of pairs and has the core encode them. Immutable.

    Attributes:
        special_tokens: tokens added to the two texts, which no truncation takes.
        remedy: what helps against truncation.
    """

    special_tokens: int
    remedy: str

    def options(self) -> dict[str, Any]:
        """The fields of ``_core.EncodeOptions`` that say what the core adds."""
        ...

    def run(
        self,
        core: _core.Encoder,
        first: list[str],
        second: list[str],
        start: int,
        options: _core.EncodeOptions,
    ) -> Scored:
        """Logits of the pairs, and what was counted; ``start`` is the index of the first pair, for messages."""
        ...

    def too_long(self, first: str, most: int) -> Callable[[list[str]], list[bool]]:
        """A function that tells of each second text whether it and ``first`` have more than ``most`` tokens."""
        ...


def pair_text(opened: CrossEncoderFolder, tokenizer: Tokenizer) -> PairText:
    """The way of a folder.

    Raises:
        ValueError: a classifier that sees both directions reads the token before its padding, which is at the end of
            every pair.
    """
    if opened.template is not None:
        text: Rendered | JoinedIds = Rendered(opened, opened.template, tokenizer)
    elif opened.model.architecture.is_decoder:
        text = JoinedIds(opened, tokenizer)
    else:
        return Joined(opened, tokenizer)
    if text.end[-1:] == [opened.padding] and not opened.model.config["causal"]:
        raise ValueError(
            f"{opened.model.transformer}: pairs end with the padding token, which the classifier does not read, and "
            "this model is not causal; embedkit does not run it. Use sentence-transformers for this model"
        )
    return text


class Joined:
    """The tokenizer's template of two texts, filled in by the core."""

    remedy = "The longer text of a pair loses tokens first; shorten it, or split it into passages."

    def __init__(self, opened: CrossEncoderFolder, tokenizer: Tokenizer) -> None:
        """Read the template."""
        self._template = template = read_pair_template(opened.model.transformer, tokenizer)
        self._tokenizer = tokenizer
        self._typed = opened.token_types
        self._prompt = opened.prompt
        self.special_tokens = template.special_tokens

    def options(self) -> dict[str, Any]:
        """As `PairText.options`."""
        template = self._template
        return {
            "prefix_ids": list(template.before),
            "suffix_ids": list(template.after),
            "pair": _core.PairTemplate(
                between_ids=list(template.between),
                typed=self._typed,
                prefix_types=list(template.before_types),
                between_types=list(template.between_types),
                suffix_types=list(template.after_types),
                first_type=template.text_types[0],
                second_type=template.text_types[1],
            ),
        }

    def run(
        self,
        core: _core.Encoder,
        first: list[str],
        second: list[str],
        start: int,
        options: _core.EncodeOptions,
    ) -> Scored:
        """As `PairText.run`."""
        prompted = [self._prompt + text for text in first] if self._prompt else first
        tokenizer = self._tokenizer
        if tokenizer.core is not None:
            return core.encode_pairs(prompted, second, tokenizer.core, options)
        return core.encode_id_pairs(tokenizer.encode_batch(prompted), tokenizer.encode_batch(second), options)

    def too_long(self, first: str, most: int) -> Callable[[list[str]], list[bool]]:
        """As `PairText.too_long`."""
        return _too_long(self._tokenizer, self._prompt + first, most - self.special_tokens)


class _Rows(ABC):
    """Sequences cut here, for decoders and chat templates.

    A decoder's classifier reads the last token that is no padding, wherever the padding comes from
    (``…ForSequenceClassification`` of transformers). With a causal mask, the tokens after it change nothing.

    Attributes:
        end: the last of the tokens added to the two texts.
        special_tokens: as `PairText.special_tokens`.
    """

    end: list[int]
    special_tokens: int

    def __init__(self, opened: CrossEncoderFolder, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._left = tokenizer.truncation_side == "left"
        self._padding = opened.padding if opened.model.config.get("causal") else None

    @abstractmethod
    def rows(self, first: list[str], second: list[str], most: int) -> tuple[list[list[int]], int]:
        """The tokens of each pair, at most ``most``, and how many pairs are cut."""

    def _cut(self, ids: list[int], count: int) -> list[int]:
        """``count`` tokens from the side that is kept."""
        return ids[len(ids) - count :] if self._left else ids[:count]

    def options(self) -> dict[str, Any]:
        """As `PairText.options`: nothing."""
        return {"prefix_ids": [], "suffix_ids": []}

    def run(
        self,
        core: _core.Encoder,
        first: list[str],
        second: list[str],
        start: int,
        options: _core.EncodeOptions,
    ) -> Scored:
        """As `PairText.run`."""
        rows, truncated = self.rows(first, second, options.max_length)
        for index, row in enumerate(rows, start):
            if not row:
                raise ValueError(
                    f"pairs[{index}] has no tokens, so that nothing could be scored; leave it out"
                )
            while self._padding is not None and len(row) > 1 and row[-1] == self._padding:
                row.pop()
        logits, stats = core.encode_ids(rows, options)
        return logits, {**stats, "truncated": truncated}

    @abstractmethod
    def too_long(self, first: str, most: int) -> Callable[[list[str]], list[bool]]:
        """As `PairText.too_long`."""


class JoinedIds(_Rows):
    """The tokenizer's template of two texts, for decoders."""

    remedy = Joined.remedy

    def __init__(self, opened: CrossEncoderFolder, tokenizer: Tokenizer) -> None:
        """Read the template."""
        super().__init__(opened, tokenizer)
        self._template = template = read_pair_template(opened.model.transformer, tokenizer)
        self._prompt = opened.prompt
        self.special_tokens = template.special_tokens
        self.end = list(template.after)

    def rows(self, first: list[str], second: list[str], most: int) -> tuple[list[list[int]], int]:
        """As `_Rows.rows`."""
        template, encode = self._template, self._tokenizer.encode_batch
        rows, truncated = [], 0
        for a, b in zip(encode([self._prompt + text for text in first]), encode(second), strict=True):
            kept = fit_pair(len(a), len(b), most - self.special_tokens)
            truncated += kept != (len(a), len(b))
            head, tail = self._cut(a, kept[0]), self._cut(b, kept[1])
            rows.append([*template.before, *head, *template.between, *tail, *template.after])
        return rows, truncated

    def too_long(self, first: str, most: int) -> Callable[[list[str]], list[bool]]:
        """As `PairText.too_long`."""
        return _too_long(self._tokenizer, self._prompt + first, most - self.special_tokens)


class Rendered(_Rows):
    """A chat template.

    Its end, which all pairs share, survives truncation, as in sentence-transformers: a decoder answers after it.
    """

    remedy = (
        "With a chat template the end of the text is cut; shorten the document, or split it into passages."
    )

    def __init__(self, opened: CrossEncoderFolder, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        """Find the end that all pairs share."""
        super().__init__(opened, tokenizer)
        self._template = template
        short, long = tokenizer.encode_batch([template("0", "0"), template("1 2 3 4", "1 2 3 4")])
        common = 0
        while common < min(len(short), len(long)) and short[-1 - common] == long[-1 - common]:
            common += 1
        if common == min(len(short), len(long)):  # the tokenizer does not tell the texts apart
            common = 0
        self.end = short[len(short) - common :]
        self.special_tokens = common

    def rows(self, first: list[str], second: list[str], most: int) -> tuple[list[list[int]], int]:
        """As `_Rows.rows`."""
        texts = [self._template(*pair) for pair in zip(first, second, strict=True)]
        rows, truncated = self._tokenizer.encode_batch(texts), 0
        for index, row in enumerate(rows):
            if len(row) >= most:  # at the very length, too, as in sentence-transformers
                truncated += len(row) > most
                rows[index] = self._cut(row, most)[: most - len(self.end)] + self.end
        return rows, truncated

    def too_long(self, first: str, most: int) -> Callable[[list[str]], list[bool]]:
        """As `PairText.too_long`."""
        return lambda second: [self.rows([first], [text], most)[1] > 0 for text in second]


def _too_long(tokenizer: Tokenizer, first: str, room: int) -> Callable[[list[str]], list[bool]]:
    """`PairText.too_long` of texts that are tokenized apart, with ``room`` for both."""
    (ids,) = tokenizer.encode_batch([first])
    left = room - len(ids)
    return lambda second: [len(ids) > left for ids in tokenizer.encode_batch(second)]
