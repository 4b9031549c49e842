"""Near and far neighbors against an exhaustive search."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("faiss")
pytest.importorskip("torch")
pytest.importorskip("sklearn")

from embedkit.training import neighbors as module
from embedkit.training.data.readers import Table
from embedkit.training.neighbors import near_and_far
from embedkit.training.objectives.hpd import Hpd, HpdOptions
from embedkit.training.teacher import TeacherOptions


def test_near_and_far_neighbors() -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 8))
    rows = near_and_far(vectors)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)
    assert rows[:, 0].tolist() == list(range(300))
    for text, near, far in rows:
        rank = [int((cosines[text] > cosines[text, other]).sum()) for other in (near, far)]
        same = int((cosines[text] >= 0.97).sum())
        assert rank[0] - same < 5 and 10 - same <= rank[1] < 15
    np.testing.assert_array_equal(near_and_far(vectors), rows)


def test_copies_and_lonely_texts_are_left_out() -> None:
    unit = np.eye(4)[[0, 0, 1, 2]]
    rows = near_and_far(unit)
    assert {0, 1} <= set(rows[:, 0]) and not any({0, 1} <= set(row) for row in rows.tolist())
    assert near_and_far(np.eye(2)).shape == (0, 3)


def test_cells_find_nearly_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).normal(size=(4000, 4))
    exact = near_and_far(vectors)
    monkeypatch.setattr(module, "_EXACT", 100)
    monkeypatch.setattr(module, "_PROBED", 6)
    assert (near_and_far(vectors) == exact).mean() > 0.9


def test_texts_become_groups(make_model: Callable[..., Path], texts: list[str], tmp_path: Path) -> None:
    options = HpdOptions([TeacherOptions(str(make_model()))], mine=True)
    tables = {"t": Table({"text": texts}), "pairs": Table({"a": texts[:3], "b": texts[3:6]})}
    groups = Hpd.expand(options, tables, tmp_path, tmp_path)
    assert groups["pairs"] == tables["pairs"]
    assert groups["t"].names == ("text", "near", "far")
    assert 20 < len(groups["t"]) <= len(texts)  # with random weights most of them look alike
    assert not any(a == b for a, b in zip(groups["t"]["text"], groups["t"]["near"], strict=True))
    again = Hpd.expand(options, tables, tmp_path, tmp_path)
    assert list(again["t"]["far"]) == list(groups["t"]["far"]) and list(tmp_path.glob("related-*.npy"))
