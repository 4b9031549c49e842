"""Conditions on numbers: those that are stored as texts, as all of a CSV file are, are found as numbers are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_encoder import FakeEncoder

from embedkit.index import Document, Index
from embedkit.index.storage.where import compile_where
from embedkit.index.storage.where_tokens import tokens_of

NUMBERS: list[dict[str, Any]] = [
    {"minutes": 9, "cost": 3},
    {"minutes": 30, "cost": 25.5},
    {"minutes": 720, "cost": 800},
    {},
]
TEXTS = [{name: str(value) for name, value in fields.items()} for fields in NUMBERS]
TEXTS[3] = {"minutes": "", "cost": "free"}
IDS = ("1", "20", "100", "3")


@pytest.fixture(scope="module", params=["numbers", "texts"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    fields = NUMBERS if request.param == "numbers" else TEXTS
    documents = [Document(f"text {own}", own, one) for own, one in zip(IDS, fields, strict=True)]
    with Index.build(tmp_path_factory.mktemp("where") / "index", documents, FakeEncoder()) as index:
        yield index


def found(index: Index, where: Any) -> set[str]:
    return {hit.id for hit in index.search("text", k=9, where=where)[0]}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("minutes > 30", "100"),
        ("(minutes) > 30", "100"),
        ("minutes > abs(-30)", "100"),
        ("abs(minutes) > 30", "100"),
        ("round(minutes / 7) = 1", "1"),
        ("-minutes < -29", "20 100"),
        ("minutes + cost > 55", "20 100"),
        ("coalesce(minutes, 9) <= 9", "1 3"),
        ("max(minutes, cost) > 50", "100"),
        ("min(cost, 30) = 3", "1"),
        ("nullif(minutes, 9) > 0", "20 100"),
        ("iif(cost > 5, minutes, cost) < 31", "1 20"),
        ("case when cost > 5 then minutes else cost end < 31", "1 20"),
        ("case minutes when 9 then 1 when 30 then 2 end = 2", "20"),
        ("trim(minutes) = 9", "1"),
        ("minutes collate nocase = 9", "1"),
        ("minutes is 9", "1"),
        ("minutes is not 9", "3 20 100"),
        ("30 < minutes", "100"),
        ("minutes between 9 and 30", "1 20"),
        ("minutes not between 9 and 700", "100"),
        ("minutes in (9, 'x')", "1"),
        ("minutes in (cost, 30)", "20"),
        ("minutes not in (9, 30)", "100"),
        ("9 in minutes", "1"),
        ("minutes > cost", "1 20"),
        ("cost = minutes", ""),
        ("minutes is minutes", "1 3 20 100"),
        ("minutes is not cost", {"numbers": "1 20 100", "texts": "1 3 20 100"}),
        ("(minutes > 30) = true", "100"),
        ("id > 5", "20 100"),
        ("id < 50", "1 3 20"),
        ("id = '20' and id = 20", "20"),
        ({"minutes": {"$in": [True, 9]}}, "1"),
        ({"minutes": {"$in": [9, True]}}, "1"),
        ({"minutes": {"$gt": 9}}, "20 100"),
    ],
    ids=str,
)
def test_numbers_are_compared_as_numbers(
    index: Index, where: Any, expected: Any, request: pytest.FixtureRequest
) -> None:
    kind = request.node.callspec.params["index"]
    own = expected if isinstance(expected, str) else expected[kind]
    assert found(index, where) == set(own.split())


@pytest.mark.parametrize(
    "text", ["1.2.3", "2019-05-03", "12-34", "1e5-3", "", "abc", "5 km", "0x10", "nan", "[1]", "--5", "1e"]
)
def test_text_that_is_not_numeric_matches_no_number(tmp_path: Path, text: str) -> None:
    documents = [Document("a text", "a", {"v": text, "w": 5}), Document("a number", "b", {"v": " 7.0 "})]
    with Index.build(tmp_path / "index", documents, FakeEncoder()) as index:
        assert found(index, "v <= 7 or v > 7 or v + 1 > 0 or v < w or w < v") == {"b"}
        assert found(index, {"v": {"$gte": -1e9}}) == {"b"}


def test_texts_are_compared_as_texts(tmp_path: Path) -> None:
    documents = [
        Document("one", "1", {"a": "x", "b": "y", "n": "007"}),
        Document("two", "2", {"a": "x", "b": "x", "n": "7"}),
        Document("three", "3", {"a": "x", "b": "12", "n": 7}),
    ]
    with Index.build(tmp_path / "index", documents, FakeEncoder()) as index:
        assert found(index, "a < b") == {"1"}
        assert found(index, "a != b") == {"1", "3"}
        assert found(index, "a is b") == {"2"}
        assert found(index, "n = '7'") == {"2"}
        assert found(index, "n = 7") == {"1", "2", "3"}


def test_numbers_are_neither_less_nor_greater_than_texts(tmp_path: Path) -> None:
    documents = [Document("a text", str(n), {"n": n}) for n in range(1, 10)]
    documents += [Document("a text", "t", {"n": "19"}), Document("a text", "u", {"n": "5"})]
    with Index.build(tmp_path / "index", documents, FakeEncoder()) as index:
        assert found(index, "n < '3'") == found(index, "'3' >= n") == {"t"}
        assert found(index, "n between '1' and '2'") == found(index, "n collate nocase < '3'") == {"t"}
        assert found(index, "not n < '3'") == {"u"}
        assert found(index, "n > '3' or n <> '5' and n < 2") == {"u", "1"}
        assert index.delete(where="n < '3'") == 1


def test_text_that_is_not_numeric_is_neither_true_nor_false(tmp_path: Path) -> None:
    values = ["true", "false", "5 km", "1", "0", 1, 0, True, False, None, "", [1]]
    documents = [Document("a text", str(at), {"active": value}) for at, value in enumerate(values)]
    with Index.build(tmp_path / "index", documents, FakeEncoder()) as index:
        yes, no = {"3", "5", "7"}, {"4", "6", "8"}
        for where in ("active", "not not active", "active and id is not null", "case when active then 1 end"):
            assert found(index, where) == yes, where
        assert found(index, "not active") == found(index, "not (active or id is null)") == no
        assert found(index, "iif(active, 1, id = '0')") == {"0", *yes}


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("a =", "character 4: it is incomplete"),
        ("a = (b", r"character 7: a \( is never closed"),
        ("(a = )", r"character 6: unexpected \)"),
        ("a = 1)", r"character 6: unmatched \)"),
        ("a b", "character 3: unexpected b"),
        ("(a, b) = (1, 2)", "character 3: unexpected ,"),
        ("a collate binary", "character 11: unexpected binary"),
        ("case a when 1 end", "character 15: unexpected end"),
        ("a not 5", "character 7: unexpected 5"),
        ("case = 'x'", 'character 6: unexpected =; a field .* is written "in double quotes"'),
        ("when = 'x'", 'character 1: unexpected when; a field .* is written "in double quotes"'),
        ("first name = 'x'", 'character 7: unexpected name; a field .* is written "in double quotes"'),
        ("not " * 101 + "a", "it is nested too deeply"),
        ("nullif(" * 20 + "a" + ", b)" * 20, "its comparisons are nested too deeply"),
        ("id = 9223372036854775808", "character 6: 9223372036854775808 has more than 64 bits"),
        ("a > -" + "9" * 5000, "character 6: 9{40} has more than 64 bits"),
        ("iif(" * 20 + "a" + " > b, a, b)" * 20, "its comparisons are nested too deeply"),
        ("a > ２０", "character 5: ２０ is not written in the digits 0 to 9; write 20"),
        ("a > 1٣.٥ and b", r"character 5: 1٣\.٥ is not written in the digits 0 to 9; write 13\.5"),
        ("a = 1e５", "character 5: unexpected '1'"),
    ],
)
def test_what_is_wrong_is_named(where: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"invalid condition .*{told}"):
        compile_where(where)


def test_names_in_scripts_with_combining_marks(tmp_path: Path) -> None:
    fields = {"शीर्षक": "ä", "größe": {"gro\u0308ße": 7}, "ชื่อ": ["ที่"]}
    with Index.build(tmp_path / "index", [Document("text", "a", fields), "b"], FakeEncoder()) as index:
        for where in ("शीर्षक = 'ä'", "größe.gro\u0308ße > 6", "'ที่' in ชื่อ", "शीर्षक not in ('a\u0308')"):
            assert found(index, where) == {"a"}, where
        assert found(index, "शीर्षक = 'a\u0308'") == set()


def test_a_long_string_takes_no_memory_for_each_character() -> None:
    letters = 500_000
    for where in (f"a = '{'x' * letters}'", f'"{"x" * letters}" = 1'):
        tracemalloc.start()
        tokens = tokens_of(where)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(tokens) == 4
        assert peak < 8 * letters


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("'it''s' ''", ["'it''s'", "''"]),
        ("'a' 'b'''", ["'a'", "'b'''"]),
        ('"a""b" """"', ['"a""b"', '""""']),
    ],
)
def test_quotes_within_quotes(where: str, words: list[str]) -> None:
    assert [token.text for token in tokens_of(where)[:-1]] == words


@pytest.mark.parametrize("where", ["'", "'a''", '""', '"""', '"a'])
def test_quotes_that_do_not_end(where: str) -> None:
    with pytest.raises(ValueError, match="invalid condition"):
        tokens_of(where)


def test_long_conditions_are_compiled(index: Index) -> None:
    several = ", ".join(map(str, range(31, 5_000)))
    assert found(index, f"minutes in ({several})") == {"100"}
    assert found(index, " and ".join(["minutes > 30"] * 900)) == {"100"}


def test_conditions_are_checked_where_no_document_is(tmp_path: Path) -> None:
    with Index.build(tmp_path / "index", ["a text"], FakeEncoder()) as index:
        index.delete(where="id is not null")
        for where in ("minutes = (", {"minutes": {"$near": 3}}):
            with pytest.raises(ValueError, match=r"condition|near"):
                found(index, where)
