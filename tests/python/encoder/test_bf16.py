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
    assert np.einsum("nd,nd->n", vectors, reference).mean() > 0.9999
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


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_folders_saved_in_16_bits(make_model: Make, tmp_path: Path, dtype: str) -> None:
    transformer = pytest.importorskip("sentence_transformers").SentenceTransformer
    import torch

    saved = tmp_path / dtype
    transformer(str(make_model()), device="cpu").to(getattr(torch, dtype)).save(str(saved))
    expected = transformer(str(saved), device="cpu", model_kwargs={"dtype": torch.float32}).encode(
        TEXTS, normalize_embeddings=True
    )
    for precision, runs, tolerance in (
        ("auto", "fp32", 2e-6),
        ("fp32", "fp32", 2e-6),
        ("bf16", "bf16", 2e-2),
    ):
        encoder = Encoder(saved, precision=precision)
        assert encoder.describe()["precision"] == runs
        vectors = encoder.encode(TEXTS, normalize_embeddings=True)
        np.testing.assert_allclose(vectors, expected, atol=tolerance)
        assert np.einsum("nd,nd->n", vectors, expected).mean() > 0.9999
