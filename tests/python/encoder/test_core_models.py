"""Models made of arrays, with what no published folder has: the core computes them right, or refuses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from embedkit import _core

HIDDEN, VOCABULARY = 8, 12
LAYER = "encoder.layer.0."
CONFIG: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
}

Tensors = dict[str, npt.NDArray[np.float32]]


def random_tensors() -> Tensors:
    random = np.random.default_rng(0)

    def normal(*shape: int) -> npt.NDArray[np.float32]:
        return random.normal(size=shape).astype(np.float32)

    tensors = {
        "embeddings.word_embeddings.weight": normal(VOCABULARY, HIDDEN),
        "embeddings.position_embeddings.weight": normal(64, HIDDEN),
    }
    for name in ("embeddings.", f"{LAYER}attention.output.", f"{LAYER}output."):
        tensors[f"{name}LayerNorm.weight"] = 1 + 0.1 * normal(HIDDEN)
        tensors[f"{name}LayerNorm.bias"] = 0.1 * normal(HIDDEN)
    linear = [f"attention.self.{name}" for name in ("query", "key", "value")]
    for name in (*linear, "attention.output.dense", "intermediate.dense", "output.dense"):
        tensors[f"{LAYER}{name}.weight"] = normal(8, 8)
        tensors[f"{LAYER}{name}.bias"] = normal(8)
    return tensors


def vector(config: dict[str, Any], tensors: Tensors, head: list[_core.HeadModule]) -> npt.NDArray[np.float32]:
    encoder = _core.Encoder(_core.EncoderConfig(**config), tensors, ["mean"], head, "fp32")
    options = _core.EncodeOptions(threads=1, prefix_ids=[], suffix_ids=[], max_length=32)
    row: npt.NDArray[np.float32] = encoder.encode_ids([[1, 2, 3, 4, 5, 6]], options)[0][0]
    return row


@pytest.mark.parametrize("activation", ["identity", "relu", "tanh", "sigmoid"])
def test_nan_stays_nan_in_every_activation(activation: str) -> None:
    tensors = random_tensors()
    tensors[f"{LAYER}intermediate.dense.bias"] += 50
    overflowing = np.tile(np.float32([3e38, -3e38]), (HIDDEN, HIDDEN // 2))
    tensors[f"{LAYER}output.dense.weight"] = np.ascontiguousarray(overflowing)
    dense = _core.HeadModule(
        type="dense", weight=np.eye(4, HIDDEN, dtype=np.float32), bias=None, activation=activation
    )
    assert np.isnan(vector(CONFIG, tensors, [dense])).all()


def test_the_bias_of_a_norm_of_heads_turns_with_its_features() -> None:
    tensors = random_tensors()
    del tensors["embeddings.position_embeddings.weight"]
    # With a base of 1 all pairs of features turn alike, so that exchanging two pairs changes nothing.
    config = {**CONFIG, "rotary_base": 1.0, "position_table": False, "query_key_norm": True}
    exchanged = np.array([1, 0, 3, 2, 5, 4, 7, 6])
    random = np.random.default_rng(1)
    other = dict(tensors)
    for name in ("query", "key"):
        for part in ("weight", "bias"):
            key = f"{LAYER}attention.self.{name}.{part}"
            other[key] = np.ascontiguousarray(tensors[key][exchanged])
            key = f"{LAYER}attention.self.{name}_norm.{part}"
            tensors[key] = random.normal(1, 1, HIDDEN).astype(np.float32)
            other[key] = np.ascontiguousarray(tensors[key][exchanged])
    np.testing.assert_allclose(vector(config, other, []), vector(config, tensors, []), atol=1e-6)


def test_a_model_needs_layers_or_a_table_of_token_vectors() -> None:
    with pytest.raises(ValueError, match="static_rows is 0 of a model of 0 layers"):
        _core.EncoderConfig(**{**CONFIG, "num_hidden_layers": 0})
    with pytest.raises(ValueError, match="static_rows is 5 of a model of 1 layers"):
        _core.EncoderConfig(**CONFIG, static_rows=5)
