"""What callers hand to `Encoder.encode`: checks, and windows of bounded size."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["MAX_CHARACTERS", "as_texts", "check_unicode", "outside_level", "progress", "windows"]

MAX_CHARACTERS = 4_000_000
"""Most characters of a window of more than one text."""

_PACKAGE = str(Path(__file__).parent)


def as_texts(sentences: Any) -> tuple[list[str], bool]:
    """A list of what was given, and whether it was one text.

    Raises:
        TypeError: for anything but a text or a collection of texts in an order of its own.
    """
    if isinstance(sentences, str):
        return [sentences], True
    if isinstance(sentences, list):
        return sentences, False
    hint = ""
    if isinstance(sentences, bytes | bytearray):
        hint = ": decode it first, e.g. text.decode('utf-8')"
    elif getattr(sentences, "ndim", None) == 0:
        hint = " without dimensions: take the text out of it with .item()"
    refused = isinstance(sentences, memoryview | Mapping | set | frozenset)
    if hint or refused or not isinstance(sentences, Iterable):
        raise TypeError(f"expected a str or a list of str, got {type(sentences).__name__}{hint}")
    return list(sentences), False


def windows(texts: Iterable[str], max_texts: int) -> Iterator[list[str]]:
    """Cut texts into lists of at most ``max_texts`` texts and `MAX_CHARACTERS` characters, in order.

    Raises:
        TypeError: for an item that is not a str; names its index.
    """
    window: list[str] = []
    characters = 0
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            hint = ": decode it first, e.g. text.decode('utf-8')" if isinstance(text, bytes) else ""
            raise TypeError(f"texts[{index}] is {type(text).__name__}, not str{hint}")
        if window and (len(window) == max_texts or characters + len(text) > MAX_CHARACTERS):
            yield window
            window, characters = [], 0
        window.append(text)
        characters += len(text)
    if window:
        yield window


def check_unicode(name: str, text: str) -> None:
    """Refuse a text with a lone surrogate; ``name`` is what the message calls it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} holds a lone surrogate at position {error.start}, no Unicode character; "
            "repair the text, e.g. text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')"
        ) from None


@contextmanager
def progress(total: int, show: bool | None) -> Iterator[Callable[[int], object] | None]:
    """A function that advances a progress bar on the terminal, or None for no bar.

    None for ``show`` means: when embedkit's logger is at INFO or DEBUG, as sentence-transformers does.
    """
    if show is None:
        show = logging.getLogger("embedkit").getEffectiveLevel() in (logging.INFO, logging.DEBUG)
    if not show or sys.stderr is None:  # closed, as by 2>&-: tqdm has nowhere to draw
        yield None
        return
    from tqdm.auto import tqdm

    with tqdm(total=total, desc="Encoding", unit=" texts", disable=None) as bar:  # None: only on a terminal
        yield bar.update


def outside_level() -> int:
    """``stacklevel`` of the first caller outside this package, counted from the caller of this function."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level
