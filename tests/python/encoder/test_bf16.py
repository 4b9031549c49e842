"""precision="bf16" on a CPU: near fp32, the same bits in every batch, and no folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embedkit import Encoder

Make = Callable[..., Path]
TEXTS = ["", "the", *(" ".join(["people made water over time"] * n) for n in (1, 2, 3, 7, 9))] * 3


def test_near_fp32_and_independent_of_the_batch(make_model: Make, tmp_path: Path) -> None:
    folder = make_model()
    reference = Encoder(folder).encode(TEXTS, normalize_embeddings=True)
    encoder = Encoder(folder, precision="bf16", threads=2)
    vectors = encoder.encode(TEXTS, normalize_embeddings=True)
    assert np.einsum("nd,nd->n", vectors, reference).min() > 0.9999
    assert not np.array_equal(vectors, reference)
    for index, text in enumerate(TEXTS):
        np.testing.assert_array_equal(encoder.encode(text, normalize_embeddings=True), vectors[index])
    assert encoder.describe()["precision"] == "bf16"
    encoder.save(tmp_path / "saved")
    assert Encoder(tmp_path / "saved").describe()["precision"] == "fp32"
    with pytest.raises(ValueError, match="folders hold fp32 or int8"):
        encoder.save(tmp_path / "other", precision="bf16")


def test_int8_weights_are_refused() -> None:
    with pytest.raises(ValueError, match=r"precision='bf16': .* holds int8 weights"):
        Encoder(precision="bf16")
