"""``--where``: compiles a condition on documents to an SQL expression.

The condition is an SQL expression of SQLite over the fields of a document's metadata::

    lang = 'en' and year > 2019
    author.name like 'A%' or tags is null
    'soup' in tags and 3 not in ratings

A bare name is a field (dots reach into objects), but ``id`` and ``text`` are those of the document; a name in double
quotes is always a field of the metadata. Text compared with a number, such as any field of a CSV file, is converted
to a number first; text that is not numeric matches no number. A text or number before ``in`` and a field after it asks
whether the array in the field holds it.

The condition is compiled token by token, so only an expression can reach SQLite: no table names, subqueries,
comments or further statements.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...inputs import check_unicode

__all__ = ["Field", "compile_where", "fields_of", "names_time"]

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
    re.findall(
        r"\w+",
        "and or not in is null like glob between escape case when then else end true false isnull notnull collate "
        "nocase",
    )
)
_FUNCTIONS = frozenset(
    re.findall(
        r"\w+",
        "abs coalesce date datetime glob ifnull iif instr julianday length like lower ltrim max min nullif replace "
        "round rtrim strftime substr time trim typeof unicode upper",
    )
)
_OF_TIME = frozenset({"date", "datetime", "julianday", "strftime", "time"})
_OPERATORS = ("||", "-", "+", "*", "/", "%")
_OWN = {"id": "key", "text": "text"}


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
class _Token:
    kind: str
    text: str
    column: int


def compile_where(where: str) -> str:
    """Compile the condition ``where`` to an SQL expression over the table ``documents``.

    Raises:
        ValueError: the condition is invalid; the message says why and where.
    """
    check_unicode(f"the condition {where[:200]!r}", where)
    if "\0" in where:
        raise _invalid(where, where.index("\0"), "a null character, which no condition can hold")
    tokens = _tokens(where)
    if not tokens:
        raise ValueError("the condition is empty; expected e.g. \"lang = 'en' and year > 2019\"")
    depth = 0
    parts: list[str] = []
    taken = 0
    for at, token in enumerate(tokens):
        if at < taken:
            continue
        if (array := _array_after(tokens, at)) is not None:
            parts.append(_membership(where, tokens, at, array, parts))
            taken = array + 1
            continue
        if (end := _mixed_list(tokens, at)) is not None:
            parts.append(_among_both(where, tokens, at, end))
            taken = end + 1
            continue
        follower = tokens[at + 1].text if at + 1 < len(tokens) else ""
        if token.kind == "name" and token.text.lower() == "in" and follower != "(":
            raise _invalid(
                where,
                token.column,
                "after in comes a list, such as lang in ('en', 'de'), or before it a text, such as 'a' in tags",
            )
        if token.text == "(":
            depth += 1
        elif token.text == ")":
            depth -= 1
            if depth < 0:
                raise _invalid(where, token.column, "unmatched )")
        if token.kind == "quoted":
            parts.append(_field(where, token, [token.text[1:-1].replace('""', '"')], _numeric(tokens, at)))
        elif token.kind != "name" or token.text.lower() in _WORDS:
            parts.append(token.text)
        elif follower == "(":
            if token.text.lower() not in _FUNCTIONS:
                known = ", ".join(sorted(_FUNCTIONS))
                raise _invalid(
                    where, token.column, f"unknown function {token.text}; available functions: {known}"
                )
            parts.append(token.text)
        elif token.text.lower() in _OWN:
            parts.append(_OWN[token.text.lower()])
        else:
            parts.append(_field(where, token, token.text.split("."), _numeric(tokens, at)))
    if depth:
        raise _invalid(where, len(where), "a ( is never closed")
    return " ".join(parts)


def _path(token: _Token) -> list[str] | None:
    """The path of the field of the metadata that ``token`` names; ``None`` if it names none."""
    if token.kind == "quoted":
        return [token.text[1:-1].replace('""', '"')]
    word = token.text.lower()
    return token.text.split(".") if token.kind == "name" and word not in _WORDS and word not in _OWN else None


def _mixed_list(tokens: list[_Token], at: int) -> int | None:
    """The place of the ``)``, if at ``at`` a field is looked for among texts and numbers: ``x in (1, 'a')``."""
    begin = at + (2 if [token.text.lower() for token in tokens[at + 1 : at + 2]] == ["not"] else 1)
    if _path(tokens[at]) is None or [token.text.lower() for token in tokens[begin : begin + 2]] != [
        "in",
        "(",
    ]:
        return None
    kinds: set[str] = set()
    for place in range(begin + 2, len(tokens)):
        token = tokens[place]
        if token.text == ")":
            return place if {"string", "number"} <= kinds else None
        if token.kind not in ("string", "number") and token.text not in (",", "-", "+"):
            return None
        kinds.add(token.kind)
    return None


def _among_both(where: str, tokens: list[_Token], at: int, end: int) -> str:
    """SQL for a field and the list up to ``end``: its number is compared with numbers, it itself with texts."""
    negated = tokens[at + 1].text.lower() == "not"
    lists: dict[str, list[str]] = {"number": [], "string": []}
    sign = ""
    for token in tokens[at + (4 if negated else 3) : end]:
        if token.kind in lists:
            lists[token.kind].append(sign + token.text)
        sign = token.text if token.text in ("-", "+") else ""
    numbers, texts = (", ".join(some) for some in lists.values())
    path = _path(tokens[at])
    assert path is not None
    field, number = (_field(where, tokens[at], path, numeric) for numeric in (False, True))
    found = f"(coalesce({number} IN ({numbers}), 0) OR {field} IN ({texts}))"
    return f"(NOT {found})" if negated else found


def _array_after(tokens: list[_Token], at: int) -> int | None:
    """The place of the field, if a literal at ``at`` is looked for in an array: ``'a' in tags``, ``3 not in tags``."""
    if tokens[at].kind not in ("string", "number") and tokens[at].text.lower() not in ("true", "false"):
        return None
    words = [token.text.lower() if token.kind == "name" else token.text for token in tokens[at + 1 : at + 5]]
    place = 2 if words[:2] == ["not", "in"] else 1 if words[:1] == ["in"] else 0
    if not place or len(words) <= place:
        return None
    field = tokens[at + 1 + place]
    known = field.kind == "quoted" or (field.kind == "name" and field.text.lower() not in _WORDS)
    return at + 1 + place if known and words[place + 1 : place + 2] != ["("] else None


def _membership(where: str, tokens: list[_Token], at: int, array: int, parts: list[str]) -> str:
    """SQL for whether the literal at ``at`` is in the array of the field at ``array``; takes a sign from ``parts``."""
    value = tokens[at].text
    if at and (tokens[at - 1].kind == "compare" or tokens[at - 1].text in _OPERATORS):
        sign = tokens[at - 1].text
        unary = at == 1 or tokens[at - 2].text == "(" or tokens[at - 2].text.lower() in ("and", "or", "not")
        if sign not in ("-", "+") or not unary or tokens[at].kind != "number":
            raise _invalid(where, tokens[at].column, "put what is looked for in an array in parentheses")
        value = parts.pop() + value
    field = tokens[array]
    if field.kind != "quoted" and field.text.lower() in _OWN:
        raise _invalid(
            where, field.column, f"{field.text} is not a field of the metadata that could be an array"
        )
    path = _path(field)
    assert path is not None
    read = _field(where, field, path, numeric=False).replace("json_extract(", "json_each(", 1)
    negated = "NOT " if array - at == 3 else ""
    return f"{negated}EXISTS (SELECT 1 FROM {read} AS item WHERE item.value = {value})"


def fields_of(where: str) -> list[Field]:
    """The fields of the metadata in a condition that `compile_where` accepts."""
    tokens = _tokens(where)
    fields: dict[str, Field] = {}
    for at, token in enumerate(tokens):
        follower = tokens[at + 1].text if at + 1 < len(tokens) else ""
        word = token.text.lower()
        if token.kind == "quoted":
            name, quoted = token.text[1:-1].replace('""', '"'), True
        elif token.kind == "name" and follower != "(" and word not in _WORDS and word not in _OWN:
            name, quoted = token.text, False
        else:
            continue
        sql = _field(where, token, [name] if quoted else name.split("."), numeric=False)
        fields.setdefault(name, Field(name, sql, quoted))
    return list(fields.values())


def names_time(where: str) -> bool:
    """Whether a condition calls a function that can mean the current time, so that its rows change by themselves."""
    return any(token.kind == "name" and token.text.lower() in _OF_TIME for token in _tokens(where))


def _invalid(where: str, column: int, problem: str) -> ValueError:
    return ValueError(f"invalid condition {where[:200]!r}, character {column + 1}: {problem}")


def _tokens(where: str) -> list[_Token]:
    tokens = []
    at = 0
    while at < len(where):
        match = _TOKEN.match(where, at)
        if match is None or match[0] == "-" == where[at + 1 : at + 2]:
            raise _invalid(where, at, f"unexpected {where[at]!r}; strings are written in single quotes")
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
        raise _invalid(where, token.column, "quotes and backslashes are not supported in field names")
    steps = "".join(f'."{name}"' for name in path).replace("'", "''")
    field = f"json_extract(metadata, '${steps}')"
    if not numeric:
        return field
    return (
        f"(CASE typeof({field}) WHEN 'text' THEN "
        f"CASE WHEN trim({field}) GLOB '*[0-9]*' AND trim({field}) NOT GLOB '*[^-+.0-9eE]*' "
        f"THEN CAST({field} AS NUMERIC) END ELSE {field} END)"
    )
