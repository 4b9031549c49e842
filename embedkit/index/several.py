"""Arguments that stand for several ids or documents: a bare string is iterable, too, but never means its characters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..documents.document import Document
from ..inputs import check_collection

__all__ = ["several_documents", "several_ids"]


def several_ids(ids: str | Iterable[str]) -> list[str]:
    """``ids`` as a list; a bare string is one id.

    Raises:
        TypeError: an id is not a string.
    """
    if isinstance(ids, str):
        return [ids]
    if isinstance(ids, bytes) or not isinstance(ids, Iterable):
        raise TypeError(f"ids must be a string or an iterable of strings, not {type(ids).__name__}")
    several = list(ids)
    for document_id in several:
        if not isinstance(document_id, str):
            raise TypeError(f"ids are strings, not {type(document_id).__name__}: {document_id!r:.80}")
    return several


def several_documents(documents: Iterable[Any]) -> Iterable[Any]:
    """``documents``, unless it is a single one.

    Raises:
        TypeError: it is one text or document, not iterable, or in no defined order.
    """
    if isinstance(documents, (str, bytes, Document)) or not isinstance(documents, Iterable):
        hint = "; put it in a list" if isinstance(documents, (str, Document)) else ""
        raise TypeError(
            f"documents must be an iterable of texts or Documents, not {type(documents).__name__}{hint}"
        )
    check_collection(documents, "an iterable of texts or Documents")
    return documents
