"""Time and memory of a new process with the built-in model."""

from __future__ import annotations

import subprocess
import sys
import time

from peak_memory import PEAK_KIB, needs_peak


@needs_peak
def test_peak_memory_of_a_stream() -> None:
    script = f"""
from embedkit import Encoder
texts = (f"question {{i}}" for i in range(50_000))
assert sum(len(block) for block in Encoder().encode_iter(texts)) == 50_000
print({PEAK_KIB})
"""
    command = [sys.executable, "-c", script]
    kib = int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)
    assert kib * 1024 <= 200_000_000


def test_start_to_first_vector() -> None:
    command = [sys.executable, "-c", "from embedkit import Encoder; Encoder().encode('a text')"]
    seconds: list[float] = []
    while len(seconds) < 5 or (min(seconds) > 0.6 and len(seconds) < 20):  # more on a busy machine
        begin = time.perf_counter()
        subprocess.run(command, check=True, timeout=60)
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) <= 0.6, seconds
