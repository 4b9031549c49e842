"""Long texts cut into passages of a number of the model's own tokens, at borders of sentences and headings.

The id of a passage is ``ID#n``, n counted from 1. Its metadata are those of its document, and ``passage``: the
document's id, the passage's number and the ``count`` of them, its place (characters ``begin`` to ``end`` of the
document's text), and the ``heading`` above it.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from .document import Document
from .errors import InputError
from .whole import code_blocks, heading_text, within

__all__ = ["FIELD", "PassageCutter", "Passages", "document_of"]

FIELD = "passage"
"""The field of a passage's metadata that holds its place."""

_HEADING = re.compile(r"(#{1,6})[ \t]+(\S.*)$")
# Marks that end a sentence before a blank (the last ones are of Urdu, Arabic, Armenian, Ethiopic), and those that need
# none (of Chinese and Japanese, Hindi, Burmese, Khmer). A full-width stop may also stand in a number or abbreviation.
_MARKS = ".!?\u2026\u06d4\u061f\u0589\u1362\u1367\u1368"
_MARKS_ALONE = "\u3002\uff01\uff1f\uff61\u0964\u0965\u104b\u17d4\u17d5"
_FULL_STOP = r"\uff0e(?![\d\uff21-\uff3a\uff41-\uff5a])"
# Quotes and brackets that close. “ closes („…“) directly after a mark; after a blank, and in Chinese, it opens.
# » closes after a blank, too (« … »), unless a word follows (»…«).
_CLOSING = r"[\"'\u201c\u201d\u2019)\]\u00bb\u203a]|[ \u00a0\u202f][\u00bb\u203a]"
_CLOSING_ALONE = r"[\u201d\u2019)\]\u00bb\u203a\u300d\u300f\uff09\uff63]"
_CLOSED_LATER = r"[\u00a0\u202f][\u00bb\u203a]| [\u00bb\u203a](?:[\s.,;:!?)\]]|\Z)"
# a sentence's end with what closes after it; or the end of a line
_END = re.compile(
    rf"(?<![{_MARKS}])[{_MARKS}]+(?:{_CLOSING})*(?=\s|\Z)(?!{_CLOSED_LATER})"
    rf"|(?:[{_MARKS_ALONE}]|{_FULL_STOP})+{_CLOSING_ALONE}*(?:[\"']+(?=\s|\Z))?"
    r"|\n"
)
_WORD = re.compile(r"\S+")
_JOINERS = "\u200d\u1039\u17d2"  # of emojis, and of letters in Burmese and Khmer
# Texts and characters that are tokenized at once: the words and tokens of a long text take many times its memory.
_AT_ONCE = 1024
_CHARACTERS_AT_ONCE = 1 << 18
_MOST_MOVED = 16  # characters; a family of emojis has 7 or more


@dataclass(frozen=True, slots=True)
class Passages:
    """How texts are cut.

    Attributes:
        tokens: most tokens of a passage, without the model's special tokens and prompt.
        overlap: most tokens that a passage repeats of the one before it.

    Raises:
        ValueError: they are out of range.
    """

    tokens: int
    overlap: int = 0

    def __post_init__(self) -> None:
        """Check the range."""
        if self.tokens < 8:
            raise ValueError(f"passages must have at least 8 tokens, not {self.tokens}")
        if not 0 <= self.overlap <= self.tokens // 2:
            raise ValueError(
                f"the overlap of passages must be from 0 to half of their {self.tokens} tokens, not {self.overlap}"
            )

    @classmethod
    def of(cls, value: Passages | int | tuple[int, int] | str | None) -> Passages | None:
        """Passages of ``TOKENS``, ``(TOKENS, OVERLAP)`` or ``"TOKENS:OVERLAP"``."""
        if value is None or isinstance(value, Passages):
            return value
        if isinstance(value, str):
            parts = value.split(":")
            if len(parts) > 2 or not all(part.isascii() and part.isdigit() for part in parts):
                raise ValueError(f"{value!r}: expected TOKENS or TOKENS:OVERLAP, e.g. 256:32")
            return cls(*map(int, parts))
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(value)
        if isinstance(value, tuple) and len(value) == 2:
            return cls(*value)
        raise ValueError(
            f"passages must be a number of tokens, (tokens, overlap) or 'TOKENS:OVERLAP', not {value!r}"
        )

    def __str__(self) -> str:
        """As ``of`` reads it."""
        return f"{self.tokens}:{self.overlap}"


