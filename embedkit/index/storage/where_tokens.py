"""The words of a condition, and the fields that it names."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

__all__ = ["FUNCTIONS", "OF_TIME", "OWN", "WORDS", "Field", "Token", "field_of", "invalid", "tokens_of"]

_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<string>'[^']*(?:''[^']*)*')"  # not (?:[^']|'')*, which keeps a record of each character
    r'|(?P<quoted>"(?:[^"]|"")[^"]*(?:""[^"]*)*")'
    r"|(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.]))"
    r"|(?P<name>[^\W\d]\w*(?:\.\w+)*)"
    r"|(?P<compare><=|>=|<>|!=|==|<|>|=)"
    r"|(?P<other>\|\||[-+*/%(),])"
)
_DIGITS = re.compile(r"\.?\d[\d.]*")
WORDS = frozenset(
    re.findall(
        r"\w+",
        "and or not in is null like glob between escape case when then else end true false isnull notnull collate "
        "nocase",
    )
)
FUNCTIONS = frozenset(
    re.findall(
        r"\w+",
        "abs coalesce date datetime glob ifnull iif instr julianday length like lower ltrim max min nullif replace "
        "round rtrim strftime substr time trim typeof unicode upper",
    )
)
OF_TIME = frozenset({"date", "datetime", "julianday", "strftime", "time"})
OWN = frozenset({"id", "text"})
"""Names that are not fields of the metadata, but of the document itself."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the metadata that a condition names.

    Attributes:
        name: as written, without quotes.
        sql: reads it.
        quoted: it was written in double quotes.
    """

    name: str
    sql: str
    quoted: bool


@dataclass(slots=True)
class Token:
    """A word of a condition.

    Attributes:
        kind: string, quoted, number, name, compare, other, or end.
        text: as written.
        column: where it begins.
        word: what it is as a word or sign of the language; empty for a text, a number and a name in quotes.
    """

    kind: str
    text: str
    column: int
    word: str

    @property
    def names(self) -> bool:
        """Whether it is a name: of a field, of what the document has itself, or of a function."""
        return self.kind == "quoted" or (self.kind == "name" and self.word not in WORDS)


def invalid(where: str, column: int, problem: str) -> ValueError:
    """The error that says what is wrong with the condition ``where``, and where."""
    return ValueError(f"invalid condition {where[:200]!r}, character {column + 1}: {problem}")


def tokens_of(where: str) -> list[Token]:
    """The words of ``where``; the last one is of the kind "end"."""
    tokens = []
    at = 0
    letters = where if where.isascii() else _marks_as_letters(where)
    while at < len(where):
        match = _TOKEN.match(letters, at)
        if match is None or match[0] == "-" == where[at + 1 : at + 2]:
            raise invalid(where, at, _unexpected(where, at))
        kind = match.lastgroup or ""
        text = where[at : match.end()]
        if kind != "space":
            word = "" if kind in ("string", "quoted", "number") else text.lower()
            tokens.append(Token(kind, text, at, word))
        at = match.end()
    return [*tokens, Token("end", "", len(where), "")]


def _marks_as_letters(where: str) -> str:
    """``where`` with a letter for each combining mark (vowel signs, accents), which ``\\w`` does not match."""
    return "".join("a" if unicodedata.category(one)[0] == "M" else one for one in where)


def _unexpected(where: str, at: int) -> str:
    """What is wrong with the character ``at``, which begins no word."""
    digits = _DIGITS.match(where, at)
    if digits is not None and not digits[0].isascii():
        usual = "".join(one if one == "." else str(unicodedata.decimal(one)) for one in digits[0])
        return f"{digits[0][:50]} is not written in the digits 0 to 9; write {usual[:50]}"
    return f"unexpected {where[at]!r}; strings are written in single quotes"


def field_of(where: str, token: Token) -> Field:
    """The field of the metadata that ``token`` names."""
    quoted = token.kind == "quoted"
    name = token.text[1:-1].replace('""', '"') if quoted else token.text
    if '"' in name or "\\" in name:
        raise invalid(where, token.column, "quotes and backslashes are not supported in field names")
    steps = "".join(f'."{step}"' for step in ([name] if quoted else name.split("."))).replace("'", "''")
    return Field(name, f"json_extract(metadata, '${steps}')", quoted)
