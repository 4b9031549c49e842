"""PCA and whitening against their formulas, and the model folders that contain them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("torch")

from embedkit.training import StaticOptions, distill_static
from embedkit.training.linear_map import fit, whiten_partly
from embedkit.training.postprocess import MapStep, fit_map

from embedkit import Encoder
from embedkit.model_folder.saving import compose_dense

MakeModel = Callable[..., Path]


@pytest.fixture
def sample() -> np.ndarray:
    """(500, 8), correlated and off center."""
    random = np.random.default_rng(0)
    return (random.normal(size=(500, 8)) @ random.normal(size=(8, 8)) + random.normal(size=8)).astype(
        np.float32
    )


def components(sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvectors (columns) and values of the covariance, descending."""
    values, vectors = np.linalg.eigh(np.cov(sample.astype(np.float64), rowvar=False))
    return vectors[:, ::-1], values[::-1]


def test_partial_whitening_is_between_a_rotation_and_whitening(sample: np.ndarray) -> None:
    _, variances = components(sample)
    for power in (0.0, 0.5, 1.0):
        turned = sample @ whiten_partly(sample, power)
        wanted = np.diag(variances ** (1 - power))
        np.testing.assert_allclose(np.cov(turned, rowvar=False), wanted, rtol=5e-3, atol=5e-3 * wanted[0, 0])
    spread = np.concatenate([sample, np.zeros_like(sample[:, :2])], axis=1)  # of rank 8 in 10 columns
    turned = spread @ whiten_partly(spread, 1.0)
    assert np.isfinite(turned).all()
    np.testing.assert_allclose(turned.var(0), [1.0] * 8 + [0.0] * 2, atol=5e-3)


@pytest.mark.parametrize("center", [True, False])
def test_pca_is_the_projection_on_the_eigenvectors(sample: np.ndarray, center: bool) -> None:
    vectors, _ = components(sample)
    fitted = fit(sample, 3, center=center)
    want = (sample - sample.mean(0) * center) @ vectors[:, :3]
    got = fitted(sample)
    signs = np.sign((got * want).sum(0))  # an eigenvector has no direction
    np.testing.assert_allclose(got, want * signs, atol=2e-4)


@pytest.mark.parametrize("method", ["pca", "whitening"])
def test_of_few_samples_no_variance_is_lost(method: str) -> None:
    """Scikit-learn's default solver is a random one here; the sample is far from the origin."""
    random = np.random.default_rng(0)
    turned = np.linalg.qr(random.normal(size=(600, 600)))[0]
    sample = (random.normal(size=(900, 600)) * np.arange(1, 601) ** -0.5 @ turned + 3).astype(np.float32)
    vectors, values = components(sample)
    want = (
        (sample - sample.mean(0)) @ vectors[:, :200] / (np.sqrt(values[:200]) if method == "whitening" else 1)
    )
    np.testing.assert_allclose(fit(sample, 200, method)(sample).var(0), want.var(0), rtol=1e-3)


def test_whitened_vectors_have_unit_covariance(sample: np.ndarray) -> None:
    vectors, values = components(sample)
    fitted = fit(sample, 5, "whitening")
    want = (sample - sample.mean(0)) @ (vectors / np.sqrt(values))[:, :5]
    got = fitted(sample)
    np.testing.assert_allclose(got, want * np.sign((got * want).sum(0)), atol=2e-3)
    np.testing.assert_allclose(np.cov(got, rowvar=False), np.eye(5), atol=1e-3)
    np.testing.assert_allclose(sample @ fitted.weight + fitted.bias, got, atol=1e-4)


def test_bad_arguments(sample: np.ndarray) -> None:
    with pytest.raises(ValueError, match="from 1 to 8"):
        fit(sample, 9)
    with pytest.raises(ValueError, match="give more"):
        fit(sample[:4], 4)
    with pytest.raises(ValueError, match="expected one of pca, whitening"):
        fit(sample, 2, "ica")
    flat = np.repeat(sample[:, :2], 4, axis=1)
    with pytest.raises(ValueError, match="at most 2"):
        fit(flat, 5, "whitening")


