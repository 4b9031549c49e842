"""The interface of an engine, which loads a model folder and encodes texts for `embedkit.Encoder`."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from .. import _core
from ..forking import cached_property, fork_lock
from ..inputs import TextsWarning, check_unicode, outside_level
from ..model_folder.folder import ModelFolder, Settings
from ..model_folder.tokenizer import Tokenizer, load_tokenizer
from .stage import Request

__all__ = ["Counts", "EncodingEngine", "Engine", "Plan", "Uncounted", "tokenizer_of"]

_REMEDY = "on_overflow='window' encodes all of a text, on_overflow='error' refuses it."


@dataclass(frozen=True)
class Plan:
    """The checked arguments of one call.

    Attributes:
        prompt: put before every text.
        options: the core's options.
        request: the results.
    """

    prompt: str
    options: _core.EncodeOptions
    request: Request

    def prompted(self, texts: list[str]) -> list[str]:
        """The texts with the prompt before them."""
        return [self.prompt + text for text in texts] if self.prompt else texts


class Counts:
    """How many inputs a model has processed; thread-safe."""

    def __init__(self, what: str = "texts", remedy: str = _REMEDY) -> None:
        """Start from zero; ``what`` names the inputs, ``remedy`` says what helps against truncation."""
        self._what, self._remedy = what, remedy
        self._inputs = self._tokens = self._truncated = self._unknown = 0
        self._lock = fork_lock()

    def add(self, inputs: int, stats: _core.Stats, max_length: int) -> None:
        """Count one call of the core; warn on the first truncation, and on the first text the model cannot read."""
        with self._lock:
            first = not self._truncated and stats["truncated"]
            strange = not self._unknown and stats["unknown"]
            self._inputs = seen = self._inputs + inputs
            self._tokens += stats["tokens"]
            self._truncated += stats["truncated"]
            self._unknown += stats["unknown"]
        if first:
            told = (
                f"{self._some_are(stats['truncated'], seen)} longer than max_length={max_length} tokens, and "
                "truncated"
            )
            message = f"{told}; later ones are only counted, in describe()['truncated']. {self._remedy}"
            warnings.warn(
                TextsWarning(message, told=told, what=self._what, cause="length"), stacklevel=outside_level()
            )

        if strange:
            from ..model_folder.catalog import multilingual

            told = (
                f"{self._some_are(stats['unknown'], seen)} in a script that the model does not know (more than a third "
                "of the tokens are unknown to it), so that the vectors say little about the content"
            )
            message = (
                f"{told}; later ones are only counted, in describe()['unknown']. Use a multilingual model for them: "
                f"Encoder({multilingual()!r})."
            )
            warnings.warn(
                TextsWarning(message, told=told, what=self._what, cause="script"), stacklevel=outside_level()
            )

    def _some_are(self, count: int, seen: int) -> str:
        if seen == 1:
            return f"the first of the {self._what} is"
        return f"{count} of the first {seen} {self._what} {'is' if count == 1 else 'are'}"

    def describe(self) -> dict[str, int]:
        """Inputs, their tokens as encoded, and how many inputs were truncated or are unknown to the model."""
        with self._lock:
            return {
                self._what: self._inputs,
                "tokens": self._tokens,
                "truncated": self._truncated,
                "unknown": self._unknown,
            }


class Uncounted(Counts):
    """Of texts that nobody gave: they are neither counted nor warned of."""

    def add(self, inputs: int, stats: _core.Stats, max_length: int) -> None:
        """Do nothing."""


def tokenizer_of(folder: ModelFolder) -> Tokenizer:
    """The tokenizer of a model folder, checked against its vocabulary."""
    static = folder.static is not None
    vectors = int(folder.config["vocab_size"])
    tokenizer = load_tokenizer(
        folder.transformer, lowercase_first=folder.do_lower_case, static=static, vectors=vectors
    )
    if tokenizer.vocab_size > vectors:
        raise ValueError(
            f"{folder.transformer}: the tokenizer has {tokenizer.vocab_size} tokens, vocab_size in "
            f"config.json is {vectors}; the files are of different models"
        )
    if static:
        # no special tokens, and only the truncation that tokenizer.json itself asks for
        limit = tokenizer.truncation_max_length
        return replace(tokenizer, prefix_ids=(), suffix_ids=(), model_max_length=limit)
    return tokenizer


class Engine(ABC):
    """A loaded model folder. Base class; immutable, so threads and copies share it.

    Attributes:
        folder: the model.
        precision: the precision it computes in.
        tensors: whether results can be left on the device as torch tensors.
    """

    precision: str
    tensors = False

    def __init__(self, folder: ModelFolder) -> None:
        """Load the tokenizer; subclasses load the weights."""
        self.folder = folder
        self.tokenizer = tokenizer_of(folder)
        self.positions = folder.positions

    @cached_property
    def folder_length(self) -> int:
        """The folder's own max_length; sentence_bert_config.json outranks the tokenizer."""
        return self.folder.default_length(self.special_tokens, self.tokenizer.model_max_length)

    @property
    def special_tokens(self) -> int:
        """The number of tokens added to each text."""
        return len(self.tokenizer.prefix_ids) + len(self.tokenizer.suffix_ids)

    def prompt_tokens(self, prompt: str) -> int:
        """Leading tokens excluded from pooling, [CLS] included; 0 unless the folder excludes prompts."""
        if not prompt or self.folder.pooling.include_prompt:
            return 0
        return len(self.tokenizer.prefix_ids) + len(self.tokenizer.encode_batch([prompt])[0])

    @property
    def settings(self) -> Settings:
        """The folder's own."""
        folder = self.folder
        return Settings(folder.prompts, folder.default_prompt_name, self.folder_length, folder.truncate_dim)

    def fingerprint(self) -> str:
        """SHA-256 that identifies the folder's model; reads all weights unless their hash is stamped."""
        from ..model_folder.fingerprint import fingerprint, source_weights_hash

        return fingerprint(self.folder, source_weights_hash(self.folder), self.settings)

    def verify(self) -> None:
        """Read weights and settings again and compare them with the folder's stamp, if it has one.

        Raises:
            ValueError: they have changed since the folder was saved.
        """
        from ..model_folder.fingerprint import hash_stored_weights

        folder = self.folder
        if folder.stamp.fingerprint is None:
            return
        if hash_stored_weights(folder) != folder.stamp.stored_weights:
            raise ValueError(
                f"{folder.path}: the weights have changed since they were saved; fetch the model again"
            )
        if self.fingerprint() != folder.stamp.fingerprint:
            raise ValueError(
                f"{folder.path}: tokenizer, pooling, head, prompts or max length have changed since they were "
                "saved; fetch the model again, or save the changed model with Encoder.save"
            )

    @abstractmethod
    def of(self, task: str | None) -> EncodingEngine:
        """The engine of texts of a task.

        Raises:
            ValueError: a model with routes has none for it.
        """

    @abstractmethod
    def each(self) -> list[EncodingEngine]:
        """The engines that `of` returns."""

    @property
    def stored_precision(self) -> str:
        """The precision that `Encoder.save` writes by default."""
        # bf16 is a way to compute: folders hold fp32 or int8
        return self.folder.precision if self.precision == "bf16" else self.precision

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The engine's own entries of `Encoder.describe`."""

    @contextmanager
    def named(self, block: list[str], first: int) -> Iterator[None]:
        """If a text of ``block`` is not valid Unicode, name it by its index in the whole input."""
        try:
            yield
        except (TypeError, ValueError):
            for index, text in enumerate(block, first):
                check_unicode(f"texts[{index}]", text)
            raise

    def token_ids(self, texts: list[str], max_length: int) -> list[list[int]]:
        """The token ids of each text as they are encoded: truncated, special tokens included."""
        tokenizer = self.tokenizer
        room = max_length - self.special_tokens
        left = tokenizer.truncation_side == "left"
        return [
            [
                *tokenizer.prefix_ids,
                *(ids[max(0, len(ids) - room) :] if left else ids[:room]),
                *tokenizer.suffix_ids,
            ]
            for ids in tokenizer.encode_batch(texts)
        ]


