"""The engine of backends outside the core: a tokenizer of the core and an encode stage."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

from .. import _core
from ..model_folder.folder import ModelFolder
from .driver import Occupancy, encode_windows, tokenize_ahead
from .engine import Counts, EncodingEngine, Plan
from .stage import Stage

__all__ = ["StageEngine"]


class StageEngine(EncodingEngine):
    """A tokenizer of the core and an encode stage."""

    # The stage has nothing to do until the first window is tokenized; the next ones are tokenized meanwhile.
    first_window = 1024

    def __init__(self, folder: ModelFolder, open_stage: Callable[[], Stage]) -> None:
        """Load the tokenizer, then open the stage, which may need it."""
        super().__init__(folder)
        self.stage = open_stage()
        self.precision = str(self.stage.describe()["precision"])
        self._occupancy = Occupancy()

    def check(self, options: _core.EncodeOptions) -> None:
        """Refuse what no stage supports."""
        if options.token_embeddings and options.overflow == "window":
            raise ValueError(
                'token embeddings and on_overflow="window" exclude each other: the tokens of overlapping windows '
                "have no single place in the text"
            )

    def empty(self, texts: int, plan: Plan) -> Any:
        """As `EncodingEngine.empty`."""
        return self.stage.empty(texts, plan.request)

    def encode(
        self, blocks: Iterator[list[str]], plan: Plan, counts: Counts, out: Any = None
    ) -> Generator[Any, None, None]:
        """As `EncodingEngine.encode`."""
        self.check(plan.options)

        def tokenize(block: list[str], first: int, cancel: _core.Cancel | None) -> _core.TokenWindow:
            return self._tokenize(block, first, plan, cancel)

        with (
            closing(tokenize_ahead(blocks, tokenize, self._occupancy)) as ready,
            closing(self._encode(ready, plan, counts, out)) as results,
        ):
            yield from results

    def tokenize(self, blocks: Iterator[list[str]], plan: Plan) -> list[Any]:
        """As `EncodingEngine.tokenize`: token windows."""
        windows, first = [], 0
        for block in blocks:
            with self._occupancy.busy("tokenize"):
                windows.append(self._tokenize(block, first, plan))
            first += len(block)
        return windows

    def encode_tokenized(self, windows: list[Any], plan: Plan, counts: Counts) -> tuple[Any, float]:
        """As `EncodingEngine.encode_tokenized`."""
        out = self.empty(sum(window.texts for window in windows), plan)
        for _ in self._encode(windows, plan, counts, out):
            pass
        return out, 0.0

    def _tokenize(
        self, block: list[str], first: int, plan: Plan, cancel: _core.Cancel | None = None
    ) -> _core.TokenWindow:
        texts, options = plan.prompted(block), plan.options.replace(first_text=first)
        with self.named(block, first):
            if self.tokenizer.core is not None:
                return _core.tokenize_window(texts, self.tokenizer.core, options, cancel)
            return _core.tokenize_window_ids(self.tokenizer.encode_batch(texts), options, cancel)

    def _encode(
        self, ready: Iterable[_core.TokenWindow], plan: Plan, counts: Counts, out: Any
    ) -> Generator[Any, None, None]:
        results = encode_windows(
            self.stage,
            ready,
            plan.request,
            self._occupancy,
            batch_size=plan.options.batch_size,
            normalized=self.folder.normalizes,
            out=out,
        )
        with closing(results):
            for result, window in results:
                stats: _core.Stats = {
                    "tokens": window.tokens,
                    "truncated": window.truncated,
                    "unknown": window.unknown,
                }
                counts.add(window.texts, stats, plan.options.max_length)
                yield result

    def warm_up(self) -> None:
        """As `EncodingEngine.warm_up`."""
        self.stage.warm_up()

    def describe(self) -> dict[str, Any]:
        """The stage's own entries, and how busy each stage of the pipeline was."""
        return {**self.stage.describe(), "stages": self._occupancy.shares()}
