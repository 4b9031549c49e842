"""What the documentation says of precisions holds in the results: STS and cosines of bf16 and int8 beside fp32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

#: Points of the average of seven sets (Spearman x 100).
BOUNDS = {"bf16": 0.02, "int8": 0.10}
FOLDER = Path(__file__).resolve().parents[3] / "benchmarks" / "results"
RESULTS = ("sts-precision.json", "sts-precision-amx.json", "sts-precision-avx2.json")


def averages(name: str) -> dict[tuple[str, str], float]:
    rows: list[dict[str, Any]] = json.loads((FOLDER / name).read_text())["rows"]
    return {(row["model"], row["precision"]): row["sts"]["average"] for row in rows}


@pytest.mark.parametrize("name", RESULTS)
def test_sts_is_that_of_fp32(name: str) -> None:
    found = averages(name)
    compared = [(model, precision) for model, precision in found if precision != "fp32"]
    assert compared
    for model, precision in compared:
        assert abs(found[model, precision] - found[model, "fp32"]) <= BOUNDS[precision], (model, precision)


def lowest_cosine(model: str, isa: str, precision: str) -> float:
    """As docs/encode.md and docs/reliability.md have it."""
    if precision == "bf16":
        return 0.9999
    return 0.996 if (model, isa) == ("bert-base-uncased", "avx2") else 0.998


@pytest.mark.parametrize(
    "name", [path.name for path in sorted(FOLDER.glob("cpu-*.json")) if not path.stem.endswith("-profile")]
)
def test_cosine_is_at_least_what_the_pages_say(name: str) -> None:
    result = json.loads((FOLDER / name).read_text())
    for case in result.get("cases", [result]):
        for row in case["rows"]:
            if row.get("precision") in ("bf16", "int8") and row["name"].startswith("embedkit "):
                assert row["cosine"] >= lowest_cosine(case["model"], case["isa"], row["precision"]), row[
                    "name"
                ]