def document_of(passage_id: str) -> str:
    """The id of the document that a passage is of."""
    return passage_id.rpartition("#")[0]


@dataclass(slots=True)
class _Unit:
    """A sentence, a piece of a long one, or a heading, without the white space around it."""

    begin: int
    end: int
    tokens: int
    level: int = 0  # of a heading
    heading: str = ""
    gap: int = 0  # tokens more than on its own (or fewer: negative) where it follows another

    @property
    def with_gap(self) -> int:
        """Tokens that it adds to what is before it, white space included."""
        return self.gap + self.tokens


class PassageCutter:
    """Cuts documents into passages. Not thread-safe."""

    def __init__(self, encoder: Any, passages: Passages) -> None:
        """Count with the tokenizer of ``encoder``.

        Raises:
            TypeError: the encoder has no ``tokenize``.
            ValueError: a passage would not fit into the model's maximum length.
        """
        from ..encoder import Encoder, prompt_of

        if not hasattr(encoder, "tokenize"):
            raise TypeError(
                f"passages are counted by the model's own tokens, and {type(encoder).__name__} has no tokenize()"
            )
        self.passages = passages
        self._tokenize: Callable[[Sequence[str]], Any] = encoder.tokenize
        room = getattr(encoder, "max_seq_length", None)
        positions = sys.maxsize
        if isinstance(encoder, Encoder):  # whose own are those of the default route
            engine = encoder._engine.of("document")
            room, positions = encoder._length_on(engine), engine.positions
            self._tokenize = lambda texts: {"input_ids": engine.token_ids(list(texts), room)}
        (empty,) = self._tokenize([""])["input_ids"]
        self._special = len(empty)
        prompt = prompt_of(encoder, "document")
        self._full = None if room is None else room - self._special
        self._neutral = {"": True}
        used = self._special + (self._lengths([prompt])[0] if prompt else 0)
        if room is not None and passages.tokens + used > room:
            more = "raise --max-length (max_length=), " if passages.tokens + used <= positions else ""
            raise ValueError(
                f"passages of {passages.tokens} tokens do not fit into the model's maximum of {room}, of which "
                f"special tokens and the prompt take {used}; {more}take another model, or build the index with "
                f"passages of at most {room - used}"
            )

    def cut(self, document: Document) -> list[Document]:
        """The passages of ``document``, at least one.

        Raises:
            InputError: it has a vector, or a field with the name of a passage's place.
        """
        if document.vector is not None:
            raise InputError(document.origin, "a text with a given vector cannot be cut into passages")
        metadata = dict(document.metadata or {})
        if FIELD in metadata:
            raise InputError(
                document.origin,
                f"the field {FIELD!r} is taken by the place of passages; rename it",
                skippable=True,
            )
        text = document.text
        spans = self._spans(text) or [(0, len(text), "")]
        return [
            replace(
                document,
                text=text[begin:end],
                id=f"{document.id}#{number}",
                metadata={
                    **metadata,
                    FIELD: {
                        "document": document.id,
                        "number": number,
                        "count": len(spans),
                        "begin": begin,
                        "end": end,
                        **({"heading": heading} if heading else {}),
                    },
                },
            )
            for number, (begin, end, heading) in enumerate(spans, 1)
        ]

    def _spans(self, text: str) -> list[tuple[int, int, str]]:
        """Begin, end and heading of each passage."""
        units = self._units(text)
        most, overlap = self.passages.tokens, self.passages.overlap
        headings = _headings(units)
        spans = []
        first = 0
        while first < len(units):
            last, total = first, 0
            while last < len(units) and (last == first or total + units[last].with_gap <= most):
                if units[last].level and total >= most // 4:
                    break
                total += units[last].tokens if last == first else units[last].with_gap
                last += 1
            if last < len(units):  # a heading belongs to what follows it
                keep = last
                while keep > first and units[keep - 1].level:
                    keep -= 1
                last = keep if keep > first else last
            spans.append((units[first].begin, units[last - 1].end, headings[last - 1]))
            following, repeated = last, 0  # tokens of what is repeated, joined to what is before it
            if last < len(units) and not units[last].level:
                while following - 1 > first and repeated + units[following - 1].tokens <= overlap:
                    following -= 1
                    repeated += units[following].with_gap
                    if units[following].level:
                        break
                # what is repeated must leave room for the next unit, or nothing new would follow
                while following < last and repeated - units[following].gap + units[last].with_gap > most:
                    repeated -= units[following].with_gap
                    following += 1
            first = following
        return spans

    def _units(self, text: str) -> list[_Unit]:
        units: list[_Unit] = []
        code = code_blocks(text)  # a comment in it is no heading
        begin = 0
        for match in chain(_END.finditer(text), (None,)):
            end = len(text) if match is None else match.end()
            piece = text[begin:end]
            start, stop = begin + len(piece) - len(piece.lstrip()), begin + len(piece.rstrip())
            begin = end
            if start >= stop:
                continue
            may_be_heading = (start == 0 or text[start - 1] == "\n") and not within(code, start)
            heading = _HEADING.match(text[start : _line_end(text, start)]) if may_be_heading else None
            if heading is not None:
                begin = end = max(end, _line_end(text, start))
                stop = start + len(text[start:end].rstrip())
                units.append(_Unit(start, stop, 0, len(heading[1]), heading_text(heading[2])))
            elif not units or start >= units[-1].end:
                units.append(_Unit(start, stop, 0))
        most = _CHARACTERS_AT_ONCE
        lengths = self._lengths(text[unit.begin : min(unit.end, unit.begin + most)] for unit in units)
        for unit, tokens in zip(units, lengths, strict=True):
            # what is longer still is cut into words, whatever they are
            unit.tokens = tokens if unit.end - unit.begin <= most else self.passages.tokens + 1
        self._set_gaps(text, units, 0)
        ends = chain((0,), (unit.end for unit in units))
        return [part for end, unit in zip(ends, units, strict=False) for part in self._parts(text, unit, end)]

    def _parts(self, text: str, unit: _Unit, before: int) -> list[_Unit]:
        """A unit longer than a passage, in parts of whole words; of pieces of words that are longer themselves.

        ``before``: where the unit before it ends.
        """
        most = self.passages.tokens
        if unit.tokens <= most:
            return [unit]
        parts: list[_Unit] = []
        for word in self._words(text, unit, before):
            if parts and parts[-1].end == word.begin:
                # pieces of one word, which may have more tokens than they have
                apart = parts[-1].tokens + word.tokens
                if apart <= most:
                    word.gap = max(0, self._lengths([text[parts[-1].begin : word.end]])[0] - apart)
            if parts and parts[-1].tokens + word.with_gap <= most:
                parts[-1].end = word.end
                parts[-1].tokens += word.with_gap
            else:
                parts.append(word)
        return parts

    def _words(self, text: str, unit: _Unit, before: int) -> Iterator[_Unit]:
        """Each word of ``unit``; pieces of those longer than a passage."""
        most = self.passages.tokens
        pieces = _pieces(text, unit, most)
        while words := list(islice(pieces, _AT_ONCE)):
            lengths = self._lengths(text[begin:end] for begin, end in words)
            while any(n > most and end - begin > 1 for (begin, end), n in zip(words, lengths, strict=True)):
                words = [
                    piece
                    for (begin, end), tokens in zip(words, lengths, strict=True)
                    for piece in _halves(text, begin, end, halve=tokens > most)
                ]
                lengths = self._lengths(text[begin:end] for begin, end in words)
            found = [
                _Unit(begin, end, tokens, unit.level, unit.heading)
                for (begin, end), tokens in zip(words, lengths, strict=True)
            ]
            self._set_gaps(text, found, before)
            before = found[-1].end
            yield from found

    def _set_gaps(self, text: str, units: Sequence[_Unit], before: int) -> None:
        """Set the gap of each of ``units`` that fits into a passage; ``before``: where the one before the first ends.

        Byte-level tokens hold the blank before a word: it may have more or fewer of them than the word alone.
        """
        joined = [
            (unit, text[end : unit.end])
            for end, unit in zip(chain((before,), (unit.end for unit in units)), units, strict=False)
            if unit.tokens <= self.passages.tokens and not self._is_neutral(text[end : unit.begin])
        ]
        if joined:
            one, *lengths = self._lengths(chain(("a",), (f"a{piece}" for _, piece in joined)))
            for (unit, _), tokens in zip(joined, lengths, strict=True):
                unit.gap = tokens - one - unit.tokens

    def _is_neutral(self, white: str) -> bool:
        """Whether words have the same tokens after the white space ``white`` as on their own, and it has none."""
        if white not in self._neutral:
            empty, one, two = self._tokenize(["", "a", f"a{white}a"])["input_ids"]
            self._neutral[white] = sorted([*two, *empty]) == sorted([*one, *one])
        return self._neutral[white]

    def _lengths(self, texts: Iterable[str]) -> list[int]:
        """Tokens of each text, without special ones.

        One that fills the model's maximum may have been truncated to it, and counts as longer than a passage.
        """
        lengths: list[int] = []
        block: list[str] = []
        characters = 0
        for text in chain(texts, (None,)):
            if text is not None:
                block.append(text)
                characters += len(text)
            if block and (text is None or len(block) == _AT_ONCE or characters >= _CHARACTERS_AT_ONCE):
                lengths += (len(ids) - self._special for ids in self._tokenize(block)["input_ids"])
                block, characters = [], 0
        return [n if n != self._full else n + 1 for n in lengths]


