"""The values of a condition as SQL, and how two of them are compared.

A field holds a number or a text, and in a CSV file always a text, so what is compared with a number is read as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Value", "among", "between", "call", "compare", "number", "one_of", "stored", "text"]

_OF_TEXTS = frozenset({"glob", "instr", "julianday", "length", "like", "unicode"})
"""Functions that make a number of what is stored."""

_TEXT_COLUMNS = ("key", "text")
"""Hold nothing else; ``key`` has an index, which SQLite uses where it is compared and nothing more."""

_OF_NUMBERS = frozenset({"abs", "round"})
_OF_EITHER = frozenset({"coalesce", "ifnull", "iif", "max", "min"})
"""Functions that return one of their arguments."""


@dataclass(frozen=True, slots=True)
class Value:
    """An expression.

    Attributes:
        sql: its value as it is stored.
        number: its value as a number, or as true (not 0) or false; NULL if it is a text that is not numeric.
        kind: what the condition says that it is: "stored" may be either.
    """

    sql: str
    number: str
    kind: Literal["number", "text", "stored"]


def number(sql: str) -> Value:
    """A number."""
    return Value(sql, sql, "number")


def text(sql: str) -> Value:
    """A text that the condition names; or ``null``, which needs no conversion."""
    return Value(sql, _number_in(sql), "text")


def stored(sql: str) -> Value:
    """What may be a text or a number."""
    return Value(sql, _number_in(sql), "stored")


def _number_in(sql: str) -> str:
    # SQLite reads a text that it compares with a NUMERIC as a number if all of it is one; other texts are greater
    # than any number. A CAST would take the number that a text begins with.
    return f"(CASE WHEN {sql} <= CAST(9e999 AS NUMERIC) THEN CAST({sql} AS NUMERIC) END)"


def compare(left: Value, sign: str, right: Value) -> Value:
    """``left`` compared with ``right``: as numbers if one of them is a number, or if both hold one."""
    if "number" in (left.kind, right.kind):
        return number(f"({left.number} {sign} {right.number})")
    texts = f"{left.sql} {sign} {right.sql}"
    if "text" in (left.kind, right.kind):
        if sign[0] in "<>" and sign != "<>":  # SQLite orders every number before every text
            unsure = [one for one in (left, right) if one.kind != "text" and one.sql not in _TEXT_COLUMNS]
            ours = [f"typeof({one.sql}) = 'text'" for one in unsure]
            if ours:
                return number(f"(CASE WHEN {' AND '.join(ours)} THEN {texts} END)")
        return number(f"({texts})")
    if sign.startswith("IS"):
        equal = compare(left, "=", right).sql
        same = f"coalesce({equal}, {left.sql} IS NULL AND {right.sql} IS NULL)"
        return number(same if sign == "IS" else f"(NOT {same})")
    alike = f"typeof({left.sql}) = typeof({right.sql})"
    return number(f"coalesce({left.number} {sign} {right.number}, CASE WHEN {alike} THEN {texts} END)")


def between(value: Value, low: Value, high: Value) -> Value:
    """Whether ``value`` is from ``low`` to ``high``."""
    return number(f"({compare(value, '>=', low).sql} AND {compare(value, '<=', high).sql})")


def among(value: Value, several: Sequence[Value]) -> Value:
    """Whether ``value`` is one of ``several``; it is compared with each as the kind of that one demands."""
    if value.kind == "number":
        return number(f"({value.sql} IN ({_listed(one.number for one in several)}))")
    found = [compare(value, "=", one).sql for one in several if one.kind == "stored"]
    texts = [one.sql for one in several if one.kind == "text"]
    if texts or not several:
        found.append(f"{value.sql} IN ({_listed(texts)})")
    if numbers := [one.sql for one in several if one.kind == "number"]:
        here = f"{value.number} IN ({_listed(numbers)})"
        found.append(f"coalesce({here}, 0)" if found else here)
    return number(f"({' OR '.join(found)})")


def call(name: str, values: Sequence[Value]) -> Value:
    """The function ``name`` of ``values``."""
    word = name.lower()
    if word in _OF_NUMBERS:
        return number(f"{name}({_listed(one.number for one in values)})")
    as_stored = [one.sql for one in values]
    if word in _OF_TEXTS:
        return number(f"{name}({_listed(as_stored)})")
    if word in _OF_EITHER:
        condition = [one.number for one in values[:1]] if word == "iif" else []
        return one_of(values[len(condition) :], lambda results: f"{name}({_listed(condition + results)})")
    if word == "nullif" and len(values) == 2:
        equal = compare(values[0], "=", values[1]).sql
        return one_of(values[:1], lambda results: f"(CASE WHEN {equal} THEN NULL ELSE {results[0]} END)")
    return stored(f"{name}({_listed(as_stored)})")


def one_of(values: Sequence[Value], made: Callable[[list[str]], str]) -> Value:
    """What returns one of ``values``: ``made`` writes it, of them as they are stored and as numbers."""
    kinds = {one.kind for one in values}
    kind = kinds.pop() if len(kinds) == 1 else "stored"
    return Value(made([one.sql for one in values]), made([one.number for one in values]), kind)


def _listed(parts: Iterable[str]) -> str:
    return ", ".join(parts)
