"""The texts and pairs that callers pass: checks, windows of bounded size, and the progress bar."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

__all__ = [
    "MAX_CHARACTERS",
    "TextsWarning",
    "as_pairs",
    "as_texts",
    "check_collection",
    "check_unicode",
    "outside_level",
    "pair_windows",
    "progress",
    "windows",
]

MAX_CHARACTERS = 4_000_000
"""Maximum characters of a window with more than one text."""

_PACKAGE = str(Path(__file__).parent)


class TextsWarning(UserWarning):
    """A model does not read some texts as they are; the message ends with what helps in Python.

    Attributes:
        told: what is the case, without what helps.
        what: the inputs: "texts" or "pairs".
        cause: their "length", or their "script".
    """

    # an exception that is sent to another process is made again of its message alone
    def __init__(
        self, message: str, *, told: str = "", what: str = "", cause: Literal["length", "script", ""] = ""
    ) -> None:
        """``message`` is the whole warning."""
        super().__init__(message)
        self.told, self.what, self.cause = told or message, what, cause


def as_texts(sentences: Any) -> tuple[list[str], bool]:
    """The texts as a list, and whether a single text was given.

    Raises:
        TypeError: for anything but a text or an ordered collection of texts.
    """
    if isinstance(sentences, str):
        return [sentences], True
    if isinstance(sentences, list):
        return list(sentences), False  # another thread may change it meanwhile
    hint = ""
    if isinstance(sentences, bytes | bytearray):
        hint = ": decode it first, e.g. text.decode('utf-8')"
    elif getattr(sentences, "ndim", None) == 0:
        hint = " without dimensions: get the text with .item()"
    if hint:
        raise TypeError(f"expected a str or a list of str, got {type(sentences).__name__}{hint}")
    check_collection(sentences, "a str or a list of str")
    return list(sentences), False


def check_collection(values: Any, wanted: str, table: str = 'df["text"]') -> None:
    """Raise TypeError unless iterating over ``values`` yields its texts in a defined order.

    Args:
        values: what a caller passed for several texts.
        wanted: what is expected, for the message.
        table: an example of how to get it from a DataFrame, which yields the names of its columns.
    """
    hint = ""
    if isinstance(values, Mapping):
        hint = ": pass its values as a list, e.g. list(d.values())"
    elif isinstance(values, set | frozenset):
        hint = ": its order is not defined; pass a list, e.g. sorted(texts)"
    elif hasattr(values, "columns"):
        hint = f": pass a part of it, e.g. {table}"
    if hint or isinstance(values, memoryview) or not isinstance(values, Iterable):
        raise TypeError(f"expected {wanted}, got {type(values).__name__}{hint}")


def windows(texts: Iterable[str], max_texts: int, *, first: int | None = None) -> Iterator[list[str]]:
    """Cut texts into lists of at most ``max_texts`` texts and `MAX_CHARACTERS` characters, in order.

    Args:
        texts: an iterator is read lazily.
        max_texts: maximum texts in a window.
        first: maximum texts in the first window cut from a list; it doubles with each window, up to ``max_texts``.
            None for ``max_texts``.

    Raises:
        TypeError: an item is not a str; the message gives its index.
    """
    if not isinstance(texts, list):
        yield from _one_by_one(texts, max_texts, 0)
        return
    begin, size = 0, max_texts if first is None else min(first, max_texts)
    while part := texts[begin : begin + size]:
        # The common case, without a Python loop over the texts.
        if set(map(type, part)) == {str} and sum(map(len, part)) <= MAX_CHARACTERS:
            yield part
        else:
            yield from _one_by_one(part, size, begin)
        begin, size = begin + size, min(2 * size, max_texts)


def _one_by_one(texts: Iterable[str], max_texts: int, first: int) -> Iterator[list[str]]:
    """`windows` of texts; ``first`` is the index of the first text."""
    window: list[str] = []
    characters = 0
    for index, text in enumerate(texts, first):
        if not isinstance(text, str):
            hint = ": decode it first, e.g. text.decode('utf-8')" if isinstance(text, bytes) else ""
            raise TypeError(f"texts[{index}] is {type(text).__name__}, not str{hint}")
        if window and characters + len(text) > MAX_CHARACTERS:
            yield window
            window, characters = [], 0
        window.append(text)
        characters += len(text)
        if len(window) == max_texts:  # at once: a live stream has no next text yet
            yield window
            window, characters = [], 0
    if window:
        yield window


def as_pairs(pairs: Any) -> tuple[list[str], list[str], bool]:
    """The first texts, the second texts, and whether a single pair was given.

    Raises:
        TypeError: an item is not a pair of texts.
    """
    wanted = "a pair of texts or a list of pairs"
    if isinstance(pairs, str | bytes):
        raise TypeError(f"expected {wanted}, got {type(pairs).__name__}")
    check_collection(pairs, wanted, 'df[["a", "b"]].values')
    items = list(pairs)
    single = bool(items) and isinstance(items[0], str)
    first: list[str] = []
    second: list[str] = []
    for index, pair in enumerate([items] if single else items):
        if isinstance(pair, str | Mapping | set | frozenset) or not isinstance(pair, Iterable):
            raise TypeError(f"pairs[{index}] is {type(pair).__name__}, not a pair of texts")
        texts = list(pair)
        if len(texts) != 2:
            raise TypeError(
                f"pairs[{index}] holds {len(texts)} items, not two texts"
                + ("; to score several pairs, pass [(a, b), …]" if single else "")
            )
        for place, text in enumerate(texts):
            if not isinstance(text, str):
                hint = ": decode it first, e.g. text.decode('utf-8')" if isinstance(text, bytes) else ""
                raise TypeError(f"pairs[{index}][{place}] is {type(text).__name__}, not str{hint}")
        first.append(texts[0])
        second.append(texts[1])
    return first, second, single


def pair_windows(first: list[str], second: list[str], most: int) -> Iterable[tuple[int, int]]:
    """Bounds (start, end) of windows of at most ``most`` pairs and `MAX_CHARACTERS` characters."""
    start = characters = 0
    for index, (a, b) in enumerate(zip(first, second, strict=True)):
        size = len(a) + len(b)
        if index > start and (index - start == most or characters + size > MAX_CHARACTERS):
            yield start, index
            start, characters = index, 0
        characters += size
    if start < len(first):
        yield start, len(first)


def check_unicode(name: str, text: str) -> None:
    """Raise ValueError for a text with a lone surrogate; ``name`` stands for it in the message."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} holds a lone surrogate at position {error.start}, which is not a Unicode character; "
            "repair the text, e.g. text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')"
        ) from None


@contextmanager
def progress(total: int, show: bool | None) -> Iterator[Callable[[int], object] | None]:
    """A function that advances a progress bar on the terminal, or None without a bar.

    ``show`` True also shows it in a notebook. None shows it if embedkit's logger is at level INFO or DEBUG, as
    sentence-transformers does.
    """
    # a notebook's stream is no terminal
    seen = bool(show) and type(sys.stderr).__module__ == "ipykernel.iostream"
    if show is None:
        show = logging.getLogger("embedkit").getEffectiveLevel() in (logging.INFO, logging.DEBUG)
    # Asked before tqdm is imported, which starts a thread. stderr is None where it was closed, as by 2>&-.
    if not show or not (seen or getattr(sys.stderr, "isatty", bool)()):
        yield None
        return
    from tqdm.auto import tqdm

    with tqdm(total=total, desc="Encoding", unit=" texts") as bar:
        yield bar.update


def outside_level() -> int:
    """The ``stacklevel`` of the first caller outside this package, counted from the caller of this function."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level
