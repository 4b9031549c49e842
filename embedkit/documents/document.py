"""`Document`: a text to index, and the checks that it can be stored."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import InputError

__all__ = ["Document", "EncodedDocument", "check_document", "check_text", "json_type"]


@dataclass(frozen=True, slots=True)
class Document:
    """A text to index.

    Attributes:
        text: the text to encode, which a search returns.
        id: unique in the index; ``None``, for a build only: the document's position in the input, counted from 0.
        metadata: other fields to store and filter by; must be representable as JSON.
        origin: where the document was read (``file:line``), for error messages.
        position: bytes of input read up to and including this document, for progress.
        vector: (dimension,) floats, if the vector has been computed already; ``None``: the text is encoded.
    """

    text: str
    id: str | None = None
    metadata: Mapping[str, Any] | None = None
    origin: str = ""
    position: int = 0
    vector: npt.NDArray[np.floating[Any]] | None = None


@dataclass(frozen=True, slots=True)
class EncodedDocument(Document):
    """A document whose vector the index's own model has computed of its text; a `Document`'s may be any."""


def check_text(text: object, what: str) -> str | None:
    """Why ``text``, called ``what``, cannot be stored as UTF-8; ``None`` if it can."""
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
    """The id of ``document``; `InputError` if its id or text cannot be stored."""
    problem = check_text(document.text, "the text")
    if problem is None:
        problem = check_text(document.id, "the id")
        file = os.path.basename(document.origin.rpartition(":")[0])
        if problem is not None and file in str(document.id) and check_text(document.origin, "") is not None:
            problem = "the file's name, which the id is made of, is not UTF-8; rename the file"
    if problem is not None or not document.id:
        raise InputError(document.origin, problem or "the id is empty", skippable=True)
    return document.id


def json_type(value: object) -> str:
    """The name of the type of ``value`` in JSON."""
    if value is None:
        return "null"
    names = {
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)
