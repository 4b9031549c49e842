"""What the tables are said to show is what their results show: prose cannot drift from the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("yaml")

from embedkit.training.table import Claim, list_tables, load_table

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "training"


def rows_of(name: str) -> dict[str, Any]:
    content = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return {row["run"]: row for row in content["rows"]}


@pytest.mark.parametrize("name", sorted(list_tables()))
def test_claims_hold(name: str) -> None:
    table = load_table(list_tables()[name])
    if not (RESULTS / f"{name}.json").is_file():
        assert not table.claims, f"{name} claims something and has no results"
        return
    for claim in table.claims:
        assert claim.holds(rows_of(name)), f"{name}: {claim.text}"


def test_a_claim_is_held_to_the_means() -> None:
    rows = {
        key: {"scores": {"x": {"mean": mean, "sd": 9.0}}}
        for key, mean in (("a", 3.0), ("b", 2.0), ("c", 2.0))
    }
    rows["d"] = {"scores": {"x": None}}
    assert Claim("", "x", ["a", "b"]).holds(rows) is True
    assert Claim("", "x", ["b", "a"]).holds(rows) is False
    assert Claim("", "x", ["a", "b", "c"]).holds(rows) is False  # equal is not above
    assert Claim("", "x", ["a", "d"]).holds(rows) is None
    assert Claim("", "x", ["a", "away"]).holds(rows) is None
