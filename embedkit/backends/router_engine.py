"""The engine of a model with routes: one engine a route, chosen by the task of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model_folder.folder import ModelFolder
from .engine import EncodingEngine, Engine

__all__ = ["RouterEngine"]


class RouterEngine(Engine):
    """Engines of all routes; that of the default route speaks for the model."""

    def __init__(self, folder: ModelFolder, engines: Mapping[str, EncodingEngine]) -> None:
        """Take the engines; ``folder`` is that of the default route and has the routing."""
        assert folder.routing is not None
        self.routing = folder.routing
        self.engines = engines
        first = engines[self.routing.first]
        self._first = first
        self.folder = folder
        self.tokenizer, self.positions = first.tokenizer, first.positions
        self.precision, self.tensors = first.precision, first.tensors

    def of(self, task: str | None) -> EncodingEngine:
        """As `Engine.of`."""
        return self.engines[self.routing.route(task)]

    def each(self) -> list[EncodingEngine]:
        """As `Engine.each`."""
        return list(self.engines.values())

    @property
    def stored_precision(self) -> str:
        """As `Engine.stored_precision`."""
        return self._first.stored_precision

    def describe(self) -> dict[str, Any]:
        """Those of the default route, and the routes."""
        return {**self._first.describe(), "routes": sorted(self.engines)}
