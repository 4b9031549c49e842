"""oneDNN's products give the vectors of AVX-512 VNNI to the bit: alone, in batches, on threads, after a fork."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embedkit import _core

SCRIPT = """
import multiprocessing, sys
import numpy as np
from embedkit import Encoder, active_isa
assert active_isa() == sys.argv[1]
texts = ["", "the", *(" ".join(["people made water over time"] * n) for n in (1, 2, 3, 7, 9, 20, 40))] * 9
encoder = Encoder(threads=1)
vectors = encoder.encode(texts)
np.testing.assert_array_equal(Encoder(threads=2).encode(texts), vectors)
np.testing.assert_array_equal(np.stack([encoder.encode(text) for text in texts]), vectors)
with multiprocessing.get_context("fork").Pool(2) as pool:
    for copy in pool.map(encoder.encode, [texts, texts]):
        np.testing.assert_array_equal(copy, vectors)
np.save(sys.argv[2], vectors)
"""


def vectors(isa: str, folder: Path) -> np.ndarray:
    file = folder / f"{isa}.npy"
    environment = {**os.environ, "EMBEDKIT_ISA": isa}
    command = [sys.executable, "-c", SCRIPT, isa, str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return np.load(file)


def test_vectors_are_those_of_avx512(tmp_path: Path) -> None:
    np.testing.assert_array_equal(vectors("onednn", tmp_path), vectors("avx512_vnni", tmp_path))


def test_it_is_chosen_for_amx_alone() -> None:
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    best = _core.available_isas()[-1]
    assert best == ("onednn" if "amx_int8" in flags.split() else "avx512_vnni")


def test_unknown_names_list_it() -> None:
    with pytest.raises(ValueError, match="onednn"):
        _core.measure_kernel("int8_linear", 1, 1, 1, isa="sse9")
