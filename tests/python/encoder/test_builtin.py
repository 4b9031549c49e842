"""The model that the package carries: no network, no argument, right vectors."""

from __future__ import annotations

import numpy as np
import pytest

from embedkit import Encoder
from embedkit.folder import BUILTIN


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder()


def test_it_is_whole(encoder: Encoder) -> None:
    report = encoder.describe()
    assert report["model"] == BUILTIN.name and report["precision"] == "int8" and report["dimension"] == 384
    assert encoder.verify() == report["fingerprint"]
    assert {"LICENSE", "NOTICE", "README.md"} <= {path.name for path in BUILTIN.iterdir()}
    assert sum(path.stat().st_size for path in BUILTIN.rglob("*") if path.is_file()) <= 24_000_000


def test_it_understands(encoder: Encoder) -> None:
    queries = ["How can I cook rice?", "Is it going to rain?", "my computer does not start"]
    answers = [
        "Boil it in water for fifteen minutes.",
        "The forecast says showers.",
        "Check the power supply.",
    ]
    vectors = encoder.encode_query(queries)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    scores = encoder.similarity(vectors, encoder.encode_document(answers))
    assert scores.argmax(axis=1).tolist() == [0, 1, 2]
