"""A loaded model and the calls that run on it; `Encoder` is its public face."""

from __future__ import annotations

import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..inputs import check_unicode, outside_level
from ..model_folder.folder import ModelFolder, Settings
from ..model_folder.tokenizer import Tokenizer, load_tokenizer
from ..model_folder.weights import core_head, core_tensors
from ..output import NUMPY_DTYPES, convert, output_width

__all__ = ["CoreEngine", "Counts", "Engine", "Plan", "load_core", "tokenizer_of"]

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
    options: _core.EncodeOptions
    dtype: str
    ranges: npt.NDArray[np.float32] | None
    width: int
    on_device: bool = False

    def prompted(self, texts: list[str]) -> list[str]:
        """The texts behind the prompt."""
        return [self.prompt + text for text in texts] if self.prompt else texts


class Counts:
    """What an encoder has seen; safe to use from several threads."""

    def __init__(self, what: str = "texts", remedy: str = _REMEDY) -> None:
        """Start from zero; ``what`` is counted, ``remedy`` is what helps against truncation."""
        self._what, self._remedy = what, remedy
        self.texts = 0
        self.tokens = 0
        self.truncated = 0
        self._lock = threading.Lock()

    def add(self, texts: int, stats: _core.Stats, max_length: int) -> None:
        """Count one call of the core; warn of the first truncated text."""
        with self._lock:
            first = not self.truncated and stats["truncated"]
            self.texts = seen = self.texts + texts
            self.tokens += stats["tokens"]
            self.truncated += stats["truncated"]
        if first:
            warnings.warn(
                f"{stats['truncated']} of the first {seen} {self._what} are longer than "
                f"max_length={max_length} tokens and were truncated; later ones are only counted, in "
                f"describe()['truncated']. {self._remedy}",
                stacklevel=outside_level(),
            )


def tokenizer_of(folder: ModelFolder) -> Tokenizer:
    """The tokenizer of a model folder, checked against its vocabulary."""
    tokenizer = load_tokenizer(folder.transformer, lowercase_first=folder.do_lower_case)
    if tokenizer.vocab_size > int(folder.config["vocab_size"]):
        raise ValueError(
            f"{folder.transformer}: the tokenizer has {tokenizer.vocab_size} tokens, vocab_size in "
            f"config.json is {folder.config['vocab_size']}; the files are of different models"
        )
    return tokenizer


def load_core(folder: ModelFolder, head: list[dict[str, Any]], precision: str) -> _core.Encoder:
    """Load the weights; ``head`` is what follows the pooling."""
    core_name = folder.architecture.core_name
    tensors = {core_name(name): tensor for name, tensor in core_tensors(folder, precision).items()}
    return _core.Encoder(
        _core.EncoderConfig(**folder.config),
        tensors,
        list(folder.pooling.modes),
        [_core.HeadModule(**module) for module in head],
        precision,
    )


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

    def fingerprint(self, settings: Settings) -> str:
        """Which model this is, with ``settings``; reads all weights unless they are stamped."""
        from ..model_folder.fingerprint import fingerprint, source_weights_hash

        return fingerprint(self.folder, source_weights_hash(self.folder), settings)

    def verify(self) -> None:
        """Read the weights again and compare them with their stamp.

        Raises:
            ValueError: they are not those that were saved.
        """
        from ..model_folder.fingerprint import hash_stored_weights

        if hash_stored_weights(self.folder) != self.folder.stamp.stored_weights:
            raise ValueError(
                f"{self.folder.path}: the weights are not those that were saved; fetch the model again"
            )

    @property
    def stored_precision(self) -> str:
        """Of a folder that this model is saved to."""
        return self.folder.precision if self.precision == "bf16" else self.precision

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


class CoreEngine(Engine):
    """The compiled core with one model in it. Never changes, so that threads and copies share it."""

    def __init__(self, folder: ModelFolder, precision: str) -> None:
        """Load the tokenizer and the weights."""
        super().__init__(folder)
        self.precision = precision
        self.core = load_core(folder, core_head(folder), precision)

    def empty(self, texts: int, plan: Plan) -> Any:
        """As `Engine.empty` says."""
        if plan.options.token_embeddings:
            return [None] * texts
        return np.empty((texts, output_width(plan.dtype, plan.width)), dtype=NUMPY_DTYPES[plan.dtype])

    def encode(
        self, blocks: Iterator[list[str]], plan: Plan, counts: Counts, out: Any = None
    ) -> Generator[Any, None, None]:
        """As `Engine.encode` says; a window is read when it is asked for."""
        first = 0
        for block in blocks:
            result, _ = self._run(self._tokens(block, first, plan), first, plan, counts)
            if out is not None:
                out[first : first + len(block)] = result
            first += len(block)
            yield result

    def tokenize(self, blocks: Iterator[list[str]], plan: Plan) -> list[Any]:
        """As `Engine.tokenize` says: texts that the core tokenizes itself, else ids.

        The core does both on all of its threads. Ahead of its turn, tokenizing would take them from the texts that
        are being encoded, which then have to do with the fewer that were idle when they began.
        """
        windows, first = [], 0
        for block in blocks:
            windows.append(self._tokens(block, first, plan))
            first += len(block)
        return windows

    def encode_tokenized(self, windows: list[Any], plan: Plan, counts: Counts) -> tuple[Any, float]:
        """As `Engine.encode_tokenized` says; the threads' clocks tell what share tokenizing had."""
        out = self.empty(sum(map(len, windows)), plan)
        plan = replace(plan, options=plan.options.replace(profile=True))
        first, spent = 0, 0.0
        for tokens in windows:
            begin = time.perf_counter()
            out[first : first + len(tokens)], stats = self._run(tokens, first, plan, counts)
            stages = stats["stages"]
            spent += (time.perf_counter() - begin) * stages["tokenize"] / max(sum(stages.values()), 1e-9)
            first += len(tokens)
        return out, spent

    def _tokens(self, block: list[str], first: int, plan: Plan) -> list[Any]:
        """The texts, which the core tokenizes itself, or their ids where it cannot."""
        if self.tokenizer.core is not None:
            return block
        with self.named(block, first):
            return self.tokenizer.encode_batch(plan.prompted(block))

    def _run(self, tokens: list[Any], first: int, plan: Plan, counts: Counts) -> tuple[Any, _core.Stats]:
        """Encode one window of `_tokens`; ``first`` is the index of its first text in the whole input.

        Returns:
            (n, width) vectors, or a list of (tokens, hidden_size) for token embeddings; what the core counted.
        """
        options = plan.options.replace(first_text=first)
        if self.tokenizer.core is not None:
            with self.named(tokens, first):
                result, stats = self.core.encode(plan.prompted(tokens), self.tokenizer.core, options)
        else:
            result, stats = self.core.encode_ids(tokens, options)
        counts.add(len(tokens), stats, plan.options.max_length)
        if not plan.options.token_embeddings:
            result = convert(result, plan.dtype, plan.ranges)
        return result, stats

    def describe(self) -> dict[str, Any]:
        """The instruction set."""
        return {"isa": self.core.isa}
