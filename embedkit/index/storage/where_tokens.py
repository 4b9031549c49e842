"""The words of a condition, and the fields that it names."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["FUNCTIONS", "OF_TIME", "OWN", "WORDS", "Field", "Token", "field_of", "invalid", "tokens_of"]

_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<string>'(?:[^']|'')*')"
    r'|(?P<quoted>"(?:[^"]|"")+")'
    r"|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))"
    r"|(?P<name>[^\W\d]\w*(?:\.\w+)*)"
    r"|(?P<compare><=|>=|<>|!=|==|<|>|=)"
    r"|(?P<other>\|\||[-+*/%(),])"
)
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
    while at < len(where):
        match = _TOKEN.match(where, at)
        if match is None or match[0] == "-" == where[at + 1 : at + 2]:
            raise invalid(where, at, f"unexpected {where[at]!r}; strings are written in single quotes")
        kind = match.lastgroup or ""
        if kind != "space":
            word = "" if kind in ("string", "quoted", "number") else match[0].lower()
            tokens.append(Token(kind, match[0], at, word))
        at = match.end()
    return [*tokens, Token("end", "", len(where), "")]


def field_of(where: str, token: Token) -> Field:
    """The field of the metadata that ``token`` names."""
    quoted = token.kind == "quoted"
    name = token.text[1:-1].replace('""', '"') if quoted else token.text
    if '"' in name or "\\" in name:
        raise invalid(where, token.column, "quotes and backslashes are not supported in field names")
    steps = "".join(f'."{step}"' for step in ([name] if quoted else name.split("."))).replace("'", "''")
    return Field(name, f"json_extract(metadata, '${steps}')", quoted)
