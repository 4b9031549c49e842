"""The projection that keeps cosines, and the post-processing step that fits it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("faiss")
pytest.importorskip("sklearn")

from embedkit.training import linear_map
from embedkit.training.model import ModelOptions, Projection, SentenceModel
from embedkit.training.postprocess import refit
from embedkit.training.postprocess.refit import Refit

from embedkit import Encoder

MakeModel = Callable[..., Path]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refit, "_STEPS", 200)


def unit(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def error_near(vectors: np.ndarray, weight: np.ndarray, neighbours: int = 15) -> float:
    """The squared error of the cosines of each vector and its neighbors."""
    before, after = unit(vectors), unit(vectors @ weight)
    cosines = before @ before.T
    rows = np.arange(len(vectors))[:, None]
    near = np.argsort(-cosines, axis=1)[:, 1 : neighbours + 1]
    return float(np.square((after @ after.T)[rows, near] - cosines[rows, near]).mean())


def test_cosines_of_neighbours_are_kept_better_than_by_components(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters whose centers account for most of the variance, as in sentence vectors; on unseen vectors."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(60, 48)) * np.linspace(3, 0.5, 48)
    vectors = (centres[random.integers(60, size=1500)] + random.normal(size=(1500, 48))).astype(np.float32)
    seen, held_out = vectors[:1000], vectors[1000:]
    learned = refit.fit_similarities(seen, 12, [6])
    components = linear_map.fit(unit(seen), 12, center=False)
    for width in (6, 12):
        ours = error_near(held_out, learned.weight[:, :width])
        assert ours < 0.95 * error_near(held_out, components.weight[:, :width]), width
    assert not learned.bias.any()
    monkeypatch.setattr(refit, "_STEPS", 3)
    again = [refit.fit_similarities(seen, 12, [6]).weight for _ in range(2)]
    np.testing.assert_array_equal(*again)


def test_small_samples_and_wrong_dimensions_are_refused() -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    with pytest.raises(ValueError, match="16 sentences are too few"):
        refit.fit_similarities(vectors[:16], 4)
    with pytest.raises(ValueError, match=r"matryoshka \[5\] must be from 1 to 4"):
        refit.fit_similarities(vectors, 4, [5])
    with pytest.raises(ValueError, match="from 1 to 8"):
        refit.fit_similarities(vectors, 9)


def test_the_projection_is_fitted_on_pooled_vectors(
    make_model: MakeModel, texts: list[str], tmp_path: Path
) -> None:
    texts = list(dict.fromkeys(texts))
    model = ModelOptions(str(make_model()), projection=Projection(8), normalize=True, max_length=32)
    encoder: Any = Refit(matryoshka=[4]).apply(model, texts)
    bare = SentenceModel.load(ModelOptions(model.path, max_length=32)).encode(texts)
    (tmp_path / "model").mkdir()
    encoder.save(tmp_path / "model")
    got = Encoder(tmp_path / "model").encode(texts)
    weight = encoder.projection.weight.detach().numpy().T
    np.testing.assert_allclose(got, unit(bare @ weight), atol=1e-5)
    start = linear_map.fit(unit(bare), 8, center=False).weight
    assert error_near(bare, weight) < 0.9 * error_near(bare, start)


def test_bad_options(make_model: MakeModel, texts: list[str]) -> None:
    path = str(make_model())
    with pytest.raises(ValueError, match=r"set model\.projection"):
        Refit().apply(ModelOptions(path), texts)
    model = ModelOptions(path, projection=Projection(8), max_length=32)
    with pytest.raises(ValueError, match=r"postprocess\.matryoshka .* less than the 8"):
        Refit(matryoshka=[8]).apply(model, texts)
    with pytest.raises(ValueError, match="too few"):
        Refit().apply(model, texts[:5])
