"""The words of a query for the full-text index (FTS5) that an earlier embedkit made; see `index.words` for today's."""

from __future__ import annotations

import re

__all__ = ["match_expression"]

_MOST_WORDS = 64
_WORD = re.compile(r"\w+")


def match_expression(query: str) -> str | None:
    """The FTS5 expression for documents that contain any word of ``query``; ``None`` if it has no words."""
    words = list(dict.fromkeys(word.lower() for word in _WORD.findall(query)))[:_MOST_WORDS]
    return " OR ".join(f'"{word}"' for word in words) or None
