"""Windows of bounded size, of lists and of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from embedkit import inputs
from embedkit.inputs import windows


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
