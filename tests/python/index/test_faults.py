"""A disk that fails at any of its writes: the index is as it was, or changed, and the error says which."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
STEP = 3  # every third write; 1 takes three times as long


@pytest.mark.skipif(
    sys.platform != "linux" or "LD_PRELOAD" in os.environ, reason="loads a library before libc"
)
def test_a_fault_at_each_write_of_each_change(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path / "failing_disk.so"
    source = HERE / "failing_disk.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", str(source), "-o", str(library), "-ldl"], check=True)
    swept = subprocess.run(
        [sys.executable, str(HERE / "sweep_faults.py"), str(library), str(tmp_path), str(STEP)],
        env=os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": str(HERE.parent)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert swept.returncode == 0, swept.stderr[-3000:]
    *wrong, faults = swept.stdout.splitlines()
    assert not wrong, wrong[:3]
    assert int(faults) > 400 / STEP
