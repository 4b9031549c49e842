"""`Document`: one text to index, and what makes one unusable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import InputError


@dataclass(frozen=True, slots=True)
class Document:
    """One text to index.

    Attributes:
        text: what is encoded and returned by a search.
        id: the user's own id, unique in the index; ``None``: the document's position among those given,
            counted from 0.
        metadata: what else to keep; must be representable as JSON.
        vector: (dimension,) its vector, where it was computed before; ``None``: the text is encoded.
        origin: where it was read (``file:line``), for error messages.
        position: bytes of input consumed up to and including this document, for progress.
    """

    text: str
    id: str | None = None
    metadata: Mapping[str, Any] | None = None
    origin: str = ""
    position: int = 0
    vector: npt.NDArray[np.floating[Any]] | None = None


def check_text(text: object, what: str) -> str | None:
    """Say what keeps ``text`` from being stored as UTF-8 text, or ``None`` if nothing does."""
    if not isinstance(text, str):
        return f"{what} is {json_type(text)}, not a string"
    if "\x00" in text:
        return f"{what} holds a NUL character"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"{what} holds a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}"
    return None


def check_document(document: Document) -> str:
    """The id of ``document``, if it and the text can be stored (else `InputError`)."""
    problem = check_text(document.text, "the text") or check_text(document.id, "the id")
    if problem is not None or not document.id:
        raise InputError(document.origin, problem or "the id is empty", skippable=True)
    return document.id


def json_type(value: object) -> str:
    """What a JSON user would call the type of ``value``."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", list: "an array", dict: "an object"}
    return names.get(type(value), type(value).__name__)
