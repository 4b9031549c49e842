"""Every instruction set of this machine, forced in a separate process, against transformers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embedkit import _core

SHAPES = [
    {"hidden": 32, "heads": 4, "intermediate": 64},
    {"hidden": 40, "heads": 4, "intermediate": 72, "layers": 1, "max_positions": 17},
    {"hidden": 312, "heads": 12, "intermediate": 1200, "layers": 1, "pooling": "cls"},
    {"hidden": 26, "heads": 1, "intermediate": 31, "pooling": "max", "normalize": True},
    {"hidden": 384, "heads": 12, "intermediate": 1536, "layers": 1, "normalize": True},
]
TEXTS = [
    "",
    "the",
    "the weather is lovely today",
    "über naïve café 東京 привет",
    *(" ".join(["people made water over time"] * n) for n in (2, 3, 7, 9)),
]
SCRIPT = """
import json, sys, warnings
import numpy as np
from embedkit import Encoder, active_isa
warnings.simplefilter("ignore")
folders, texts, out = json.loads(sys.argv[1])
assert active_isa() == sys.argv[2]
for i, folder in enumerate(folders):
    for precision in ("fp32", "int8"):
        for threads in (1, 2):
            encoder = Encoder(folder, precision=precision, threads=threads)
            np.save(f"{out}/{i}-{precision}-{threads}.npy", encoder.encode(texts, normalize_embeddings=True))
"""


def run(isa: str, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "EMBEDKIT_ISA": isa}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def expected(make_model: Callable[..., Path]) -> list[tuple[Path, np.ndarray]]:
    transformer = pytest.importorskip("sentence_transformers").SentenceTransformer
    folders = [make_model(**shape) for shape in SHAPES]
    return [
        (folder, transformer(str(folder), device="cpu").encode(TEXTS, normalize_embeddings=True))
        for folder in folders
    ]


@pytest.mark.parametrize("isa", _core.available_isas())
def test_vectors(isa: str, expected: list[tuple[Path, np.ndarray]], tmp_path: Path) -> None:
    folders = [str(folder) for folder, _ in expected]
    done = run(isa, SCRIPT, json.dumps([folders, TEXTS, str(tmp_path)]), isa)
    assert done.returncode == 0, done.stderr
    for i, (_, reference) in enumerate(expected):
        fp32 = np.load(tmp_path / f"{i}-fp32-1.npy")
        assert np.abs(fp32 - reference).max() <= 2e-6, SHAPES[i]
        assert (fp32.astype(np.float64) * reference).sum(axis=1).min() >= 0.999999, SHAPES[i]
        int8 = np.load(tmp_path / f"{i}-int8-1.npy")
        # Random weights are harder on eight bits than trained ones (test_real_models.py holds those).
        assert (int8 * reference).sum(axis=1).mean() >= 0.99, SHAPES[i]
        for precision, alone in (("fp32", fp32), ("int8", int8)):
            np.testing.assert_array_equal(np.load(tmp_path / f"{i}-{precision}-2.npy"), alone)


def test_unknown_isa_is_refused() -> None:
    done = run("sse9", "import embedkit; embedkit.active_isa()")
    assert "EMBEDKIT_ISA is 'sse9'; this machine has reference" in done.stderr
