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
    for precision in ("fp32", "bf16", "int8"):
        for threads in (1, 2):
            encoder = Encoder(folder, precision=precision, threads=threads)
            vectors = encoder.encode(texts, normalize_embeddings=True)
            np.save(f"{out}/{i}-{precision}-{threads}.npy", vectors)
            np.testing.assert_array_equal(encoder.encode(texts[3:4], normalize_embeddings=True), vectors[3:4])
            assert encoder.describe()["products"] in json.loads(sys.argv[3])[precision], encoder.describe()
"""
#: Instruction set -> the instructions that may multiply, by precision; bf16 has its own on some machines only.
PRODUCTS = {
    "reference": {"fp32": ["scalar"], "bf16": ["widened"], "int8": ["scalar"]},
    "amx_emulated": {"fp32": ["fma"], "bf16": ["tdpbf16ps, emulated"], "int8": ["tdpbusd, emulated"]},
    "avx2": {"fp32": ["fma"], "bf16": ["widened"], "int8": ["vpmaddwd", "vpmaddubsw"]},
    "avx2_vnni": {"fp32": ["fma"], "bf16": ["widened"], "int8": ["vpdpbusd"]},
    "avx512_vnni": {"fp32": ["fma"], "bf16": ["vdpbf16ps", "widened"], "int8": ["vpdpbusd"]},
    "amx": {"fp32": ["fma"], "bf16": ["tdpbf16ps"], "int8": ["tdpbusd"]},
    "neon": {"fp32": ["fma"], "bf16": ["widened"], "int8": ["sdot"]},
}


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
    done = run(isa, SCRIPT, json.dumps([folders, TEXTS, str(tmp_path)]), isa, json.dumps(PRODUCTS[isa]))
    assert done.returncode == 0, done.stderr
    for i, (_, reference) in enumerate(expected):
        fp32 = np.load(tmp_path / f"{i}-fp32-1.npy")
        assert np.abs(fp32 - reference).max() <= 2e-6, SHAPES[i]
        assert (fp32.astype(np.float64) * reference).sum(axis=1).min() >= 0.999999, SHAPES[i]
        int8 = np.load(tmp_path / f"{i}-int8-1.npy")
        # Random weights are harder on eight bits than trained ones (test_real_models.py holds those).
        assert (int8 * reference).sum(axis=1).mean() >= 0.99, SHAPES[i]
        bf16 = np.load(tmp_path / f"{i}-bf16-1.npy")
        assert (bf16 * reference).sum(axis=1).min() >= 0.9999, SHAPES[i]
        for precision, alone in (("fp32", fp32), ("bf16", bf16), ("int8", int8)):
            np.testing.assert_array_equal(np.load(tmp_path / f"{i}-{precision}-2.npy"), alone)


def test_unknown_isa_is_refused() -> None:
    done = run("sse9", "import embedkit; embedkit.active_isa()")
    assert "EMBEDKIT_ISA is 'sse9'; this machine has reference" in done.stderr


def test_amx_is_refused_where_it_is_not_available_and_its_emulation_is_never_the_default() -> None:
    isas = _core.available_isas()
    assert isas[-1] != "amx_emulated" and ("amx_emulated" in isas) == ("avx2" in isas)
    done = run("amx", "import embedkit; print(embedkit.active_isa())")
    if "amx" in isas:
        assert done.stdout.strip() == "amx" and isas[-1] == "amx"
    else:
        assert "EMBEDKIT_ISA is 'amx'; this machine has reference" in done.stderr
