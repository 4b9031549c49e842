"""The engine of a model with routes: one engine a route, chosen by the task of a call."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

from ..model_folder.folder import ModelFolder
from .engine import Counts, Engine, Plan

__all__ = ["RouterEngine"]


class RouterEngine(Engine):
    """Engines of all routes; that of the default route speaks for the model."""

    def __init__(self, folder: ModelFolder, engines: Mapping[str, Engine]) -> None:
        """Take the engines; ``folder`` is that of the default route and has the routing."""
        assert folder.routing is not None
        self.routing = folder.routing
        self.engines = engines
        first = engines[self.routing.first]
        self._first = first
        self.folder = folder
        self.tokenizer, self.positions = first.tokenizer, first.positions
        self.precision, self.tensors, self.first_window = first.precision, first.tensors, first.first_window

    def of(self, task: str | None) -> Engine:
        """As `Engine.of`."""
        return self.engines[self.routing.route(task)]

    @property
    def stored_precision(self) -> str:
        """As `Engine.stored_precision`."""
        return self._first.stored_precision

    def empty(self, texts: int, plan: Plan) -> Any:
        """As `Engine.empty`."""
        return self._first.empty(texts, plan)

    def encode(
        self, blocks: Iterator[list[str]], plan: Plan, counts: Counts, out: Any = None
    ) -> Generator[Any, None, None]:
        """As `Engine.encode`, on the default route."""
        return self._first.encode(blocks, plan, counts, out)

    def tokenize(self, blocks: Iterator[list[str]], plan: Plan) -> list[Any]:
        """As `Engine.tokenize`, on the default route."""
        return self._first.tokenize(blocks, plan)

    def encode_tokenized(self, windows: list[Any], plan: Plan, counts: Counts) -> tuple[Any, float]:
        """As `Engine.encode_tokenized`, on the default route."""
        return self._first.encode_tokenized(windows, plan, counts)

    def warm_up(self) -> None:
        """As `Engine.warm_up`, on all routes."""
        for engine in self.engines.values():
            engine.warm_up()

    def describe(self) -> dict[str, Any]:
        """Those of the default route, and the routes."""
        return {**self._first.describe(), "routes": sorted(self.engines)}
