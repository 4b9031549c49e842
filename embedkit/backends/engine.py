"""What an engine is: it loads a model folder and encodes texts; `embedkit.Encoder` is its public face."""

from __future__ import annotations

import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..inputs import check_unicode, outside_level
from ..model_folder.folder import ModelFolder, Settings
from ..model_folder.tokenizer import Tokenizer, load_tokenizer

__all__ = ["Counts", "Engine", "Plan", "tokenizer_of"]

_REMEDY = "on_overflow='window' encodes all of a text, on_overflow='error' refuses it."


@dataclass(frozen=True)
class Plan:
    """The checked arguments of one call.

    Attributes:
        prompt: put before every text.
        options: what the core takes.
        dtype: of the output.
        ranges: (2, width), for int8 and uint8.
        width: dimensions kept.
        on_device: leave the results where they are made, as torch tensors.
    """

    prompt: str
    options: dict[str, Any]
    dtype: str
    ranges: npt.NDArray[np.float32] | None
    width: int
    on_device: bool = False

    def prompted(self, texts: list[str]) -> list[str]:
        """The texts behind the prompt."""
        return [self.prompt + text for text in texts] if self.prompt else texts


class Counts:
    """How many inputs a model has processed; thread-safe."""

    def __init__(self, what: str = "texts", remedy: str = _REMEDY) -> None:
        """Start from zero; ``what`` names the inputs, ``remedy`` says what helps against truncation."""
        self._what, self._remedy = what, remedy
        self._inputs = self._tokens = self._truncated = 0
        self._lock = threading.Lock()

    def add(self, inputs: int, stats: _core.Stats, max_length: int) -> None:
        """Count one call of the core; warn on the first truncation."""
        with self._lock:
            first = not self._truncated and stats["truncated"]
            self._inputs = seen = self._inputs + inputs
            self._tokens += stats["tokens"]
            self._truncated += stats["truncated"]
        if first:
            warnings.warn(
                f"{stats['truncated']} of the first {seen} {self._what} are longer than "
                f"max_length={max_length} tokens and were truncated; later ones are only counted, in "
                f"describe()['truncated']. {self._remedy}",
                stacklevel=outside_level(),
            )

    def describe(self) -> dict[str, int]:
        """Inputs, their tokens as encoded, and how many inputs were truncated."""
        with self._lock:
            return {self._what: self._inputs, "tokens": self._tokens, "truncated": self._truncated}


def tokenizer_of(folder: ModelFolder) -> Tokenizer:
    """The tokenizer of a model folder, checked against its vocabulary."""
    tokenizer = load_tokenizer(folder.transformer, lowercase_first=folder.do_lower_case)
    if tokenizer.vocab_size > int(folder.config["vocab_size"]):
        raise ValueError(
            f"{folder.transformer}: the tokenizer has {tokenizer.vocab_size} tokens, vocab_size in "
            f"config.json is {folder.config['vocab_size']}; the files are of different models"
        )
    return tokenizer


class Engine(ABC):
    """A model folder with its tokenizer; what encodes is a subclass'.

    Attributes:
        folder: the model.
        precision: what it computes in.
        tensors: whether results can be left on its device as torch tensors.
        first_window: most texts of a call's first window, from which on they grow; None for all alike.
    """

    precision: str
    tensors = False
    first_window: int | None = None

    def __init__(self, folder: ModelFolder) -> None:
        """Load the tokenizer."""
        self.folder = folder
        self.tokenizer = tokenizer_of(folder)
        self.positions = folder.positions

    @cached_property
    def folder_length(self) -> int:
        """The folder's own max_length; sentence_bert_config.json outranks the tokenizer."""
        return self.folder.default_length(self.special_tokens, self.tokenizer.model_max_length)

    @property
    def special_tokens(self) -> int:
        """How many tokens are put around each text."""
        return len(self.tokenizer.prefix_ids) + len(self.tokenizer.suffix_ids)

    def prompt_tokens(self, prompt: str, max_length: int) -> int:
        """Leading tokens that the pooling leaves out, [CLS] counted; 0 unless the folder excludes prompts."""
        if not prompt or self.folder.pooling.include_prompt:
            return 0
        tokens = len(self.tokenizer.prefix_ids) + len(self.tokenizer.encode_batch([prompt])[0])
        return min(tokens, max_length - len(self.tokenizer.suffix_ids))

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

    @property
    def stored_precision(self) -> str:
        """Of a folder that this model is saved to."""
        return self.precision

    @abstractmethod
    def empty(self, texts: int, plan: Plan) -> Any:
        """What `encode` writes the results of ``texts`` texts to: an array, for token embeddings a list."""

    @abstractmethod
    def encode(
        self, blocks: Iterator[list[str]], plan: Plan, counts: Counts, out: Any = None
    ) -> Generator[Any, None, None]:
        """Encode windows of texts.

        Args:
            blocks: the texts; an error of this iterator passes through.
            plan: the arguments of the call.
            counts: takes what was seen.
            out: from `empty`, for all texts; None for an array of its own for each window.

        Yields:
            The results of the next window: (n, columns), or a list of (tokens, hidden_size).
        """

    @abstractmethod
    def tokenize(self, blocks: Iterator[list[str]], plan: Plan) -> list[Any]:
        """The first half of `encode`, for a caller that does it for other texts meanwhile.

        What is not worth doing ahead is left to `encode_tokenized`.
        """

    @abstractmethod
    def encode_tokenized(self, windows: list[Any], plan: Plan, counts: Counts) -> tuple[Any, float]:
        """The second half, with the bits of `encode`.

        Args:
            windows: from `tokenize`, with the same plan.
            plan: the arguments of the call.
            counts: takes what was seen.

        Returns:
            The results of all texts, and the seconds that tokenizing took in here.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What is particular to this engine, for `Encoder.describe`."""

    @contextmanager
    def named(self, block: list[str], first: int) -> Iterator[None]:
        """Name the text by its index in the whole input where one of ``block`` is not Unicode."""
        try:
            yield
        except (TypeError, ValueError):
            for index, text in enumerate(block, first):
                check_unicode(f"texts[{index}]", text)
            raise

    def token_ids(self, texts: list[str], max_length: int) -> list[list[int]]:
        """The ids that the core runs for each text, special tokens included."""
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
