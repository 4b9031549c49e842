"""Checks of ids, lengths and given vectors (text and metadata are checked where they are stored)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from ...documents.document import Document, EncodedDocument, check_document, json_type
from ...documents.errors import InputError
from ...documents.passages import document_of
from ..encoder import TextEncoder, refuses_long
from ..storage.faiss_index import Float32Array
from ..storage.generation import Generation
from ..storage.segment import CHARACTERS_AT_ONCE
from .settings import Mode

__all__ = [
    "blocks",
    "check_new_id",
    "given_vector",
    "has_given_vector",
    "is_blank",
    "length_check",
    "with_id",
    "with_taken",
]

_AT_ONCE = 256
_CUT = "--on-overflow truncate or window (Encoder(on_overflow=...))"
_LATER = f"shorten it, or let the index take it: embedkit-index reembed {_CUT}"
#: How a text that is too long comes into the index after all, by the command.
_REMEDIES: Mapping[Mode, str] = {
    "build": f"shorten it, or give {_CUT}, or --passages (passages=...)",
    "add": _LATER,
    "upsert": _LATER,
    "sync": _LATER,
    "reembed": f"give {_CUT}, or build the index again with --passages (passages=...)",
}


def with_id(item: str | Document, position: int, *, required: bool) -> Document:
    """``item`` as a document with an id: its own, or else its ``position``, unless an id is ``required``.

    Raises:
        InputError: it has no id, or its metadata is no dict; names its ``position`` unless it was read from a file.
    """
    if isinstance(item, (Mapping, list, tuple)):
        raise InputError(
            f"document {position}",
            f"a document is a text or a Document(text, id, metadata), not {type(item).__name__}",
            skippable=True,
        )
    document = item if isinstance(item, Document) else Document(item)
    known = "" if document.id is None else f" ({document.id!r:.80})"
    origin = document.origin or f"document {position}{known}"
    if document.metadata is not None and not isinstance(document.metadata, Mapping):
        raise InputError(
            origin, f"the metadata is {json_type(document.metadata)}, not a dict of fields", skippable=True
        )
    if document.id is not None:
        return document if document.origin else replace(document, origin=origin)
    if required:
        raise InputError(origin, "a document that is added needs an id", skippable=True)
    return replace(document, id=str(position), origin=origin)


def is_blank(document: Document) -> bool:
    """Whether there is nothing to encode: the text is empty or white space, and no vector is given."""
    return document.vector is None and isinstance(document.text, str) and not document.text.strip()


def blocks(groups: Iterable[list[Document]], most: int = _AT_ONCE) -> Iterator[list[list[Document]]]:
    """As many documents, or all passages of each, as are handled at once: ``most``, or fewer with long texts."""
    block: list[list[Document]] = []
    characters = 0
    for group in groups:
        block.append(group)
        characters += sum(map(_characters, group))
        if len(block) == most or characters >= CHARACTERS_AT_ONCE:
            yield block
            block, characters = [], 0
    if block:
        yield block


def _characters(document: Document) -> int:
    """About how many the text and the metadata have, whatever they are: they are checked where they are stored."""
    text = len(document.text) if isinstance(document.text, str) else 0
    try:
        return text + (len(repr(dict(document.metadata))) if document.metadata else 0)
    except (RecursionError, ValueError):
        return text


def with_taken(
    groups: Iterable[list[Document]], base: Generation | None
) -> Iterator[tuple[list[Document], str | None]]:
    """Each document, or all its passages, with its id if ``base`` holds that already; many are looked up at once."""
    if base is None:
        yield from ((group, None) for group in groups)
        return
    passages = base.manifest.passages is not None
    for block in blocks(groups):
        # what is no string is refused where it is stored
        ids = [group[0].id if isinstance(group[0].id, str) else "" for group in block]
        names = list(map(document_of, ids)) if passages else ids
        found = base.find_passages(names) if passages else base.find(names)
        for name, group in zip(names, block, strict=True):
            yield group, name if name and name in found else None


def check_new_id(document: Document, taken: str | None) -> None:
    """Refuse a document whose id is ``taken``."""
    if taken is not None:
        raise InputError(
            document.origin,
            f"the id {taken!r} is already in the index; upsert replaces documents",
            skippable=True,
        )


def has_given_vector(document: Document) -> bool:
    """Whether the caller has given a vector, which need not be the one that the model computes of the text."""
    return document.vector is not None and not isinstance(document, EncodedDocument)


def given_vector(document: Document, dimension: int) -> Float32Array | None:
    """The vector (dimension,) that came with ``document``, if one did; `InputError` if it cannot be used."""
    if document.vector is None:
        return None
    try:
        vector = np.asarray(document.vector, np.float32)
    except (TypeError, ValueError, OverflowError):
        raise InputError(document.origin, "its vector is not a list of numbers", skippable=True) from None
    if vector.shape != (dimension,):
        raise InputError(
            document.origin,
            f"its vector has shape {vector.shape}; the encoder's have ({dimension},)",
            skippable=True,
        )
    if not np.isfinite(vector).all():
        raise InputError(document.origin, "its vector contains NaN or infinity", skippable=True)
    return vector


def length_check(encoder: TextEncoder, mode: Mode, *, refused: bool = False) -> Callable[[Document], None]:
    """The check for texts that ``encoder`` would refuse as too long, before they are stored and sent to it in chunks.

    It raises InputError, which names the document and what to do in the command ``mode``. ``refused``: the index takes
    no such texts, though its encoder, which reads queries as well, would cut them.
    """
    from ...encoder import Encoder

    if not isinstance(encoder, Encoder) or not (refused or refuses_long(encoder)):
        return lambda document: None

    def check(document: Document) -> None:
        if document.vector is not None:
            return
        check_document(document)  # the tokenizer takes no other texts
        tokens, most = encoder._document_tokens(document.text)
        if tokens > most:
            raise InputError(
                document.origin,
                f"the text has {tokens:,} tokens, more than the {most:,} that the model reads; {_REMEDIES[mode]}",
                skippable=True,
            )

    return check
