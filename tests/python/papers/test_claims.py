"""What the tables are said to show is what their results show: prose cannot drift from the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("yaml")

from papers.table import Claim, collect, list_tables, load_table

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "training"


CLAIMS = [
    pytest.param(name, claim, id=f"{name}-{number}")
    for name, path in sorted(list_tables().items())
    for number, claim in enumerate(load_table(path).claims)
]


def rows_of(name: str) -> dict[str, Any]:
    """The measured rows."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {row["run"]: row for row in rows}


@pytest.mark.parametrize(("name", "claim"), CLAIMS)
def test_a_claim_holds(name: str, claim: Claim) -> None:
    holds = claim.holds(rows_of(name))
    if holds is None:
        pytest.skip("not run yet")
    assert holds, f"{name}: {claim.text} ({claim.column}: {', '.join(claim.order)})"


@pytest.mark.parametrize("name", sorted(list_tables()))
def test_results_are_what_the_table_makes_of_its_runs(name: str, tmp_path: Path) -> None:
    """A table that was edited is collected again: ``python benchmarks/training.py TABLE --collect``."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        pytest.skip("not run yet")
    held = json.loads(path.read_text(encoding="utf-8"))
    again = collect(load_table(list_tables()[name]), tmp_path, held["runs"])
    assert {key: held[key] for key in ("title", "note", "rows")} == {
        key: again[key] for key in ("title", "note", "rows")
    }
    held_claims, claims = (
        [
            (claim["text"], [round(step["difference"], 6) for step in claim["differences"]])
            for claim in one["claims"]
        ]
        for one in (held, again)
    )
    assert held_claims == claims


@pytest.mark.parametrize("name", sorted(list_tables()))
def test_a_claim_holds_over_the_seeds_that_both_runs_have(name: str) -> None:
    """It is held to the means of all seeds, and published with the difference over the common ones."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        pytest.skip("not run yet")
    told = json.loads(path.read_text(encoding="utf-8"))["claims"]
    for claim, published in zip(load_table(list_tables()[name]).claims, told, strict=True):
        for step in published["differences"]:
            assert step["difference"] > 0 and step["difference"] >= claim.by, f"{claim.text}: {step}"


@pytest.mark.parametrize("run", ["simcse", "projection", "bert-simcse", "bert-projection"])
def test_baselines_of_hpd_learn_at_their_best_rate(run: str) -> None:
    """By the dev scores of hpd-rates."""
    prefix = "training.learning_rate="
    (used,) = (
        text.removeprefix(prefix)
        for text in load_table(list_tables()["hpd-main"]).runs[run].set
        if text.startswith(prefix)
    )
    rates = [key for key in load_table(list_tables()["hpd-rates"]).runs if key.startswith(f"{run}-")]
    assert f"{run}-{used}" in rates
    rows = {run: row for run, row in rows_of("hpd-rates").items() if row["seeds"] == row["of"]}
    if not rows.keys() >= set(rates):
        pytest.skip("not run yet")
    scores = {key: rows[key]["scores"]["STS-B dev"]["mean"] for key in rates}
    assert max(scores, key=scores.__getitem__) == f"{run}-{used}", scores


def test_a_claim_is_held_to_the_means() -> None:
    rows = {
        key: {"scores": {"x": {"mean": mean, "sd": 9.0}}}
        for key, mean in (("a", 3.0), ("b", 2.0), ("c", 2.0))
    }
    rows["d"] = {"scores": {"x": None}}
    assert Claim("", "x", ["a", "b"]).holds(rows) is True
    assert Claim("", "x", ["b", "a"]).holds(rows) is False
    assert Claim("", "x", ["a", "b", "c"]).holds(rows) is False  # equal is not above
    assert Claim("", "x", ["a", "b"], by=1.0).holds(rows) is True
    assert Claim("", "x", ["a", "b"], by=1.1).holds(rows) is False
    assert Claim("", "x", ["a", "d"]).holds(rows) is None
    assert Claim("", "x", ["a", "away"]).holds(rows) is None
