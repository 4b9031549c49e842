"""The title and headings of a document, from its metadata."""

from __future__ import annotations

import json

__all__ = ["TITLE_FIELDS", "titles_of"]

TITLE_FIELDS = ("title", "heading", "headings")
"""Fields of the metadata (strings, or arrays of them) whose words count more than those of the text."""


def titles_of(metadata: str) -> str:
    """The title and headings in ``metadata``, a JSON object as text; "" if there are none."""
    if not any(f'"{name}"' in metadata for name in TITLE_FIELDS):
        return ""
    fields = json.loads(metadata)
    found: list[object] = []
    for name in TITLE_FIELDS:
        value = fields.get(name)
        found += value if isinstance(value, list) else [value]
    return "\n".join(one for one in found if isinstance(one, str))
