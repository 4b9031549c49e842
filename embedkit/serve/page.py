"""The HTML pages: files of the package, with a policy that lets them load nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib import resources

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from .state import State

__all__ = ["respond", "start"]

_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


async def start(request: Request) -> Response:
    """``/``: the search page where an index is open, else the description of the API."""
    if State.of(request).search is None:
        return RedirectResponse("/docs")
    return respond("search.html", {})


def respond(name: str, replaced: Mapping[str, str]) -> Response:
    """A page of the package; its own script and style are allowed by their hashes, and nothing else."""
    text = (resources.files(__package__) / "pages" / name).read_text(encoding="utf-8")
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in _INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        allowed[kind].append(f"'sha256-{digest}'")
    for mark, value in replaced.items():
        text = text.replace(mark, value)
    policy = "; ".join(
        [
            "default-src 'none'",
            "connect-src 'self'",
            "img-src data:",
            f"script-src {' '.join(allowed['script']) or chr(39) + 'none' + chr(39)}",
            f"style-src {' '.join(allowed['style']) or chr(39) + 'none' + chr(39)}",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return Response(text, headers=headers, media_type="text/html")
