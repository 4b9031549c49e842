"""The engine that runs on a CPU: the compiled core."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

from .. import _core
from ..model_folder.folder import ModelFolder
from ..model_folder.weights import core_head, core_tensors
from ..output import convert
from .engine import Counts, EncodingEngine, Plan
from .stage import host_empty

__all__ = ["CoreEngine", "load_core"]


def load_core(folder: ModelFolder, head: list[dict[str, Any]], precision: str) -> _core.Encoder:
    """Load the weights into the core; ``head`` lists the modules after the pooling.

    Raises:
        ValueError: the weights, or the sizes in config.json, do not fit together.
    """
    core_name = folder.architecture.core_name
    tensors = {core_name(name): tensor for name, tensor in core_tensors(folder, precision).items()}
    try:
        config = _core.EncoderConfig(**folder.config)
    except ValueError as error:
        raise ValueError(f"{folder.transformer / 'config.json'}: {error}") from None
    return _core.Encoder(
        config,
        tensors,
        list(folder.pooling.modes),
        [_core.HeadModule(**module) for module in head],
        precision,
    )


class CoreEngine(EncodingEngine):
    """A model on the compiled core."""

    def __init__(self, folder: ModelFolder, precision: str) -> None:
        """Load the tokenizer and the weights."""
        super().__init__(folder)
        self.precision = precision
        self.core = load_core(folder, core_head(folder), precision)

    def empty(self, texts: int, plan: Plan) -> Any:
        """As `EncodingEngine.empty`."""
        return host_empty(texts, plan.request)

    def encode(
        self, blocks: Iterator[list[str]], plan: Plan, counts: Counts, out: Any = None
    ) -> Generator[Any, None, None]:
        """As `EncodingEngine.encode`; a window is read when it is requested."""
        first = 0
        for block in blocks:
            result, _ = self._run(self._tokens(block, first, plan), first, plan, counts)
            if out is not None:
                out[first : first + len(block)] = result
            first += len(block)
            yield result

    def encode_one(self, text: str, plan: Plan, counts: Counts) -> Any:
        """As `EncodingEngine.encode_one`."""
        return self._run(self._tokens([text], 0, plan), 0, plan, counts)[0]

    def tokenize(self, blocks: Iterator[list[str]], plan: Plan) -> list[Any]:
        """As `EncodingEngine.tokenize`: texts if the core tokenizes them itself, otherwise ids.

        The core tokenizes and encodes on the same threads. Tokenizing ahead would take threads from the texts being
        encoded, which keep the smaller number they started with.
        """
        windows, first = [], 0
        for block in blocks:
            windows.append(self._tokens(block, first, plan))
            first += len(block)
        return windows

    def encode_tokenized(self, windows: list[Any], plan: Plan, counts: Counts) -> tuple[Any, float]:
        """As `EncodingEngine.encode_tokenized`; the share of tokenizing is measured by the threads' clocks."""
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
        """The texts if the core tokenizes them itself, otherwise their ids."""
        if self.tokenizer.core is not None:
            return block
        with self.named(block, first):
            return self.tokenizer.encode_batch(plan.prompted(block))

    def _run(self, tokens: list[Any], first: int, plan: Plan, counts: Counts) -> tuple[Any, _core.Stats]:
        """Encode one window of `_tokens`; ``first`` is the index of its first text in the whole input.

        Returns:
            (n, width) embeddings, or a list of (tokens, hidden_size) for token embeddings; and the core's counts.
        """
        options = plan.options.replace(first_text=first)
        if self.tokenizer.core is not None:
            with self.named(tokens, first):
                result, stats = self.core.encode(plan.prompted(tokens), self.tokenizer.core, options)
        else:
            result, stats = self.core.encode_ids(tokens, options)
        counts.add(len(tokens), stats, plan.options.max_length)
        if not plan.options.token_embeddings:
            result = convert(result, plan.request.dtype, plan.request.ranges)
        return result, stats

    def describe(self) -> dict[str, Any]:
        """The instruction set, and the instruction of it that multiplies."""
        return {"isa": self.core.isa, "products": self.core.products}
