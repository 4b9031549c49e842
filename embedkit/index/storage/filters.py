"""Conditions as dictionaries, with the operators of Chroma: ``{"lang": "en", "year": {"$gt": 2019}}``.

They become conditions in the form of `where`, so that there is one language that reaches SQLite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["Where", "condition_of", "equal"]

Where = str | Mapping[str, Any]
"""A condition on documents: an expression (`where`), or a dictionary."""

_COMPARISONS = {"$eq": "=", "$ne": "!=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_OTHERS = ("$in", "$nin", "$contains", "$not_contains")
_MOST_NESTED = 50
_EXAMPLES = "\"lang = 'en'\" or {'lang': 'en', 'year': {'$gt': 2019}}"


def condition_of(where: object) -> str:
    """The condition ``where`` as an expression.

    A dictionary holds fields with a value, or with operators: ``$eq``, ``$ne``, ``$gt``, ``$gte``, ``$lt``, ``$lte``,
    ``$in``, ``$nin`` (with a list), ``$contains`` and ``$not_contains`` (of a field that is an array); and ``$and`` and
    ``$or`` with a list of dictionaries. All must hold. As in Chroma, a field is a name as it is written, and ``$ne``,
    ``$nin`` and ``$not_contains`` also match documents without the field.

    Raises:
        TypeError: it is neither a string nor a dictionary.
        ValueError: the dictionary cannot be understood; the message says where.
    """
    if isinstance(where, str):
        return where
    if not isinstance(where, Mapping):
        raise TypeError(
            f"a condition (where) is a string or a dict, e.g. {_EXAMPLES}, not {type(where).__name__}"
        )
    if not where:
        raise ValueError(f"the condition is empty; expected e.g. {_EXAMPLES}")
    return _all(where, 1)


def equal(key: str, value: object) -> str:
    """The condition that the field ``key`` has ``value``; ``None``: that it has none."""
    return _compare(key, _quoted(key), "$eq", value)


def _quoted(key: str) -> str:
    return '"' + key.replace('"', '""') + '"'


def _all(where: Mapping[Any, Any], depth: int) -> str:
    if depth > _MOST_NESTED:
        raise ValueError(f"the condition is nested more than {_MOST_NESTED} deep")
    if not where:
        raise ValueError("a part of the condition is empty: {}")
    return " and ".join(f"({_one(key, value, depth)})" for key, value in where.items())


def _one(key: object, value: object, depth: int) -> str:
    if not isinstance(key, str) or not key:
        raise ValueError(f"the keys of a condition are names of fields, not {key!r:.80}")
    if key in ("$and", "$or"):
        if (
            not isinstance(value, (list, tuple))
            or not value
            or not all(isinstance(one, Mapping) for one in value)
        ):
            raise ValueError(f"{key} takes a list of dicts, not {value!r:.80}")
        return f" {key[1:]} ".join(f"({_all(one, depth + 1)})" for one in value)
    if key.startswith("$"):
        raise ValueError(
            f"unknown operator {key!r:.80}; the dicts of $and and $or hold fields, and fields operators"
        )
    field = _quoted(key)
    if not isinstance(value, Mapping):
        return _compare(key, field, "$eq", value)
    if not value:
        raise ValueError(f"the condition on the field {key!r} is empty: {{}}")
    return " and ".join(f"({_compare(key, field, operator, one)})" for operator, one in value.items())


def _compare(key: str, field: str, operator: object, value: Any) -> str:
    if operator in ("$in", "$nin"):
        return _among(key, field, value, negated=operator == "$nin")
    if operator in ("$contains", "$not_contains"):
        inverted = "not " if operator == "$not_contains" else ""
        return f"{_literal(key, value)} {inverted}in {field}"
    if not isinstance(operator, str) or operator not in _COMPARISONS:
        known = ", ".join((*_COMPARISONS, *_OTHERS))
        raise ValueError(f"unknown operator {operator!r:.80} of the field {key!r}; expected one of {known}")
    if value is None:
        if operator not in ("$eq", "$ne"):
            raise ValueError(f"the field {key!r} cannot be compared with None by {operator}")
        return f"{field} is {'not ' if operator == '$ne' else ''}null"
    if operator == "$ne":  # a text compared with a number is null, as is a field that is missing
        return f"not coalesce({field} = {_literal(key, value)}, false)"
    return f"{field} {_COMPARISONS[operator]} {_literal(key, value)}"


def _among(key: str, field: str, values: object, *, negated: bool) -> str:
    if not isinstance(values, (list, tuple, set, frozenset)):
        raise ValueError(f"$in and $nin of the field {key!r} take a list, not {values!r:.80}")
    numbers = [_literal(key, value) for value in values if not isinstance(value, str)]
    texts = [_literal(key, value) for value in values if isinstance(value, str)]
    # a field that is compared with a number is read as one, so each kind has a list of its own
    lists = [f"{field} in ({', '.join(some)})" for some in (numbers, texts) if some]
    if not lists:
        return "true" if negated else "false"
    found = " or ".join(lists)
    return f"not coalesce({found}, false)" if negated else found


def _literal(key: str, value: object) -> str:
    item = getattr(value, "item", None)  # a scalar of numpy
    if callable(item) and getattr(value, "shape", None) == ():
        value = item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, int) and not -(1 << 63) < value < 1 << 63:
        raise ValueError(
            f"the field {key!r} cannot be compared exactly with {value!r:.40}, which has more than 64 bits; use texts"
        )
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    raise ValueError(
        f"the field {key!r} can be compared with texts, numbers and booleans, not with {value!r:.80}"
    )
