"""What a server is started with: its limits, and who may use it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Limits", "Settings"]


@dataclass(frozen=True)
class Limits:
    """Bounds on what clients can make the server hold or do.

    Attributes:
        body: bytes of a request's body.
        texts: texts, documents or queries of a request.
        queue_requests: requests that wait for one model.
        queue_tokens: tokens that wait for one model; of a single request a quarter of it counts at most.
        batch_tokens: tokens of a batch.
        timeout: seconds until a request is answered with 504.
        header_timeout: seconds that a client may take to send the head of a request.
        body_timeout: seconds that a client may take to send a body, or to read what was sent to it.
        keep_alive: seconds that an idle connection stays open.
        connections: connections at once; further ones get 503.
        hits: most hits of a search.
    """

    body: int = 16 << 20
    texts: int = 16_384
    queue_requests: int = 1024
    queue_tokens: int = 1_000_000
    batch_tokens: int = 16_384
    timeout: float = 60.0
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    keep_alive: float = 75.0
    connections: int = 1024
    hits: int = 1000


@dataclass(frozen=True)
class Settings:
    """How a server behaves.

    Attributes:
        limits: see `Limits`.
        api_keys: keys of which a request must carry one; empty: none is asked for.
        on_overflow: "truncate" or "error" for texts longer than the model's ``max_length``, where a request does
            not say.
        origins: web origins whose pages may call the server; empty: only pages that it served itself.
        hosts: names that the Host header may have (a guard against DNS rebinding); empty: any.
    """

    limits: Limits = field(default_factory=Limits)
    api_keys: tuple[str, ...] = ()
    on_overflow: str = "truncate"
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
