"""all-MiniLM-L6-v2 itself: run with EMBEDKIT_TEST_MODEL=FOLDER pytest -m model."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embedkit import Encoder

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def int8_folder(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("int8") / "model"
    Encoder(real_model).save(folder, precision="int8")
    return folder


@pytest.mark.filterwarnings("ignore:.*longer than max_length")
def test_fp32_vectors(real_model: Path, texts: list[str]) -> None:
    transformer = pytest.importorskip("sentence_transformers").SentenceTransformer
    expected = transformer(str(real_model), device="cpu").encode(texts).astype(np.float64)
    result = Encoder(real_model).encode(texts).astype(np.float64)
    assert np.abs(result - expected).max() <= 2e-6
    assert (result * expected).sum(axis=1).min() >= 0.999999


def test_int8_vectors(real_model: Path, int8_folder: Path) -> None:
    questions = """How do I learn to play the piano? | What is the best way to cook rice without a pot?
        Why is the sky blue at noon and red in the evening? | Which phone should I buy under 300 dollars?
        Can a dog eat chocolate? | What happens to the money when a bank goes out of business?
        Is it safe to travel alone through South America? | How are vaccines tested before they are sold?
        Who invented the telephone? | What are some good books about the history of mathematics?
        How long does it take to become a pilot? | Why do cats purr when they are stroked?
        What does a software engineer do all day? | Should I rent or buy a house in a small city?
        How can I improve my handwriting? | When did the last mammoths die out, and why?"""
    texts = [text.strip() for line in questions.splitlines() for text in line.split("|")]
    exact = Encoder(real_model).encode(texts)
    assert (exact * Encoder(int8_folder).encode(texts)).sum(axis=1).mean() >= 0.998


def test_folder_is_small(int8_folder: Path) -> None:
    assert sum(path.stat().st_size for path in int8_folder.rglob("*") if path.is_file()) <= 24_000_000


def test_peak_memory_of_a_stream(int8_folder: Path) -> None:
    script = """
import sys
from embedkit import Encoder
encoder = Encoder(sys.argv[1])
texts = (f"question {i} of {i * 7919 % 1000}" for i in range(50_000))
assert sum(len(block) for block in encoder.encode_iter(texts)) == 50_000
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""  # ru_maxrss would count the process that forked this one
    command = [sys.executable, "-c", script, str(int8_folder)]
    if not Path("/proc/self/status").exists():
        pytest.skip("this system does not tell the peak memory of a process")
    kib = int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)
    assert kib * 1024 <= 200_000_000


def test_start_to_first_vector(int8_folder: Path) -> None:
    script = "import sys; from embedkit import Encoder; Encoder(sys.argv[1]).encode('a text')"

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", script, str(int8_folder)], check=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) <= 0.6