class EncodingEngine(Engine):
    """An engine that encodes texts itself, not by another one of its choice. Base class.

    Attributes:
        first_window: maximum texts in the first window of a call, after which windows grow; None for windows of
            equal size.
    """

    first_window: int | None = None

    def of(self, task: str | None) -> EncodingEngine:
        """As `Engine.of`: without routes all tasks are one."""
        return self

    def each(self) -> list[EncodingEngine]:
        """As `Engine.each`."""
        return [self]

    @abstractmethod
    def empty(self, texts: int, plan: Plan) -> Any:
        """Room for the results of ``texts`` texts: an array, or a list for token embeddings."""

    @abstractmethod
    def encode(
        self, blocks: Iterator[list[str]], plan: Plan, counts: Counts, out: Any = None
    ) -> Generator[Any, None, None]:
        """Encode windows of texts.

        Args:
            blocks: the texts; exceptions of this iterator propagate.
            plan: the arguments of the call.
            counts: updated with each window.
            out: room for all texts, from `empty`; None allocates an array for each window.

        Yields:
            The results of the next window: (n, columns), or a list of (tokens, hidden_size).
        """

    def encode_one(self, text: str, plan: Plan, counts: Counts) -> Any:
        """`encode` of a single text without windows, or None where that saves nothing."""
        return None

    @abstractmethod
    def tokenize(self, blocks: Iterator[list[str]], plan: Plan) -> list[Any]:
        """The first half of `encode`, for a caller that overlaps it with encoding other texts.

        Work that does not pay ahead of time is left to `encode_tokenized`.
        """

    @abstractmethod
    def encode_tokenized(self, windows: list[Any], plan: Plan, counts: Counts) -> tuple[Any, float]:
        """The second half of `encode`; the results are bitwise the same.

        Args:
            windows: from `tokenize`, with the same plan.
            plan: the arguments of the call.
            counts: updated with each window.

        Returns:
            The results of all texts, and the seconds spent tokenizing in this call.
        """

    def warm_up(self) -> None:
        """Prepare what the first batches would have to wait for, besides what encoding a text prepares."""
