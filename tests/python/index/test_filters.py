"""Conditions as dictionaries and membership in arrays, against a plain Python implementation of Chroma's rules."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_encoder import FakeEncoder
from hypothesis import given, settings
from hypothesis import strategies as st

from embedkit import Document as TopLevelDocument
from embedkit.index import Document, Index
from embedkit.index.storage.filters import condition_of
from embedkit.index.storage.where import compile_where

RECORDS: list[dict[str, Any]] = [
    {"lang": "en", "year": 2019, "tags": ["a", "b"], "ok": True},
    {"lang": "de", "year": 2021, "tags": ["b"], "ok": False},
    {"lang": "it's", "year": 2021.5, "tags": []},
    {"year": -3, "tags": [1, 2, -3]},
    {"lang": "en", "odd name.x": "y", "nested": {"list": ["deep"]}},
    {},
    {"lang": None, "year": 0, "tags": ["c", "a", True]},
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    documents = [Document(f"text {at}", str(at), fields) for at, fields in enumerate(RECORDS)]
    return Index.build(tmp_path_factory.mktemp("filters") / "index", documents, FakeEncoder())


def found(index: Index, where: Any) -> list[int]:
    return sorted(int(hit.id) for hit in index.search("text", k=len(RECORDS), where=where)[0])


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def holds(record: dict[str, Any], where: dict[str, Any]) -> bool:
    """Chroma's rules, as far as they are defined."""
    for key, value in where.items():
        if key == "$and":
            good = all(holds(record, one) for one in value)
        elif key == "$or":
            good = any(holds(record, one) for one in value)
        else:
            tests = value if isinstance(value, dict) else {"$eq": value}
            good = all(test(record.get(key), name, wanted) for name, wanted in tests.items())
        if not good:
            return False
    return True


def test(own: Any, name: str, wanted: Any) -> bool:
    if name == "$eq":
        return bool(own == wanted)
    if name == "$ne":
        return bool(own != wanted)
    if name in ("$in", "$nin"):
        return (own in wanted) == (name == "$in")
    if name in ("$contains", "$not_contains"):
        inside = own == wanted or (isinstance(own, list) and wanted in own)
        return inside == (name == "$contains")
    number = isinstance(own, (int, float)) and isinstance(wanted, (int, float))
    text = isinstance(own, str) and isinstance(wanted, str)
    return (number or text) and COMPARE[name](own, wanted)


test.__test__ = False  # type: ignore[attr-defined]

