"""What a server is started with: its limits, and who may use it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Limits", "Settings", "host_name", "web_origin"]

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]+)?", re.ASCII)
_USUAL_PORTS = {"http": ":80", "https": ":443"}  # which browsers leave out


@dataclass(frozen=True)
class Limits:
    """Bounds on what clients can make the server hold or do.

    Attributes:
        body: bytes of a request's body; those of all requests that are not answered may hold 64 times as many.
        texts: texts, documents or queries of a request.
        queue_requests: requests that wait for one model, or searches for a thread.
        queue_tokens: tokens that wait for one model; of a single request a quarter of it counts at most.
        batch_tokens: tokens of a batch.
        timeout: seconds until a request is answered with 504.
        header_timeout: seconds that a client may take to send the head of a request.
        body_timeout: seconds that a client may take to send a body, or to read what was sent to it.
        keep_alive: seconds that an idle connection stays open.
        connections: connections at once; requests of further ones get 503, but for the probes of health.
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
        on_overflow: "truncate" or "error" for texts and pairs longer than the model's ``max_length``, where a request
            does not say.
        origins: web origins whose pages may call the server, as `web_origin` gives them; "*": any; empty: only pages
            that it served itself.
        hosts: names that the Host header may have (a guard against DNS rebinding), as `host_name` gives them; empty:
            any.
    """

    limits: Limits = field(default_factory=Limits)
    api_keys: tuple[str, ...] = ()
    on_overflow: str = "truncate"
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


def host_name(host: str) -> str:
    """The name in a Host header or in --allow-host: in lower case, and without its port."""
    host = host.lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    if host.count(":") > 1:  # an option's IPv6 address; headers have it in brackets
        return f"[{host}]"
    return host.rpartition(":")[0] if ":" in host else host


def web_origin(origin: str) -> str:
    """``origin`` as browsers send it, or "*".

    Raises:
        ValueError: it is not SCHEME://HOST or SCHEME://HOST:PORT.
    """
    if origin == "*":
        return origin
    found = _ORIGIN.fullmatch(origin.lower().removesuffix("/"))
    if found is None:
        raise ValueError(
            f"{origin!r} is no web origin; give SCHEME://HOST or SCHEME://HOST:PORT, such as https://app.example, or *"
        )
    scheme, host, port = found.groups(default="")
    return f"{scheme}://{host}{'' if port == _USUAL_PORTS.get(scheme) else port}"
