"""What the documentation says of precisions holds in the results: STS of bf16 and int8 beside fp32."""

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
