"""The load benchmark runs, and its figures are whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

for _name in ("orjson", "prometheus_client", "starlette", "uvicorn"):
    pytest.importorskip(_name, reason=f"{_name} is not installed: pip install 'embedkit[serve]'")

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def test_a_short_run(tmp_path: Path) -> None:
    output = tmp_path / "serve.json"
    options = ["--seconds", "0.2", "--runs", "1", "--port", "18077", "--output", str(output)]
    subprocess.run(
        [sys.executable, str(BENCHMARKS / "serve.py"), *options],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=300,
    )
    result = json.loads(output.read_text(encoding="utf-8"))
    (rows,) = result["servers"].values()
    assert len(rows) == 7
    for row in rows:
        assert row["texts_per_second"] > 0
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
        assert row["event_loop_cpu_ms_per_request"] >= 0
    assert result["encoder"]["short_texts_per_second"] > 0