VALUES = st.sampled_from(["en", "de", "it's", "zz", "", "a"])
NUMBERS = st.sampled_from([2019, 2021, 2021.5, -3, 0, 1e20])
LEAVES = st.one_of(
    st.fixed_dictionaries({"lang": VALUES}),
    st.builds(
        lambda name, value: {"lang": {name: value}}, st.sampled_from(["$eq", "$ne", "$gt", "$lte"]), VALUES
    ),
    st.builds(
        lambda name, value: {"year": {name: value}}, st.sampled_from(["$eq", "$ne", *COMPARE]), NUMBERS
    ),
    st.builds(
        lambda name, value: {"lang": {name: value}}, st.sampled_from(["$in", "$nin"]), st.lists(VALUES)
    ),
    st.builds(
        lambda name, value: {"year": {name: value}}, st.sampled_from(["$in", "$nin"]), st.lists(NUMBERS)
    ),
    st.builds(
        lambda name, value: {"tags": {name: value}},
        st.sampled_from(["$contains", "$not_contains"]),
        st.sampled_from(["a", "b", "zz", 2, -3]),
    ),
    st.builds(  # texts are neither less nor greater than numbers
        lambda name, value: {"year": {name: value}},
        st.sampled_from([*COMPARE]),
        st.sampled_from(["2000", "a", ""]),
    ),
    st.builds(lambda name, value: {"lang": {name: value}}, st.sampled_from([*COMPARE]), NUMBERS),
    st.builds(lambda low, high: {"year": {"$gte": low, "$lt": high}}, NUMBERS, NUMBERS),
)
WHERES = st.recursive(
    LEAVES,
    lambda inner: st.builds(
        lambda name, parts: {name: parts},
        st.sampled_from(["$and", "$or"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(where=WHERES)
def test_a_dict_finds_what_chroma_would(index: Index, where: dict[str, Any]) -> None:
    assert found(index, where) == [at for at, record in enumerate(RECORDS) if holds(record, where)], (
        condition_of(where)
    )


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"ok": True}, [0]),
        ({"ok": {"$ne": True}}, [1, 2, 3, 4, 5, 6]),
        ({"odd name.x": "y"}, [4]),
        ({"lang": None}, [3, 5, 6]),
        ({"lang": {"$ne": None}}, [0, 1, 2, 4]),
        ({"lang": {"$in": []}}, []),
        ({"lang": {"$nin": ()}}, [0, 1, 2, 3, 4, 5, 6]),
        ({"year": {"$in": ["x", 2019]}}, [0]),
        ({"year": np.int64(2021)}, [1]),
        ({"lang": "en", "year": 2019}, [0]),
        ("'a' in tags", [0, 6]),
        ("'a' not in tags", [1, 2, 3, 4, 5]),
        ("not 'a' in tags and lang is not null", [1, 2, 4]),
        ("2 in tags or -3 in tags", [3]),
        ("-3 not in tags and year < 0", []),
        ("'deep' in nested.list", [4]),
        ("'en' in lang", [0, 4]),
        ("""'a' in "tags" """, [0, 6]),
        ("('a' in tags) = ('b' in tags)", [0, 2, 3, 4, 5]),
    ],
    ids=str,
)
def test_conditions(index: Index, where: Any, expected: list[int]) -> None:
    assert found(index, where) == expected


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({}, "the condition is empty"),
        ({"lang": {}}, "on the field 'lang' is empty"),
        (
            {"lang": {"$like": "x"}},
            r"unknown operator '\$like' of the field 'lang'; expected one of \$eq, .*\$contains",
        ),
        ({"$not": [{"a": 1}]}, r"unknown operator '\$not'"),
        ({"$and": {"a": 1}}, r"\$and takes a list of dicts"),
        ({"$or": []}, r"\$or takes a list of dicts"),
        ({"$or": [{}]}, "part of the condition is empty"),
        ({1: 2}, "names of fields, not 1"),
        ({"a": ["x"]}, "compared with texts, numbers and booleans"),
        ({"a": float("nan")}, "compared with texts, numbers and booleans"),
        ({"a": {"$gt": None}}, "cannot be compared with None"),
        ({"a": 1 << 63}, "'a' cannot be compared exactly with 9223372036854775808"),
        ({"a": {"$in": "abc"}}, "take a list"),
        ({'a"b': 1}, "quotes and backslashes"),
        ("year - 3 in tags", "parentheses"),
        ("lang = 'a' in tags", "parentheses"),
        ("'a' in text", "not a field of the metadata"),
        ("'a' in", "after in comes a list"),
        ("lang in tags", "after in comes a list"),
    ],
    ids=str,
)
def test_what_cannot_be_understood_is_named(index: Index, where: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        index.search("text", where=where)
    deep: dict[str, Any] = {"a": 1}
    for _ in range(2000):
        deep = {"$and": [deep]}
    with pytest.raises(ValueError, match="nested more than"):
        index.search("text", where=deep)


def test_values_cannot_leave_their_quotes() -> None:
    compiled = compile_where(condition_of({"a": "x' or '1'='1", "b": {"$contains": "y') or 1 --"}}))
    assert "'x'' or ''1''=''1'" in compiled and "'y'') or 1 --'" in compiled


def test_delete_by_a_dict(tmp_path: Path, encoder: FakeEncoder) -> None:
    documents = [TopLevelDocument(f"text {at}", str(at), fields) for at, fields in enumerate(RECORDS)]
    with Index.build(tmp_path / "index", documents, encoder) as index:
        assert index.delete(where={"tags": {"$contains": "b"}}) == 2
        assert "0" not in index and "2" in index and len(index) == 5
        with pytest.raises(ValueError, match="empty"):
            index.delete(where={})
        (hits,) = next(iter(index.search_stream([["text"]], 1, where={"year": 0})))
        assert [hit.id for hit in hits] == ["6"]
        scores, rows = index.search_vectors(encoder.encode_query(["text"]), 9, where={"lang": "en"})
        assert index.ids(rows[0][rows[0] >= 0]) == ["4"]
        assert scores.shape == rows.shape == (1, 5) and (rows[0][1:] == -1).all()
        assert (scores[0][1:] < scores[0][0]).all() and scores.dtype == np.float32
        scores, rows = index.search_vectors(encoder.encode_query(["text"]), 2, where={"lang": "none"})
        assert scores.shape == rows.shape == (1, 2) and (rows == -1).all()


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ({"lang": "x\0y"}, "null character"),
        ({"la\0ng": "x"}, "null character"),
        ("lang = 'x\0y'", "null character"),
        ({"lang": "\ud800"}, "lone surrogate"),
        ("lang = '\ud800'", "lone surrogate"),
        ({"": "x"}, "names of fields"),
    ],
)
def test_conditions_that_are_no_text(index: Index, where: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        index.search("text", where=where)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"x": {"$ne": 1}}, [0, 1, 3, 5, 6]),
        ({"x": {"$nin": [1]}}, [0, 1, 3, 5, 6]),
        ({"x": {"$nin": ["a", 1]}}, [1, 3, 5, 6]),
        ({"x": {"$in": ["a", 1]}}, [0, 2, 4]),
        ("x in (1, 'a')", [0, 2, 4]),
        ("x in ('a', 1)", [0, 2, 4]),
        ("x not in ('a', 1)", [1, 3, 6]),
        ("not \"x\" in (-3, 'b')", [0, 2, 3, 4]),
    ],
    ids=str,
)
def test_a_field_of_texts_and_numbers(tmp_path: Path, where: Any, expected: list[int]) -> None:
    fields: list[dict[str, Any]] = [{"x": value} for value in ("a", "b", 1, 2, "1")] + [{}, {"x": -3}]
    documents = [Document(f"text {at}", str(at), own) for at, own in enumerate(fields)]
    with Index.build(tmp_path / "index", documents, FakeEncoder()) as index:
        assert found(index, where) == expected


def test_the_current_time_is_asked_each_time(index: Index) -> None:
    where = "julianday('now') > 2460000 and year = 2019"
    assert found(index, where) == [0]
    assert index.generation.choose(where) is not index.generation.choose(where)
    assert index.generation.choose("year = 2019") is index.generation.choose("year = 2019")
