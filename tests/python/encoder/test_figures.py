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
texts = (f"question {{i}}" for i in range(20_000))
assert sum(len(block) for block in Encoder(threads=2).encode_iter(texts)) == 20_000
print({PEAK_KIB})
"""
    command = [sys.executable, "-c", script]
    kib = int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)
    assert kib * 1024 <= 200_000_000


def test_start_to_first_vector() -> None:
    own, usual = "from embedkit import Encoder; Encoder().encode('a text')", "import numpy"
    seconds: dict[str, list[float]] = {own: [], usual: []}

    def late() -> bool:  # a slow machine takes as long for what everybody imports
        return min(seconds[own]) > max(0.6, 4 * min(seconds[usual]))

    while len(seconds[own]) < 5 or (late() and len(seconds[own]) < 20):  # more on a busy machine
        for script, taken in seconds.items():
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
            taken.append(time.perf_counter() - begin)
    assert not late(), seconds
