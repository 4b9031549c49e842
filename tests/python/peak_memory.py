"""The peak memory of a process that a test starts."""

from pathlib import Path

import pytest

PEAK_KIB = 'int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])'
"""Evaluated in that process. ``ru_maxrss`` would start at the size of the process that forked it: pytest's."""

needs_peak = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="this system does not report the peak memory of a process"
)
