"""``--where``: compiles a condition on documents to an SQL expression.

The condition is an SQL expression of SQLite over the fields of a document's metadata::

    lang = 'en' and year > 2019
    author.name like 'A%' or tags is null
    'soup' in tags and 3 not in ratings

A bare name is a field (dots reach into objects), but ``id`` is that of the document and ``text`` its text (in an index
of passages that of the passage); a name in double quotes is always a field of the metadata. A text or number before
``in`` and a field after it asks whether the array in the field holds it.

What is compared or combined with a number is read as one, such as any field of a CSV file; text that is not numeric
matches no number, and is neither true nor false. A number is neither less nor greater than a text. Two fields are
compared as numbers if both hold one.

The condition is parsed and written anew, so only an expression can reach SQLite: no table names, subqueries, comments
or further statements.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NoReturn

from ...inputs import check_unicode
from . import where_values as values
from .where_tokens import FUNCTIONS, OF_TIME, OWN, WORDS, Field, Token, field_of, invalid, tokens_of
from .where_values import Value

__all__ = ["Field", "compile_where", "fields_of", "names_time"]

_MOST_NESTED = 100
_LARGEST = str((1 << 63) - 1)  # integer of SQLite
_MOST_SQL = 1_000_000
"""Characters beside those given. What is compared is written more than once, so nested comparisons grow."""

# how tightly an operator binds, as in SQLite
_OR, _AND, _NOT, _EQUAL, _ORDER, _SUM, _PRODUCT, _CONCAT, _COLLATE, _SIGN = range(10)
_BINDS = {
    "or": _OR,
    "and": _AND,
    **dict.fromkeys(("=", "==", "!=", "<>", "is", "in", "like", "glob", "between"), _EQUAL),
    **dict.fromkeys(("not", "isnull", "notnull"), _EQUAL),
    **dict.fromkeys(("<", "<=", ">", ">="), _ORDER),
    **dict.fromkeys(("+", "-"), _SUM),
    **dict.fromkeys(("*", "/", "%"), _PRODUCT),
    "||": _CONCAT,
    "collate": _COLLATE,
}
_OF_DOCUMENTS = {"id": "key", "text": "text"}
_OF_PASSAGES = {"id": "substr(key, 1, length(rtrim(key, '0123456789')) - 1)", "text": "text"}


def compile_where(where: str, *, passages: bool = False) -> str:
    """Compile the condition ``where`` to an SQL expression over the table ``documents``.

    Args:
        where: the condition.
        passages: the table holds passages, whose keys are the document's id and ``#`` with a number.

    Raises:
        ValueError: the condition is invalid; the message says why and where.
    """
    check_unicode(f"the condition {where[:200]!r}", where)
    if "\0" in where:
        raise invalid(where, where.index("\0"), "a null character, which no condition can hold")
    return _Parser(where, _OF_PASSAGES if passages else _OF_DOCUMENTS).whole().number


def fields_of(where: str) -> list[Field]:
    """The fields of the metadata in a condition that `compile_where` accepts."""
    tokens = tokens_of(where)
    fields: dict[str, Field] = {}
    for token, follower in pairwise(tokens):
        if token.names and token.word not in OWN and (token.kind == "quoted" or follower.text != "("):
            field = field_of(where, token)
            fields.setdefault(field.name, field)
    return list(fields.values())


def names_time(where: str) -> bool:
    """Whether a condition calls a function that can mean the current time, so that its rows change by themselves."""
    return any(
        token.word in OF_TIME and follower.text == "(" for token, follower in pairwise(tokens_of(where))
    )


class _Parser:
    """Reads a condition from left to right."""

    def __init__(self, where: str, own: dict[str, str]) -> None:
        self._where = where
        self._own = own
        self._tokens = tokens_of(where)
        self._at = 0
        self._depth = 0

    def whole(self) -> Value:
        if self._next.kind == "end":
            raise ValueError("the condition is empty; expected e.g. \"lang = 'en' and year > 2019\"")
        value = self._expression(_OR)
        if self._next.kind != "end":
            self._unexpected()
        return value

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._next
        self._at += 1
        return token

    def _takes(self, word: str) -> bool:
        """Take the next token if it is ``word``."""
        found = self._next.word == word
        self._at += found
        return found

    def _expect(self, word: str) -> None:
        if not self._takes(word):
            self._unexpected()

    def _unexpected(self) -> NoReturn:
        token = self._next
        before = [one.word for one in self._tokens[: self._at]]
        opened = before.count("(") > before.count(")")
        problem = f"unexpected {token.text[:50]}"
        if token.kind == "end":
            problem = "a ( is never closed" if opened else "it is incomplete"
        elif token.word == ")" and not opened:
            problem = "unmatched )"
        elif self._is_misnamed():
            problem += (
                """; a field of several words, or named like a keyword, is written "in double quotes\""""
            )
        raise invalid(self._where, token.column, problem)

    def _is_misnamed(self) -> bool:
        """Whether what is unexpected looks like a field whose name needs quotes."""
        before, token = self._tokens[self._at - 1 : self._at], self._next
        if token.kind == "compare":
            return any(one.word in WORDS for one in before)
        named = any(one.kind == "name" for one in before) or self._tokens[self._at + 1].kind == "compare"
        return token.kind == "name" and named

    def _expression(self, least: int) -> Value:
        """What follows, up to an operator that binds less tightly than ``least``."""
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise invalid(self._where, self._next.column, "it is nested too deeply; simplify it")
        begin = self._at
        value = self._bounded(self._operand())
        while (binds := _BINDS.get(self._next.word, -1)) >= least:
            value = self._bounded(self._operated(value, self._take().word, binds, begin))
        self._depth -= 1
        return value

    def _bounded(self, value: Value) -> Value:
        """``value``, if it is not too long."""
        if max(len(value.sql), len(value.number)) > _MOST_SQL + 2 * len(self._where):
            raise invalid(
                self._where, self._next.column, "its comparisons are nested too deeply; simplify it"
            )
        return value

    def _operand(self) -> Value:
        token = self._take()
        word = token.word
        if token.kind == "string":
            return values.text(token.text)
        digits = token.text.lstrip("0") if token.kind == "number" and token.text.isdecimal() else ""
        if len(digits) > len(_LARGEST) or (len(digits) == len(_LARGEST) and digits > _LARGEST):
            raise invalid(
                self._where,
                token.column,
                f"{token.text:.40} has more than 64 bits, and would be compared inexactly; compare texts: "
                f"'{token.text:.40}'",
            )
        if token.kind == "number" or word in ("true", "false"):
            return values.number(token.text)
        if word == "null":
            return values.text(word)
        if word == "not":
            return values.number(f"(NOT {self._expression(_NOT).number})")
        if word == "-":
            return values.number(f"- {self._expression(_SIGN).number}")
        if word == "+":
            return self._expression(_SIGN)
        if word == "(":
            value = self._expression(_OR)
            self._expect(")")
            return values.one_of([value], lambda inner: f"({inner[0]})")
        if word == "case":
            return self._case()
        if token.kind == "name" and self._next.word == "(":
            return self._call(token)
        if word in self._own:
            return values.stored(self._own[word])
        if token.names:
            return values.stored(field_of(self._where, token).sql)
        self._at -= 1
        self._unexpected()

    def _call(self, token: Token) -> Value:
        if token.word not in FUNCTIONS:
            known = ", ".join(sorted(FUNCTIONS))
            problem = f"unknown function {token.text}; available functions: {known}"
            raise invalid(self._where, token.column, problem)
        return values.call(token.text, self._list())

    def _list(self) -> list[Value]:
        """Values in parentheses."""
        self._expect("(")
        several: list[Value] = []
        if self._takes(")"):
            return several
        several.append(self._expression(_OR))
        while self._takes(","):
            several.append(self._expression(_OR))
        self._expect(")")
        return several

    def _case(self) -> Value:
        base = None if self._next.word == "when" else self._expression(_OR)
        conditions: list[str] = []
        results: list[Value] = []
        self._expect("when")
        while True:
            case = self._expression(_OR)
            conditions.append(case.number if base is None else values.compare(base, "=", case).sql)
            self._expect("then")
            results.append(self._expression(_OR))
            if not self._takes("when"):
                break
        if self._takes("else"):
            results.append(self._expression(_OR))
        self._expect("end")

        def made(texts: list[str]) -> str:
            cases = " ".join(f"WHEN {one} THEN {then}" for one, then in zip(conditions, texts, strict=False))
            other = f" ELSE {texts[-1]}" if len(texts) > len(conditions) else ""
            return f"(CASE {cases}{other} END)"

        return values.one_of(results, made)

    def _operated(self, left: Value, word: str, binds: int, begin: int) -> Value:
        """``left`` with the operator ``word``, which was taken, and what follows it; ``begin``: where it began."""
        if binds in (_OR, _AND):
            return values.number(f"{left.number} {word.upper()} {self._expression(binds + 1).number}")
        if binds in (_SUM, _PRODUCT):
            return values.number(f"{left.number} {word} {self._expression(binds + 1).number}")
        if word == "||":
            return values.stored(f"{left.sql} || {self._expression(binds + 1).sql}")
        if word == "collate":
            self._expect("nocase")
            return Value(f"{left.sql} COLLATE nocase", left.number, left.kind)
        if word in ("isnull", "notnull"):
            return values.number(f"({left.sql} {word})")
        if word == "is":
            sign = "IS NOT" if self._takes("not") else "IS"
            return values.compare(left, sign, self._expression(binds + 1))
        if word != "not":
            return self._tested(left, word, binds, begin)
        if self._takes("null"):
            return values.number(f"({left.sql} NOT NULL)")
        if self._next.word not in ("between", "in", "like", "glob"):
            self._unexpected()
        return values.number(f"(NOT {self._tested(left, self._take().word, binds, begin).sql})")

    def _tested(self, left: Value, word: str, binds: int, begin: int) -> Value:
        """``left`` with an operator that may have ``not`` before it."""
        if word == "in":
            if self._next.word == "(":
                return values.among(left, self._list())
            return self._within(left, begin)
        right = self._expression(binds + 1)
        if word == "between":
            self._expect("and")
            return values.between(left, right, self._expression(binds + 1))
        if word in ("like", "glob"):
            escape = f" ESCAPE {self._expression(binds + 1).sql}" if self._takes("escape") else ""
            return values.number(f"({left.sql} {word} {right.sql}{escape})")
        return values.compare(left, word, right)

    def _within(self, sought: Value, begin: int) -> Value:
        """Whether the literal ``sought``, which began at ``begin``, is in the array of the field that follows."""
        place = self._at - 1  # of "in"
        before = self._tokens[begin : place - (self._tokens[place - 1].word == "not")]
        literal = before[-1].kind in ("string", "number") or before[-1].word in ("true", "false")
        field = self._take()
        if not literal or not field.names or self._next.text == "(":
            raise invalid(
                self._where,
                self._tokens[place].column,
                "after in comes a list, such as lang in ('en', 'de'), or before it a text, such as 'a' in tags",
            )
        if len(before) > 1 and not (len(before) == 2 and before[0].word in ("-", "+")):
            raise invalid(self._where, before[-1].column, "put what is looked for in an array in parentheses")
        if field.word in OWN:
            problem = f"{field.text} is not a field of the metadata that could be an array"
            raise invalid(self._where, field.column, problem)
        read = field_of(self._where, field).sql.replace("json_extract(", "json_each(", 1)
        same = values.compare(values.stored("item.value"), "=", sought).sql
        return values.number(f"EXISTS (SELECT 1 FROM {read} AS item WHERE {same})")
