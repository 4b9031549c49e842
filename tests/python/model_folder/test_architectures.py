"""Folders of the families of BERT's time: saving, positions, and the names of tensors; on tiny random models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changed_folder import changed
from tiny_families import tiny

from embedkit import Encoder

KINDS = ["mpnet", "roformer", "roformer-projected", "roformer-odd", "roberta", "xlm-roberta", "distilbert"]
TEXTS = ["", "the weather is lovely today", "people <pad> stay <pad> out", "and now a b c " * 20]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: tiny(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_saved_folders_in_sentence_transformers(
    kind: str, folders: dict[str, Path], reference: Callable[[Path], Any], tmp_path: Path
) -> None:
    Encoder(folders[kind]).save(tmp_path / "fp32")
    expected = reference(folders[kind]).encode(TEXTS)
    np.testing.assert_array_equal(reference(tmp_path / "fp32").encode(TEXTS), expected)


def test_checkpoints_with_the_prefix_of_a_task_head(folders: dict[str, Path], tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.numpy").load_file
    save_file = pytest.importorskip("safetensors.numpy").save_file
    for kind in ("mpnet", "roformer", "distilbert"):
        folder = Path(shutil.copytree(folders[kind], tmp_path / kind))
        weights = load_file(folder / "model.safetensors")
        named = {f"{kind}.{name}": tensor for name, tensor in weights.items()}
        save_file(named, folder / "model.safetensors")
        np.testing.assert_array_equal(Encoder(folder).encode(TEXTS), Encoder(folders[kind]).encode(TEXTS))


@pytest.mark.parametrize("kind", ["mpnet", "roberta", "xlm-roberta"])
def test_positions_before_the_first_are_not_for_texts(kind: str, folders: dict[str, Path]) -> None:
    encoder = Encoder(folders[kind])
    assert encoder.max_seq_length == 800
    with pytest.raises(ValueError, match="800"):
        encoder.max_seq_length = 801


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (2, "padding_idx is 1 and leaves none of 2 positions"),
        (3, "max_position_embeddings in config.json is 3, 2 of them unused by texts"),
    ],
)
def test_too_few_positions(positions: int, message: str, folders: dict[str, Path], tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.numpy").load_file
    save_file = pytest.importorskip("safetensors.numpy").save_file
    folder = Path(shutil.copytree(folders["mpnet"], tmp_path / "copy"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": positions}))
    weights = load_file(folder / "model.safetensors")
    name = "embeddings.position_embeddings.weight"
    save_file({**weights, name: weights[name][:positions].copy()}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        Encoder(folder)


def test_the_tokenizer_that_cuts_chinese_words_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders["roformer"], tmp_path / "copy"))
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    named = {**settings, "tokenizer_class": "RoFormerTokenizer"}
    unnamed = {name: value for name, value in settings.items() if name != "tokenizer_class"}
    for written in (named, unnamed):  # the class of this type of models
        path.write_text(json.dumps(written))
        with pytest.raises(ValueError, match="RoFormerTokenizer segments Chinese words with jieba"):
            Encoder(folder)


def test_the_epsilon_of_distilbert_is_fixed(
    folders: dict[str, Path], reference: Callable[[Path], Any], tmp_path: Path
) -> None:
    """transformers does not read the key; a contradiction of two other keys is refused."""
    folder = changed(folders["distilbert"], tmp_path, {"layer_norm_eps": 0.1, "num_hidden_layers": 2})
    wanted = reference(folder).encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(Encoder(folder).encode(TEXTS, normalize_embeddings=True), wanted, atol=2e-6)


def test_a_missing_tensor_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.numpy").load_file
    save_file = pytest.importorskip("safetensors.numpy").save_file
    for kind, name in (
        ("mpnet", "encoder.relative_attention_bias.weight"),
        ("roformer-projected", "embeddings_project.bias"),
        ("distilbert", "transformer.layer.1.ffn.lin1.weight"),
    ):
        folder = Path(shutil.copytree(folders[kind], tmp_path / kind))
        weights = load_file(folder / "model.safetensors")
        del weights[name]
        save_file(weights, folder / "model.safetensors")
        with pytest.raises(ValueError, match=f"tensor '{name}' is missing"):
            Encoder(folder)
