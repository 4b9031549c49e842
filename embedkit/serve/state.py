"""What the routes of a server share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.types import Scope

from .metrics import Metrics
from .models import EmbeddingModel, Pool, RerankModel, Served
from .settings import Settings

if TYPE_CHECKING:
    from .search import SearchService

__all__ = ["State"]

_HELD = "embedkit.held"  # bytes of the body, in the scope of its request


class State:
    """The models, the index and the counters of one server.

    Attributes:
        draining: whether it has been told to stop.
        parsing: is held while a large body is parsed.
        bodies: bytes of bodies that are being received, or whose requests are not answered.
        unread: bytes of answers that clients have not read.
        created: when it was started, in seconds since 1970.
    """

    def __init__(
        self,
        settings: Settings,
        embedders: Pool[EmbeddingModel],
        rerankers: Pool[RerankModel],
        search: SearchService | None,
        metrics: Metrics,
        *,
        own: Served[EmbeddingModel] | None = None,
    ) -> None:
        """Take what is open; `close` closes it. ``own`` is a model of the index's own, which no request can name."""
        self.settings = settings
        self.embedders = embedders
        self.rerankers = rerankers
        self.search = search
        self._own = own
        self.metrics = metrics
        self.draining = False
        self.parsing = asyncio.Semaphore(1)
        self.bodies = 0
        self.unread = 0
        self.created = int(time.time())
        metrics.watch(self)

    @staticmethod
    def of(request: Request) -> State:
        """The state of the application that got a request."""
        state: State = request.app.state.shared
        return state

    def hold(self, scope: Scope, size: int) -> None:
        """Count ``size`` more bytes of a request's body in `bodies`."""
        scope[_HELD] = scope.get(_HELD, 0) + size
        self.bodies += size

    def release(self, scope: Scope) -> None:
        """Count a request's body no more."""
        self.bodies -= scope.pop(_HELD, 0)

    def _loaded(self) -> Iterable[tuple[str, EmbeddingModel | RerankModel]]:
        served: list[Served[Any]] = [*self.embedders.distinct, *self.rerankers.distinct]
        if self._own is not None:
            served.append(self._own)
        return [(model.name, model.loaded) for model in served if model.loaded is not None]

    def queues(self) -> Iterable[tuple[str, int, int]]:
        """Name, waiting requests and waiting tokens of each loaded model."""
        for name, model in self._loaded():
            yield (name, *model.batcher.queued)

    def searches(self) -> int:
        """Searches that run or wait."""
        return 0 if self.search is None else self.search.running

    def truncated(self) -> Iterable[tuple[str, int]]:
        """Name of each loaded model, and how many texts or pairs it has truncated."""
        for name, model in self._loaded():
            yield name, model.encoder.describe()["truncated"]

    def problem(self) -> str | None:
        """Why no requests should be sent here now; None if they should."""
        if self.draining:
            return "the server is stopping"
        for name, model in self._loaded():
            if not model.batcher.alive:
                return f"the thread of {name} has ended"
        return None

    def close(self) -> None:
        """Finish what is queued and close everything."""
        if self.search is not None:
            self.search.close()
        self.embedders.close()
        self.rerankers.close()
        if self._own is not None and self._own.loaded is not None:
            self._own.loaded.close()
            self._own.loaded = None