def _pieces(text: str, unit: _Unit, most: int) -> Iterator[tuple[int, int]]:
    """The words of ``unit``; of those of more than ``4 * most`` characters pieces of ``most``."""
    for match in _WORD.finditer(text, unit.begin, unit.end):
        # without spaces between words (Chinese), characters; a token is mostly at least one
        step = most if match.end() - match.start() > 4 * most else match.end() - match.start()
        at = match.start()
        while at < match.end():
            end = _border(text, at, at + step) if at + step < match.end() else match.end()
            yield at, end
            at = end


def _halves(text: str, begin: int, end: int, *, halve: bool) -> list[tuple[int, int]]:
    """The span, or its halves; a single character has none."""
    middle = (begin + end) // 2
    if not halve or middle == begin:
        return [(begin, end)]
    middle = _border(text, begin, middle)
    return [(begin, middle), (middle, end)]


def _border(text: str, begin: int, at: int) -> int:
    """The nearest place before ``at``, or there, between two letters with their marks; ``at`` if there is none near."""
    for place in range(at, max(begin, at - _MOST_MOVED), -1):
        marks = unicodedata.category(text[place])[0] == "M" or text[place] == "\u200d"
        if not marks and text[place - 1] not in _JOINERS:
            return place
    return at


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _headings(units: Sequence[_Unit]) -> list[str]:
    """The headings above each unit, from the outermost."""
    stack: list[tuple[int, str]] = []
    result = []
    for unit in units:
        if unit.level:
            stack = [(level, name) for level, name in stack if level < unit.level]
            stack.append((unit.level, unit.heading))
        result.append(" > ".join(name for _, name in stack))
    return result
