"""The suite for a rented GPU, dry: what it finds, converts and runs first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

SUITE = Path(__file__).resolve().parents[3] / "benchmarks" / "gpu_suite.py"


def test_the_smoke_step_on_the_int8_model(tmp_path: Path) -> None:
    command = [sys.executable, str(SUITE), "--dry-run", "--out", str(tmp_path / "out"), "smoke", "memcheck"]
    done = subprocess.run(
        command, env={**os.environ, "PATH": ""}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "=== convert" in done.stdout and "failed" not in done.stdout
    assert "memcheck: left out, there is no compute-sanitizer" in done.stdout
    result = json.loads((tmp_path / "out" / "smoke.json").read_text())
    assert result["checks"] and all(check["good"] for check in result["checks"])
    assert (tmp_path / "out" / "suite.log").read_text() in done.stdout


def test_budgets_on_a_simulated_device(
    make_model: Callable[..., Path], texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpu_budgets
    from eager_device import packed

    from embedkit.backends import packed_stage

    monkeypatch.setattr(packed_stage, "BUDGET", packed_stage.BUDGET)
    folder = make_model()
    rows = gpu_budgets.measure(lambda: packed(folder, budget=None)[0], texts, (256, 512), 1)
    assert [row["budget"] for row in rows] == [256, 512]
    assert rows[0]["batch_memory_mb"] <= rows[1]["batch_memory_mb"]
