"""The words of a query for the full-text index (FTS5) that an earlier embedkit made; see `index.words` for today's."""

from __future__ import annotations

import re

__all__ = ["common_from", "match_expression", "phrases_of"]

_MOST_WORDS = 64
_WORD = re.compile(r"\w+")
_PHRASE = re.compile(r'"(?:[^"]|"")*"')


def match_expression(query: str) -> str | None:
    """The FTS5 expression for documents that contain any word of ``query``; ``None`` if it has no words."""
    words = list(dict.fromkeys(word.lower() for word in _WORD.findall(query)))[:_MOST_WORDS]
    return " OR ".join(f'"{word}"' for word in words) or None


def common_from(rows: int) -> int:
    """The number of texts, of ``rows`` in all, from which on a word that is in so many is common."""
    return max(rows // 20, 10)


def phrases_of(match: str) -> list[str]:
    """The distinct phrases of an FTS5 expression, each an expression of its own."""
    return list(dict.fromkeys(_PHRASE.findall(match)))
