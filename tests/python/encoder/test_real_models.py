"""Trained models themselves: run with EMBEDKIT_TEST_MODEL=FOLDER (and the others of ``MODELS``) pytest -m model."""

from __future__ import annotations

import csv
import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from embedkit import Encoder

pytestmark = pytest.mark.model

# The variable that names the folder, and the lowest accepted mean cosine of its int8 vectors to the fp32 ones.
MODELS = {
    "EMBEDKIT_TEST_MODEL": 0.998,  # all-MiniLM-L6-v2
    "EMBEDKIT_TEST_MPNET": 0.992,  # all-mpnet-base-v2: few wide columns; its STS average does not suffer
    "EMBEDKIT_TEST_E5": 0.998,  # multilingual-e5-small: BERT's layers, the tokenizer of XLM-R
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> tuple[Path, float]:
    folder = os.environ.get(request.param)
    if not folder:
        pytest.skip(f"{request.param} does not name a model folder")
    return Path(folder), MODELS[request.param]


@pytest.fixture(scope="module")
def int8_folder(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("int8") / "model"
    Encoder(real_model).save(folder, precision="int8")
    return folder


@pytest.mark.filterwarnings("ignore:.*longer than max_length")
def test_fp32_vectors(model: tuple[Path, float], texts: list[str]) -> None:
    transformer = pytest.importorskip("sentence_transformers").SentenceTransformer
    other = ["今天天气真好", "Über allen Gipfeln ist Ruh", "नमस्ते शांति", "ﬁ ① two  spaces\ttab"]
    reference = transformer(str(model[0]), device="cpu").float()
    expected = reference.encode([*texts, *other]).astype(np.float64)
    result = Encoder(model[0], precision="fp32").encode([*texts, *other]).astype(np.float64)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)  # e5's folder does not normalize
    result /= np.linalg.norm(result, axis=1, keepdims=True)
    assert np.abs(result - expected).max() <= 2e-6
    assert (result * expected).sum(axis=1).min() >= 0.999999


def test_int8_vectors(model: tuple[Path, float], tmp_path: Path) -> None:
    questions = """How do I learn to play the piano? | What is the best way to cook rice without a pot?
        Why is the sky blue at noon and red in the evening? | Which phone should I buy under 300 dollars?
        Can a dog eat chocolate? | What happens to the money when a bank goes out of business?
        Is it safe to travel alone through South America? | How are vaccines tested before they are sold?
        Who invented the telephone? | What are some good books about the history of mathematics?
        How long does it take to become a pilot? | Why do cats purr when they are stroked?
        What does a software engineer do all day? | Should I rent or buy a house in a small city?
        How can I improve my handwriting? | When did the last mammoths die out, and why?"""
    texts = [text.strip() for line in questions.splitlines() for text in line.split("|")]
    encoder = Encoder(model[0], precision="fp32")
    encoder.save(tmp_path / "int8", precision="int8")
    exact = encoder.encode(texts, normalize_embeddings=True)
    quantized = Encoder(tmp_path / "int8").encode(texts, normalize_embeddings=True)
    assert (exact * quantized).sum(axis=1).mean() >= model[1]


def test_folder_is_small(int8_folder: Path) -> None:
    assert sum(path.stat().st_size for path in int8_folder.rglob("*") if path.is_file()) <= 24_000_000


def test_sts(real_model: Path, int8_folder: Path, shared_data: Path) -> None:
    """Spearman's correlation on the test pairs of STS-B, in points."""
    stats = pytest.importorskip("scipy.stats")
    with gzip.open(shared_data / "sts_en" / "sts_en.tsv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    pairs = [row for row in rows if row["task"] == "STSB" and row["split"] == "test"]
    assert len(pairs) == 1379
    gold = [float(pair["score"]) for pair in pairs]
    points = {}
    for precision, folder in (("fp32", real_model), ("int8", int8_folder)):
        encoder = Encoder(folder)
        a, b = (encoder.encode([pair[side] for pair in pairs]) for side in ("sentence1", "sentence2"))
        points[precision] = 100 * stats.spearmanr(encoder.similarity_pairwise(a, b), gold).statistic
    assert abs(points["int8"] - points["fp32"]) <= 0.15, points
    assert points["fp32"] >= 82, points