@pytest.mark.parametrize("method", ["pca", "whitening"])
def test_folder_holds_the_map(
    make_model: MakeModel,
    reference: Callable[[Path], Any],
    texts: list[str],
    tmp_path: Path,
    method: Literal["whitening", "pca"],
) -> None:
    """Also after a Dense as HPD writes it; sentence-transformers computes the same vectors."""
    source = make_model(dense=[(16, "Tanh", True)])
    fitted = fit_map(str(source), texts, tmp_path / "model", MapStep(6, method))
    encoder = Encoder(tmp_path / "model")
    before = reference(source).encode(texts).astype(np.float64)
    want = before @ fitted.weight + fitted.bias
    np.testing.assert_allclose(encoder.encode(texts), want, atol=2e-4)
    np.testing.assert_allclose(reference(tmp_path / "model").encode(texts), want, atol=2e-4)
    assert encoder.get_embedding_dimension() == 6
    assert encoder.fingerprint != Encoder(source).fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_map_keeps_the_similarity(make_model: MakeModel, texts: list[str], tmp_path: Path) -> None:
    fit_map(str(make_model(similarity_fn_name="dot")), texts, tmp_path / "model", MapStep(4))
    assert Encoder(tmp_path / "model").similarity_fn_name == "dot"


def test_a_plain_transformers_folder(make_model: MakeModel, texts: list[str], tmp_path: Path) -> None:
    source = make_model().parent / "raw"
    fit_map(str(source), texts, tmp_path / "model", MapStep(4))
    assert Encoder(tmp_path / "model").encode(texts[:3]).shape == (3, 4)


def test_the_map_of_a_model_that_truncates_takes_all_dimensions(
    make_model: MakeModel, texts: list[str], tmp_path: Path
) -> None:
    plain = make_model()
    Encoder(plain, truncate_dim=8).save(tmp_path / "short")
    for name, source in (("plain", plain), ("mapped", tmp_path / "short")):
        fit_map(str(source), texts, tmp_path / name, MapStep(12))
    expected, found = Encoder(tmp_path / "plain"), Encoder(tmp_path / "mapped")
    assert found.get_embedding_dimension() == 12
    assert np.array_equal(found.encode(texts), expected.encode(texts))


def test_refusals_leave_nothing_behind(
    make_model: MakeModel, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "model"
    monkeypatch.setattr(Encoder, "encode", None)  # which takes longest
    with pytest.raises(ValueError, match="from 1 to 32"):
        fit_map(str(make_model()), texts, output, MapStep(33))
    with pytest.raises(ValueError, match="5 sentences are too few for 12"):
        fit_map(str(make_model()), texts[:5], output, MapStep(12))
    assert not list(tmp_path.iterdir())
    output.mkdir()
    (output / "mine").write_text("")
    with pytest.raises(FileExistsError, match="not empty"):
        fit_map(str(make_model()), texts, output, MapStep(4))


def test_a_folder_without_a_projection_is_not_composed(make_model: MakeModel) -> None:
    folder = make_model()
    with pytest.raises(ValueError, match="has no Dense layer without an activation after its pooling"):
        compose_dense(folder, np.eye(Encoder(folder).get_embedding_dimension(), dtype=np.float32))


def test_what_takes_no_map_is_refused_before_texts_are_encoded(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model with a Router the default route alone was written."""
    modules = pytest.importorskip("sentence_transformers.models")
    st = pytest.importorskip("sentence_transformers")
    monkeypatch.setattr(Encoder, "encode", None)
    query, document = (
        list(st.SentenceTransformer(str(make_model(pooling=mode)), device="cpu")) for mode in ("mean", "cls")
    )
    router = modules.Router({"query": query, "document": document}, default_route="document")
    st.SentenceTransformer(modules=[router], device="cpu").save(str(tmp_path / "router"))
    with Encoder(make_model()) as encoder:
        encoder.save(tmp_path / "small", "int8")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="router is a model with a Router; give a model with one route"):
        fit_map(str(tmp_path / "router"), [], tmp_path / "out", MapStep(4))
    remedy = "embedkit-model convert .*small small-fp32 --precision fp32"
    with pytest.raises(
        ValueError, match=f"small holds int8 weights; fit the map on the fp32 model .*{remedy}"
    ):
        fit_map(str(tmp_path / "small"), [], tmp_path / "out", MapStep(4))
    with pytest.raises(ValueError, match="is a model with a Router"):
        compose_dense(tmp_path / "router", np.eye(32, dtype=np.float32))
    with pytest.raises(ValueError, match="is a model with a Router"):
        distill_static(tmp_path / "router", tmp_path / "out", StaticOptions(4))
    assert sorted(tmp_path.rglob("*")) == before
