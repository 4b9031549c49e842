"""Windows of bounded size, of lists and of streams."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedkit
from embedkit import Encoder, inputs, paraphrase_mining
from embedkit.inputs import as_pairs, as_texts, windows

PACKAGE = Path(embedkit.__file__).parent


def exceptions() -> list[tuple[str, str]]:
    """Module and name of each class of the package whose base is named as an exception."""
    kind = re.compile(r"^class (\w+)\(.*(?:Error|Exception|Interrupt|Warning)\b", re.MULTILINE)
    return [
        (".".join(("embedkit", *path.relative_to(PACKAGE).with_suffix("").parts)), name)
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in kind.findall(path.read_text(encoding="utf-8"))
    ]


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("of", [list, iter])
def test_windows_hold_all_texts_in_order(
    of: Callable[[Any], Iterable[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MAX_CHARACTERS", 40)
    texts = ["a", "bb" * 30, Text("c"), *["d" * 9] * 11, "", "e"]
    for most in (1, 3, 100):
        found = list(windows(of(texts), most))
        assert [text for window in found for text in window] == texts
        assert max(map(len, found)) <= most
        assert all(len(window) == 1 or sum(map(len, window)) <= 40 for window in found)
    assert list(windows(of([]), 3)) == []
    for bad, message in ((7, r"texts\[5\] is int, not str"), (b"x", r"texts\[5\] is bytes.*decode it first")):
        for most in (2, 3, 100):
            with pytest.raises(TypeError, match=message):
                list(windows(of([*"abcde", bad, "f"]), most))


def test_windows_of_a_list_may_grow() -> None:
    texts = [str(number) for number in range(100)]
    found = list(windows(texts, 40, first=10))
    assert [len(window) for window in found] == [10, 20, 40, 30]
    assert [text for window in found for text in window] == texts
    assert [len(window) for window in windows(texts, 60, first=500)] == [60, 40]
    assert [len(window) for window in windows(texts[:9], 40, first=10)] == [9]


class Table:
    """What pandas, polars and pyarrow have in common: iterating yields no rows."""

    columns = ("a", "b")

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": "one", "b": "two"}, r"got dict: pass its values as a list, e\.g\. list\(d\.values\(\)\)"),
        ({"a", "b"}, "got set: its order is not defined; pass a list"),
        (frozenset("ab"), "got frozenset: its order"),
        (memoryview(b"ab"), "got memoryview"),
        (Table(), "got Table: pass a part of it, e\\.g\\. df"),
    ],
)
def test_collections_without_texts_in_order(values: Any, message: str) -> None:
    encoder = Encoder(threads=1)
    calls: tuple[Callable[[Any], Any], ...] = (encoder.encode, encoder.encode_iter, as_texts, as_pairs)
    for call in calls:
        with pytest.raises(TypeError, match=message):
            call(values)
    with pytest.raises(TypeError, match=message):
        paraphrase_mining(encoder, values)


@pytest.mark.parametrize("pair", [{"a": "one", "b": "two"}, {"a", "b"}])
def test_a_pair_without_order(pair: Any) -> None:
    with pytest.raises(TypeError, match=r"pairs\[0\] is (dict|set), not a pair of texts"):
        as_pairs([pair])


def test_tables_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": ["one", "two"], "b": ["three", "four"]})
    with pytest.raises(TypeError, match=r'got DataFrame: pass a part of it, e\.g\. df\["text"\]'):
        as_texts(table)
    with pytest.raises(
        TypeError, match=r'got DataFrame: pass a part of it, e\.g\. df\[\["a", "b"\]\]\.values'
    ):
        as_pairs(table)
    assert as_texts(table["a"]) == (["one", "two"], False)
    assert as_pairs(table[["a", "b"]].values) == (["one", "two"], ["three", "four"], False)
    assert as_texts({"a": "one"}.values()) == (["one"], False)


@pytest.mark.parametrize(("module", "name"), exceptions())
def test_exceptions_reach_another_process(module: str, name: str) -> None:
    kind = getattr(pytest.importorskip(module), name)
    values: dict[Any, Any] = {"int": 7, "str": "text", "str | None": "one", "bool": True}
    given: dict[str, Any] = {}
    if "__init__" in vars(kind):
        parameters = inspect.signature(kind).parameters.values()
        given = {one.name: values[one.annotation] for one in parameters if one.annotation in values}
    error = kind(**given) if given else kind("text")
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(copied) is kind
        assert (str(copied), copied.args, vars(copied)) == (str(error), error.args, vars(error))
