"""The load benchmark runs, measures no other server than its own, and leaves none behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
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


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_server_that_runs_already_is_not_measured() -> None:
    import serve

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(SystemExit, match=f"answers at port {port} already"),
            serve.serving([sys.executable, "-c", "pass"], port),
        ):
            pass


def test_a_server_that_ends_at_once_is_named() -> None:
    import serve

    with (
        pytest.raises(SystemExit, match="ended with 3"),
        serve.serving([sys.executable, "-c", "import sys; sys.exit(3)"], 18079),
    ):
        pass


def test_stopped_it_leaves_no_server(tmp_path: Path) -> None:
    port = 18078
    options = ["--seconds", "60", "--runs", "1", "--port", str(port), "--soak", "60"]
    script = [sys.executable, str(BENCHMARKS / "serve.py"), *options, "--output", str(tmp_path / "soak.json")]
    with subprocess.Popen(script, stderr=subprocess.PIPE, text=True) as process:
        for _ in range(600):
            if answers(port):
                break
            time.sleep(0.1)
        process.terminate()
        assert process.stderr is not None
        assert "stopped" in process.stderr.read()
    assert process.returncode == 1
    assert not answers(port)
