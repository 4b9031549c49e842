"""What the routes of a server share."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from starlette.requests import Request

from .metrics import Metrics
from .models import EmbeddingModel, Pool, RerankModel
from .settings import Settings

if TYPE_CHECKING:
    from .search import SearchService

__all__ = ["State"]


class State:
    """The models, the index and the counters of one server.

    Attributes:
        draining: whether it has been told to stop.
        created: when it was started, in seconds since 1970.
    """

    def __init__(
        self,
        settings: Settings,
        embedders: Pool[EmbeddingModel],
        rerankers: Pool[RerankModel],
        search: SearchService | None,
        metrics: Metrics,
    ) -> None:
        """Take what is open; `close` closes it."""
        self.settings = settings
        self.embedders = embedders
        self.rerankers = rerankers
        self.search = search
        self.metrics = metrics
        self.draining = False
        self.created = int(time.time())
        metrics.watch(self)

    @staticmethod
    def of(request: Request) -> State:
        """The state of the application that got a request."""
        state: State = request.app.state.shared
        return state

    def queues(self) -> Iterable[tuple[str, int, int]]:
        """Name, waiting requests and waiting tokens of each loaded model."""
        for pool in (self.embedders, self.rerankers):
            for model in pool.distinct:
                if model.loaded is not None:
                    yield (model.name, *model.loaded.batcher.queued)

    def problem(self) -> str | None:
        """Why no requests should be sent here now; None if they should."""
        if self.draining:
            return "the server is stopping"
        for pool in (self.embedders, self.rerankers):
            for model in pool.distinct:
                if model.loaded is not None and not model.loaded.batcher.alive:
                    return f"the thread of {model.name} has ended"
        return None

    def close(self) -> None:
        """Finish what is queued and close everything."""
        if self.search is not None:
            self.search.close()
        self.embedders.close()
        self.rerankers.close()
