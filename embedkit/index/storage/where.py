"""``--where``: a condition on documents, turned into an SQL expression that can do nothing else.

The condition is SQL as SQLite has it, over the fields of a document's metadata::

    lang = 'en' and year > 2019
    author.name like 'A%' or tags is null

A bare name is a field (dots lead into objects), ``id`` and ``text`` are the document's own; a name in double
quotes is always a field of the metadata. A field that is text, as all of a CSV file's are, is compared with a
number by its numeric value; text that is no number matches no number.

The text is read token by token, so that what reaches SQLite is an expression: names of tables, subqueries,
comments and further statements cannot be written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["compile_where"]

_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<string>'(?:[^']|'')*')"
    r'|(?P<quoted>"(?:[^"]|"")+")'
    r"|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))"
    r"|(?P<name>[^\W\d]\w*(?:\.\w+)*)"
    r"|(?P<compare><=|>=|<>|!=|==|<|>|=)"
    r"|(?P<other>\|\||[-+*/%(),])"
)
_WORDS = frozenset(
    [
        "and",
        "or",
        "not",
        "in",
        "is",
        "null",
        "like",
        "glob",
        "between",
        "escape",
        "case",
        "when",
        "then",
        "else",
        "end",
        "true",
        "false",
        "isnull",
        "notnull",
        "collate",
        "nocase",
    ]
)
_FUNCTIONS = frozenset(
    [
        "abs",
        "coalesce",
        "date",
        "datetime",
        "glob",
        "ifnull",
        "iif",
        "instr",
        "julianday",
        "length",
        "like",
        "lower",
        "ltrim",
        "max",
        "min",
        "nullif",
        "replace",
        "round",
        "rtrim",
        "strftime",
        "substr",
        "time",
        "trim",
        "typeof",
        "unicode",
        "upper",
    ]
)
_OWN = {"id": "key", "text": "text"}


@dataclass(slots=True)
class _Token:
    kind: str
    text: str
    column: int


def compile_where(where: str) -> str:
    """The SQL expression over the table ``documents`` that ``where`` asks for.

    Raises:
        ValueError: it is not such a condition; the message names the place.
    """
    tokens = _tokens(where)
    if not tokens:
        raise ValueError("the condition is empty; give one such as \"lang = 'en' and year > 2019\"")
    depth = 0
    parts = []
    for at, token in enumerate(tokens):
        follower = tokens[at + 1].text if at + 1 < len(tokens) else ""
        if token.text == "(":
            depth += 1
        elif token.text == ")":
            depth -= 1
            if depth < 0:
                raise _wrong(where, token.column, "a ) without its (")
        if token.kind == "quoted":
            parts.append(_field(where, token, [token.text[1:-1].replace('""', '"')], _numeric(tokens, at)))
        elif token.kind != "name" or token.text.lower() in _WORDS:
            parts.append(token.text)
        elif follower == "(":
            if token.text.lower() not in _FUNCTIONS:
                known = ", ".join(sorted(_FUNCTIONS))
                raise _wrong(
                    where, token.column, f"the function {token.text} is not known; known are {known}"
                )
            parts.append(token.text)
        elif token.text.lower() in _OWN:
            parts.append(_OWN[token.text.lower()])
        else:
            parts.append(_field(where, token, token.text.split("."), _numeric(tokens, at)))
    if depth:
        raise _wrong(where, len(where), "a ( without its )")
    return " ".join(parts)


def _wrong(where: str, column: int, problem: str) -> ValueError:
    return ValueError(f"the condition {where[:200]!r} is wrong at character {column + 1}: {problem}")


def _tokens(where: str) -> list[_Token]:
    tokens = []
    at = 0
    while at < len(where):
        match = _TOKEN.match(where, at)
        if match is None or match[0] == "-" == where[at + 1 : at + 2]:
            raise _wrong(where, at, f"{where[at]!r} means nothing here; texts stand in single quotes")
        kind = match.lastgroup or ""
        if kind != "space":
            tokens.append(_Token(kind, match[0], at))
        at = match.end()
    return tokens


def _numeric(tokens: list[_Token], at: int) -> bool:
    """Whether the field at ``at`` is compared with a number."""

    def is_number(place: int) -> bool:
        while 0 <= place < len(tokens) and tokens[place].text in ("-", "+", "("):
            place += 1
        return 0 <= place < len(tokens) and tokens[place].kind == "number"

    after = tokens[at + 1] if at + 1 < len(tokens) else None
    if after is not None and after.text.lower() == "not":
        at += 1
        after = tokens[at + 1] if at + 1 < len(tokens) else None
    if after is not None and (after.kind == "compare" or after.text.lower() in ("between", "in")):
        return is_number(at + 2)
    return at >= 2 and tokens[at - 1].kind == "compare" and tokens[at - 2].kind == "number"


def _field(where: str, token: _Token, path: list[str], numeric: bool) -> str:
    if any('"' in name or "\\" in name for name in path):
        raise _wrong(
            where, token.column, "a field's name holds a quote or a backslash, which is not supported"
        )
    steps = "".join(f'."{name}"' for name in path).replace("'", "''")
    field = f"json_extract(metadata, '${steps}')"
    if not numeric:
        return field
    return (
        f"(CASE typeof({field}) WHEN 'text' THEN "
        f"CASE WHEN trim({field}) GLOB '*[0-9]*' AND trim({field}) NOT GLOB '*[^-+.0-9eE]*' "
        f"THEN CAST({field} AS NUMERIC) END ELSE {field} END)"
    )
