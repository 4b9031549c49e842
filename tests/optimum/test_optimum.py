"""Folders that Optimum and sentence-transformers export run here with the same vectors, and ours run there.

Run by ``run.sh``, in an environment with optimum-onnx and nothing beyond its requirements.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optimum.exporters.onnx import main_export
from sentence_transformers import SentenceTransformer
from sentence_transformers.backend import (
    export_dynamic_quantized_onnx_model,
    export_optimized_onnx_model,
)

from embedkit import Encoder
from embedkit.export.onnx import export_onnx

SHAPE: dict[str, Any] = {"dense": ((24, "Tanh", True),), "normalize": True, "intermediate": 96}


@pytest.fixture(scope="module")
def source(make_model: Callable[..., Path]) -> Path:
    return make_model(**SHAPE)


@pytest.fixture(scope="module")
def theirs(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What sentence-transformers writes, with optimized and quantized graphs beside the first."""
    folder = tmp_path_factory.mktemp("theirs") / "model"
    model = SentenceTransformer(str(source), backend="onnx", device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    export_optimized_onnx_model(model, "O3", str(folder))
    export_dynamic_quantized_onnx_model(model, "avx512_vnni", str(folder))
    return folder


def test_sentence_transformers_folder(
    source: Path, theirs: Path, reference: Callable[[Path], Any], texts: list[str]
) -> None:
    assert not (theirs / "model.safetensors").exists()
    encoder = Encoder(theirs, backend="onnx")
    expected = SentenceTransformer(str(theirs), backend="onnx", device="cpu").encode(texts)
    assert np.abs(encoder.encode(texts) - expected).max() <= 2e-6
    assert np.abs(encoder.encode(texts) - reference(source).encode(texts)).max() <= 2e-6


@pytest.mark.parametrize(
    ("name", "precision"), [("model_O3.onnx", "fp32"), ("model_qint8_avx512_vnni.onnx", "int8")]
)
def test_variants(theirs: Path, name: str, precision: str, texts: list[str]) -> None:
    encoder = Encoder(theirs, backend="onnx", onnx_file=name)
    assert encoder.describe()["precision"] == precision
    options = {"backend": "onnx", "model_kwargs": {"file_name": f"onnx/{name}"}, "device": "cpu"}
    model = SentenceTransformer(str(theirs), **options)
    # One text at a time: ONNX Runtime quantizes a batch with one scale.
    some = texts[:40]
    expected = np.stack([model.encode(text) for text in some])
    vectors = np.stack([encoder.encode(text) for text in some])
    assert (vectors * expected).sum(axis=1).min() >= 0.99999


def test_optimum_folder(source: Path, tmp_path: Path, texts: list[str]) -> None:
    main_export(str(source), str(tmp_path / "out"), task="feature-extraction", library_name="transformers")
    vectors = Encoder(tmp_path / "out", backend="onnx").encode(texts)
    expected = SentenceTransformer(str(tmp_path / "out"), backend="onnx", device="cpu").encode(texts)
    assert np.abs(vectors - expected).max() <= 5e-6


def test_optimum_folder_with_everything_in_the_graph(
    source: Path, reference: Callable[[Path], Any], tmp_path: Path, texts: list[str]
) -> None:
    main_export(
        str(source), str(tmp_path / "out"), task="sentence-similarity", library_name="sentence_transformers"
    )
    assert not (tmp_path / "out" / "modules.json").exists()
    encoder = Encoder(tmp_path / "out", backend="onnx", max_length=64)
    assert encoder.get_embedding_dimension() == encoder.describe()["dimension"] == 24
    assert np.abs(encoder.encode(texts) - reference(source).encode(texts)).max() <= 2e-6
    shutil.copyfile(source / "modules.json", tmp_path / "out" / "modules.json")
    with pytest.raises(FileNotFoundError, match="1_Pooling"):
        Encoder(tmp_path / "out", backend="onnx")


def test_our_folder_there(
    source: Path, reference: Callable[[Path], Any], tmp_path: Path, texts: list[str]
) -> None:
    assert export_onnx(source, tmp_path / "out").least >= 0.999999
    expected = reference(source).encode(texts)
    assert np.abs(Encoder(tmp_path / "out", backend="onnx").encode(texts) - expected).max() <= 2e-6
    model = SentenceTransformer(str(tmp_path / "out"), backend="onnx", device="cpu")
    assert np.abs(model.encode(texts) - expected).max() <= 2e-6
